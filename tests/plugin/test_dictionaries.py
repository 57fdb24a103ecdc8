"""A dictionary of the right size with other words: nothing fails, so it is reported."""

import random
import shutil
from types import SimpleNamespace

from fairseq.data import Dictionary
from forked import generate

from fairseq_ext.core.glossary import Languages
from fairseq_ext.plugin.loading.data_folder import difference, warn_of_other_words
from fairseq_ext.search.settings import CommandSettings

FLAGS = ["--task", "translation_ext", "--cpu", "--beam", 1, "--max-len-b", 4]


def shuffled(path, seed: int = 1) -> None:
    """Put a dictionary's words into another order."""
    lines = path.read_text().splitlines(keepends=True)
    random.Random(seed).shuffle(lines)
    path.write_text("".join(lines))


def warnings(log: str) -> list[str]:
    return [
        line for line in log.splitlines() if "with which the checkpoint seems to be trained" in line
    ]


def test_a_dictionary_next_to_the_checkpoint_or_of_its_training_is_compared(tiny, tmp_path):
    """The checkpoint's folder shows its dictionaries; where it has none, the data folder of the
    training does, while it is there."""
    shutil.copytree(tiny / "data", tmp_path / "data")
    shuffled(tmp_path / "data" / "dict.en.txt")
    (tmp_path / "model").mkdir()
    shutil.copy(tiny / "model.pt", tmp_path / "model" / "checkpoint.pt")
    assert not warnings(
        generate(tiny / "data", "--path", tmp_path / "model" / "checkpoint.pt", *FLAGS).stderr
    )
    for place in ("training", "checkpoint"):
        done = generate(tmp_path / "data", "--path", tmp_path / "model" / "checkpoint.pt", *FLAGS)
        [said] = warnings(done.stderr)
        where = tmp_path / "model" if place == "checkpoint" else tiny / "data"
        assert (
            done.status == 0
            and f"the target dictionary in {tmp_path / 'data'} is not {where / 'dict.en.txt'}"
            in said
        )
        assert "ids have other words, the first " in said and "use that of the training" in said
        shutil.copy(tiny / "data" / "dict.en.txt", tmp_path / "model")
    shutil.copy(tmp_path / "data" / "dict.en.txt", tmp_path / "model")
    [said] = warnings(
        generate(tmp_path / "data", "--path", tmp_path / "model" / "checkpoint.pt", *FLAGS).stderr
    )
    assert f"{tiny / 'data'}" in said  # that of the training still differs


def test_a_dictionary_in_the_state_of_the_task_is_compared(caplog):
    dictionary, other = Dictionary(), Dictionary()
    for word in ("a", "b"):
        dictionary.add_symbol(word)
    for word in ("b", "a"):
        other.add_symbol(word)
    settings = CommandSettings(Languages("de", "en"), data="d")
    for state, count in (
        ({"target_dictionary": other}, 1),
        ({"target_dictionary": dictionary}, 0),
        ({"dictionary": other.symbols}, 2),
    ):
        caplog.clear()
        task = SimpleNamespace(
            source_dictionary=dictionary,
            target_dictionary=dictionary,
            trained_on=None,
            task_state=state,
        )
        warn_of_other_words(task, settings)
        assert len(warnings(caplog.text)) == count


def test_what_differs_is_counted_over_the_ids_that_both_have():
    assert difference(["<s>", "a", "b"], ["<s>", "a", "b", "<mask>"]) is None
    assert (
        difference(["<s>", "a", "b"], ["<s>", "b", "a"])
        == "2 of 3 ids have other words, the first 1, 'b' there and 'a' here"
    )
