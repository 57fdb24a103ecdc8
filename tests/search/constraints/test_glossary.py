"""Glossary terms: where they are found, which of them win, lines that must be refused, their
places in --glossary-report, and what a document keeps of them."""

import itertools
import json
import re
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest
from demo_model import FLAGS, MODEL, OURS
from forked import interactive_forked
from hypothesis import given
from hypothesis import strategies as st
from required_phrases import required_phrases
from search.constraints.test_placement import glossary as terms_file
from search.phrases.test_forms import facts, listed

from fairseq_ext import Translator
from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.glossary import Languages
from fairseq_ext.core.words import words_of
from fairseq_ext.search.constraints.documents import Documents
from fairseq_ext.search.constraints.glossary import Glossary, GlossaryOptions, encode_batch
from fairseq_ext.search.constraints.report import as_listed, places_of
from fairseq_ext.search.phrases.places import Text
from fairseq_ext.search.phrases.segmenter import Segmenter
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


class Spelled:
    """Stands in for the segmenter: a phrase's tokens are its code points, of which
    it has those up to ž."""

    def __init__(self, takes_pieces: bool = False):
        self.takes_pieces = takes_pieces

    alternatives = Segmenter.alternatives

    def phrases(self, text: str, where: str, suggest: bool = True):
        if not self.writable(text):
            raise UsageError(f"in {where}, the phrase '{text}' cannot be written")
        return (tuple(map(ord, text)),)

    def spellings(self, text: str, case: str):
        capital = text[:1].upper() + text[1:]
        return (
            (tuple(map(ord, capital)),)
            if case == "initial" and capital != text and self.writable(capital)
            else ()
        )

    def writable(self, text: str) -> bool:
        return max(text) <= "ž"

    def normalised(self, text: str) -> str:
        return text


@pytest.fixture
def glossary(tmp_path):
    def make(content: str, name="g", takes_pieces=False, **options) -> Glossary:
        (tmp_path / name).write_text(content, encoding="utf-8")
        return Glossary(GlossaryOptions(str(tmp_path / name), **options), Spelled(takes_pieces))

    return make


def found(glossary: Glossary, text: str) -> list[str]:
    return [
        each.term.text
        for each in glossary.required(words_of(text, glossary.segmenter.takes_pieces))
    ]


@facts("term in text, match, language, term, text, has")
def test_where_a_term_is_found(glossary, match, language, term, text, has):
    """At word boundaries in any script, in another letter case, and in another form. match:
    --glossary-match, and the language of the source ("-": not given)."""
    given = {} if match == "-" else {"match": match}
    if language != "-":
        given["languages"] = Languages(language, "en" if language == "de" else "de")
    assert found(glossary(f"{term}\tx\n", **given), text) == ["x"] * (has == "yes")


@facts("terms in text, terms, text, answer")
def test_a_term_in_its_own_letter_case_wins_and_each_counts(glossary, terms, text, answer):
    lines = terms.replace("=", "\t").replace("|", "\n") + "\n"
    assert found(glossary(lines), text) == listed(answer)


def test_alternatives_and_repeated_lines(glossary):
    several = glossary("a\tx|y z\n\nb\tv\na\tw| x \n")
    (one,) = several.required(["a"])
    assert one.term.text == "x|y z|w" and several.merged == 1
    assert one.phrases == ((120,), (121, 32, 122), (119,))


def test_segmented_text_is_matched_piece_by_piece(glossary):
    pieces = glossary("▁A der\tx\n", takes_pieces=True)
    assert found(pieces, "▁Die ▁A der ▁ist") == ["x"]
    assert found(pieces, "▁Die ▁A dern") == []


def test_of_terms_with_the_same_lemmas_the_one_with_the_words_wins(glossary):
    both = glossary("haus\t3\nHaus\t1\nHäuser\t2\n", match="lemma", languages=Languages("de", "en"))
    texts = ("zwei Häuser", "ein Haus", "im haus", "in Häusern")
    assert [found(both, text) for text in texts] == [["2"], ["1"], ["3"], ["1"]]


def test_lemmas_of_an_unknown_language_are_refused(glossary):
    with pytest.raises(
        UsageError, match="--glossary-match lemma: simplemma has no lemmas for the language 'xx'"
    ):
        glossary("a\tb\n", match="lemma", languages=Languages("xx", "en"))


def test_each_mention_requests_the_term_once_more(glossary):
    text = "a b a c a b"
    assert found(glossary("a\t1\na b\t2\n"), text) == ["2", "1"]
    assert found(glossary("a\t1\na b\t2\n", repeat="each"), text) == ["2", "1", "2"]
    (once,) = glossary("a\t1\n").required(["a", "b", "a"])
    assert [(match.start, match.end) for match in once.matches] == [(0, 1), (2, 3)]


def test_an_encoder_that_loses_the_sign_between_terms_gets_each_by_itself():
    calls = []

    def step(text):
        calls.append(text)
        return text.replace("‖", "").upper()

    assert encode_batch(["a", "b c"], step) == ["A", "B C"] and len(calls) == 3
    assert [text.strip() for text in encode_batch(["a", "b c"], str.upper)] == ["A", "B C"]


def test_an_unwritable_target_is_its_line_s_error_when_the_file_is_read(glossary):
    lines = [f"w{i}\tx\n" for i in range(600)]
    lines[400], lines[590] = "here\tx|☃\n", "there\t☃\n"
    said = r"in line 401 of .*, the phrase '☃' cannot be written \(1 more such line in the file\)"
    with pytest.raises(UsageError, match=said):
        glossary("".join(lines), strict=True)


def test_lines_that_cannot_be_used_are_left_out_and_named(glossary, caplog, tmp_path):
    """The others are terms; with --strict, and where no line can be used, they are refused."""
    lines = "a\tb\nc\n" + "d\n" * 9 + "there\tx|☃\nHaus, Hof\thouse\n"
    assert [term.source for term in glossary(lines).terms] == ["a", "Haus, Hof"]
    reported = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    where = tmp_path / "g"
    assert reported[::5] == [
        f"line 2 of {where} has 1 column and needs 2: write the source term, one tab, the "
        "target term. The line is left out",
        f"{where} has 6 more such lines that cannot be used, left out too",
    ]
    for content, options in ((lines, {"strict": True}), ("c\nd\n", {})):
        with pytest.raises(UsageError, match="has 1 column and needs 2"):
            glossary(content, **options)


def test_time_is_in_proportion_to_the_lines_of_a_term_and_does_not_grow_with_the_terms(glossary):
    def seconds(work) -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    def reading(lines: int) -> float:
        text = "".join(f"a\tx{i}\n" for i in range(lines))
        return seconds(lambda: glossary(text))

    def matching(terms: int) -> float:
        full = glossary("".join(f"w{i} v{i % 7}\tx{i}\n" for i in range(terms)))
        words = [f"w{i % 60} v{i % 7}"[: 2 + i % 3] for i in range(40)]
        return min(seconds(lambda: full.required(words)) for _ in range(20))

    reading(100)
    assert reading(20_000) < 60 * max(reading(1_000), 1e-3)
    assert matching(50_000) < 20 * max(matching(50), 1e-6)


def naive(terms: list[str], text: str) -> list[str]:
    """Every term at every place; then again and again the longest, leftmost one that
    touches none before."""
    spans = []
    for term in terms:
        for match in re.finditer(rf"(?=(?<!\w){re.escape(term)}(?!\w))", text):
            spans.append((len(term.split()), match.start(), match.start() + len(term), term))
    chosen: list = []
    for span in sorted(spans, key=lambda s: (-s[0], s[1])):
        if all(span[2] <= other[1] or span[1] >= other[2] for other in chosen):
            chosen.append(span)
    return list(dict.fromkeys(term for *_, term in sorted(chosen, key=lambda s: s[1])))


phrase = st.lists(st.sampled_from(["a", "b", "ab", "ba"]), min_size=1, max_size=4).map(" ".join)


@given(
    st.lists(phrase, min_size=1, max_size=6, unique=True),
    st.lists(phrase, min_size=1, max_size=4).map(" ".join),
)
def test_matching_equals_trying_every_term_at_every_place(tmp_path_factory, terms, text):
    path = tmp_path_factory.mktemp("glossary") / "g"
    path.write_text("".join(f"{t}\t{t}\n" for t in terms))
    assert found(Glossary(GlossaryOptions(str(path)), Spelled()), text) == naive(terms, text)


# ---- the places of --glossary-report


def places(translation: str, terms: list[SourceTerm], how: str) -> list:
    """The form and the span of each term, as the report has them; None for none."""
    whole = {"starts of words": False, "anywhere": None}.get(how, True)
    found = places_of(Text(translation, how == "segmented", whole), terms, Outcome(), str)
    return [
        at and (as_listed(translation[slice(*at)], each), *at)
        for at, each in zip(found, terms, strict=True)
    ]


def required(targets: str, case: str = "exact") -> SourceTerm:
    return SourceTerm(targets, cased=Cased(case), source="T", entry=tuple(targets.split("|")))


@facts("place, translation, terms, case, how, expected")
def test_a_form_and_its_place(translation, terms, case, how, expected):
    """A place serves one of equal terms, different ones share words, and the first one makes room;
    a form is found in NFKC and given as written. Anywhere: the starts of words first."""
    terms = [required(each, case) for each in terms.split(",")]
    found = [each and "{} {} {}".format(*each) for each in places(translation, terms, how)]
    assert [each or "-" for each in found] == expected.split(",")


@given(
    st.lists(st.sampled_from("abc"), max_size=5),
    st.lists(st.sets(st.sampled_from("abc"), min_size=1), max_size=4),
)
def test_the_report_counts_as_the_statistics_and_shares_words_only_where_it_must(words, terms):
    """A term counts as met by containment, equal ones by disjoint words (sentence.py, `met`); as
    many as can have a word of their own."""
    translation = " ".join(words)
    of_terms = [required("|".join(sorted(each))) for each in terms]
    found = places(translation, of_terms, "whole words")
    constraints = SentenceConstraints(
        required_phrases(
            tuple(tuple((ord(form),) for form in sorted(each)) for each in terms),
            ("",) * len(terms),
        )
    )
    assert sum(map(bool, found)) == sum(met([*map(ord, words)], constraints, False))
    most = max(
        sum(place is not None for place in places)
        for places in itertools.product([None, *range(len(words))], repeat=len(terms))
        if all(
            place is None or words[place] in each for place, each in zip(places, terms, strict=True)
        )
        and all(places.count(place) == 1 for place in places if place is not None)
    )
    assert len({each[1:] for each in found if each}) == most
    for one, each in zip(found, terms, strict=True):
        if one is not None:
            assert one[0] in each and translation[slice(*one[1:])] == one[0]
            same = [
                t for t, other in zip(terms, found, strict=True) if other and other[1:] == one[1:]
            ]
            assert same.count(each) == 1


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


# ---- --glossary-documents: what the first line with a term has is what the document keeps

FIRST, SECOND, PLURAL = (
    "Das Schloss ist sehr alt.",  # castle, where it may choose
    "Das Schloss an der Tür ist kaputt.",  # lock
    "Alle Schlösser sind alt.",  # locks
)
TEXT = [FIRST, SECOND, "Die Lehrerin öffnet das Fenster.", PLURAL, "", PLURAL, FIRST]
NAMES = "a b b b - a b".split()
KEPT = {
    "blank": "castle castle - castles - locks lock".split(),
    "named": "castle lock - locks - castles lock".split(),
}
FORMS = {"-": "lock|locks|castle|castles", "c": "castle|castles", "l": "lock|locks"}


def of_castles(folder: Path, form: str = "-", **flags) -> Translator:
    terms = terms_file(folder, {"Schloss": FORMS[form[0]]})
    return Translator(**FLAGS, glossary_match="lemma", glossary=terms, **flags)


def best(translator: Translator, **how) -> list[str]:
    return [each[0].text for each in translator.translate_iter(TEXT, **how)]


@pytest.mark.parametrize("documents", KEPT)
def test_lines_keep_what_the_first_line_of_their_document_has_however_they_are_batched(
    documents, tmp_path
):
    """What it has where it is alone; each line has its translation with a glossary of the one
    translation that is kept."""
    alone = {form: best(of_castles(tmp_path, form)) for form in FORMS}
    expected = [alone[form[0]][i] for i, form in enumerate(KEPT[documents])]
    for form, text in zip(KEPT[documents], expected, strict=True):
        assert form in ["-", *words_of(text)]
    (tmp_path / "named").write_text("\n".join(NAMES) + "\n")
    where = documents if documents == "blank" else str(tmp_path / documents)
    how = ("--glossary-match", "lemma", "--glossary-documents", where)
    how += ("--glossary", terms_file(tmp_path, {"Schloss": FORMS["-"]}))
    for size, buffer in ((1, 1), (2, 9)):
        sizes = ("--batch-size", size, "--buffer-size", buffer)
        out = interactive_forked("\n".join(TEXT) + "\n", MODEL, *OURS, *how, *sizes).stdout
        found = dict(re.findall(r"^D-(\d+)\t\S+\t(.*)$", out, re.MULTILINE))
        # the empty line is the model's own
        assert [found[str(i)] for i in (0, 1, 2, 3, 5, 6)] == expected[:4] + expected[5:]
    if documents == "blank":
        made = of_castles(tmp_path, glossary_documents="blank")
        assert best(made, buffer=3) == expected  # over several calls, and with bad lines
        assert [each[0].text for each in made.translate(TEXT[5:])] == expected[5:]  # a text's own
        found = made.translate([FIRST, "\udcff", SECOND], errors="return")
        assert [each[0].text for each in (found[0], found[2])] == expected[:2]


@pytest.mark.parametrize(("language", "kept"), [("en", ("Lock", "locks")), ("zh", ("Lock",))])
def test_inflections_stay_where_there_are_lemmas(language, kept):
    documents = Documents("blank", language)
    documents.levels([(0, ["Schloss"]), (1, ["Schloss"])])
    documents.record_form(0, "Schloss", "lock")
    assert documents.forms(1, "Schloss", ("Lock", "locks", "castle")) == kept


@pytest.mark.parametrize("parts", [(6,), (1, 2, 3), (1,) * 6])
def test_every_line_has_a_higher_level_than_those_that_decide_for_it(parts):
    """Over all texts of six lines in which each of two terms stands or not: by hand, what decides
    is the first line with the term."""
    for held in itertools.product(["", "a", "b", "ab"], repeat=6):
        documents, start = Documents("blank", "en"), 0
        for size in parts:
            levels = documents.levels((start + i, list(held[start + i])) for i in range(size))
            for line in range(start, start + size):
                deciding = {next(i for i in range(6) if term in held[i]) for term in held[line]} - {
                    line
                }
                assert levels[line] == max(
                    (levels[i] + 1 for i in deciding if i >= start), default=0
                )
            start += size
