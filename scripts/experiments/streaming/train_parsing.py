"""Train a semantic parser: questions in, queries out, word by word, with stock fairseq's
LSTM and attention.

    python scripts/experiments/streaming/train_parsing.py --raw DIR --set atis --out DIR
        [--epochs N] [-- FAIRSEQ-TRAIN ARGUMENTS]

DIR/SET.{train,dev,test}.{nl,sql} are parallel: a question a line, a query a line,
both split at spaces (the ATIS and GeoQuery questions of Finegan-Dollak et al. 2018,
https://aclanthology.org/P18-1033, question split, look like this). OUT gets bin/
(fairseq-preprocess) and model/ with checkpoint.pt, the mean of the last epochs' weights, and the
dictionaries. The model is like that of Dong and Lapata 2016 (https://arxiv.org/abs/1601.01280), one
layer of 128 or 200 units with attention, but reads the question both ways and feeds the attention
back, as fairseq does. About ten minutes (ATIS) and three (GeoQuery) of one CPU core; a training
that was stopped goes on where it was.
"""

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SPLITS = {"train": "train", "valid": "dev", "test": "test"}  # fairseq's name -> the file's
SIDES = ("nl", "sql")
ROOT = Path(__file__).resolve().parents[3]
TRAINING = [
    *(
        "--arch",
        "lstm",
        "--encoder-bidirectional",
        "--optimizer",
        "adam",
        "--clip-norm",
        "5",
        "--criterion",
        "cross_entropy",
    ),
    *(
        "--lr-scheduler",
        "polynomial_decay",
        "--num-workers",
        "0",
        "--seed",
        "1",
        "--log-format",
        "simple",
    ),
]


@dataclass
class Setup:
    """What is chosen for each set, on its dev part."""

    units: int
    batch: int  # queries
    lr: float  # falls linearly to nothing
    dropout: float
    epochs: int

    def flags(self, examples: int, epochs: int) -> list[str]:
        sides = (
            "encoder-embed-dim",
            "encoder-hidden-size",
            "decoder-embed-dim",
            "decoder-hidden-size",
            "decoder-out-embed-dim",
        )
        updates = epochs * -(-examples // self.batch) + 1
        return [
            *(argument for name in sides for argument in (f"--{name}", str(self.units))),
            *(
                "--dropout",
                str(self.dropout),
                "--batch-size",
                str(self.batch),
                "--lr",
                str(self.lr),
            ),
            *("--total-num-update", str(updates), "--max-epoch", str(epochs)),
        ]


SETS = {"atis": Setup(128, 40, 3e-3, 0.3, 16), "geo": Setup(200, 20, 2e-3, 0.4, 60)}


class TrainingError(Exception):
    """What went wrong and what to do, in a sentence."""


def check(raw: Path, name: str) -> int:
    """Every file must be there, with as many lines on both sides.

    Returns the number of training examples.
    """
    counts = {}
    for split in SPLITS.values():
        sides = [raw / f"{name}.{split}.{side}" for side in ("nl", "sql")]
        for file in sides:
            if not file.is_file():
                raise TrainingError(
                    f"{file} is missing: --raw wants a folder with "
                    f"{name}.{{train,dev,test}}.{{nl,sql}}"
                )
        lines = [file.read_text(encoding="utf-8").count("\n") for file in sides]
        if lines[0] != lines[1]:
            raise TrainingError(
                f"{sides[0]} has {lines[0]} lines and {sides[1].name} {lines[1]}: they "
                "are not parallel"
            )
        counts[split] = lines[0]
    return counts["train"]


def run(log: Path, *command: str) -> None:
    """One fairseq command, its messages in `log`."""
    with log.open("w", encoding="utf-8") as messages:
        if subprocess.run(command, stdout=messages, stderr=subprocess.STDOUT).returncode:
            raise TrainingError(f"{command[0]} failed; its messages are in {log}")


def prepare(prefix: str, out: Path, sides: tuple[str, str] = SIDES) -> None:
    """fairseq-preprocess of PREFIX{train,dev,test}.*: words as they stand, a
    dictionary for each side."""
    for old in (out / "bin").glob("dict.*.txt"):
        old.unlink()  # fairseq-preprocess refuses to make a dictionary that is there
    prefixes = [
        argument
        for split, file in SPLITS.items()
        for argument in (f"--{split}pref", f"{prefix}{file}")
    ]
    run(
        out / "preprocess.log",
        "fairseq-preprocess",
        "-s",
        sides[0],
        "-t",
        sides[1],
        "--destdir",
        str(out / "bin"),
        *prefixes,
    )


def train(
    out: Path, flags: list[str], epochs: int, last: int, sides: tuple[str, str] = SIDES
) -> None:
    """fairseq-train, then the mean of the weights after the `last` epochs."""
    import torch

    model = out / "model"
    kept = ["--keep-last-epochs", str(last), "--save-dir", str(out / "epochs")]
    device = [] if torch.cuda.is_available() else ["--cpu"]
    run(
        out / "train.log",
        "fairseq-train",
        str(out / "bin"),
        "-s",
        sides[0],
        "-t",
        sides[1],
        *TRAINING,
        *kept,
        *device,
        *flags,
    )
    files = [
        out / "epochs" / f"checkpoint{epoch}.pt" for epoch in range(epochs - last + 1, epochs + 1)
    ]
    model.mkdir(exist_ok=True)
    strip = [
        sys.executable,
        str(ROOT / "scripts" / "strip_checkpoint.py"),
        str(files[-1]),
        str(model / "checkpoint.pt"),
    ]
    if subprocess.run(strip).returncode:
        raise TrainingError(f"{files[-1]} could not be stored without its optimizer")
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
        kept["model"][name] = (
            torch.stack([w[name].double() for w in weights]).mean(0).to(value.dtype)
        )
    part = into.with_suffix(".part")
    torch.save(kept, part)
    os.replace(part, into)


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parse.add_argument(
        "--raw", type=Path, required=True, help="folder with SET.{train,dev,test}.{nl,sql}"
    )
    parse.add_argument("--set", choices=SETS, required=True)
    parse.add_argument("--out", type=Path, required=True, help="folder for bin/ and model/")
    parse.add_argument(
        "--epochs",
        type=int,
        help=f"({', '.join(f'{name}: {setup.epochs}' for name, setup in SETS.items())})",
    )
    parse.add_argument(
        "--average", type=int, default=5, help="last epochs whose weights are averaged (5)"
    )
    parse.add_argument("extra", nargs="*", help="after --: anything else for fairseq-train")
    args = parse.parse_args()
    examples = check(args.raw, args.set)
    args.out.mkdir(parents=True, exist_ok=True)
    prepare(str(args.raw / f"{args.set}."), args.out)
    setup = SETS[args.set]
    epochs = args.epochs or setup.epochs
    train(
        args.out, [*setup.flags(examples, epochs), *args.extra], epochs, min(args.average, epochs)
    )
    print(args.out / "model" / "checkpoint.pt")


if __name__ == "__main__":
    try:
        main()
    except TrainingError as error:
        sys.exit(f"error: {error}")
