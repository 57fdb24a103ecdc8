"""scripts/experiments/streaming/{legal_actions,trees,train_trees}.py: searches over trees."""

import itertools
import random
import sys
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary

HERE = Path(__file__).resolve().parents[2] / "scripts" / "experiments" / "streaming"
sys.path.append(str(HERE))

import cost_model  # noqa: E402
import methods  # noqa: E402
import trees  # noqa: E402
from legal_actions import LegalActions  # noqa: E402
from test_tree_actions import EATING, drawn  # noqa: E402
from train_trees import SIDES, write_sides  # noqa: E402
from tree_actions import TreeError, read_tree, to_tree  # noqa: E402

ACTIONS = ["sh", "comb", "nolabel", "label:X"]


def dictionary(actions: list[str]) -> Dictionary:
    made = Dictionary()
    for action in actions:
        made.add_symbol(action)
    return made


def followed(words: int) -> set[tuple[str, ...]]:
    """Every sequence of ACTIONS that ends with EOS by taking legal actions only."""
    known = dictionary(ACTIONS)
    legal = LegalActions(known)
    found, open_ones = set(), [()]
    while open_ones:
        length = max(map(len, open_ones))
        # shorter rows on the right
        rows = [
            [-1] * (length - len(actions)) + [known.index(a) for a in actions]
            for actions in open_ones
        ]
        allowed = legal(torch.tensor(rows).view(len(rows), length), torch.full((len(rows),), words))
        following = []
        for actions, row in zip(open_ones, allowed, strict=True):
            nexts = [known[i] for i in row.nonzero()[:, 0].tolist()]
            assert nexts, actions  # there is always a way on
            found |= {actions} if nexts == [known[known.eos()]] else set()
            following += [(*actions, action) for action in nexts if action != known[known.eos()]]
        open_ones = following
    return found


def is_tree(words: int, actions: tuple[str, ...]) -> bool:
    try:
        to_tree([("w", "T")] * words, list(actions))
    except TreeError:
        return False
    return True


def test_legal_actions_are_those_of_the_trees_of_three_words():
    # the others are no trees at any number of words
    turns = itertools.product(*[ACTIONS[:2], ACTIONS[2:]] * 5)
    assert followed(3) == {actions for actions in turns if is_tree(3, actions)}


@pytest.fixture(scope="module")
def parser(tmp_path_factory):
    """An untrained LSTM over the words and actions of a few random trees, laid out as
    train_trees.py leaves it."""
    out = tmp_path_factory.mktemp("trees")
    chance = random.Random(3)
    made = [drawn(chance, words) for words in (2, 3, 3, 5, 7, 4)]
    write_sides({"train": made, "test": made}, out, rare=2)
    (out / "model").mkdir()
    for side in SIDES:
        known = dictionary(sorted(set((out / f"train.{side}").read_text().split())))
        known.save(str(out / "model" / f"dict.{side}.txt"))
    (out / "model" / "checkpoint.pt").touch()
    folder = tmp_path_factory.mktemp("text")
    text = methods.prepare(folder, out / "model", str(out / "test"), *SIDES)
    cost_model.untrained_lstm(text, out / "model" / "checkpoint.pt")
    (out / "test.trees").write_text("".join(f"{tree}\n" for tree in made))
    return out, text, made


def test_all_searches_find_the_trees_that_fairseqs_own_does(parser):
    _, text, made = parser
    setting = methods.Setting(k=4, n=3, delta=float("inf"), M=100, rows=8)
    flags = {
        name: [*given, "--max-len-b", "60", "--unnormalized", "--nbest", "4"]
        for name, given in methods.methods(setting).items()
    }
    found = {}
    for name in ("FIXED", "FIXED-OURS", "FIXED-STREAM", "VAR-BATCH", "VAR-STREAM"):
        decoding = trees.TreeDecoding(name, ["--cpu", *flags[name]], text, stock=name == "FIXED")
        found[name] = methods.read(decoding.run())
    words = Dictionary.load(str(text.folder / "dict.actions.txt"))
    for nbest, tree in zip(found["FIXED"], made, strict=True):
        leaves = [(leaf.word, leaf.label) for leaf in tree.leaves()]
        assert {len(tokens) for tokens, _ in nbest} == {4 * len(leaves) - 1}  # EOS too
        for tokens, score in nbest:
            assert score > -1e9
            to_tree(leaves, [words[token] for token in tokens[:-1]])  # raises where it is none
    for name, other in found.items():
        assert not methods.check(other, found["FIXED"]).differing, name


def test_brackets_are_counted_as_evalb_counts_them():
    """By hand: EATING has S NP VP S VP NP, six constituents; without the verb phrase of "eating
    fish" five are found, all right."""
    pytest.importorskip("PYEVALB")
    count = trees.scorer()
    assert count(EATING, EATING) == (6, 6, 6)
    flat = EATING.replace("(S (VP (VBG eating) (NP (NN fish))))", "(S (VBG eating) (NP (NN fish)))")
    assert count(str(read_tree(EATING)), str(read_tree(flat))) == (5, 5, 6)
    assert trees.f1([(5, 5, 6), (1, 3, 2)]) == pytest.approx(100 * 2 * 6 / 16)
