"""Train the parsers of Tables 2 and 7 with stock fairseq's LSTM and attention: questions in,
queries out (--raw); or words with their tags in, Cross and Huang's actions out (--trees,
tree_actions.py).

    python scripts/experiments/streaming/train.py --raw DIR --set atis --out DIR
    python scripts/experiments/streaming/train.py --trees DIR --out DIR [-- FAIRSEQ-TRAIN ARGUMENTS]

RAW/SET.{train,dev,test}.{nl,sql} are parallel: a question a line, a query a line,
both split at spaces (the ATIS and GeoQuery questions of Finegan-Dollak et al. 2018,
https://aclanthology.org/P18-1033, question split, look like this). TREES has
{train,dev,test}.trees, a bracketed tree a line; a word that the training trees have fewer than
--rare times is its tag alone, and trees of more than --longest words are not trained on. OUT gets
bin/ (fairseq-preprocess) and model/ with checkpoint.pt, the mean of the last epochs' weights, and
the dictionaries. The model is like that of Dong and Lapata 2016 (https://arxiv.org/abs/1601.01280),
one layer of 128 or 200 units with attention, but reads the question both ways and feeds the
attention back, as fairseq does. About ten minutes (ATIS), three (GeoQuery) and twenty (trees) of
one CPU core; a training that was stopped goes on where it was.

    --raw DIR      of questions and queries
    --trees DIR    of trees
    --set SET      of --raw
    --rare N       times that a word must stand in the training trees to be a word (3)
    --longest N    words of a training tree (50)
    --epochs N     those of the set by default
    --out DIR      for bin/ and model/ (required)
"""

import argparse
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from harness import BenchError  # noqa: E402
from text import command_line, parallel_lines, run_script  # noqa: E402
from tree_actions import Tree, TreeError, read_tree, to_actions  # noqa: E402

SPLITS = {"train": "train", "valid": "dev", "test": "test"}  # fairseq's name -> the file's
ROOT = Path(__file__).resolve().parents[3]
TRAINING = """--arch lstm --encoder-bidirectional --optimizer adam --clip-norm 5 --criterion
cross_entropy --lr-scheduler polynomial_decay --num-workers 0 --seed 1 --log-format simple"""
SIDES = "encoder-embed-dim encoder-hidden-size decoder-embed-dim decoder-hidden-size".split()


@dataclass
class Setup:
    """What is chosen for each set, on its dev part."""

    units: int
    batch: int  # queries
    lr: float  # falls linearly to nothing
    dropout: float
    epochs: int
    average: int = 5  # last epochs whose weights are averaged

    def flags(self, examples: int) -> list[str]:
        flags = [f"--{name} {self.units}" for name in (*SIDES, "decoder-out-embed-dim")]
        flags.append(f"--dropout {self.dropout} --batch-size {self.batch} --lr {self.lr}")
        updates = self.epochs * -(-examples // self.batch) + 1
        flags.append(f"--total-num-update {updates} --max-epoch {self.epochs}")
        flags.append(f"--keep-last-epochs {self.average} {TRAINING}")
        return " ".join(flags).split()


SETS = {
    "atis": Setup(128, 40, 3e-3, 0.3, 16),
    "geo": Setup(200, 20, 2e-3, 0.4, 60),
    "trees": Setup(200, 24, 3e-3, 0.3, 20, 3),
}


def run(log: Path, *command: object) -> None:
    """One command of this Python's environment, its messages in `log`."""
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    how = {"stderr": subprocess.STDOUT, "env": {**os.environ, "PATH": places}}
    with log.open("w", encoding="utf-8") as messages:
        words = list(map(str, command))
        if subprocess.run(words, stdout=messages, **how).returncode:
            raise BenchError(f"{words[0]} failed; its messages are in {log}")


def train(prefix: str, out: Path, setup: Setup, examples: int, sides: list[str], extra: list[str]):
    """fairseq-preprocess of PREFIX{train,dev,test}.*, words as they stand and a dictionary for each
    side; fairseq-train; then the mean of the weights after the last epochs."""
    import torch

    for old in (out / "bin").glob("dict.*.txt"):
        old.unlink()  # fairseq-preprocess refuses to make a dictionary that is there
    model, pair = out / "model", ["-s", sides[0], "-t", sides[1]]
    parts = [word for x, file in SPLITS.items() for word in (f"--{x}pref", f"{prefix}{file}")]
    to_bin = ["fairseq-preprocess", *pair, "--destdir", out / "bin", *parts]
    run(out / "preprocess.log", *to_bin)
    device = [] if torch.cuda.is_available() else ["--cpu"]
    flags = [*setup.flags(examples), *device, "--save-dir", out / "epochs", *extra]
    run(out / "train.log", "fairseq-train", out / "bin", *pair, *flags)
    last = range(max(1, setup.epochs - setup.average + 1), setup.epochs + 1)
    files = [out / "epochs" / f"checkpoint{epoch}.pt" for epoch in last]
    model.mkdir(exist_ok=True)
    strip = ROOT / "scripts" / "strip_checkpoint.py"
    run(out / "strip.log", sys.executable, strip, files[-1], model / "checkpoint.pt")
    average(files, model / "checkpoint.pt")
    for side in sides:
        (model / f"dict.{side}.txt").write_bytes((out / "bin" / f"dict.{side}.txt").read_bytes())


def average(files: list[Path], into: Path) -> None:
    """Give the checkpoint `into` the mean of the weights of `files`, in its own precision."""
    import torch

    with torch.serialization.safe_globals([argparse.Namespace]):
        kept = torch.load(into, map_location="cpu")
        weights = [torch.load(file, map_location="cpu")["model"] for file in files]
    for name, value in kept["model"].items():
        mean = torch.stack([w[name].double() for w in weights]).mean(0)
        kept["model"][name] = mean.to(value.dtype)
    part = into.with_suffix(".part")
    torch.save(kept, part)
    os.replace(part, into)


def read_trees(file: Path) -> list[Tree]:
    """The trees of a file, one a line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        wanted = "--trees wants a folder with {train,dev,test}.trees"
        raise BenchError(f"cannot read {file}: {wanted}") from error
    try:
        return [read_tree(line) for line in lines if line.strip()]
    except TreeError as error:
        raise BenchError(f"{file}: {error}") from error


def write_sides(trees: dict[str, list[Tree]], out: Path, rare: int) -> None:
    """Write SPLIT.words and SPLIT.actions: `word|TAG`, or `|TAG` of a word that is rare
    in the training trees."""
    seen = Counter(leaf.word for tree in trees["train"] for leaf in tree.leaves())

    def shown(leaf: Tree) -> str:
        return f"{leaf.word if seen[leaf.word] >= rare else ''}|{leaf.label}"

    for split, those in trees.items():
        lines = {"words": [" ".join(map(shown, tree.leaves())) for tree in those]}
        lines["actions"] = [" ".join(to_actions(tree)) for tree in those]
        for side, text in lines.items():
            file = out / f"{split}.{side}"
            file.write_text("".join(line + "\n" for line in text), encoding="utf-8")


def main() -> None:
    parse = command_line(__doc__, {"set": SETS}, set="trees")
    parse.add_argument("extra", nargs="*", help="after --: anything else for fairseq-train")
    args = parse.parse_args()
    if bool(args.trees) == bool(args.raw) or bool(args.raw) == (args.set == "trees"):
        parse.error("take --raw with --set atis or geo, or --trees")
    args.out.mkdir(parents=True, exist_ok=True)
    setup = SETS[args.set]
    setup.epochs = args.epochs or setup.epochs
    if args.raw:
        prefix, sides = str(args.raw / f"{args.set}."), ["nl", "sql"]
        counts = [len(parallel_lines(f"{prefix}{x}", sides)[0]) for x in SPLITS.values()]
        examples = counts[0]
    else:
        prefix, sides = f"{args.out}/", ["words", "actions"]
        trees = {split: read_trees(args.trees / f"{split}.trees") for split in SPLITS.values()}
        short = [tree for tree in trees["train"] if len(list(tree.leaves())) <= args.longest]
        write_sides(trees | {"train": short}, args.out, args.rare)
        examples = len(short)
    train(prefix, args.out, setup, examples, sides, args.extra)
    print(args.out / "model" / "checkpoint.pt")


if __name__ == "__main__":
    run_script(main)
