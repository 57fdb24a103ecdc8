"""scripts/experiments/streaming/tree_actions.py: trees to actions and back."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import warm

HERE = Path(__file__).resolve().parents[2] / "scripts" / "experiments" / "streaming"
sys.path.append(str(HERE))

from tree_actions import Tree, TreeError, read_tree, to_actions, to_tree  # noqa: E402

# worked out by hand from the rules of Cross and Huang 2016: a constituent of three
# children, and one over one
EATING = "(S (NP (PRP I)) (VP (MD do) (VBP like) (S (VP (VBG eating) (NP (NN fish))))))"
STEPS = """sh label:NP  sh nolabel  sh nolabel  comb nolabel  sh nolabel  \
sh label:NP  comb label:S+VP  comb label:VP  comb label:S"""


def drawn(rng: random.Random, words: int, depth: int = 0) -> Tree:
    """A random tree with unary chains and up to four children."""
    if words == 1 and (depth and rng.random() < 0.6):
        return Tree(rng.choice(["NN", "-LRB-", ","]), word=rng.choice(["a", "b|c", "%", "-RRB-"]))
    label = rng.choice(["S", "NP", "VP", "PP"])
    if words == 1 or rng.random() < 0.2:
        return Tree(label, (drawn(rng, words, depth + 1),))
    cuts = sorted(rng.sample(range(1, words), min(words - 1, rng.randint(1, 3))))
    sizes = [end - start for start, end in zip([0, *cuts], [*cuts, words], strict=True)]
    return Tree(label, tuple(drawn(rng, size, depth + 1) for size in sizes))


def test_steps_worked_out_by_hand():
    assert to_actions(read_tree(EATING)) == STEPS.split()


@pytest.mark.parametrize("seed", range(200))
def test_trees_come_back(seed):
    rng = random.Random(seed)
    tree = drawn(rng, rng.randint(1, 25))
    words = [(leaf.word, leaf.label) for leaf in tree.leaves()]
    actions = to_actions(tree)
    assert len(actions) == 4 * len(words) - 2
    assert to_tree(words, actions) == tree == read_tree(str(tree))


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        ("sh label:NP", "2 words take 6 actions, not 2"),
        ("comb nolabel sh nolabel sh label:S", "comb is no structural action after 0 of 2 words"),
        ("sh nolabel sh nolabel sh label:S", "sh is no structural action after 2 of 2 words"),
        ("sh nolabel sh comb comb label:S", "comb is no label action"),
        ("sh nolabel sh nolabel comb nolabel", "end before one constituent"),
    ],
)
def test_actions_that_are_no_tree(actions, said):
    with pytest.raises(TreeError, match=said):
        to_tree([("a", "DT"), ("b", "NN")], actions.split())


@pytest.mark.parametrize(
    "line",
    [
        "(S (NN a)",
        "(S (NN a)))",
        "(S)",
        "(NN a b)",
        "(NN a) (NN b)",
        "",
        "((NN a))",
        "(S (NN a) b)",
    ],
)
def test_lines_that_are_no_tree(line):
    with pytest.raises(TreeError):
        read_tree(line)


def test_files_there_and_back(tmp_path):
    script = [warm.python(), str(HERE / "tree_actions.py")]
    (tmp_path / "gold").write_text(f"{EATING}\n(NP (DT a) (JJ b|c))\n")
    there = subprocess.run(
        [*script, "--trees", tmp_path / "gold", "--out", tmp_path / "set"],
        capture_output=True,
        text=True,
    )
    assert there.returncode == 0, there.stderr
    assert (tmp_path / "set.words").read_text().splitlines()[
        0
    ] == "I|PRP do|MD like|VBP eating|VBG fish|NN"
    back = [
        *script,
        "--words",
        tmp_path / "set.words",
        "--actions",
        tmp_path / "set.actions",
        "--out",
        tmp_path / "back",
    ]
    (tmp_path / "gold").write_text(f"{EATING}\n(S (NN a)\n")
    bad = subprocess.run(
        [*script, "--trees", tmp_path / "gold", "--out", tmp_path / "bad"],
        capture_output=True,
        text=True,
    )
    assert bad.returncode == 1 and bad.stderr == "error: a line must be one tree: (S (NN a)\n"
    assert subprocess.run(back, capture_output=True).returncode == 0
    assert (tmp_path / "back").read_text() == f"{EATING}\n(NP (DT a) (JJ b|c))\n"
