"""What a data folder shows and commands warn of: text that comes unsegmented to a model of
subwords, with what to add, and a dictionary of the right size with other words; silence where all
is well."""

import random
import re
import shutil
from types import SimpleNamespace

import pytest
from conftest import command
from demo_model import MODEL as DEMO
from fairseq.data import Dictionary
from fairseq_cli.preprocess import cli_main as preprocess
from forked import forked, generate_forked, succeeded

from fairseq_ext import Translator
from fairseq_ext.core.glossary import Languages
from fairseq_ext.plugin.loading.data_folder import (
    SegmentationCheck,
    advice,
    difference,
    kind_of_files,
    warn_of_other_words,
)
from fairseq_ext.search.phrases.pieces import kind_of
from fairseq_ext.search.settings import CommandSettings

RAW, PIECES = "Das ist gut.", "▁Das ▁ist ▁gut ."
SPM = f"--bpe sentencepiece --sentencepiece-model {DEMO / 'spm.model'}"
SAID = re.compile(r"the words of the dictionary are pieces.*")
EXT = "--task translation_ext --cpu --beam 1".split()


def dictionary(*words: str) -> Dictionary:
    found = Dictionary()
    for word in words:
        found.add_symbol(word)
    return found


def reported(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if SAID.match(record.getMessage())]


@pytest.mark.parametrize(
    ("words", "lines", "undone", "warned"),
    [
        ("▁a ▁b c", ["a b"], False, True),
        ("▁a ▁b c", ["a b"], True, True),
        ("▁a ▁b c", ["▁a ▁b c"], False, False),
        ("a@@ b c", ["a b"], False, True),
        ("a@@ b c", ["d@@ b"], False, False),
        ("a@@ b c", ["b c"], True, False),  # whole words that the dictionary has
        ("a@@ b c", ["b d"], True, True),
        ("a b c", ["d e"], False, False),
        ("▁a b", ["", "  "], False, False),
    ],
)
def test_marks_in_the_dictionary_and_none_in_the_lines(
    tmp_path, caplog, words, lines, undone, warned
):
    known = dictionary(*words.split())
    is_known = known.__contains__ if undone else None
    watch = SegmentationCheck(kind_of(known, None), str(tmp_path), is_known)
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
    named = "--bpe sentencepiece --sentencepiece-model FILE"
    assert advice("sentencepiece", str(tmp_path)) == named
    codes = tmp_path / "bpecodes"
    codes.write_text("e n</w> 77\n")
    assert advice("subword-nmt", str(tmp_path)) == f"--bpe fastbpe --bpe-codes {codes}"


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
    flags = ["--path", DEMO / "checkpoint.pt", *EXT, *more]
    done = command("fairseq-interactive", DEMO, *flags, stdin=f"{text}\n{text}\n")
    said = SAID.findall(done.stdout + done.stderr)
    assert [line.endswith(f"add {SPM}") for line in said] == [True] * count
    assert done.stdout.count("H-") == 2


def test_generate_warns_that_its_output_stays_segmented(tmp_path):
    for language in ("de", "en"):
        (tmp_path / f"test.{language}").write_text(PIECES + "\n")
    dictionaries = [
        f"--{side}dict={DEMO / f'dict.{language}.txt'}"
        for side, language in (("src", "de"), ("tgt", "en"))
    ]
    words = "fairseq-preprocess -s de -t en --testpref".split()
    words += [tmp_path / "test", *dictionaries, "--destdir", tmp_path / "data"]
    succeeded(forked(preprocess, *words))
    flags = [tmp_path / "data", "--path", DEMO / "checkpoint.pt", *EXT]
    add = "add --remove-bpe sentencepiece, or --bpe sentencepiece --sentencepiece-model FILE"
    for more, count in (([], 1), (["--remove-bpe", "sentencepiece"], 0), (SPM.split(), 0)):
        out = generate_forked(*flags, *more)
        said = SAID.findall(out.stdout + out.stderr)
        assert [add in each for each in said] == [True] * count


def test_a_translator_warns_once(caplog):
    ours = Translator(str(DEMO / "checkpoint.pt"), str(DEMO), beam=1, cpu=True)
    for _ in range(2):
        ours.translate([RAW])
    assert len(reported(caplog)) == 1 and reported(caplog)[0].endswith(f"add {SPM}")


# ---- A dictionary of the right size with other words: nothing fails, so it is reported


def warnings(log: str) -> list[str]:
    return re.findall(".*with which the checkpoint seems to be trained.*", log)


def test_a_dictionary_next_to_the_checkpoint_or_of_its_training_is_compared(tiny, tmp_path):
    """The checkpoint's folder shows its dictionaries; where it has none, the data folder of the
    training does, while it is there."""
    data, model = tmp_path / "data", tmp_path / "model"
    shutil.copytree(tiny / "data", data)
    words = (data / "dict.en.txt").read_text().splitlines(keepends=True)
    random.Random(1).shuffle(words)
    (data / "dict.en.txt").write_text("".join(words))
    model.mkdir()
    shutil.copy(tiny / "model.pt", model / "checkpoint.pt")

    def said(folder) -> list[str]:
        flags = ["--path", model / "checkpoint.pt", *EXT, "--max-len-b", 4]
        return warnings(generate_forked(folder, *flags).stderr)

    assert not said(tiny / "data")
    for where in (tiny / "data", model):
        [line] = said(data)
        assert f"the target dictionary in {data} is not {where / 'dict.en.txt'}" in line
        assert "ids have other words, the first " in line and "use that of the training" in line
        shutil.copy(tiny / "data" / "dict.en.txt", model)
    shutil.copy(data / "dict.en.txt", model)
    [line] = said(data)
    assert f"{tiny / 'data'}" in line  # that of the training still differs


def test_a_dictionary_in_the_state_of_the_task_is_compared(caplog):
    own, other = dictionary("a", "b"), dictionary("b", "a")
    settings = CommandSettings(Languages("de", "en"), data="d")
    for state, count in (
        ({"target_dictionary": other}, 1),
        ({"target_dictionary": own}, 0),
        ({"dictionary": other.symbols}, 2),
    ):
        caplog.clear()
        both = {"source_dictionary": own, "target_dictionary": own}
        warn_of_other_words(SimpleNamespace(**both, trained_on=None, task_state=state), settings)
        assert len(warnings(caplog.text)) == count


def test_what_differs_is_counted_over_the_ids_that_both_have():
    assert difference(["<s>", "a", "b"], ["<s>", "a", "b", "<mask>"]) is None
    said = "2 of 3 ids have other words, the first 1, 'b' there and 'a' here"
    assert difference(["<s>", "a", "b"], ["<s>", "b", "a"]) == said
