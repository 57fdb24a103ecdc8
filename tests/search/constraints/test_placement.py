"""Where the terms of a glossary stand, on the demo model: placements.jsonl, a row a promise.

A row: `terms`, or a glossary's whole `file`; `lines`; `flags` of a Translator next to beam 4;
`phrases` that each line requires. Expected of each line's best text: `has`, a regular expression,
or "=" and the whole text, in which "*" is the text without the glossary and "*a>b" that with each a
replaced by b ("*1": the first); `placed`, how each mention got its place, sorted; `unmet` phrases
with reasons; a part of the `signature`.
"""

import functools
import itertools
import json
import math
import random
import re
import shutil
from pathlib import Path

import pytest
import torch
from demo_model import FLAGS, MODEL, OURS, ROOT
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from forked import interactive_forked
from search.phrases.test_forms import bracketed, facts
from sizes import drawn, part_of

from fairseq_ext import Translator
from fairseq_ext.search.constraints.drafts import COPIED_REASON, Candidate, Sentence, is_copied
from fairseq_ext.search.constraints.source_text import code_around
from fairseq_ext.search.constraints.word_alignment import Mention, WordAlignment
from fairseq_ext.search.phrases.sentence import SentenceConstraints, SourceTerm

LINES = Path(__file__).with_name("placements.jsonl").read_text("utf-8").splitlines()
ROWS = {row["name"]: row for row in map(json.loads, LINES)}


def glossary(folder: Path, terms: dict[str, str] | str) -> str:
    """The path of a glossary of these terms, or of this text."""
    path = folder / "terms.tsv"
    if not isinstance(terms, str):
        terms = "".join(f"{source}\t{target}\n" for source, target in terms.items())
    path.write_text(terms, encoding="utf-8")
    return str(path)


def records(report: Path) -> list[dict]:
    """The lines of a --glossary-report, in the order of the input."""
    found = map(json.loads, report.read_text(encoding="utf-8").splitlines())
    return sorted(found, key=lambda line: line["id"])


@functools.cache
def draft(line: str, beam: int) -> str:
    """What the model says without a term."""
    return Translator(**FLAGS, beam=beam).translate([line])[0][0].text


def whole(expected: str, line: str, beam: int) -> str:
    """The text that a row writes behind its "="."""
    if not expected.startswith("*"):
        return expected
    text, change = draft(line, beam), re.fullmatch(r"\*(.+)>(.+?)(\*1)?", expected)
    if change is None:
        return text
    assert change[1] in text
    return text.replace(change[1], change[2], 1 if change[3] else -1)


@pytest.mark.parametrize("name", ROWS)
def test_a_placement(name, tmp_path):
    row = ROWS[name]
    terms = glossary(tmp_path, row.get("file") or row["terms"])
    flags = {"beam": 4, "glossary": terms, **row.get("flags", {})}
    translator = Translator(**FLAGS, **flags)
    found = [each[0] for each in translator.translate(row["lines"], None, row.get("phrases"))]
    for line, expected, best in zip(row["lines"], row["has"], found, strict=True):
        if expected.startswith("="):
            assert best.text == whole(expected[1:], line, flags["beam"])
        assert expected.startswith("=") or re.search(expected, best.text), best.text
    for placed, best in zip(row.get("placed", ()), found, strict=False):
        assert sorted(each.placed_by for each in best.placements) == placed
    for unmet, best in zip(row.get("unmet", ()), found, strict=False):
        assert [list(each) for each in best.unmet] == unmet
    assert row.get("signature", "") in translator.signature
    is_left = any("left" in placed for placed in row.get("placed", ()))
    assert is_left == any(best.unmet for best in found) or "unmet" in row or "placed" not in row


def reported(folder: Path, terms: dict[str, str], lines: list[str], *flags):
    """The terms of each line of the report, the statistics, and what the command says."""
    report, stats = folder / "report", folder / "stats"
    how = ("--glossary", glossary(folder, terms), "--glossary-report", report, *flags)
    done = interactive_forked("\n".join(lines) + "\n", MODEL, *OURS, *how, "--stats-file", stats)
    found = records(report)
    assert [each["id"] for each in found] == [*range(len(lines))], done.stderr
    return [each["terms"] for each in found], json.loads(stats.read_text()), done.stderr


def test_mentions_share_no_words_and_the_report_counts_as_the_statistics(tmp_path):
    """ "account" in "account name" is no translation of another mention, nor is "package" in
    "package managers"."""
    terms = {"Kontoname": "account name", "Ordner": "account", "Paketmanager": "package manager"}
    terms |= {"Datei": "package", "Feld": "Field", "Betrag": "Amount to settle"}
    lines = [
        "Der Kontoname gehört zu dem Ordner.",
        "Öffnen Sie den Paketmanager und wählen Sie die Datei.",
        "Die Paketmanager sind neu.",
        # the draft has one "field" for two
        "Wenn diese Option auf Nein festgelegt und auf der Seite Offene Buchungen ausgleichen ein "
        "Benutzer den Wert im Feld Auszugleichender Betrag ändert, ist der Standardeintrag im Feld "
        "In Anspruch zu nehmender Skonto 0 (null).",
    ]
    found, counts, log = reported(tmp_path, terms, lines)
    for each in found:
        places = sorted(term["at"] for term in each if term["at"])
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(places)), each
        assert all((t["at"] is None) == (t["placed_by"] == "left") for t in each), each
    displaced = {term["displaced"] for each in found[:2] for term in each}
    assert displaced == {"", "folder", "file"}
    (plural,) = found[2]
    assert (plural["form"], plural["placed_by"]) == ("package managers", "draft")
    left = [term for each in found for term in each if term["placed_by"] == "left"]
    assert len(left) == counts["glossary"]["unmet"] == len(counts["constraints"]["unmet"]) == 1
    assert counts["constraints"]["unmet"][0][0] == 3 and "the first in sentence 4" in log


def test_the_report_says_how_each_term_got_its_place(tmp_path):
    """And the end of the run counts them."""
    terms = {"Geprüft": "check", "Angebot": "offer", "Ordner": "moonlight"}
    lines = ["Das Angebot wurde gestern geprüft.", "Der Ordner ist neu.", "Ordner Ordner ist neu."]
    how = (tmp_path, terms, lines, "--glossary-match", "casefold", "--beam", 4)
    ((there, checked), (placed,), ordered), counts, log = reported(*how)

    def facts_of(term: dict, *names: str) -> list:
        return [term[name] for name in names or ("placed_by", "displaced", "doubtful")]

    assert there == {  # the first in the source, the second of the file
        **{"term": "Angebot", "line": 2, "targets": ["offer"], "forms": 1, "source_at": [[4, 11]]},
        **{"form": "offer", "at": [4, 9], "placed_by": "draft", "displaced": ""},
        **{"weight": None, "doubtful": False},
    }
    assert facts_of(checked, "form", "at") == ["checked", [14, 21]]
    assert facts_of(placed) == ["aligned", "folder", False] and 0.4 <= placed["weight"] <= 3
    first, left = sorted(ordered, key=lambda term: term["placed_by"])
    assert facts_of(first)[:2] == ["aligned", "Folder"]
    assert facts_of(left, "placed_by", "doubtful", "at") == ["left", True, None]
    assert counts["constraints"]["met"] == 4 and counts["glossary"]["unmet"] == 1
    assert counts["glossary"]["doubtful"] >= 1 and re.search(r"1 unmet, \d doubtful", log)


@drawn(1)
@pytest.mark.parametrize(
    ("forms", "number"), [("auto", 2), ("off", 1)], ids=["with forms", "without"]
)
def test_a_term_is_there_in_one_of_its_forms(tmp_path, forms, number):
    """The demo's target side is named German here: its pieces write German terms."""
    for source, target in (("de", "en"), ("en", "de")):
        shutil.copy(MODEL / f"dict.{source}.txt", tmp_path / f"dict.{target}.txt")
    report = tmp_path / "report"
    flags = FLAGS | {"data": str(tmp_path), "source_lang": "en", "target_lang": "de", "beam": 2}
    flags |= {"glossary": glossary(tmp_path, {"Ordner": "Kunde"}), "glossary_forms": forms}
    translator = Translator(**flags, glossary_report=str(report))
    text = translator.translate(["Der Ordner ist neu."])[0][0].text
    [[term]] = [each["terms"] for each in records(report)]
    assert term["forms"] == number and term["placed_by"] == "aligned"
    assert term["form"] in ("Kunde", "Kunden")[:number] and term["form"] in text
    if number == 1:  # and a program that has dropped it may write the file with a further one
        del translator
        Translator(**flags, glossary_report=str(report)).translate(["Das Haus ist neu."])
        assert [each["terms"] for each in records(report)] == [[]]


# ---- what the model knows decides whether a term may be left, never the letters of the file

UNKNOWN = dict(
    zip(
        "hund ordner angebot schlüssel büro katze wagen fahrrad".split(),
        "hound binder quotation spanner bureau feline carriage velocipede".split(),
        strict=True,
    )
)
PLAIN = [
    "Der Hund schläft im Büro.",
    "Der Ordner ist neu.",
    "Das Angebot wurde gestern geprüft.",
    "Er hat seinen Schlüssel vergessen.",
    "Die Katze schläft.",
    "Der Wagen steht vor dem Haus.",
    "Mein Fahrrad ist kaputt.",
]


@pytest.mark.parametrize("beam", [1, 5])
def test_the_letters_of_the_file_decide_nothing(tmp_path, beam):
    """A glossary in title case is no list of labels, which could be left."""
    found = []
    for terms in (UNKNOWN, {source.title(): target for source, target in UNKNOWN.items()}):
        flags = {"glossary": glossary(tmp_path, terms), "glossary_match": "casefold", "beam": beam}
        best = [each[0] for each in Translator(**FLAGS, **flags).translate(PLAIN)]
        assert not any(each.unmet for each in best)
        found.append([each.text for each in best])
    assert found[0] == found[1]
    assert all(target in " ".join(found[0]).lower() for target in UNKNOWN.values())


@pytest.mark.parametrize(
    ("change", "count", "said"),
    [
        (lambda a, b: (a, b), 6, ""),
        (lambda a, b: (a.title(), b), 6, "found in another letter case: add --glossary-match"),
        (lambda a, b: (b, a), 6, "found by their targets: name its columns in a header, or swap"),
        (lambda a, b: (b, a), 1, "and 1 would be found by their targets: name its columns in a"),
        (lambda a, b: (a.upper(), b), 6, "has 0 terms in the first 7 sentences"),  # acronyms
    ],
)
def test_a_glossary_that_does_not_fit_its_texts_is_one_warning(tmp_path, change, count, said):
    """Its columns are the wrong way round, its letter case is another, or it is of other texts."""
    sources, targets = (
        "steht schläft gestern kaputt neu vergessen",
        "stands sleeps yesterday broken new forgotten",
    )
    pairs = [*zip(sources.split(), targets.split(), strict=True)][:count]
    terms = glossary(tmp_path, dict(change(a, b) for a, b in pairs))
    command = (MODEL, *OURS, "--glossary", terms, "--beam", 1)
    log = interactive_forked("\n".join(PLAIN) + "\n", *command).stderr
    warned = [line for line in log.splitlines() if "in the first" in line]
    assert len(warned) == bool(said) and said in "".join(warned), log


@pytest.mark.parametrize(("code", "is_left"), [("a.de/Datei/Inhalt", True), ("", False)])
def test_a_part_of_code_for_which_the_draft_has_no_word_is_left(code, is_left):
    """The draft translates a part of the path, and has no word for another."""
    text, term = "See a.de/file", SourceTerm("contents", ((5,),), mentions=((0,),), code=code)
    words = WordAlignment(text, [], [Mention((0,), ("contents",))])
    candidate = Candidate(None, [], text, [False], words=words)
    sentence = Sentence(0, SentenceConstraints((term,)), [candidate], 1)
    assert sentence.left_terms(candidate) == ({term: COPIED_REASON} if is_left else {})
    assert sentence.is_complete(candidate) is is_left  # nothing is searched or inserted for it


@facts("copied, before, mention, behind, draft, is_known, is_it")
def test_a_part_of_what_the_draft_copies_is_no_mention(
    before, mention, behind, draft, is_known, is_it
):
    """But one word, and an order of two that is not known."""
    term = SourceTerm("Länge", mention=mention, around=(before, behind))
    assert is_copied(term, draft.split(), bool(is_known)) is (is_it == "yes")


@facts("code, text, code")
def test_code_around_a_mention(text, code):
    text, [span] = bracketed(text)
    assert code_around(text, *span) == code


# ⁄ (to which ½ is normalised), &, Korean letters, İ and braces are not in the demo's dictionary
UNWRITTEN = {"½": "half", "R&D": "research", "한국어": "Korean", "İx": "ix", "{0}": "zero"}
UNWRITTEN_LINES = [
    "Der Verband wird ½ geprüft.",
    "Die R&D wird morgen geprüft.",
    "Der Verband 한국어 wird geprüft.",
    "Der İx wird morgen geprüft.",
    "Der {0} wird morgen geprüft.",
    "Der Verband wird morgen geprüft.",
]


@pytest.mark.parametrize("flags", [{}, {"glossary_documents": "blank"}], ids=str)
def test_terms_that_the_model_s_dictionary_lacks_are_found_in_what_was_typed(flags, tmp_path):
    """The whole word is replaced, not the letters between the brackets of <unk>; what is not there
    is unmet, and stands in the report."""
    flags = flags | {"glossary": glossary(tmp_path, UNWRITTEN), "beam": 3}
    translator = Translator(**FLAGS, **flags, glossary_report=str(tmp_path / "r"))
    found = translator.translate(UNWRITTEN_LINES)
    for (best, *_), target in zip(found, UNWRITTEN.values(), strict=False):
        is_there = re.search(rf"\b{target}\b", best.text, re.IGNORECASE) is not None
        assert is_there or target in [phrase for phrase, _ in best.unmet], best
        assert not re.search(r"<\w+>", best.text.replace("<unk>", ""))
    listed = [[term["term"] for term in line["terms"]] for line in records(tmp_path / "r")]
    assert listed == [*([source] for source in UNWRITTEN), []]


# ---- scores and lists

SOURCES = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()
SOURCES = SOURCES[: len(part_of(30, 15))]


def translated(lines: list[str], terms: str, *flags) -> tuple[dict[int, list[str]], str]:
    """The texts of each line, best first, and what the command says."""
    how = ["--beam", 4, "--buffer-size", 30, "--max-tokens", 2000, "--glossary", terms]
    out = interactive_forked("\n".join(lines) + "\n", MODEL, *OURS, *how, *flags).stdout
    found: dict[int, list[str]] = {}
    for number, text in re.findall(r"^D-(\d+)\t\S+\t(.*)$", out, re.MULTILINE):
        found.setdefault(int(number), []).append(text)
    return found, out


def words(text: str) -> list[str]:
    return re.findall(r"\w{4,}", text)


@drawn(1)
@pytest.mark.parametrize("flags", [{}, {"temperature": 0.5}, {"temperature": 2.0, "unkpen": 3}])
def test_scores_with_terms_in_place_are_those_of_the_search_s_temperature(tmp_path, flags):
    """By one call of fairseq's model for the whole target."""
    terms = glossary(tmp_path, {"Ordner": "moonlight", "Angebot": "bandage"})
    lines = ["Die Ärztin öffnet den Ordner.", "Das Angebot wird morgen geprüft.", SOURCES[4]]
    given = [word for name, value in flags.items() for word in (f"--{name}", value)]
    _, out = translated(lines, terms, "--nbest", 4, *given)
    path = str(MODEL / "checkpoint.pt")
    (model,), _, task = load_model_ensemble_and_task([path], {"data": str(MODEL)})
    model.eval()
    sources = dict(re.findall(r"^S-(\d+)\t(.*)$", out, re.MULTILINE))
    found = re.findall(r"^H-(\d+)\t(\S+)\t(.*)\nD-.*\nP-\1\t(.*)$", out, re.MULTILINE)
    assert len(found) > len(lines)
    for number, score, text, positional in found:
        source = task.source_dictionary.encode_line(sources[number], add_if_not_exist=False)
        target = task.target_dictionary.encode_line(text, add_if_not_exist=False).long()
        read = torch.cat([target[-1:], target[:-1]])[None]
        with torch.no_grad():
            logits = model(source[None].long(), torch.tensor([len(source)]), read)[0][0]
        expected = (
            (logits / flags.get("temperature", 1.0)).log_softmax(-1).gather(1, target[:, None])
        )
        printed = torch.tensor([float(value) for value in positional.split()])
        assert torch.allclose(printed, expected[:, 0] / math.log(2), atol=2e-4), text
        assert float(score) == pytest.approx(float(printed.mean()), abs=1e-3)


def test_lists_are_in_the_order_of_their_scores(tmp_path):
    draw, report = random.Random(5), tmp_path / "report.jsonl"
    pairs = {draw.choice(words(line)): draw.choice(["moonlight", "wire|wires"]) for line in SOURCES}
    terms = glossary(tmp_path, pairs)
    lists, out = translated(SOURCES, terms, "--nbest", 4)
    scores: dict[str, list[float]] = {}
    for number, score in re.findall(r"^H-(\d+)\t(\S+)\t", out, re.MULTILINE):
        scores.setdefault(number, []).append(float(score))
    assert all(of_line == sorted(of_line, reverse=True) for of_line in scores.values())
    assert sum(len(of_line) > 1 for of_line in scores.values()) > len(SOURCES) // 3
    single, _ = translated(SOURCES, terms, "--glossary-report", report)
    # what is searched with its term forced ends by --stop early, which depends on --nbest
    searched = {
        record["id"]
        for record in records(report)
        if any(term["placed_by"] == "searched" for term in record["terms"])
    }
    assert len(searched) <= len(single) // 2
    assert {i: texts[:1] for i, texts in lists.items() if i not in searched} == {
        i: texts for i, texts in single.items() if i not in searched
    }


def test_a_banned_phrase_does_not_make_the_best_depend_on_how_many_are_wanted(tmp_path):
    """A phrase of the term and the word in front of it: the best draft is of no use with its term,
    and the same other ones are looked at."""
    draw, lines = random.Random(8), SOURCES[: len(part_of(20, 10))]
    terms = glossary(
        tmp_path, dict.fromkeys((draw.choice(words(line)) for line in lines), "moonlight")
    )
    placing = Translator(**FLAGS, beam=5, glossary=terms)
    pairs = [re.search(r"\w+ moonlight", found[0].text) for found in placing.translate(lines)]
    avoid = [[] if pair is None else [pair[0]] for pair in pairs]
    wanted = {n: placing.translate(lines, nbest=n, avoid=avoid) for n in (1, 2, 5)}
    best = {n: [(each[0].text, each[0].elsewhere) for each in found] for n, found in wanted.items()}
    placed = 0
    for banned, *of_line in zip(avoid, *best.values(), strict=True):
        # what is searched with its term forced ends by --stop early, which does depend on it
        if any(not elsewhere for _, elsewhere in of_line):
            placed += bool(banned)
            assert len({text for text, _ in of_line}) == 1, of_line
    assert placed > len(lines) // 6
