"""The letter case of a glossary's terms, through the command on the demo model: term bases write
labels, and a sentence has them as running text."""

import json
import re

import pytest
from demo_model import MODEL, OURS
from forked import interactive
from sizes import drawn

SOURCES = {
    "Das Angebot wird morgen geprüft.": "The offer is checked tomorrow.",
    "Angebote werden geprüft.": "Quotes are checked.",
    "Der Ordner ist neu.": "The folder is new.",
}


@pytest.fixture
def translate(tmp_path):
    """Translates the sources with a glossary. Returns the best texts and the report's terms."""
    (tmp_path / "in.de").write_text("".join(f"{source}\n" for source in SOURCES), encoding="utf-8")

    def run(glossary: str, *flags) -> tuple[list[str], list[dict]]:
        (tmp_path / "terms.tsv").write_text(glossary, encoding="utf-8")
        status, out, log = interactive(
            *(MODEL, *OURS, "--input", tmp_path / "in.de", "--buffer-size", 3),
            *("--beam", 4, "--glossary", tmp_path / "terms.tsv"),
            *("--glossary-report", tmp_path / "report.jsonl", *flags),
        )
        assert status == 0, log
        report = (tmp_path / "report.jsonl").read_text(encoding="utf-8").splitlines()
        lines = sorted(map(json.loads, report), key=lambda line: line["id"])
        terms = [term for line in lines for term in line["terms"]]
        return re.findall(r"^D-\d+\t\S+\t(.*)$", out, re.MULTILINE), terms

    return run


LABELS = "Angebot\tQuotation\nAngebote\tSales Orders\nOrdner\tAPI\n"
EXACT = "source\ttarget\tcase\n" + LABELS.replace("Quotation", "Quotation\texact")


@drawn(1)
@pytest.mark.parametrize(
    ("terms", "flags", "texts"),
    [
        (
            LABELS,
            [],
            [
                "The quotation is checked tomorrow.",
                "Sales orders are checked.",
                "The API is new.",
            ],
        ),
        (
            EXACT,
            [],
            [
                "The Quotation is checked tomorrow.",
                "Sales orders are checked.",
                "The API is new.",
            ],
        ),
        (
            EXACT.replace("exact", "any").replace("API", "folder"),
            ["--constraint-case", "exact"],
            [
                "The Quotation is checked tomorrow.",
                "Sales Orders are checked.",
                "The folder is new.",
            ],
        ),
    ],
)
def test_a_label_is_placed_as_running_text_has_it(translate, terms, flags, texts):
    found, report = translate(terms, *flags)
    assert found == texts
    for text, term in zip(found, report, strict=True):
        assert text[slice(*term["at"])].lower() == term["form"].lower()


def test_in_a_long_file_with_few_capitals_they_are_those_of_names(translate):
    others = "".join(f"Wort{i}\tword\n" for i in range(20))
    found, _ = translate(LABELS.replace("Quotation", "Ethernet cable") + others)
    assert found[0] == "The Ethernet cable is checked tomorrow."
    found, _ = translate(LABELS.replace("Quotation", "Ethernet cable"))
    assert found[0] == "The ethernet cable is checked tomorrow."


def test_a_term_that_the_draft_has_in_another_case_stays_as_it_is(translate):
    found, report = translate("Angebot\tOFFER\nAngebote\tquotes\nOrdner\tFolder|File\n")
    # capitals only are a case of their own
    assert found == [
        "The OFFER is checked tomorrow.",
        "Quotes are checked.",
        "The folder is new.",
    ]
    assert [term["form"] for term in report] == ["OFFER", "quotes", "Folder"]


def test_a_search_writes_a_term_in_no_other_case(translate):
    """With `free`, a label of two words that is forced is written as it is or as running text
    has it, and never in another mixture of letters."""
    terms = "Angebot\tMoonlight Walk\nAngebote\tMoonlight\nOrdner\tMoonlight\n"
    found, _ = translate(terms, "--glossary-placement", "free")
    for text in found:
        (written,) = re.findall("moonlight(?: walk)?", text, re.IGNORECASE)
        assert written in ("moonlight", "Moonlight", "moonlight walk", "Moonlight Walk") or (
            text.startswith("Moonlight walk")
        )
