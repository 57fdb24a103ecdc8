"""scripts/experiments/terminology/placement.py: what it counts on made-up text, its own searches
and alignments on the demo model."""

import json
import subprocess
import sys
from pathlib import Path

import demo_model
import pytest
import warm
from sizes import drawn

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "scripts" / "experiments" / "terminology"
sys.path[:0] = [str(HERE)]

import rules  # noqa: E402
from placement_model import AttentiveModel, SpanTerm, Words, in_step  # noqa: E402
from placement_scores import Entry  # noqa: E402

from fairseq_ext.search.constraints import placement  # noqa: E402
from fairseq_ext.translator import Translator  # noqa: E402

DEMO = ROOT / "checkpoints" / "demo"
MANN, BAU = (
    Entry("Mann", ("gentleman",), ("man", "guy")),
    Entry("Gebäude", ("edifice", "edifices"), ("building", "buildings")),
)
FLAGS = demo_model.FLAGS | {"beam": 4}


@pytest.fixture(scope="module")
def model() -> tuple[Translator, AttentiveModel]:
    translator = Translator(**FLAGS)
    return translator, AttentiveModel(FLAGS["path"], translator.task)


def test_in_step_without_terms_is_beam_search_and_with_one_writes_it_where_its_source_is_attended(
    model,
):
    translator, attentive = model
    line = "Die Ärztin öffnet den Ordner."
    source = translator.encode(line).tolist()
    words = Words(attentive.target.symbols)
    plain = attentive.target.string(in_step(attentive, source, [], 4, words)).split()
    stock = translator.translate([line])[0][0]
    assert plain == stock.tokens
    span = [i for i, token in enumerate(source) if attentive.source[token] == "▁Ordner"] or [
        len(source) - 3
    ]
    form = tuple(map(attentive.target.index, translator.bpe.encode("physician").split()))
    terms = [SpanTerm((form,), tuple(span))]
    assert "physician" not in stock.text
    assert "physician" in translator.decode(
        attentive.target.string(in_step(attentive, source, terms, 4, words))
    )
    # no span has as much
    assert in_step(attentive, source, terms, 4, words, least=1.1) == in_step(
        attentive, source, [], 4, words
    )


@drawn(0)  # long
def test_the_command_compares_the_ways_and_writes_the_tables(tmp_path):
    (tmp_path / "displaced.tsv").write_text(
        "Angebot\tfederation\toffer|quotation\nOrdner\tledger\tfolder|file\n", encoding="utf-8"
    )
    text = {
        "de": ["Das Angebot wird morgen geprüft.", "Ein Haus.", "Die Ärztin öffnet den Ordner."]
    }
    text["en"] = ["The offer is checked tomorrow.", "A house.", "The doctor opens the folder."]
    for language, lines in text.items():
        (tmp_path / f"text.{language}").write_text(
            "".join(line + "\n" for line in lines), encoding="utf-8"
        )
    command = [
        warm.python(),
        HERE / "placement.py",
        "--out",
        tmp_path / "out",
        "--name",
        "two",
        "--text",
        tmp_path / "text",
    ]
    done = subprocess.run(
        list(map(str, [*command, "--displaced", tmp_path / "displaced.tsv"])),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "placement.json").read_text(encoding="utf-8"))["two"]
    rows = {row["way"]: row for row in found["rows"]}
    assert list(rows) == [
        "no glossary",
        "by hand",
        "fairseq",
        "fairseq, form known",
        "free",
        "align",
        "in step",
        "again",
    ]
    assert found["sentences"] == 2
    assert rows["no glossary"]["met"] == 0 and {
        rows[way]["met"] for way in ("by hand", "fairseq", "free", "align")
    } == {2}
    assert rows["by hand"]["left"] == 0 and rows["no glossary"]["left"] == 2
    assert (
        found["accuracy"]["terms"] == 2 and found["accuracy"]["found"]["mean of the layers"][0] == 2
    )
    done = subprocess.run(
        [warm.python(), str(HERE / "placement_tables.py"), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (
        "### two, beam 5: 2 terms in 2 sentences" in done.stdout
        and "| mean of the layers | 100.0% |" in done.stdout
    ), done.stderr


def test_what_a_rule_earns(tmp_path):
    """rules.py on lines of the demo: another form stays by its rule, and is replaced without it."""
    rule, other = "another form stays", "articles agree"  # the second is of German targets
    (tmp_path / "text.de").write_text("Das Speichern der Datei schlägt fehl.\n", encoding="utf-8")
    (tmp_path / "text.en").write_text("Saving the file fails.\n", encoding="utf-8")
    (tmp_path / "terms.tsv").write_text("Speichern\tSave\n", encoding="utf-8")
    given = [DEMO, tmp_path / "text", "de", "en", tmp_path / "terms.tsv"]
    command = [sys.executable, HERE / "rules.py", "--out", tmp_path / "out", "--least", "1"]
    command += ["--set", "demo", *given, "--only", rule, other, "--rounds", "2"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    rounds = json.loads((tmp_path / "out" / "rules.json").read_text())
    up, down, _, placed = rounds[0]["rules"][rule]["demo"]
    assert (up, down, placed) == (1, 0, 0) and rounds[0]["rules"][other] == {}
    assert rounds[1]["off"] == [other] and rule in rounds[1]["rules"]


def test_each_rule_can_be_left_out():
    with rules.without(rules.RULES):
        assert placement.KNOWN_SHARE == 2
    assert placement.KNOWN_SHARE == 0.5
