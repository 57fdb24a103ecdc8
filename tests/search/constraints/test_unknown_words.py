"""Glossary terms with characters that the model's source dictionary lacks: they are found in what
was typed, by the command and in Python, and stand in the report."""

import json
import re

import pytest
from demo_model import MODEL
from sizes import drawn
from test_terms_twice import translated

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
WANTED = [[term] for term in TERMS] + [[]]


@pytest.fixture(scope="module")
def glossary(tmp_path_factory):
    path = tmp_path_factory.mktemp("terms") / "terms.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in TERMS.items()), encoding="utf-8")
    return path


@drawn(1)
@pytest.mark.parametrize("flags", [[], ["--glossary-documents", "blank"]])
def test_the_command_finds_them(glossary, tmp_path, flags):
    report, stats = tmp_path / "report.jsonl", tmp_path / "stats.json"
    flags = [*flags, "--glossary-report", report, "--stats-file", stats]
    found, _ = translated(LINES, "--glossary", glossary, *flags)
    fired = [[] for _ in LINES]
    for line in map(json.loads, report.read_text(encoding="utf-8").splitlines()):
        fired[line["id"]] = [term["term"] for term in line["terms"]]
    assert fired == WANTED
    counts = json.loads(stats.read_text())["constraints"]
    unmet = {phrase for _, phrase, _ in counts["unmet"]}
    assert counts["given"] == len(TERMS)
    for i, target in enumerate(TERMS.values()):
        is_there = re.search(rf"\b{target}\b", found[i][0], re.IGNORECASE) is not None
        assert is_there or target in unmet, (found[i][0], unmet)


def test_python_finds_them(glossary):
    translator = Translator.from_folder(MODEL, beam=3, cpu=True, glossary=str(glossary))
    found = translator.translate(LINES)
    for (best, *_), target in zip(found, TERMS.values(), strict=False):
        is_there = re.search(rf"\b{target}\b", best.text, re.IGNORECASE) is not None
        assert is_there or target in [phrase for phrase, _ in best.unmet], best


def test_the_whole_word_is_replaced(glossary):
    """Not the letters between the brackets of <unk>."""
    translator = Translator.from_folder(MODEL, beam=3, cpu=True, glossary=str(glossary))
    for hypotheses in translator.translate(LINES):
        assert not re.search(r"<\w+>", hypotheses[0].text.replace("<unk>", "")), hypotheses
