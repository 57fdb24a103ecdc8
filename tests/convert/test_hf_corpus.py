"""Converted models through `fairseq_ext.corpus`: languages as users name them, required words,
a killed run that goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from corpus_jobs import one_process, parts, records, write_text
from sizes import ALL, drawn

pytest.importorskip("transformers", reason="the oracle is not installed")

from hf_models import lines, make  # noqa: E402

from fairseq_ext import Translator  # noqa: E402
from fairseq_ext.corpus.__main__ import main  # noqa: E402

PAIRS = {
    "OPUS-MT": ["-t", "fra"],
    "OPUS-MT, two vocabularies": [],
    "M2M-100": ["-s", "ru", "-t", "zh"],
    "WMT19": [],
    "NLLB-200": ["--source-lang", "rus_Cyrl", "--target-lang", "zho_Hans"],
    "mBART-50": ["-s", "ru_RU", "-t", "zh_CN"],
}


@drawn(0)  # long
@pytest.mark.parametrize("kind", PAIRS if os.environ.get(ALL) else ["OPUS-MT"])
def test_a_corpus_is_translated_as_python_does(kind, tmp_path, monkeypatch):
    """With --all by two workers, and the first run is killed."""
    made, pair, text = make(kind, tmp_path, 2), PAIRS[kind], lines(400, 3)
    text = [
        f">>deu<< {line}" if i % 3 == 0 and made.is_marian else line for i, line in enumerate(text)
    ]
    source, terms = (
        write_text(tmp_path / "in.txt", text),
        write_text(tmp_path / "terms.tsv", ["мост"] * len(text)),
    )
    out, flags = (
        tmp_path / "lines",
        ["--constraints-file", str(terms), "--cpu", "--beam", "2", "--max-len-b", "12"],
    )
    typed = [
        "translate",
        "--data",
        str(made.out),
        *pair,
        "--input",
        str(source),
        "--output",
        str(out),
        *flags,
    ]
    if os.environ.get(ALL):
        words = [
            sys.executable,
            "-m",
            "fairseq_ext.corpus",
            *typed,
            "--workers",
            "2",
            "--unit",
            "10",
            "--object-store",
            "100",
        ]
        run, until = (
            subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL),
            time.monotonic() + 120,
        )
        while run.poll() is None and len(parts(out)) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        run.kill()
        run.wait()
        assert parts(out) and not (out / "in.jsonl").exists()
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0 and " of them before this run" in done.stdout, done.stderr
    else:
        with one_process(monkeypatch, None):
            assert main(typed) == 0
    given = {flag.lstrip("-")[0]: value for flag, value in zip(pair[::2], pair[1::2], strict=True)}
    of = Translator.from_folder(
        made.out,
        source_lang=given.get("s"),
        target_lang=given.get("t"),
        cpu=True,
        beam=2,
        max_len_b=12,
    )
    expected = [nbest[0].text for nbest in of.translate(text, constraints=[["мост"]] * len(text))]
    assert [each["hypotheses"][0] for each in records(out / "in.jsonl")] == expected
    assert all("мост" in each for each in expected)
