"""Each mention of a glossary term that the draft renders by a word, and the report of how each got
its place: through the command on the demo model."""

import json
import re

import pytest
from demo_model import MODEL, OURS
from forked import interactive


@pytest.fixture(scope="module")
def translate(tmp_path_factory):
    """Translates lines with a glossary. Returns the best texts, the report's terms, the counts of
    the statistics and the log."""
    folder = tmp_path_factory.mktemp("translate")

    def run(glossary: str, lines: list[str], *flags) -> tuple[list[str], list[dict], dict, str]:
        (folder / "terms.tsv").write_text(glossary, encoding="utf-8")
        status, out, log = interactive(
            *(MODEL, *OURS, "--beam", 4, "--buffer-size", 9),
            *("--glossary", folder / "terms.tsv", "--stats-file", folder / "stats.json"),
            *("--glossary-report", folder / "report.jsonl", *flags),
            stdin="".join(f"{line}\n" for line in lines).encode(),
        )
        assert status == 0, log
        report = (folder / "report.jsonl").read_text(encoding="utf-8").splitlines()
        records = sorted(map(json.loads, report), key=lambda record: record["id"])
        counts = json.loads((folder / "stats.json").read_text())
        texts = re.findall(r"^D-\d+\t\S+\t(.*)$", out, re.MULTILINE)
        return texts, [term for record in records for term in record["terms"]], counts, log

    return run


TWICE, REPEATED = "Der Hund sieht einen anderen Hund.", "Ordner Ordner ist neu."
CHECKED = "Das Angebot wurde gestern geprüft."


@pytest.fixture(scope="module")
def drafts(translate) -> dict[str, str]:
    """What the model says of these lines without a term."""
    lines = [TWICE, REPEATED, CHECKED]
    return dict(zip(lines, translate("Nirgendwo\tnowhere\n", lines)[0], strict=True))


def test_each_mention_that_the_draft_renders_by_a_word_becomes_the_term(translate, drafts):
    draft = drafts[TWICE]
    assert draft.count("dog") == 2
    each, terms, counts, _ = translate("Hund\thound\n", [TWICE])
    assert each == [draft.replace("dog", "hound")]
    assert [term["displaced"] for term in terms] == ["dog", "dog"]
    assert counts["constraints"]["met"] == 2
    once, terms, _, _ = translate("Hund\thound\n", [TWICE], "--glossary-repeat", "once")
    assert once == [draft.replace("dog", "hound", 1)] and len(terms) == 1
    free, terms, _, _ = translate("Hund\thound\n", [TWICE], "--glossary-placement", "free")
    assert len(terms) == 1 and "placed_by" not in terms[0]


def test_a_further_mention_without_a_word_is_left_and_reported(translate, drafts):
    assert drafts[REPEATED] == "Folder is new."
    (text,), terms, counts, log = translate("Ordner\tbinder\n", [REPEATED])
    assert text == "Binder is new."
    placed, left = sorted(terms, key=lambda term: term["placed_by"])
    assert (placed["placed_by"], placed["displaced"]) == ("aligned", "Folder")
    assert (left["placed_by"], left["doubtful"], left["at"]) == ("left", True, None)
    unmet = counts["constraints"]["unmet"]
    assert [unmet[0][1:], counts["constraints"]["met"]] == [
        ["binder", "a further mention for which the draft has no word of its own"],
        1,
    ]
    assert counts["glossary"]["unmet"] == 1 and counts["glossary"]["doubtful"] >= 1
    assert re.search(r"1 unmet, \d doubtful", log)


def test_a_draft_that_has_the_term_and_no_word_for_a_further_mention_stays(translate):
    (text,), terms, counts, _ = translate("Ordner\tfolder\n", [REPEATED])
    assert text == "Folder is new."
    assert sorted(term["placed_by"] for term in terms) == ["draft", "left"]
    assert counts["glossary"]["unmet"] == 1


def test_the_report_says_how_each_term_got_its_place(translate):
    lines = ["Das Angebot wird morgen geprüft.", "Der Ordner ist neu."]
    _, terms, counts, _ = translate("Angebot\toffer\nOrdner\tmoonlight\n", lines)
    there, placed = terms
    assert (there["placed_by"], there["displaced"], there["doubtful"]) == ("draft", "", False)
    assert (placed["placed_by"], placed["displaced"], placed["doubtful"]) == (
        "aligned",
        "folder",
        False,
    )
    assert 0.4 <= placed["weight"] <= 3 and there["weight"] is None
    assert counts["glossary"]["doubtful"] == 0


def test_another_form_that_the_draft_has_stays_and_counts(translate, drafts):
    """The source has a verb, and the term base a label. What is required is there."""
    line, glossary = CHECKED, "Geprüft\tcheck\n"
    assert drafts[line] == "The offer was checked yesterday."
    flags = ("--glossary-match", "casefold")
    text, (term,), counts, log = translate(glossary, [line], *flags)
    assert text == [drafts[line]]
    assert (term["placed_by"], term["displaced"], term["doubtful"]) == ("draft", "", False)
    assert (term["form"], term["at"]) == ("checked", [14, 21])
    assert counts["glossary"]["unmet"] == 0 and counts["constraints"]["met"] == 1
    assert "not met" not in log
    free, _, counts, _ = translate(glossary, [line], *flags, "--glossary-placement", "free")
    assert re.search(r"\bcheck\b", free[0]) and counts["glossary"]["unmet"] == 0
    typed, (term,), counts, _ = translate(glossary, [f"{line}\tcheck"], *flags, "--constraints")
    assert re.search(r"\bcheck\b", typed[0]) and counts["constraints"]["unmet"] == []
    assert term["placed_by"] != "left"
