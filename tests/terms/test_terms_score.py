"""Scores of terminology: small test sets against values worked out by hand, brute force and
sacrebleu; the formats of test sets, which give the same sentences and terms; `python -m
fairseq_ext.terms score` and `expand` as a user types them."""

import functools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sacrebleu
import warm
from sizes import drawn
from terms.test_terms_glossary_files import rows

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.lemmas import lemmatizer
from fairseq_ext.terms import formats
from fairseq_ext.terms.__main__ import forms_in, main
from fairseq_ext.terms.cases import Sentence, Term, cases_of, claim, lemma_places
from fairseq_ext.terms.formats import Files
from fairseq_ext.terms.score import (
    after_final_punctuation,
    score,
    share,
    success,
    success_words,
    window_overlap,
)

lemmas = functools.cache(lemmatizer)  # of a language, read by the first test that needs them


def english(word: str) -> str:
    return lemmas("en", "--lemmas")(word)


def german(word: str) -> str:
    return lemmas("de", "--lemmas")(word)


SET = [
    Sentence("The dogs bark.", "Die Hunde bellen.", (Term("dog", ("Hund",)),)),
    Sentence("The bookshop is open.", "Der Laden ist offen.", (Term("bookshop", ("Laden",)),)),
    Sentence("A tree.", "Ein Baum.", (Term("cat", ("Katze",)),)),  # no cat there: does not count
    Sentence("Two houses.", "Zwei Häuser.", (Term("house", ("Haus", "Gebäude")),)),
    Sentence(
        "The child sees the child.",
        "Das Kind sieht das Kind.",
        (Term("child", ("Kind",)), Term("the child", ("das Kind",))),
    ),
]
OUT = [
    "Hunde bellen.",
    "Der Buchladening ist offen.",
    "Ein Baum.",
    "Zwei Burgen.",
    "Sie sieht das Kind.",
]


def test_term_success_is_the_task_s_and_words_are_whole_words():
    # "hund" in "hunde", "laden" in "buchladening"; no Haus; both terms of the last line
    cases = cases_of(SET, OUT, english, german)
    assert success(cases) == [(1, 1), (1, 1), (0, 0), (0, 1), (2, 2)]
    # Hunde has the lemma Hund; Buchladening is no Laden
    assert success_words(cases) == [(1, 1), (0, 1), (0, 0), (0, 1), (2, 2)]
    bare = cases_of(SET, OUT, None, None)
    assert success_words(bare) == [(0, 1), (0, 1), (0, 0), (0, 1), (2, 2)]
    mice = [Sentence("Two mice.", "Zwei Mäuse.", (Term("mouse", ("Maus",)),))]
    assert success(cases_of(mice, ["Mäuse."], english, german)) == [(1, 1)]
    assert success(cases_of(mice, ["Mäuse."], None, None)) == [(0, 0)]
    assert share(success(cases)) == 4 / 5 and share([]) is None


@pytest.mark.parametrize(
    ("terms", "text", "once", "overlapping"),
    [
        ("tension|tension artérielle", "la tension artérielle", 1, 2),
        # tension takes the first of its places
        ("tension|tension artérielle", "tension et tension artérielle", 2, 2),
        ("tension|tension|tension artérielle", "tension et tension artérielle", 2, 3),
        ("tension artérielle|tension", "tension et tension artérielle", 2, 2),
        ("eau|eau", "eau", 1, 2),
        ("eau|eau", "eau eau", 2, 2),
        ("x", "eau", 0, 0),
    ],
)
def test_claims_in_the_order_of_the_terms(terms, text, once, overlapping):
    found = case(text, text, *(f"{i}={term}" for i, term in enumerate(terms.split("|"))))
    assert len(claim(found.required, found.hypothesis, lemma_places)) == once
    assert success_words([found]) == [(overlapping, terms.count("|") + 1)]


def case(reference, hypothesis, *targets):
    terms = tuple(
        Term(target.split("=")[0], tuple(target.split("=")[-1].split("|"))) for target in targets
    )
    return cases_of([Sentence(None, reference, terms)], [hypothesis], None, None)[0]


def test_window_overlap_by_hand():
    #  reference window of 2: {a, b | d, e}; translation: {b, x | d, f}: 2 of 4
    one = case("a b T , d e", "x b T d f", "T")
    assert window_overlap([one], 2) == 2 / 4
    # of 3 the reference has a b | d e and the translation x b | d f
    assert window_overlap([one], 3) == 2 / 4
    # the translation lacks the term: 0; the reference lacks it: the line does not count
    assert window_overlap([one, case("T a", "a", "T"), case("a", "T", "T")], 2) == (2 / 4 + 0) / 2
    assert window_overlap([case("a", "T", "T")], 2) is None


def test_window_overlap_pairs_occurrences_by_falling_overlap():
    # reference places: [a T b] and [c T d]; translation: [c T b] and [a T x]. Every overlap but
    # the last is 1/2: pairs are taken in order, and so (first, first) and (second, second) are
    both = case("a T b . . c T d", "c T b . . a T x", "1=T", "2=T")
    assert window_overlap([both], 1) == (1 / 2 + 0) / 2


@pytest.mark.parametrize(
    ("reference", "hypothesis", "share_behind"),
    [
        ("Two dogs.", "Two jumping. canine.", 1),
        ("Two dogs.", "Two canine jumping. canine.", 0),
        ("A. Two dogs.", "A. Two canine.", 0),  # the second of two sentences
        ("A dog", "He said: “No.” canine", 1),
        ("A dog", "Version 3.5 canine", 0),
        ("A dog", "No dog.", None),
    ],
)
def test_terms_behind_the_final_punctuation(reference, hypothesis, share_behind):
    assert after_final_punctuation([case(reference, hypothesis, "dog=canine")]) == share_behind


def test_another_number_of_lines_is_refused():
    with pytest.raises(
        UsageError, match="--hypotheses has 1 translation and --references has 5 lines"
    ):
        score(SET, ["x"], "", None, None)


# ---- Formats


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("reader", "text", "flags", "expected"), rows("sentences"))
def test_formats_of_test_sets(tmp_path, reader, text, flags, expected):
    found, language = getattr(formats, reader)(Files(write(tmp_path / "F", text), "fr", **flags))
    terms = [[[term.source, [*term.targets]] for term in each.terms] for each in found]
    given = zip(found, terms, strict=True)
    assert [[each.source, each.reference, of] for each, of in given] == expected
    assert language == ("en" if found[0].source else None)


def test_text_has_the_terms_of_a_glossary(tmp_path):
    references = write(tmp_path / "ref.en", "two houses, one house\nnothing\n")
    glossary = write(tmp_path / "g.tsv", "Haus\thouse\nnicht\tnot\nHaus\tbuilding\n")
    term = Term("Haus", ("house", "building"), marked=True)
    for line, match, expected in (
        ("Zwei Häuser, ein Haus", "lemma", [(term,), ()]),
        ("Zwei Häuser", "lemma", [(term,), ()]),
        ("Zwei Häuser", "surface", [(), ()]),
    ):
        sources = write(tmp_path / "in.de", f"{line}\nnichts\n")
        files = Files(references, "en", "de", sources, glossary)
        found, _ = formats.read_text(replace(files, glossary_match=match))
        assert [sentence.terms for sentence in found] == expected
    with pytest.raises(UsageError, match="add --sources and --terms-file"):
        formats.read_text(Files(references, "en"))
    write(tmp_path / "in.de", "a\n")
    with pytest.raises(UsageError, match="--sources has 1 line and --references has 2"):
        formats.read_text(files)


@pytest.mark.parametrize(("reader", "text", "sentence"), rows("test set"))
def test_a_wrong_line_is_named(tmp_path, reader, text, sentence):
    path = write(tmp_path / "F", text)
    with pytest.raises(UsageError) as error:
        getattr(formats, reader)(Files(path, "de"))
    assert sentence in str(error.value).replace(path, "F")


@pytest.mark.parametrize(("name", "text", "expected"), rows("translations"))
def test_translations_in_text_results_corpus_and_submission(tmp_path, name, text, expected):
    path = write(tmp_path / name, text)
    try:
        assert formats.read_hypotheses(path, "de") == expected
    except UsageError as error:
        assert expected in str(error).replace(path, "FILE")


# ---- The commands

SCRIPT = (
    Path(__file__).parents[2] / "scripts" / "experiments" / "terminology" / "published_scores.py"
)
REFERENCES = r"""
{"en": "The dogs bark.", "de": "Die Hunde bellen laut im Hof.", "proper": {"dog": "Hund"},\
 "random": {"bark": "bellen"}}
{"en": "The bookshop is open.", "de": "Der Laden ist heute offen.",\
 "proper": {"bookshop": "Laden"}, "random": {}}
""".replace("\\\n", "").lstrip()
TRANSLATED = ["Die Hunde bellen laut.", "Der Buchladening ist heute offen."]
GERMAN = [[json.loads(line)["de"] for line in REFERENCES.splitlines()]]
BLEU = sacrebleu.corpus_bleu(TRANSLATED, GERMAN).score
CHRF = sacrebleu.corpus_chrf(TRANSLATED, GERMAN, word_order=2).score


@pytest.fixture
def files(tmp_path):
    references, out = tmp_path / "references.ende.jsonl", tmp_path / "team.ende.proper.txt"
    references.write_text(REFERENCES)
    out.write_text("".join(line + "\n" for line in TRANSLATED))
    flags = ["--hypotheses", str(out), "--references", str(references), "--target-lang", "de"]
    return [*flags, "--format", "wmt25"]


def test_the_command_prints_one_object_and_imports_neither_torch_nor_fairseq(files):
    arguments = ["score", *files, "--terms", "proper", "--json"]
    command = [sys.executable, "-X", "importtime", "-m", "fairseq_ext.terms", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    imported = {
        line.rsplit("|", 1)[-1].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "sacrebleu" in imported and not {"torch", "fairseq"} & imported
    assert found["term_success"] == 1.0 and found["term_success_words"] == 1 / 2
    assert (found["bleu"], found["chrf2pp"]) == (BLEU, CHRF)
    assert found["signature"].startswith(
        "fairseq_ext.terms:0.1|format:wmt25|terms:proper|lang:en-de|lemmas:simplemma-"
    )


def test_the_table_ends_with_the_signature(files, capsys):
    main(["score", *files, "--terms", "random", "--lemmas", "none"])
    *rows, signature = capsys.readouterr().out.splitlines()
    values = dict(row.split() for row in rows if "overlap" not in row and row)
    assert values["term_success"] == "1.0000" and list(values)[0] == "bleu"
    assert signature.startswith("fairseq_ext.terms:0.1|") and "lemmas:none" in signature
    assert "after_final_punctuation" in rows[-2]


@drawn(1)
@pytest.mark.parametrize(
    ("bleu_off", "success_off", "status"), [(0, 0.009, 0), (1e-5, 0, 1), (0, 0.011, 1)]
)
def test_the_check_against_published_scores_fails_outside_its_bounds(
    tmp_path, files, bleu_off, success_off, status
):
    # both terms, and the one of `random`
    row = ["team.ende.proper.txt", BLEU + bleu_off, CHRF, 1 - success_off, 1]
    lines = [["file", "BLEU", "chrF2++", "proper_success", "random_success"], row]
    (tmp_path / "official_scores.tsv").write_text(
        "".join("\t".join(map(str, line)) + "\n" for line in lines)
    )
    done = subprocess.run(
        [warm.python(), SCRIPT, tmp_path], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == status, done.stdout + done.stderr


# ---- expand: forms under the same lemmas, found in text

LINES = [
    "Boots are on the table, two boots and one boot.",
    "A rubber boot, rubber boots, RUBBER boots",
    "She boots it.",
    "“Rubber boots!”",
]


def test_forms_of_one_and_of_several_words():
    found = forms_in(LINES, ["boot", "rubber boot", "table"], lemmatizer("en", "--lang"))
    # the capital of the first word of a line is the line's
    assert found["boot"] == {"boots": 5 + 1, "boot": 2}
    assert found["rubber boot"] == {"rubber boot": 1, "rubber boots": 2, "RUBBER boots": 1}
    assert found["table"] == {"table": 1}


def test_a_noun_that_has_a_capital_of_its_own_keeps_it():
    german = lemmatizer("de", "--lang")
    assert forms_in(["Häuser stehen.", "Die Häuser"], ["Haus"], german)["Haus"] == {"Häuser": 2}


@pytest.fixture
def expand(tmp_path):
    (tmp_path / "g.csv").write_text("source,target,case\nStiefel,boot,exact\nTisch,table|desk,\n")
    (tmp_path / "mono.en").write_text("\n".join(LINES))
    files = ["--glossary", str(tmp_path / "g.csv"), "--text", str(tmp_path / "mono.en")]
    return ["expand", "--lang", "en", *files]


def test_the_command_prints_a_glossary_with_more_alternatives(expand, capsys):
    main(expand)
    printed = capsys.readouterr()
    assert printed.err == "2 entries, 1 form added\n"
    # the case of an entry stays
    rows = ["source\ttarget\tcase", "Stiefel\tboot|boots\texact", "Tisch\ttable|desk\t"]
    assert printed.out.splitlines() == rows
    main([*expand, "--min-count", "7"])
    assert "Stiefel\tboot\texact" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("score --references nowhere", "cannot read nowhere"),
        ("score --terms other", "has no dictionary 'other'"),
        ("score --target-lang xx", "has no text under 'xx'"),
        ("expand --glossary nowhere", "cannot read nowhere"),
        ("expand --text nowhere", "cannot read nowhere"),
        ("expand --lang tlh", "'tlh'"),
    ],
)
def test_a_wrong_argument_is_one_sentence(files, expand, capsys, change, sentence):
    command, *change = change.split()
    first = {"score": ["score", *files], "expand": expand}[command]
    with pytest.raises(UsageError) as error:
        main([*first, *change])
    assert sentence in str(error.value) and "\n" not in str(error.value)
    assert not capsys.readouterr().out


def test_without_a_text_the_forms_are_those_of_the_glossary_itself(tmp_path, capsys):
    (tmp_path / "g.tsv").write_text("customer\tKunde\ninvoice\tRechnung|Faktura\nAPI\tAPI\n")
    command = ["expand", "--glossary", str(tmp_path / "g.tsv"), "--lang", "de"]
    main(command)
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert lines["customer"] == "Kunde|Kunden" and lines["API"] == "API"
    assert lines["invoice"].startswith("Rechnung|Faktura|Rechnungen|")
    with pytest.raises(UsageError, match="add --text"):
        main([*command[:-1], "en"])
