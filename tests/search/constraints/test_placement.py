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
import random
import re
from pathlib import Path

import pytest
import torch
from demo_model import FLAGS, MODEL, OURS, ROOT
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from forked import interactive, interactive_forked
from sizes import drawn, part_of

from fairseq_ext import Translator

LINES = Path(__file__).with_name("placements.jsonl").read_text("utf-8").splitlines()
ROWS = {row["name"]: row for row in map(json.loads, LINES)}


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
    text = row.get("file") or "".join(f"{a}\t{b}\n" for a, b in row["terms"].items())
    (tmp_path / "terms.tsv").write_text(text, encoding="utf-8")
    flags = {"beam": 4, "glossary": str(tmp_path / "terms.tsv"), **row.get("flags", {})}
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


def test_mentions_share_no_words_and_the_report_counts_as_the_statistics(tmp_path):
    """ "account" in "account name" is no translation of another mention, nor is "package" in
    "package managers"."""
    terms = {"Kontoname": "account name", "Ordner": "account", "Paketmanager": "package manager"}
    terms |= {"Datei": "package", "Feld": "Field", "Betrag": "Amount to settle"}
    glossary, report = tmp_path / "terms.tsv", tmp_path / "report"
    glossary.write_text("".join(f"{a}\t{b}\n" for a, b in terms.items()), encoding="utf-8")
    lines = [
        "Der Kontoname gehört zu dem Ordner.",
        "Öffnen Sie den Paketmanager und wählen Sie die Datei.",
        "Die Paketmanager sind neu.",
        # the draft has one "field" for two
        "Wenn diese Option auf Nein festgelegt und auf der Seite Offene Buchungen ausgleichen ein "
        "Benutzer den Wert im Feld Auszugleichender Betrag ändert, ist der Standardeintrag im Feld "
        "In Anspruch zu nehmender Skonto 0 (null).",
    ]
    flags = ("--glossary", glossary, "--glossary-report", report, "--stats-file", tmp_path / "s")
    done = interactive_forked("\n".join(lines) + "\n", MODEL, *OURS, *flags)
    found = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    assert [each["id"] for each in found] == [0, 1, 2, 3], done.stderr
    for each in found:
        places = sorted(term["at"] for term in each["terms"] if term["at"])
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(places)), each
        assert all((t["at"] is None) == (t["placed_by"] == "left") for t in each["terms"]), each
    assert {term["displaced"] for each in found[:2] for term in each["terms"]} == {
        "",
        "folder",
        "file",
    }
    (plural,) = found[2]["terms"]
    assert (plural["form"], plural["placed_by"]) == ("package managers", "draft")
    counts = json.loads((tmp_path / "s").read_text())
    left = [t for each in found for t in each["terms"] if t["placed_by"] == "left"]
    assert len(left) == counts["glossary"]["unmet"] == len(counts["constraints"]["unmet"]) == 1
    assert counts["constraints"]["unmet"][0][0] == 3 and "the first in sentence 4" in done.stderr


def test_the_report_says_how_each_term_got_its_place(tmp_path):
    """And the end of the run counts them."""
    glossary, report = tmp_path / "terms.tsv", tmp_path / "report"
    glossary.write_text("Angebot\toffer\nGeprüft\tcheck\nOrdner\tmoonlight\n", encoding="utf-8")
    lines = "Das Angebot wurde gestern geprüft.\nDer Ordner ist neu.\nOrdner Ordner ist neu.\n"
    flags = ("--glossary-match", "casefold", "--stats-file", tmp_path / "s", "--beam", 4)
    given = (MODEL, *OURS, "--glossary", glossary, "--glossary-report", report, *flags)
    log = interactive_forked(lines, *given).stderr
    records = map(json.loads, report.read_text(encoding="utf-8").splitlines())
    there, checked, placed, first, left = (t for each in records for t in each["terms"])
    names = ("placed_by", "displaced", "doubtful")
    assert [there[name] for name in names] == ["draft", "", False] and there["weight"] is None
    assert [checked[name] for name in ("form", "at")] == ["checked", [14, 21]]
    assert [placed[name] for name in names] == ["aligned", "folder", False]
    assert 0.4 <= placed["weight"] <= 3
    first, left = sorted((first, left), key=lambda term: term["placed_by"])
    assert [first[name] for name in names[:2]] == ["aligned", "Folder"]
    assert (left["placed_by"], left["doubtful"], left["at"]) == ("left", True, None)
    counts = json.loads((tmp_path / "s").read_text())
    assert counts["constraints"]["met"] == 4 and counts["glossary"]["unmet"] == 1
    assert counts["glossary"]["doubtful"] >= 1 and re.search(r"1 unmet, \d doubtful", log)


# ---- scores and lists

SOURCES = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()
SOURCES = SOURCES[: len(part_of(30, 15))]


def translated(lines: list[str], *flags) -> tuple[dict[int, list[str]], str]:
    """The texts of each line, best first, and what the command says."""
    how = ["--beam", 4, "--buffer-size", 30, "--max-tokens", 2000]
    text = "".join(f"{line}\n" for line in lines)
    done = interactive(MODEL, *OURS, *how, *flags, stdin=text)
    assert done.status == 0, done.stderr[-2000:]
    found: dict[int, list[str]] = {}
    for number, text in re.findall(r"^D-(\d+)\t\S+\t(.*)$", done.stdout, re.MULTILINE):
        found.setdefault(int(number), []).append(text)
    return found, done.stdout


def words(text: str) -> list[str]:
    return re.findall(r"\w{4,}", text)


@drawn(1)
@pytest.mark.parametrize("flags", [{}, {"temperature": 0.5}, {"temperature": 2.0, "unkpen": 3}])
def test_scores_with_terms_in_place_are_those_of_the_search_s_temperature(tmp_path, flags):
    """By one call of fairseq's model for the whole target."""
    glossary = tmp_path / "terms.tsv"
    glossary.write_text("Ordner\tmoonlight\nAngebot\tbandage\n", encoding="utf-8")
    lines = ["Die Ärztin öffnet den Ordner.", "Das Angebot wird morgen geprüft.", SOURCES[4]]
    given = [word for name, value in flags.items() for word in (f"--{name}", value)]
    _, out = translated(lines, "--glossary", glossary, "--nbest", 4, *given)
    (model,), _, task = load_model_ensemble_and_task(
        [str(MODEL / "checkpoint.pt")], {"data": str(MODEL)}
    )
    model.eval()
    sources = dict(re.findall(r"^S-(\d+)\t(.*)$", out, re.MULTILINE))
    texts = re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", out, re.MULTILINE)
    of_tokens = re.findall(r"^P-(\d+)\t(.*)$", out, re.MULTILINE)
    assert len(texts) == len(of_tokens) > len(lines)
    for (number, score, text), (_, positional) in zip(texts, of_tokens, strict=True):
        source = task.source_dictionary.encode_line(sources[number], add_if_not_exist=False)
        target = task.target_dictionary.encode_line(text, add_if_not_exist=False).long()
        read = torch.cat([target[-1:], target[:-1]])[None]
        with torch.no_grad():
            logits = model(source[None].long(), torch.tensor([len(source)]), read)[0][0]
        expected = (logits / flags.get("temperature", 1.0)).log_softmax(-1)
        expected = expected.gather(1, target[:, None])[:, 0] / torch.tensor(2.0).log()
        printed = torch.tensor([float(value) for value in positional.split()])
        assert torch.allclose(printed, expected, atol=2e-4), text
        assert float(score) == pytest.approx(float(printed.mean()), abs=1e-3)


def test_lists_are_in_the_order_of_their_scores(tmp_path):
    draw = random.Random(5)
    glossary = tmp_path / "terms.tsv"
    pairs = {draw.choice(words(line)): draw.choice(["moonlight", "wire|wires"]) for line in SOURCES}
    glossary.write_text("".join(f"{s}\t{t}\n" for s, t in pairs.items()), encoding="utf-8")
    lists, out = translated(SOURCES, "--glossary", glossary, "--nbest", 4)
    scores: dict[str, list[float]] = {}
    for number, score in re.findall(r"^H-(\d+)\t(\S+)\t", out, re.MULTILINE):
        scores.setdefault(number, []).append(float(score))
    assert all(of_line == sorted(of_line, reverse=True) for of_line in scores.values())
    assert sum(len(of_line) > 1 for of_line in scores.values()) > len(SOURCES) // 3
    report = tmp_path / "report.jsonl"
    single, _ = translated(SOURCES, "--glossary", glossary, "--glossary-report", report)
    # what is searched with its term forced ends by --stop early, which depends on --nbest
    searched = {
        record["id"]
        for record in map(json.loads, report.read_text(encoding="utf-8").splitlines())
        if any(term["placed_by"] == "searched" for term in record["terms"])
    }
    assert len(searched) <= len(single) // 2
    assert {i: texts[:1] for i, texts in lists.items() if i not in searched} == {
        i: texts for i, texts in single.items() if i not in searched
    }


def test_a_banned_phrase_does_not_make_the_best_depend_on_how_many_are_wanted(tmp_path):
    """A phrase of the term and the word in front of it: the best draft is of no use with its term,
    and the same other ones are looked at."""
    glossary = tmp_path / "terms.tsv"
    draw, lines = random.Random(8), SOURCES[: len(part_of(20, 10))]
    terms = {draw.choice(words(line)) for line in lines}
    glossary.write_text("".join(f"{term}\tmoonlight\n" for term in terms), encoding="utf-8")
    placing = Translator.from_folder(MODEL, beam=5, cpu=True, glossary=str(glossary))
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
