"""The places of --glossary-report, counted by hand in the texts, and by trying every assignment
of places to terms."""

import itertools
import json
import re
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from required_phrases import required_phrases

from fairseq_ext.plugin.results import GlossaryReport
from fairseq_ext.search.constraints.report import as_listed, places_of
from fairseq_ext.search.phrases.places import Text
from fairseq_ext.search.phrases.sentence import Cased, SentenceConstraints, SourceTerm, met
from fairseq_ext.search.report import (
    ConstraintReport,
    Outcome,
    Report,
    Translation,
    as_json,
    constraint_json,
    from_json,
)


def required(
    targets: str, *words: int, case: str = "exact", term: str = "T", line: int = 1
) -> SourceTerm:
    """A term of these targets (a|b), found at these words of the source."""
    return SourceTerm(
        targets,
        cased=Cased(case),
        source=term,
        entry=tuple(targets.split("|")),
        line=line,
        words=tuple((word, word + 1) for word in words),
    )


def forms_used(translation, terms, segmented=False, whole=True):
    """The form and the place of each term, as the report has them."""
    places = places_of(Text(translation, segmented, whole), terms, Outcome(), str)
    return [
        (None, None) if at is None else (as_listed(translation[slice(*at)], each), at)
        for at, each in zip(places, terms, strict=True)
    ]


@pytest.mark.parametrize(
    ("translation", "terms", "expected"),
    [
        # 0123456789
        ("a dog ran", ["dog"], [("dog", 2, 5)]),
        ("a hotdog, a dog.", ["dog"], [("dog", 12, 15)]),  # not inside a word
        # a place serves one of equal terms
        ("dog dog", ["dog", "dog"], [("dog", 0, 3), ("dog", 4, 7)]),
        ("one dog", ["dog", "dog"], [("dog", 4, 7), None]),
        # different ones share words
        ("New York", ["New York", "York"], [("New York", 0, 8), ("York", 4, 8)]),
        ("York New York", ["New York", "York"], [("New York", 5, 13), ("York", 0, 4)]),
        ("New York", ["York", "New York"], [("York", 4, 8), ("New York", 0, 8)]),
        # the first one makes room
        ("a puppy, a dog", ["puppy|dog", "puppy"], [("dog", 11, 14), ("puppy", 2, 7)]),
        (
            "cub puppy dog",
            ["puppy|dog", "cub|puppy", "cub"],
            [("dog", 10, 13), ("puppy", 4, 9), ("cub", 0, 3)],
        ),
        ("a bitch", ["dog"], [None]),
        # found in NFKC, given as written
        ("fine dogs", ["ﬁne", "dogs"], [("ﬁne", 0, 4), ("dogs", 5, 9)]),
    ],
)
def test_a_form_and_its_place(translation, terms, expected):
    found = forms_used(translation, [required(each) for each in terms], segmented=False)
    assert found == [(None, None) if each is None else (each[0], each[1:]) for each in expected]


@pytest.mark.parametrize(
    ("translation", "case", "at"),
    [
        ("Dog", "exact", None),
        ("Dog", "initial", (0, 3)),
        ("a Dog", "initial", None),
        ("a Dog", "any", (2, 5)),
        ("Dog dog", "any", (4, 7)),
    ],
)
@pytest.mark.parametrize("segmented", [False, True])
def test_a_form_in_another_case(translation, case, at, segmented):
    assert forms_used(translation, [required("dog", case=case)], segmented) == [
        ("dog" if at else None, at)
    ]


def test_what_counts_inside_words():
    """whole: a word; False: from its start on; None: anywhere, the starts of words first."""
    two = [required("dog"), required("dog")]
    assert forms_used("hotdog dogs dog", two, False, True) == [("dog", (12, 15)), (None, None)]
    assert forms_used("hotdog dogs dog", two, False, False) == [("dog", (7, 10)), ("dog", (12, 15))]
    assert forms_used("hotdog dogs", two, False, None) == [("dog", (7, 10)), ("dog", (3, 6))]
    assert forms_used("hot@@ dog dog@@ s", two, True) == [("dog", (6, 9)), (None, None)]


@given(
    st.lists(st.sampled_from("abc"), max_size=5),
    st.lists(st.sets(st.sampled_from("abc"), min_size=1), max_size=4),
)
def test_the_report_counts_as_the_statistics_and_shares_words_only_where_it_must(words, terms):
    """A term counts as met by containment, equal ones by disjoint words (sentence.py, `met`); as
    many as can have a word of their own."""
    translation = " ".join(words)
    found = forms_used(
        translation, [required("|".join(sorted(each))) for each in terms], segmented=False
    )
    constraints = SentenceConstraints(
        required_phrases(
            tuple(tuple((ord(form),) for form in sorted(each)) for each in terms),
            ("",) * len(terms),
        )
    )
    assert sum(at is not None for _, at in found) == sum(
        met([ord(word) for word in words], constraints, False)
    )
    most = max(
        sum(place is not None for place in places)
        for places in itertools.product([None, *range(len(words))], repeat=len(terms))
        if all(
            place is None or words[place] in each for place, each in zip(places, terms, strict=True)
        )
        and all(places.count(place) == 1 for place in places if place is not None)
    )
    assert len({at for _, at in found if at is not None}) == most
    for (form, at), each in zip(found, terms, strict=True):
        assert at is None or (form in each and translation[slice(*at)] == form)
        assert (
            at is None
            or [other for other, place in zip(terms, found, strict=True) if place[1] == at].count(
                each
            )
            == 1
        )


def test_a_line_of_the_report(tmp_path):
    report = GlossaryReport(str(tmp_path / "r"))
    source, translation = "Der Hund die Katze fiel Hund", "The hound and the cat"
    hund = required("dog|hound", 1, 5, term="Hund", line=3)
    katze = required("cat", 3, term="Katze", line=7)
    of_hund = ConstraintReport(
        phrase="dog|hound", met=True, spans=((4, 9),), source_spans=((4, 8), (24, 28))
    )
    of_katze = ConstraintReport(phrase="cat", met=True, spans=((18, 21),), source_spans=((13, 18),))
    # in the order of the source
    report.add(4, source, translation, [(katze, of_katze), (hund, of_hund)])
    assert report.end() == 0
    line = json.loads((tmp_path / "r").read_text(encoding="utf-8"))
    assert (line["id"], line["source"], line["translation"]) == (4, source, translation)
    hund, katze = line["terms"]
    assert hund == {
        "term": "Hund",
        "line": 3,
        "targets": ["dog", "hound"],
        "forms": 2,
        "source_at": [[4, 8], [24, 28]],
        "form": "hound",
        "at": [4, 9],
    }
    assert hund["source_at"] == [list(found.span()) for found in re.finditer("Hund", source)]
    assert katze == {
        "term": "Katze",
        "line": 7,
        "targets": ["cat"],
        "forms": 1,
        "source_at": [[13, 18]],
        "form": "cat",
        "at": [18, 21],
    }


def test_every_field_of_a_report_is_shown_and_read_again():
    """A field that is declared is in each view: answers, a corpus' output, results files."""
    given = {"phrase": "a|b", "met": True, "spans": ((0, 1),), "reason": "r", "term": "T"}
    given |= {"source_spans": ((2, 3),), "place": "in place", "placed_by": "aligned"}
    of = ConstraintReport(**given, displaced="c", weight=0.5, doubtful=True)
    assert all(getattr(of, each.name) != each.default for each in fields(of))
    assert constraint_json(of).keys() == {each.name for each in fields(of)}
    report = Report([Translation("a", ["a"], -1.0, [-1.0])], (of,), 0.1, 0.2, (("x", "y"),), ("w",))
    record = json.loads(json.dumps(as_json(report)))
    assert record.keys() == {each.name for each in fields(report)}
    found = from_json(Report[Translation], record)
    assert replace(found, hypotheses=report.hypotheses) == report
