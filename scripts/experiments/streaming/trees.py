"""The searches behind the syntactic half of the paper's Table 2: every method with at
most N rows a step.

    python scripts/experiments/streaming/trees.py --out DIR --trees DIR [--models DIR]
        [--split test] [--limit N]

MODELS/model and MODELS/SPLIT.{words,actions} are what train_trees.py made; TREES/SPLIT.trees are
the trees. Searches go over legal actions only (legal_actions.py), so all hypotheses of a sentence
are equally long, which the table states. Labelled F1 is PYEVALB's (`pip install PYEVALB`), of the
best hypotheses and, oracle, of each sentence's best tree among its n-best. OUT/trees/SPLIT.json
is not made again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from legal_actions import keep_legal
from methods import (
    BenchError,
    Decoding,
    Setting,
    Text,
    add_timing_arguments,
    cached,
    command_line,
    measure,
    methods,
    prepare,
    run_script,
    timing,
)
from train_trees import SIDES, read_trees
from tree_actions import Tree, to_tree

Brackets = tuple[int, int, int]  # matched, of the parse, of the treebank


class TreeDecoding(Decoding):
    """A method whose hypotheses are trees."""

    def __post_init__(self) -> None:
        super().__post_init__()
        keep_legal(self.generator, self.loaded.task.target_dictionary)


def scorer() -> Any:
    """A function from two trees as text, the treebank's first, to the brackets
    that evalb counts."""
    try:
        from PYEVALB.parser import create_from_bracket_string as read
        from PYEVALB.scorer import Scorer
    except ImportError as error:
        raise BenchError("labelled F1 is counted by PYEVALB: pip install PYEVALB") from error

    def brackets(gold: str, found: str) -> Brackets:
        counts = Scorer().score_trees(read(gold), read(found))
        return counts.matched_brackets, counts.test_brackets, counts.gold_brackets

    return brackets


def f1(counts: Iterable[Brackets]) -> float:
    """Per cent of brackets: the harmonic mean of precision and recall over all sentences."""
    matched, found, gold = (sum(column) for column in zip(*counts, strict=True))
    return 200 * matched / (found + gold)


def tree_quality(text: Text, trees: Sequence[Tree], outputs: list) -> dict[str, float]:
    """F1 and oracle F1; and for how many sentences in a hundred all hypotheses
    have 4n - 2 actions."""
    brackets = scorer()
    words = Dictionary.load(str(text.folder / f"dict.{text.target}.txt"))
    best, oracle, equal = [], [], 0
    for nbest, tree in zip(outputs, trees, strict=True):
        leaves = [(leaf.word, leaf.label) for leaf in tree.leaves()]
        found = [[words[token] for token in tokens if token != words.eos()] for tokens, _ in nbest]
        equal += {len(actions) for actions in found} == {4 * len(leaves) - 2}
        counts = [brackets(str(tree), str(to_tree(leaves, actions))) for actions in found]
        best.append(counts[0])
        oracle.append(max(counts, key=lambda count: f1([count])))
    return {
        "F1": f1(best),
        "oracle F1": f1(oracle),
        "all 4n - 2 actions, %": 100 * equal / len(trees),
    }


def main() -> None:
    parse = command_line(__doc__)
    parse.add_argument("--trees", type=Path, required=True, help="folder with SPLIT.trees")
    parse.add_argument(
        "--models", type=Path, help="folder of train_trees.py (trees, in the one of --out)"
    )
    parse.add_argument("--split", default="test", help="(test)")
    parse.add_argument("--limit", type=int, help="first sentences only (all)")
    parse.add_argument("--k", type=int, default=10, help="beam and sentences of a batch (10)")
    parse.add_argument("--delta", type=float, default=2.5, help="--prune-threshold (2.5)")
    parse.add_argument(
        "--children", type=int, default=3, help="--prune-children, the paper's M (3)"
    )
    parse.add_argument("--rows", type=int, default=100, help="rows of a step (100)")
    add_timing_arguments(parse)
    parse.add_argument("--out", type=Path, required=True, help="folder for the results")
    args = parse.parse_args()
    scorer()
    setting = Setting(args.k, args.k, args.delta, args.children, rows=args.rows)
    trees = read_trees(args.trees / f"{args.split}.trees")[: args.limit]
    models = args.models or args.out / "trees"
    with tempfile.TemporaryDirectory() as folder:
        text = prepare(Path(folder), models / "model", str(models / args.split), *SIDES, args.limit)
        longest = max(4 * len(list(tree.leaves())) for tree in trees)
        shared = ["--max-len-b", str(longest), "--unnormalized"]
        wanted = {
            method: [*flags, *shared, "--nbest", flags[flags.index("--beam") + 1]]
            for method, flags in methods(setting).items()
        }
        key = [
            "trees",
            (models / "model" / "checkpoint.pt").stat().st_size,
            text.references,
            wanted,
            timing(args),
        ]
        about = (
            f"{len(trees)} sentences, n = k = {args.k}, delta = {args.delta}, M = {args.children}, "
            f"at most {args.rows} rows a step, F1 of all labelled brackets of the text, "
            f"punctuation kept: PYEVALB {version('PYEVALB')}, "
        )
        make = partial(
            measure, text, wanted, partial(tree_quality, text, trees), args, TreeDecoding
        )
        cached(args.out / "trees" / f"{args.split}.json", key, make, about + timing(args))


if __name__ == "__main__":
    run_script(main)
