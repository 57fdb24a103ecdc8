"""What does certified stopping (`--stop optimal`) cost and buy, against fairseq's stopping
criterion (`--stop count`)?

    python scripts/bench/optimal_ending.py --out results/optimal_ending
    python scripts/bench/optimal_ending.py --model DIR --text PREFIX --limit 200 --repeats 5
        --threads 1 --beams 5 20

raw: --unnormalized, with and without --prune-bound, stock fairseq next to them. normalised:
length-normalised scores, where the exact certificate is loose and --patience is the rival; with
a length limit for each sentence (--max-len-a, --max-len-b) and without. Ratios are over the table's
first search, ours with fairseq's criterion, to show the criterion and not the decoder; "rows /
stock's" counts that stock decodes k equal rows a sentence at the first step. "better" and "worse"
are sentences whose best score differs.
"""

import argparse
import tempfile
from pathlib import Path

from arguments import command_line, run_script, text_arguments, timing_arguments
from contenders import stock
from counted import TIMES, Counted, Row, after_the_best, print_tables, race, ratios, searching
from harness import fix_threads
from text import Text, prepare

RAW = ["--unnormalized"]
LIMIT = ["--max-len-a", "1.5", "--max-len-b", "5"]
SEARCHES: dict[str, dict[str, list[str]]] = {
    "raw": {
        "count": RAW,
        "optimal": [*RAW, "--stop", "optimal"],
        "optimal, --prune-bound": [*RAW, "--stop", "optimal", "--prune-bound"],
    },
    "normalised": {
        "count": [],
        "count, 1.5 x + 5 tokens at most": LIMIT,
        "patience 2": ["--patience", "2"],
        "optimal, 1.5 x + 5": ["--stop", "optimal", *LIMIT],
        "optimal, --prune-bound, 1.5 x + 5": ["--stop", "optimal", "--prune-bound", *LIMIT],
        "optimal, --prune-bound, 60 tokens": [
            "--stop",
            "optimal",
            "--prune-bound",
            "--max-len-b",
            "60",
        ],
    },
}
HEAD = [
    "search",
    *TIMES,
    "rows / stock's",
    "rows after the best",
    "mean score",
    "better, worse",
    "BLEU",
]
TIE = 1e-4  # nats


def table(text: Text, part: str, beam: int, args: argparse.Namespace) -> list[Row]:
    common = ["--cpu", "--beam", str(beam), "--max-tokens", str(args.max_tokens)]
    counted = [searching(text, [*common, *flags], name) for name, flags in SEARCHES[part].items()]
    if part == "raw":
        counted.append(Counted(stock(text, [*common, *RAW])))
        counted[-1].contender.exact = False  # the table counts what differs
    races = race(text, counted, args.repeats, args.threads)
    plain = counted[0]
    rows_of_stock = plain.stats["rows"] + len(plain.outputs) * (beam - 1)
    rows = []
    for c, times, result in zip(counted, ratios(races, counted), races.results, strict=True):
        shown = ["", "", "", ""]
        if c.outputs:
            pairs = [
                (mine[0][1], theirs[0][1])
                for mine, theirs in zip(c.outputs, plain.outputs, strict=True)
            ]
            better, worse = (sum(sign * (a - b) > TIE for a, b in pairs) for sign in (1, -1))
            mean = sum(a for a, _ in pairs) / len(pairs)
            shown = [
                f"{c.stats['rows'] / rows_of_stock:.3f}",
                after_the_best(c, beam),
                f"{mean:.4f}",
                f"{better}, {worse}",
            ]
        rows.append([c.contender.name, *times, *shown, f"{result.bleu:.2f}"])
    return rows


def main() -> None:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.add_argument("--beams", type=int, nargs="+", default=[5, 20], help="(5 20)")
    parse.add_argument("--parts", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    parse.add_argument("--max-tokens", type=int, default=4000, help="of a batch (4000)")
    timing_arguments(parse)
    args = parse.parse_args()
    fix_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        text = prepare(Path(folder), args.model, args.text, args.src, args.tgt, args.limit)
        size = f"{len(text.references)} sentences, {args.threads} threads"
        settings = ((part, beam) for part in args.parts for beam in args.beams)
        print_tables(
            (
                (f"{part} scores, beam {beam}, {size}", HEAD, table(text, part, beam, args))
                for part, beam in settings
            ),
            args.out,
        )


if __name__ == "__main__":
    run_script(main)
