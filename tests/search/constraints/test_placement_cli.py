"""Where forced phrases land, through the command on the demo model: verbs of a glossary, and what
--constraint-end and --constraint-bonus refuse."""

import json
import re

import pytest
from demo_model import MODEL, OURS
from demo_text import raw_demo
from forked import generate, interactive_forked
from sizes import drawn


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
    done = interactive_forked("\n".join(lines) + "\n", MODEL, *OURS, "--glossary", glossary)
    *verbs, cycle = re.findall(r"^D-\d+\t\S+\t(.*)$", done.stdout, re.MULTILINE)
    assert [text.split()[0] for text in verbs] == ["Using", "Saving", "Processing"]
    assert re.search(r"\bcycle\b", cycle)


def test_other_forms_of_a_term_are_found_but_by_surface(tmp_path):
    """The signature names the match; surface is not named."""
    (tmp_path / "terms.tsv").write_text("Angebot\tquotations\n", encoding="utf-8")
    lines = "Zwei Angebote müssen noch geprüft werden.\n"
    flags = ("--glossary", tmp_path / "terms.tsv", "--stats-file", tmp_path / "stats")
    for match, found in (((), True), (("--glossary-match", "surface"), False)):
        done = interactive_forked(lines, MODEL, *OURS, *flags, *match)
        (text,) = re.findall(r"^D-\d+\t\S+\t(.*)$", done.stdout, re.MULTILINE)
        assert ("quotations" in text) == found, done.stderr
        signature = json.loads((tmp_path / "stats").read_text())["signature"]
        assert ("glossary_match=lemma" in signature) == found
        assert "glossary_match=surface" not in signature


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
def test_what_cannot_work_is_refused_in_one_sentence(tmp_path, flags, said):
    (tmp_path / "phrases.tsv").write_text("wires\n", encoding="utf-8")
    phrases = ("--constraints-file", tmp_path / "phrases.tsv")
    given = () if flags == ("--constraint-end",) else phrases
    status, _, log = generate(raw_demo(tmp_path, 1), *OURS, "--dataset-impl", "raw", *given, *flags)
    assert status and said in log
