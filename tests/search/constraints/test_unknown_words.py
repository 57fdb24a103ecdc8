"""Glossary terms with characters that the model's source dictionary lacks: they are found in what
was typed, by the command and in Python, and stand in the report."""

import json
import re

import pytest
from demo_model import MODEL

from fairseq_ext import Translator

# ⁄ (to which ½ is normalised), &, Korean letters, İ and braces are not in the demo's dictionary
TERMS = {"½": "half", "R&D": "research", "한국어": "Korean", "İx": "ix", "{0}": "zero"}
LINES = [
    "Der Verband wird ½ geprüft.",
    "Die R&D wird morgen geprüft.",
    "Der Verband 한국어 wird geprüft.",
    "Der İx wird morgen geprüft.",
    "Der {0} wird morgen geprüft.",
    "Der Verband wird morgen geprüft.",
]


@pytest.mark.parametrize("flags", [{}, {"glossary_documents": "blank"}], ids=str)
def test_they_are_found_in_what_was_typed(flags, tmp_path):
    """The whole word is replaced, not the letters between the brackets of <unk>; what is not there
    is unmet, and stands in the report."""
    (tmp_path / "terms.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in TERMS.items()))
    flags = flags | {
        "glossary": str(tmp_path / "terms.tsv"),
        "glossary_report": str(tmp_path / "r"),
    }
    found = Translator.from_folder(MODEL, beam=3, cpu=True, **flags).translate(LINES)
    for (best, *_), target in zip(found, TERMS.values(), strict=False):
        is_there = re.search(rf"\b{target}\b", best.text, re.IGNORECASE) is not None
        assert is_there or target in [phrase for phrase, _ in best.unmet], best
        assert not re.search(r"<\w+>", best.text.replace("<unk>", ""))
    lines = sorted(map(json.loads, (tmp_path / "r").read_text("utf-8").splitlines()), key=number)
    assert [[term["term"] for term in line["terms"]] for line in lines] == [
        *map(list, zip(TERMS)),
        [],
    ]


def number(line: dict) -> int:
    return line["id"]
