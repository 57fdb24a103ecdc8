"""Where forced phrases land, through the command on the demo model: --constraint-end,
--constraint-bonus, and verbs of a glossary."""

import json
import re
from pathlib import Path

import pytest
from demo_text import raw_demo
from forked import generate, interactive_forked
from sizes import drawn

from fairseq_ext.search.constraints.report import LEFT_OUT

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "checkpoints" / "demo"
BEHIND = re.compile(r"[.!?][\"']*\s+\S")  # something behind the end of a sentence
LINES = 6
TERM = "wires"  # no translation of any of these sentences


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[Path, list[str]]:
    """The first lines of the demo's test set as raw data, and their references."""
    references = (
        (ROOT / "data" / "demo" / "test.en").read_text(encoding="utf-8").split("\n")[:LINES]
    )
    return raw_demo(tmp_path_factory.mktemp("demo"), LINES), references


def translations(demo, *flags) -> tuple[dict[int, str], dict]:
    """Texts of the best hypotheses by sentence, and the statistics of the constraints."""
    folder, _ = demo
    stats = folder / "stats.json"
    where = [
        folder,
        "--path",
        MODEL / "checkpoint.pt",
        "--dataset-impl",
        "raw",
        "--cpu",
        "--source-lang",
        "de",
        "--target-lang",
        "en",
    ]
    how = [
        "--bpe",
        "sentencepiece",
        "--sentencepiece-model",
        MODEL / "spm.model",
        "--task",
        "translation_ext",
        "--beam",
        4,
    ]
    status, out, log = generate(*where, *how, "--stats-file", stats, *flags)
    assert status == 0, log
    found = {int(n): text for n, text in re.findall(r"^D-(\d+)\t\S+\t(.*)$", out, re.MULTILINE)}
    assert sorted(found) == list(range(LINES))
    return found, json.loads(stats.read_text(encoding="utf-8")).get("constraints", {})


@pytest.fixture(scope="module")
def free(demo) -> dict[int, str]:
    return translations(demo)[0]


@pytest.fixture(scope="module")
def foreign(demo) -> tuple[str, str]:
    """A word that fits none of the sentences, for all of them."""
    file = demo[0] / "foreign.tsv"
    file.write_text(f"{TERM}\n" * LINES, encoding="utf-8")
    return "--constraints-file", str(file)


@pytest.fixture(scope="module")
def mixed(demo, free) -> tuple[tuple[str, str], list[bool]]:
    """For every other sentence a word of its free translation, a foreign one for the others;
    and which are foreign."""
    words = [
        TERM if i % 2 else max(free[i].rstrip(".?!").split(), key=len).strip(",")
        for i in range(LINES)
    ]
    file = demo[0] / "mixed.tsv"
    file.write_text("".join(word + "\n" for word in words), encoding="utf-8")
    return ("--constraints-file", str(file)), [bool(i % 2) for i in range(LINES)]


def test_nothing_follows_the_end_of_a_sentence_under_constraint_end(demo, foreign):
    paper, _ = translations(demo, *foreign)
    assert any(BEHIND.search(text) for text in paper.values())  # what the flag is for
    found, counts = translations(demo, *foreign, "--constraint-end")
    assert counts == {"given": LINES, "met": LINES, "unmet": []}
    assert all(
        re.search(rf"\b{TERM}\b", text) and not BEHIND.search(text) for text in found.values()
    )


def test_soft_terms_are_preferred_and_those_left_out_are_reported(demo, foreign, free):
    nothing, counts = translations(demo, *foreign, "--constraint-bonus", 0)
    assert nothing == free and counts["met"] == 0
    assert sorted(counts["unmet"]) == [[i, TERM, LEFT_OUT] for i in range(LINES)]
    much, counts = translations(demo, *foreign, "--constraint-bonus", 30)
    assert counts == {"given": LINES, "met": LINES, "unmet": []} and all(
        TERM in text for text in much.values()
    )


def test_a_verb_that_the_draft_has_in_another_form_stays_as_it_is(tmp_path):
    """English: "using" is not replaced by "Use", which the rest of the sentence does not fit."""
    terms = {"Verwenden": "Use", "Speichern": "Save", "Verarbeiten": "Process"}
    glossary = tmp_path / "terms.tsv"
    glossary.write_text(
        "".join(f"{a}\t{b}\n" for a, b in (terms | {"Schleife": "cycle"}).items()),
        encoding="utf-8",
    )
    lines = [
        "Durch Verwenden dieser Klasse lässt sich die Leistung steigern.",
        "Das Speichern der Datei schlägt fehl.",
        "Das Verarbeiten der Daten dauert lange.",
        "Die Schleife läuft noch.",  # another word is replaced
    ]
    command = f"{MODEL} --path {MODEL}/checkpoint.pt --cpu -s de -t en --bpe sentencepiece"
    command += f" --sentencepiece-model {MODEL}/spm.model --task translation_ext"
    done = interactive_forked("\n".join(lines) + "\n", *command.split(), "--glossary", glossary)
    *verbs, cycle = re.findall(r"^D-\d+\t\S+\t(.*)$", done.stdout, re.MULTILINE)
    assert [text.split()[0] for text in verbs] == ["Using", "Saving", "Processing"]
    assert re.search(r"\bcycle\b", cycle)


@drawn(3)
@pytest.mark.parametrize(
    "flags, said",
    [
        (
            ("--constraint-end",),
            "--constraint-end applies to phrases, and the command has none: add --constraints-file",
        ),
        (
            ("--select", "dba", "--constraint-bonus", 2),
            "--constraint-bonus prefers phrases and --select dba forces them",
        ),
        (("--select", "bonus"), "--select bonus prefers phrases by a bonus and none is given"),
        (("--constraint-bonus", -1), "--constraint-bonus (bonus in nats) must be "),
        (
            ("--constraint-bonus", 1, "--stop", "optimal", "--unnormalized"),
            "can make a token's score positive",
        ),
        (("--constraint-bonus", 1, "--softmax", "screened"), "can raise words"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(demo, foreign, flags, said):
    folder, _ = demo
    given = () if flags == ("--constraint-end",) else foreign
    where = [
        folder,
        "--path",
        MODEL / "checkpoint.pt",
        "--dataset-impl",
        "raw",
        "--cpu",
        "--source-lang",
        "de",
        "--target-lang",
        "en",
    ]
    status, _, log = generate(*where, "--task", "translation_ext", *given, *flags)
    assert status and said in log
