"""What does streaming gain, and does it reach what it should?

    python scripts/bench/streaming.py --out results/streaming
    python scripts/bench/streaming.py --model DIR --text PREFIX --limit 200
        --parts fixed variable stock

fixed: our own fixed-width search, batch against stream, same output, on a length-mixed text
(1 to 8 sentences a line).
stock: fairseq's search against streamed variable width, delta 1.5 and M 5, on the text itself; BLEU
must not move by more than 0.3. variable: VAR-BATCH against VAR-STREAM, same output, on both texts.
All have as many sentences a batch. A table is followed by what was requested and what came out;
the exit status is 1 when outputs that must be equal are not.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments" / "streaming"))

from arguments import command_line, run_script, text_arguments, timing_arguments
from harness import Comparison, compare
from methods import Decoding, Setting, clock_of, methods
from mixed_corpus import mix
from report import markdown, named, write
from text import Text, prepare

USEFUL = 0.9  # share of rows that hold live hypotheses
BLEU = 0.3  # that pruning may cost


@dataclass
class Claim:
    """`fast` must be N times faster than `slow`."""

    part: str
    text: str
    k: int
    slow: str
    fast: str
    times: float
    exact: bool = True

    @property
    def title(self) -> str:
        return f"{self.fast} against {self.slow}, k = {self.k}, {self.text} text"


CLAIMS = [
    Claim("fixed", "length-mixed", 5, "FIXED-OURS", "FIXED-STREAM", 1.3),
    Claim("stock", "plain", 20, "FIXED", "VAR-STREAM", 3.0, exact=False),
    Claim("stock", "plain", 50, "FIXED", "VAR-STREAM", 5.0, exact=False),
    Claim("variable", "length-mixed", 5, "VAR-BATCH", "VAR-STREAM", 1.2),
    Claim("variable", "length-mixed", 20, "VAR-BATCH", "VAR-STREAM", 1.2),
    Claim("variable", "plain", 20, "VAR-BATCH", "VAR-STREAM", 1.2),
]


def race(claim: Claim, text: Text, args: argparse.Namespace) -> tuple[Comparison, list[Decoding]]:
    """The two in turns."""
    flags = methods(Setting(claim.k, args.n, args.delta, args.children))
    wanted = [
        Decoding(name, ["--cpu", *flags[name]], text, stock=name == "FIXED")
        for name in (claim.slow, claim.fast)
    ]
    contenders = [decoding.contender() for decoding in wanted]
    contenders[1].exact = claim.exact
    title = claim.title + (", processor time" if args.cpu_time else "")
    return compare(
        contenders,
        args.repeats,
        threads=args.threads,
        title=title,
        bleu=text.bleu,
        clock=clock_of(args),
    ), wanted


def verdict(claim: Claim, done: Comparison, fast: Decoding) -> str:
    """What was requested, and what came out."""
    ratio = done.speed_up(claim.fast, claim.slow)
    if ratio is None:
        return "**The outputs differ.**\n"
    useful = fast.expansions / fast.rows
    said = [
        f"{ratio.median:.2f}x (asked: {claim.times}x)",
        f"useful rows {useful:.3f} (asked: {USEFUL})",
    ]
    good = [ratio.median >= claim.times, useful >= USEFUL]
    if not claim.exact:
        loss = (done[claim.slow].bleu or 0) - (done[claim.fast].bleu or 0)
        said.append(f"BLEU {-loss:+.2f} (asked: within {BLEU})")
        good.append(loss <= BLEU)
    return (
        "; ".join(
            f"{words}: {'reached' if fine else 'missed'}"
            for words, fine in zip(said, good, strict=True)
        )
        + ".\n"
    )


def main() -> int:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.add_argument(
        "--mixed-limit",
        type=int,
        help="first lines of the length-mixed text only (all: a quarter of the sentences)",
    )
    parse.add_argument("--seed", type=int, default=1, help="of the length-mixed text (1)")
    parse.add_argument(
        "--parts",
        nargs="+",
        choices=dict.fromkeys(c.part for c in CLAIMS),
        default=["fixed", "stock", "variable"],
    )
    parse.add_argument("--n", type=int, default=64, help="sentences of a batch (64)")
    parse.add_argument("--delta", type=float, default=1.5, help="--prune-threshold (1.5)")
    parse.add_argument("--children", type=int, default=5, help="--prune-children (5)")
    timing_arguments(parse)
    parse.add_argument(
        "--cpu-time",
        action="store_true",
        help="seconds of processor time, for a machine with other work on it",
    )
    args = parse.parse_args()
    comparisons, verdicts = [], []
    with tempfile.TemporaryDirectory() as folder:
        texts = {}
        mix(args.text, [args.src, args.tgt], Path(folder, "mixed"), seed=args.seed)
        for name, prefix, limit in (
            ("plain", args.text, args.limit),
            ("length-mixed", str(Path(folder, "mixed")), args.mixed_limit),
        ):
            place = Path(folder, name)
            place.mkdir()
            texts[name] = prepare(place, args.model, prefix, args.src, args.tgt, limit)
        for claim in (claim for claim in CLAIMS if claim.part in args.parts):
            done, (_, fast) = race(claim, texts[claim.text], args)
            comparisons.append(done)
            verdicts.append(f"- {claim.title}: {verdict(claim, done, fast)}")
            print(markdown(done), verdicts[-1], sep="\n", flush=True)
            if args.out:
                note = (
                    f"Model {named(args.model)}, text {named(args.text)}.{args.src}.\n\n"
                    f"{''.join(verdicts)}"
                )
                write(args.out, comparisons, None, note)
    return 1 if any(done.refused for done in comparisons) else 0


if __name__ == "__main__":
    run_script(main)
