"""`python -m fairseq_ext.terms score` as a user types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu
import warm
from sizes import drawn

from fairseq_ext.core.errors import UsageError
from fairseq_ext.terms.__main__ import main

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


@pytest.fixture
def files(tmp_path):
    (tmp_path / "references.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in REFERENCES)
    )
    (tmp_path / "out.txt").write_text("".join(line + "\n" for line in OUT))
    return [
        "--hypotheses",
        str(tmp_path / "out.txt"),
        "--references",
        str(tmp_path / "references.jsonl"),
        "--target-lang",
        "de",
    ]


def test_the_command_prints_one_object_and_imports_neither_torch_nor_fairseq(files):
    arguments = ["score", *files, "--format", "wmt25", "--terms", "proper", "--json"]
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
    references = [[line["de"] for line in REFERENCES]]
    assert found["bleu"] == sacrebleu.corpus_bleu(OUT, references).score
    assert found["chrf2pp"] == sacrebleu.corpus_chrf(OUT, references, word_order=2).score
    assert found["signature"].startswith(
        "fairseq_ext.terms:0.1|format:wmt25|terms:proper|lang:en-de|lemmas:simplemma-"
    )


def test_the_table_ends_with_the_signature(files, capsys):
    options = ["--format", "wmt25", "--terms", "random", "--lemmas", "none"]
    main(["score", *files, *options])
    *rows, signature = capsys.readouterr().out.splitlines()
    values = dict(row.rsplit("  ", 1) for row in rows if row)
    assert (
        values[next(name for name in values if name.startswith("term_success "))].strip()
        == "1.0000"
    )
    assert signature.startswith("fairseq_ext.terms:0.1|") and "lemmas:none" in signature
    assert list(values)[0].strip() == "bleu" and "after_final_punctuation" in rows[-2]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (["--references", "nowhere"], "cannot read nowhere"),
        (["--terms", "other"], "has no dictionary 'other'"),
        (["--target-lang", "xx"], "has no text under 'xx'"),
    ],
)
def test_a_wrong_argument_is_one_sentence(files, capsys, change, sentence):
    with pytest.raises(UsageError) as error:
        main(["score", *files, "--format", "wmt25", *change])
    assert sentence in str(error.value) and "\n" not in str(error.value)
    assert not capsys.readouterr().out


@drawn(1)
@pytest.mark.parametrize(
    ("bleu_off", "success_off", "status"), [(0, 0.009, 0), (1e-5, 0, 1), (0, 0.011, 1)]
)
def test_the_check_against_published_scores_fails_outside_its_bounds(
    tmp_path, bleu_off, success_off, status
):
    (tmp_path / "references.ende.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in REFERENCES)
    )
    (tmp_path / "team.ende.proper.txt").write_text("".join(line + "\n" for line in OUT))
    references = [[line["de"] for line in REFERENCES]]
    bleu, chrf = (
        sacrebleu.corpus_bleu(OUT, references).score,
        sacrebleu.corpus_chrf(OUT, references, word_order=2).score,
    )
    # both terms, and the one of `random`
    row = ["team.ende.proper.txt", bleu + bleu_off, chrf, 1 - success_off, 1]
    lines = [["file", "BLEU", "chrF2++", "proper_success", "random_success"], row]
    (tmp_path / "official_scores.tsv").write_text(
        "".join("\t".join(map(str, line)) + "\n" for line in lines)
    )
    done = subprocess.run(
        [warm.python(), SCRIPT, tmp_path], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == status, done.stdout + done.stderr
