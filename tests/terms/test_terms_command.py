"""`python -m fairseq_ext.terms score` and `expand` as a user types them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu
import warm
from sizes import drawn

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.lemmas import lemmatizer
from fairseq_ext.terms.__main__ import forms_in, main

SCRIPT = (
    Path(__file__).parents[2] / "scripts" / "experiments" / "terminology" / "published_scores.py"
)
REFERENCES = [
    {
        "en": "The dogs bark.",
        "de": "Die Hunde bellen laut im Hof.",
        "proper": {"dog": "Hund"},
        "random": {"bark": "bellen"},
    },
    {
        "en": "The bookshop is open.",
        "de": "Der Laden ist heute offen.",
        "proper": {"bookshop": "Laden"},
        "random": {},
    },
]
OUT = ["Die Hunde bellen laut.", "Der Buchladening ist heute offen."]
BLEU = sacrebleu.corpus_bleu(OUT, [[line["de"] for line in REFERENCES]]).score
CHRF = sacrebleu.corpus_chrf(OUT, [[line["de"] for line in REFERENCES]], word_order=2).score


@pytest.fixture
def files(tmp_path):
    references, out = tmp_path / "references.ende.jsonl", tmp_path / "team.ende.proper.txt"
    references.write_text("".join(json.dumps(line) + "\n" for line in REFERENCES))
    out.write_text("".join(line + "\n" for line in OUT))
    flags = ["--hypotheses", str(out), "--references", str(references), "--target-lang", "de"]
    return [*flags, "--format", "wmt25"]


def test_the_command_prints_one_object_and_imports_neither_torch_nor_fairseq(files):
    arguments = ["score", *files, "--terms", "proper", "--json"]
    command = [sys.executable, "-X", "importtime", "-m", "fairseq_ext.terms", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    imported = {
        line.rsplit("|", 1)[-1].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "sacrebleu" in imported and not {"torch", "fairseq"} & imported
    assert found["term_success"] == 1.0 and found["term_success_words"] == 1 / 2
    assert (found["bleu"], found["chrf2pp"]) == (BLEU, CHRF)
    assert found["signature"].startswith(
        "fairseq_ext.terms:0.1|format:wmt25|terms:proper|lang:en-de|lemmas:simplemma-"
    )


def test_the_table_ends_with_the_signature(files, capsys):
    main(["score", *files, "--terms", "random", "--lemmas", "none"])
    *rows, signature = capsys.readouterr().out.splitlines()
    values = dict(row.split() for row in rows if "overlap" not in row and row)
    assert values["term_success"] == "1.0000" and list(values)[0] == "bleu"
    assert signature.startswith("fairseq_ext.terms:0.1|") and "lemmas:none" in signature
    assert "after_final_punctuation" in rows[-2]


@drawn(1)
@pytest.mark.parametrize(
    ("bleu_off", "success_off", "status"), [(0, 0.009, 0), (1e-5, 0, 1), (0, 0.011, 1)]
)
def test_the_check_against_published_scores_fails_outside_its_bounds(
    tmp_path, files, bleu_off, success_off, status
):
    # both terms, and the one of `random`
    row = ["team.ende.proper.txt", BLEU + bleu_off, CHRF, 1 - success_off, 1]
    lines = [["file", "BLEU", "chrF2++", "proper_success", "random_success"], row]
    (tmp_path / "official_scores.tsv").write_text(
        "".join("\t".join(map(str, line)) + "\n" for line in lines)
    )
    done = subprocess.run(
        [warm.python(), SCRIPT, tmp_path], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == status, done.stdout + done.stderr


# ---- expand: forms under the same lemmas, found in text

LINES = [
    "Boots are on the table, two boots and one boot.",
    "A rubber boot, rubber boots, RUBBER boots",
    "She boots it.",
    "“Rubber boots!”",
]


def test_forms_of_one_and_of_several_words():
    found = forms_in(LINES, ["boot", "rubber boot", "table"], lemmatizer("en", "--lang"))
    # the capital of the first word of a line is the line's
    assert found["boot"] == {"boots": 5 + 1, "boot": 2}
    assert found["rubber boot"] == {"rubber boot": 1, "rubber boots": 2, "RUBBER boots": 1}
    assert found["table"] == {"table": 1}


def test_a_noun_that_has_a_capital_of_its_own_keeps_it():
    german = lemmatizer("de", "--lang")
    assert forms_in(["Häuser stehen.", "Die Häuser"], ["Haus"], german)["Haus"] == {"Häuser": 2}


@pytest.fixture
def expand(tmp_path):
    (tmp_path / "g.csv").write_text("source,target,case\nStiefel,boot,exact\nTisch,table|desk,\n")
    (tmp_path / "mono.en").write_text("\n".join(LINES))
    files = ["--glossary", str(tmp_path / "g.csv"), "--text", str(tmp_path / "mono.en")]
    return ["expand", "--lang", "en", *files]


def test_the_command_prints_a_glossary_with_more_alternatives(expand, capsys):
    main(expand)
    printed = capsys.readouterr()
    assert printed.err == "2 entries, 1 form added\n"
    # the case of an entry stays
    rows = ["source\ttarget\tcase", "Stiefel\tboot|boots\texact", "Tisch\ttable|desk\t"]
    assert printed.out.splitlines() == rows
    main([*expand, "--min-count", "7"])
    assert "Stiefel\tboot\texact" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("score --references nowhere", "cannot read nowhere"),
        ("score --terms other", "has no dictionary 'other'"),
        ("score --target-lang xx", "has no text under 'xx'"),
        ("expand --glossary nowhere", "cannot read nowhere"),
        ("expand --text nowhere", "cannot read nowhere"),
        ("expand --lang tlh", "'tlh'"),
    ],
)
def test_a_wrong_argument_is_one_sentence(files, expand, capsys, change, sentence):
    command, *change = change.split()
    first = {"score": ["score", *files], "expand": expand}[command]
    with pytest.raises(UsageError) as error:
        main([*first, *change])
    assert sentence in str(error.value) and "\n" not in str(error.value)
    assert not capsys.readouterr().out


def test_without_a_text_the_forms_are_those_of_the_glossary_itself(tmp_path, capsys):
    (tmp_path / "g.tsv").write_text("customer\tKunde\ninvoice\tRechnung|Faktura\nAPI\tAPI\n")
    command = ["expand", "--glossary", str(tmp_path / "g.tsv"), "--lang", "de"]
    main(command)
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert lines["customer"] == "Kunde|Kunden" and lines["API"] == "API"
    assert lines["invoice"].startswith("Rechnung|Faktura|Rechnungen|")
    with pytest.raises(UsageError, match="add --text"):
        main([*command[:-1], "en"])
