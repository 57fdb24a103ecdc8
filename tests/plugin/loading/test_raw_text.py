"""Text that comes unsegmented to a model of subwords: one warning that says what to add;
silence where all is well."""

import re
from pathlib import Path

import pytest
from conftest import command
from fairseq.data import Dictionary
from fairseq_cli.preprocess import cli_main as preprocess
from forked import forked, generate_forked, succeeded

from fairseq_ext import Translator
from fairseq_ext.plugin.loading.data_folder import SegmentationCheck, advice, kind_of_files
from fairseq_ext.search.phrases.pieces import kind_of

DEMO = Path(__file__).resolve().parents[3] / "checkpoints" / "demo"
RAW, PIECES = "Das ist gut.", "▁Das ▁ist ▁gut ."
SPM = f"--bpe sentencepiece --sentencepiece-model {DEMO / 'spm.model'}"
SAID = re.compile(r"the words of the dictionary are pieces.*")


def dictionary(*words: str) -> Dictionary:
    found = Dictionary()
    for word in words:
        found.add_symbol(word)
    return found


def reported(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if SAID.match(record.getMessage())]


@pytest.mark.parametrize(
    "words, lines, undone, warned",
    [
        (("▁a", "▁b", "c"), ["a b"], False, True),
        (("▁a", "▁b", "c"), ["a b"], True, True),
        (("▁a", "▁b", "c"), ["▁a ▁b c"], False, False),
        (("a@@", "b", "c"), ["a b"], False, True),
        (("a@@", "b", "c"), ["d@@ b"], False, False),
        (("a@@", "b", "c"), ["b c"], True, False),  # whole words that the dictionary has
        (("a@@", "b", "c"), ["b d"], True, True),
        (("a", "b", "c"), ["d e"], False, False),
        (("▁a", "b"), ["", "  "], False, False),
    ],
)
def test_marks_in_the_dictionary_and_none_in_the_lines(
    tmp_path, caplog, words, lines, undone, warned
):
    known = dictionary(*words)
    watch = SegmentationCheck(
        kind_of(known, None), str(tmp_path), known.__contains__ if undone else None
    )
    for _ in range(2):  # reported once
        watch.check(lines)
    assert len(reported(caplog)) == warned
    known.save(str(tmp_path / "dict.xx.txt"))
    assert kind_of_files([str(tmp_path / "dict.xx.txt")]) == kind_of(known, None)


def test_segmented_lines_settle_it(tmp_path, caplog):
    watch = SegmentationCheck("subword-nmt", str(tmp_path), None)
    for lines in (["", " "], ["a@@ b"], ["a b"]):
        watch.check(lines)
    assert not reported(caplog)


def test_the_advice_names_the_folders_file(tmp_path):
    assert advice("sentencepiece", str(DEMO)) == SPM
    assert (
        advice("sentencepiece", str(tmp_path)) == "--bpe sentencepiece --sentencepiece-model FILE"
    )
    (tmp_path / "bpecodes").write_text("e n</w> 77\n")
    assert (
        advice("subword-nmt", str(tmp_path)) == f"--bpe fastbpe --bpe-codes {tmp_path / 'bpecodes'}"
    )


@pytest.mark.parametrize(
    "text, more, count",
    [
        (RAW, [], 1),
        (PIECES, [], 0),
        (RAW, SPM.split(), 0),
        (PIECES, ["--remove-bpe", "sentencepiece"], 0),
    ],
    ids=["raw", "segmented", "with --bpe", "segmented, --remove-bpe"],
)
def test_interactive_warns_once(text, more, count):
    flags = [
        "--path",
        DEMO / "checkpoint.pt",
        "--cpu",
        "--beam",
        1,
        "--task",
        "translation_ext",
        *more,
    ]
    done = command("fairseq-interactive", DEMO, *flags, stdin=f"{text}\n{text}\n")
    assert [line.endswith(f"add {SPM}") for line in SAID.findall(done.stdout + done.stderr)] == [
        True
    ] * count
    assert done.stdout.count("H-") == 2


def test_generate_warns_that_its_output_stays_segmented(tmp_path):
    for language in ("de", "en"):
        (tmp_path / f"test.{language}").write_text(PIECES + "\n")
    dictionaries = [
        f"--{side}dict={DEMO / f'dict.{language}.txt'}"
        for side, language in (("src", "de"), ("tgt", "en"))
    ]
    made = forked(
        preprocess,
        "fairseq-preprocess",
        "-s",
        "de",
        "-t",
        "en",
        "--testpref",
        tmp_path / "test",
        *dictionaries,
        "--destdir",
        tmp_path / "data",
    )
    succeeded(made)
    flags = [
        tmp_path / "data",
        "--path",
        DEMO / "checkpoint.pt",
        "--cpu",
        "--beam",
        "1",
        "--task",
        "translation_ext",
    ]
    out = generate_forked(*flags)
    said = SAID.findall(out.stdout + out.stderr)
    assert (
        len(said) == 1
        and "add --remove-bpe sentencepiece, or --bpe sentencepiece --sentencepiece-model FILE"
        in said[0]
    )
    for more in (["--remove-bpe", "sentencepiece"], SPM.split()):
        out = generate_forked(*flags, *more)
        assert not SAID.findall(out.stdout + out.stderr)


def test_translator_and_corpus_warn_once(tmp_path, caplog, monkeypatch):
    from corpus_jobs import OneProcess

    from fairseq_ext.corpus import run
    from fairseq_ext.corpus.__main__ import job_of

    ours = Translator(str(DEMO / "checkpoint.pt"), str(DEMO), beam=1, cpu=True)
    for _ in range(2):
        ours.translate([RAW])
    assert len(reported(caplog)) == 1 and reported(caplog)[0].endswith(f"add {SPM}")
    caplog.clear()
    monkeypatch.setattr(run, "Run", OneProcess)
    (tmp_path / "in.txt").write_text(f"{RAW}\n" * 3)
    where = [
        "--input",
        str(tmp_path / "in.txt"),
        "--data",
        str(DEMO),
        "--path",
        str(DEMO / "checkpoint.pt"),
        "--progress",
        "0",
    ]
    for flags, count in (([], 1), (SPM.split(), 0)):
        output = str(tmp_path / f"out{count}")
        assert (
            run.translate(
                job_of(
                    [
                        "translate",
                        *where,
                        "--output",
                        output,
                        "--beam",
                        "1",
                        "--cpu",
                        "--unit",
                        "1",
                        *flags,
                    ]
                )
            ).errors
            == 0
        )
        assert len(reported(caplog)) == count
        caplog.clear()
