"""Train a syntactic parser: words with their tags in, Cross and Huang's actions out
(tree_actions.py), with stock fairseq's LSTM.

    python scripts/experiments/streaming/train_trees.py --trees DIR --out DIR [--epochs N]
        [--units N] [-- FAIRSEQ-TRAIN ARGUMENTS]

DIR has {train,dev,test}.trees, a bracketed tree a line. OUT gets {train,dev,test}.{words,actions},
bin/ (fairseq-preprocess) and model/ with checkpoint.pt, the mean of the last epochs' weights,
and the dictionaries. A word that the training trees have fewer than --rare times is its tag alone.
Trees of more than --longest words are not trained on. The model is that of train_parsing.py,
an encoder in both directions and a decoder with attention; it learns the order of the actions
from the trees, and trees.py keeps it to actions that are legal. A training that was stopped
goes on where it was.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from train_parsing import SPLITS, Setup, TrainingError, prepare, train
from tree_actions import Tree, TreeError, read_tree, to_actions

SIDES = ("words", "actions")


def read_trees(file: Path) -> list[Tree]:
    """The trees of a file, one a line."""
    try:
        return [
            read_tree(line)
            for line in file.read_text(encoding="utf-8").splitlines()
            if line.strip()
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingError(
            f"cannot read {file}: --trees wants a folder with {{train,dev,test}}.trees"
        ) from error


def write_sides(trees: dict[str, list[Tree]], out: Path, rare: int) -> None:
    """Write SPLIT.words and SPLIT.actions: `word|TAG`, or `|TAG` of a word that is rare
    in the training trees."""
    seen = Counter(leaf.word for tree in trees["train"] for leaf in tree.leaves())
    for split, those in trees.items():
        pairs = [
            [(leaf.word if seen[leaf.word] >= rare else "", leaf.label) for leaf in tree.leaves()]
            for tree in those
        ]
        lines = {"words": [" ".join(f"{word}|{tag}" for word, tag in line) for line in pairs]}
        lines["actions"] = [" ".join(to_actions(tree)) for tree in those]
        for side, text in lines.items():
            (out / f"{split}.{side}").write_text(
                "".join(line + "\n" for line in text), encoding="utf-8"
            )


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parse.add_argument(
        "--trees", type=Path, required=True, help="folder with {train,dev,test}.trees"
    )
    parse.add_argument(
        "--out", type=Path, required=True, help="folder for the text, bin/ and model/"
    )
    parse.add_argument(
        "--rare",
        type=int,
        default=3,
        help="times that a word must stand in the training trees to be a word (3)",
    )
    parse.add_argument("--longest", type=int, default=50, help="words of a training tree (50)")
    parse.add_argument("--units", type=int, default=200, help="of every layer (200)")
    parse.add_argument("--epochs", type=int, default=20, help="(20)")
    parse.add_argument(
        "--average", type=int, default=3, help="last epochs whose weights are averaged (3)"
    )
    parse.add_argument("extra", nargs="*", help="after --: anything else for fairseq-train")
    args = parse.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    trees = {split: read_trees(args.trees / f"{split}.trees") for split in SPLITS.values()}
    trees["train"] = [tree for tree in trees["train"] if len(list(tree.leaves())) <= args.longest]
    write_sides(trees, args.out, args.rare)
    prepare(f"{args.out}/", args.out, SIDES)
    setup = Setup(args.units, batch=24, lr=3e-3, dropout=0.3, epochs=args.epochs)
    train(
        args.out,
        [*setup.flags(len(trees["train"]), args.epochs), *args.extra],
        args.epochs,
        min(args.average, args.epochs),
        SIDES,
    )
    print(args.out / "model" / "checkpoint.pt")


if __name__ == "__main__":
    try:
        main()
    except (TrainingError, TreeError) as error:
        sys.exit(f"error: {error}")
