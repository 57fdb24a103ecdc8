"""What ending a search costs in seconds: the stopping criteria in turns on one text, with decoder
rows and the best score found.

    python scripts/experiments/optimal_ending/times.py --out DIR [--model DIR] [--text PREFIX]
        [--limit 200] [--beams 5 20] [--batch-size 64] [--reward R --ratio RATIO --offset OFFSET |
        --sweep sweep.json]

Each search returns its best hypothesis. Seconds are processor time of one thread; a ratio
compares two searches of one round. Stock is fairseq's own generator. OUT gets times.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "streaming"))

from methods import (
    Decoding,
    Text,
    add_text_arguments,
    command_line,
    compare,
    machine,
    made_by,
    named,
    prepare,
    run_script,
)  # noqa: E402

COUNTS = ("count, unnormalised scores", "count, normalised scores")


def methods(args: argparse.Namespace) -> dict[str, list[str]]:
    """Flags by name; those of unnormalised scores first, which all find the best sum of
    log-probabilities that they can."""
    raw = ["--unnormalized"]
    out = {
        "fairseq, unnormalised scores": raw,
        COUNTS[0]: raw,
        "first, unnormalised scores": [*raw, "--stop", "first"],
        "shrink, unnormalised scores": [*raw, "--stop", "shrink"],
        "optimal, unnormalised scores": [*raw, "--stop", "optimal"],
        "optimal, unnormalised scores, pruned": [*raw, "--stop", "optimal", "--prune-bound"],
    }
    if args.reward:
        shape = [
            "--length-reward",
            str(args.reward),
            "--length-ratio",
            str(args.ratio),
            "--length-offset",
            str(args.offset),
        ]
        out[f"optimal, r = {args.reward:g}, pruned"] = [
            *raw,
            "--stop",
            "optimal",
            "--prune-bound",
            *shape,
        ]
    out[COUNTS[1]] = []
    out["optimal, normalised scores, pruned"] = (
        "--stop optimal --prune-bound --max-len-a 1.5 --max-len-b 5".split()
    )
    return out


def table(text: Text, beam: int, args: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """A line of each method, and the methods' signatures."""
    common = ["--cpu", "--beam", str(beam), "--batch-size", str(args.batch_size)]
    found = {
        name: Decoding(name, [*common, *flags], text, stock=name.startswith("fairseq"))
        for name, flags in methods(args).items()
    }
    done = compare(
        [d.contender() for d in found.values()],
        args.repeats,
        warmup=0,
        threads=1,
        clock=time.process_time,
    )
    lines = [
        (
            "| search | seconds | over count, same scores | over fairseq | decoder calls | rows | "
            "mean log-probability | BLEU | proved |"
        )
    ]
    lines.append("|---|" + "---:|" * 8)
    for name, decoding in found.items():
        seconds = sorted(done[name].seconds)
        others = COUNTS[", normalised" in name], next(iter(found))
        over = [speed_up(done[other].seconds, done[name].seconds) for other in others]
        best = [max(hypotheses, key=lambda h: h[1]) for hypotheses in decoding.outputs]
        score = sum(
            total(hypothesis, "unnormalized" in " ".join(decoding.flags)) for hypothesis in best
        ) / len(best)
        proofs = getattr(getattr(decoding.generator, "stats", None), "certificates", None)
        reported = (
            f"{proofs.proved // args.repeats} of {(proofs.proved + proofs.open) // args.repeats}"
            if proofs
            else ""
        )
        cells = [
            name,
            f"{statistics.median(seconds):.2f} ({seconds[0]:.2f}-{seconds[-1]:.2f})",
            *over,
            f"{decoding.timesteps:,}",
        ]
        cells += [
            f"{decoding.rows:,}",
            "" if "r = " in name else f"{score:.3f}",
            f"{text.bleu(decoding.outputs):.2f}",
            reported,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines, {name: decoding.signature for name, decoding in found.items()}


def total(hypothesis: tuple[Any, float], is_raw: bool) -> float:
    """The sum of log-probabilities of a hypothesis: its tokens and score."""
    tokens, score = hypothesis
    return score if is_raw else score * len(tokens)


def speed_up(others: list[float], ours: list[float]) -> str:
    """How many times as fast, in the mean of the rounds, and the range."""
    ratios = sorted(a / b for a, b in zip(others, ours, strict=True))
    return f"{sum(ratios) / len(ratios):.2f}x ({ratios[0]:.2f}-{ratios[-1]:.2f})"


def main() -> None:
    parse = command_line(__doc__)
    add_text_arguments(parse, 200)
    parse.add_argument("--beams", type=int, nargs="+", default=[5, 20], help="(5 20)")
    parse.add_argument("--batch-size", type=int, default=64, help="sentences (64)")
    parse.add_argument(
        "--reward", type=float, default=0.0, help="--length-reward of one more search (none)"
    )
    parse.add_argument("--ratio", type=float, default=1.0, help="its --length-ratio (1)")
    parse.add_argument("--offset", type=float, default=0.0, help="its --length-offset (0)")
    parse.add_argument(
        "--sweep", type=Path, help="sweep.json of sweep.py: reward, ratio and offset that it tuned"
    )
    parse.add_argument("--repeats", type=int, default=2, help="timed rounds (2)")
    parse.add_argument("--out", type=Path, required=True, help="folder for the results")
    args = parse.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.sweep:
        vars(args).update(json.loads(args.sweep.read_text(encoding="utf-8"))["tuned"])
    lines: list[str] = []
    signatures: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        text = prepare(Path(folder), args.model, args.text, args.src, args.tgt, args.limit)
        for beam in args.beams:
            print(f"beam {beam}", file=sys.stderr, flush=True)
            of_beam, names = table(text, beam, args)
            lines += [f"### Time at beam {beam}", "", *of_beam, ""]
            signatures += [
                {"search": name, "signature": signature} for name, signature in names.items()
            ]
    rounds = f"{args.repeats} alternating round{'s' * (args.repeats != 1)}"
    about = (
        f"Model {named(args.model)}, first {len(text.references)} lines of {named(args.text)}, "
        f"batches of {args.batch_size}; "
    )
    lines += [about + f"processor time of one thread, {rounds}; " + made_by(machine()), ""]
    made = "\n".join(lines)
    (args.out / "times.json").write_text(json.dumps(signatures, indent=1), encoding="utf-8")
    (args.out / "times.md").write_text(made, encoding="utf-8")
    print(made)


if __name__ == "__main__":
    run_script(main)
