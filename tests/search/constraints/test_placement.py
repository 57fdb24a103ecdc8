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
import re
from pathlib import Path

import pytest
from demo_model import FLAGS, MODEL, OURS
from forked import interactive_forked

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
