"""Terms in inflected forms, through the Python API on the demo model, whose target side is named
German here: its words are English, and its pieces write German terms."""

import json
import shutil
from pathlib import Path

import pytest
from sizes import drawn

from fairseq_ext import Translator

MODEL = Path(__file__).resolve().parents[3] / "checkpoints" / "demo"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("named")
    for source, target in (("de", "en"), ("en", "de")):
        shutil.copy(MODEL / f"dict.{source}.txt", out / f"dict.{target}.txt")
    (out / "terms.tsv").write_text("Ordner\tKunde\n", encoding="utf-8")
    return out


@drawn(1)
@pytest.mark.parametrize(
    ("forms", "number"), [("auto", 2), ("off", 1)], ids=["with forms", "without"]
)
def test_a_term_is_there_in_one_of_its_forms(folder, forms, number):
    report = folder / f"{forms}.jsonl"
    translator = Translator(
        str(MODEL / "checkpoint.pt"),
        str(folder),
        source_lang="en",
        target_lang="de",
        cpu=True,
        beam=2,
        bpe="sentencepiece",
        sentencepiece_model=str(MODEL / "spm.model"),
        glossary=str(folder / "terms.tsv"),
        glossary_forms=forms,
        glossary_report=str(report),
    )
    text = translator.translate(["Der Ordner ist neu."])[0][0].text
    (term,) = json.loads(report.read_text(encoding="utf-8"))["terms"]
    assert term["forms"] == number and term["placed_by"] == "aligned"
    assert term["form"] in ("Kunde", "Kunden")[:number] and term["form"] in text
