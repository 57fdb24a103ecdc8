"""At which widths does the stream pay? Our own batches against streams, by the
sentences of a batch.

    python scripts/bench/stream_widths.py --model DIR --text PREFIX [--n 2 4 8 16 32] [--rows]
        [--eps 0.5] --out results/stream_widths

Fixed width (FIXED-OURS, FIXED-STREAM) and variable width (VAR-BATCH, VAR-STREAM), same output, on
a length-mixed text: lines of 3 to --longest words, every number of words equally often, lines above
20 words joined of two. --rows: the stream is limited to n x k rows instead of n sentences, so that
beams which pruning has narrowed leave room for more sentences; a step of either has at most as many
rows. Seconds are processor time; with --workers, which share every batch's sentences, or the whole
stream's, they are the clock's.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments" / "streaming"))

from harness import BenchError, compare
from methods import Decoding, Setting, methods
from report import ROOT, named, write
from text import Text, prepare

SINGLE = 20  # words up to which a line is one sentence
PAIRS = {"fixed": ("FIXED-OURS", "FIXED-STREAM"), "variable": ("VAR-BATCH", "VAR-STREAM")}


def even_lengths(
    text: str, languages: list[str], lines: int, longest: int, seed: int, out: Path
) -> None:
    """Write OUT.language: lines drawn so that every number of words from 3 to `longest` of the
    first language is equally likely."""
    sides = [
        Path(f"{text}.{language}").read_text(encoding="utf-8").splitlines()
        for language in languages
    ]
    draw = random.Random(seed)
    of_length = defaultdict(list)
    for place in draw.sample(range(len(sides[0])), len(sides[0])):
        of_length[len(sides[0][place].split())].append(place)

    def take(words: int) -> int:
        """An unused line of about this number of words."""
        nearest = min(
            (n for n in of_length if of_length[n]), key=lambda n: abs(n - words), default=None
        )
        if nearest is None:
            raise BenchError(
                f"{text}.{languages[0]} has too few lines for {lines} of a length-mixed text"
            )
        return of_length[nearest].pop()

    chosen = []
    for _ in range(lines):
        words = draw.randint(3, longest)
        chosen.append(
            [take(words)] if words <= SINGLE else [take(words // 2), take(words - words // 2)]
        )
    for language, side in zip(languages, sides, strict=True):
        Path(f"{out}.{language}").write_text(
            "".join(" ".join(side[i] for i in line) + "\n" for line in chosen), encoding="utf-8"
        )


def race(kind: str, n: int, text: Text, args: argparse.Namespace) -> tuple[object, list[str]]:
    """One width: the comparison, and a line of the summary."""
    batch, stream = PAIRS[kind]
    share = max(1, n // args.workers)  # a stream's width is each worker's own
    flags = {
        name: methods(
            Setting(
                args.k,
                many,
                args.delta,
                args.children,
                args.eps,
                many * args.k if args.rows else None,
            )
        )[name]
        for name, many in ((batch, n), (stream, share))
    }
    flags[stream] += ["--stream-order", args.order]
    if args.workers > 1:
        flags = {name: [*each, "--cpu-workers", str(args.workers)] for name, each in flags.items()}
    both = [Decoding(name, ["--cpu", *flags[name]], text) for name in (batch, stream)]
    contenders = [decoding.contender() for decoding in both]
    contenders[1].exact = True
    clock = time.process_time if args.workers == 1 else time.perf_counter
    done = compare(contenders, args.repeats, threads=1, title=f"{kind}, n = {n}", clock=clock)
    ratio = done.speed_up(stream, batch)
    shown = (
        "outputs differ"
        if ratio is None
        else f"{ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"
    )
    cells = [kind, n, shown]
    for d in both:
        cells += [f"{d.timesteps:,}", f"{d.expansions / d.timesteps:.1f}"]
    return done, [*map(str, cells), f"{both[1].expansions / both[1].rows:.3f}"]


def main() -> int:
    parse = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parse.add_argument(
        "--model",
        type=Path,
        default=ROOT / "checkpoints" / "demo",
        help="folder with checkpoint.pt, dict.*.txt, spm.model",
    )
    parse.add_argument(
        "--text",
        default=str(ROOT / "data" / "demo" / "test"),
        help="prefix of the two text files (the demo test set)",
    )
    parse.add_argument("--src", default="de", help="source language and suffix (de)")
    parse.add_argument("--tgt", default="en", help="target language and suffix (en)")
    parse.add_argument(
        "--lines", type=int, default=128, help="lines of the length-mixed text (128)"
    )
    parse.add_argument("--longest", type=int, default=40, help="words of its longest lines (40)")
    parse.add_argument("--seed", type=int, default=1, help="of its draws (1)")
    parse.add_argument("--kinds", nargs="+", choices=PAIRS, default=list(PAIRS), help="(both)")
    parse.add_argument(
        "--n",
        type=int,
        nargs="+",
        default=[2, 4, 8, 16, 32],
        help="sentences of a batch (2 4 8 16 32)",
    )
    parse.add_argument("--k", type=int, default=5, help="beam (5)")
    parse.add_argument(
        "--rows", action="store_true", help="streams of at most n x k rows instead of n sentences"
    )
    parse.add_argument(
        "--order", choices=["shortest", "fifo"], default="fifo", help="--stream-order (fifo)"
    )
    parse.add_argument("--eps", type=float, default=1 / 2, help="--refill-threshold (1/2)")
    parse.add_argument("--delta", type=float, default=1.5, help="--prune-threshold (1.5)")
    parse.add_argument("--children", type=int, default=5, help="--prune-children (5)")
    parse.add_argument(
        "--workers",
        type=int,
        default=1,
        help="--cpu-workers of both, each with its share of the stream's width (1)",
    )
    parse.add_argument("--repeats", type=int, default=5, help="timed rounds (5)")
    parse.add_argument("--out", type=Path, help="write OUT.md and OUT.json")
    args = parse.parse_args()
    limit = f"at most n x {args.k} rows" if args.rows else "n sentences"
    lines = [
        (
            f"| width | n | stream ({limit}) over batch | steps, batch | rows a step | steps, "
            "stream | rows a step | useful rows |"
        ),
        "| --- |" + " ---: |" * 7,
    ]
    print(*lines, sep="\n", flush=True)
    comparisons = []
    with tempfile.TemporaryDirectory() as folder:
        even_lengths(
            args.text,
            [args.src, args.tgt],
            args.lines,
            args.longest,
            args.seed,
            Path(folder, "even"),
        )
        text = prepare(Path(folder), args.model, str(Path(folder, "even")), args.src, args.tgt)
        for kind in args.kinds:
            for n in args.n:
                done, cells = race(kind, n, text, args)
                comparisons.append(done)
                lines.append("| " + " | ".join(cells) + " |")
                print(lines[-1], flush=True)
    if args.out:
        clock = "processor time" if args.workers == 1 else f"{args.workers} workers, by the clock"
        note = (
            f"Model {named(args.model)}, {args.lines} lines of {named(args.text)}.{args.src}, k = "
            f"{args.k}, {clock}.\n\n"
        )
        write(args.out, comparisons, None, note + "\n".join(lines) + "\n")
    return 1 if any(done.refused for done in comparisons) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"error: {error}")
