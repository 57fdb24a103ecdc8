"""Do constrained outputs ramble? BLEU, scores and lengths of searches with required phrases, and of
fairseq's own constrained search.

    python scripts/bench/rambling.py --model DIR --text PREFIX --limit 300 --sets rand3 rand4
        --beams 5 10 --keep FOLDER
    python scripts/bench/rambling.py ... --search "dba=" --search "pruned=--prune-finished 5"

A --search is a name and the flags of fairseq_ext's search. With --keep the outputs of each search,
set and beam stay in FOLDER and are not made again, so that fairseq's, which take long, are made
once: give a search a new name where the code has changed.

over fairseq's: BLEU less that of fairseq's, with its 95 % interval (intervals.py). better, worse:
sentences by the score of the best hypothesis. rows: of the decoder, over unconstrained search.
length: words of outputs over words of references. long: outputs with more than twice the tokens
of the unconstrained output and the required ones. repeats: a bigram of words stands there three
times or more, and more often than in the reference and the unconstrained output. behind the end:
more sentence ends with words behind them than in the reference.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from against_stock import StockFailed, compare_scores, ramblers, stock_constrained
from arguments import command_line, run_script, text_arguments
from constrained import Bench
from counted import Counted, markdown, searching
from equality import Outputs
from extract import MORE_SETS, extract
from harness import fix_threads
from intervals import bleu, counts_of, interval, resampled

HEAD = [
    "set",
    "beam",
    "search",
    "BLEU",
    "over fairseq's",
    "mean score",
    "better",
    "worse",
    "rows",
    "seconds",
    "length",
    "long",
    "repeats",
]
HEAD += ["behind the end"]
END = re.compile(r"[.!?][\"')]*\s+\S")


def ran(made, file: Path | None) -> dict:
    """Best hypotheses, rows and CPU seconds of a search, as its file keeps them;
    fairseq's may have failed."""
    if file is not None and file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    counted: Counted = made()
    start = time.process_time()
    try:
        decoded = counted.contender.run()
    except StockFailed as error:
        return {"failed": str(error)}
    seconds = time.process_time() - start
    found = {
        "outputs": [best[:1] for best in counted.contender.read(decoded)],
        "rows": counted.stats.get("rows"),
        "seconds": seconds,
    }
    if file is not None:
        file.write_text(json.dumps(found), encoding="utf-8")
    return found


def row(
    bench: Bench, outputs: Outputs, free: Outputs, theirs: Outputs | None, required: Sequence[int]
) -> list[str]:
    """The columns of a search from BLEU on, without rows and seconds."""
    references = bench.text.references
    lines = bench.text.lines(outputs)
    counts = counts_of(lines, references)
    score, (*_, output, reference) = float(bleu(counts.sum(0))), counts.sum(0)
    over, better, worse = "", "", ""
    if theirs is not None:
        others = counts_of(bench.text.lines(theirs), references)
        low, high = interval(resampled(counts) - resampled(others))
        over = f"{score - float(bleu(others.sum(0))):+.2f} ({low:+.2f} to {high:+.2f})"
        scores = compare_scores(outputs, theirs)
        better, worse = str(scores.better), str(scores.worse)
    mean = sum(best[0][1] for best in outputs) / len(outputs)
    long, again = ramblers(bench.text, outputs, free, required)
    behind = sum(
        len(END.findall(line)) > len(END.findall(reference))
        for line, reference in zip(lines, references, strict=True)
    )
    return [
        f"{score:.2f}",
        over,
        f"{mean:.4f}",
        better,
        worse,
        f"{output / reference:.3f}",
        str(long),
        str(again),
        str(behind),
    ]


def main() -> None:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.add_argument("--sets", nargs="+", choices=MORE_SETS, default=list(MORE_SETS))
    parse.add_argument("--beams", type=int, nargs="+", default=[5, 10, 20])
    parse.add_argument(
        "--search", action="append", help="NAME=FLAGS of fairseq_ext's search (dba=)"
    )
    parse.add_argument("--keep", type=Path, help="folder for outputs, which are not made again")
    parse.add_argument(
        "--without-fairseq",
        action="store_true",
        help="do not run fairseq's own search; what --keep holds is shown",
    )
    parse.add_argument("--max-tokens", type=int, default=4000, help="of a batch (4000)")
    parse.add_argument("--seed", type=int, default=1, help="of the extraction (1)")
    parse.add_argument("--threads", type=int, default=1, help="torch threads (1)")
    args = parse.parse_args()
    args.beam = args.beams[0]
    fix_threads(args.threads)
    searches = dict(each.split("=", 1) for each in args.search or ["dba="])
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder))
        pieces, rows = bench.pieces(), []
        for beam in args.beams:
            flags = ["--cpu", "--beam", str(beam), "--max-tokens", str(args.max_tokens)]

            def file(name: str, beam: int = beam) -> Path | None:
                return None if args.keep is None else args.keep / f"{name}.{beam}.json"

            free = ran(partial(searching, bench.text, flags, "free"), file("free"))
            for name in args.sets:
                phrases = extract(bench.text.references, name, args.seed, bench.usable())
                required = [sum(len(pieces(phrase)) for phrase in line) for line in phrases]
                given = [*flags, *bench.file(name, phrases)]
                kept = file(f"fairseq.{name}")
                theirs = None
                if not args.without_fairseq or (kept is not None and kept.exists()):
                    theirs = ran(
                        partial(stock_constrained, bench.text, flags, phrases, pieces, "fairseq"),
                        kept,
                    )
                all_found = {} if theirs is None else {"fairseq": theirs}
                for search, more in searches.items():
                    made = partial(searching, bench.text, [*given, *more.split()], search)
                    all_found[search] = ran(made, file(f"{search}.{name}"))
                for search, found in all_found.items():
                    reported = [name, str(beam), search]
                    if "failed" in found:
                        rows.append([*reported, found["failed"], *[""] * (len(HEAD) - 4)])
                        continue
                    base = theirs["outputs"] if theirs is not None and "outputs" in theirs else None
                    cells = row(bench, found["outputs"], free["outputs"], base, required)
                    share = "" if found["rows"] is None else f"{found['rows'] / free['rows']:.3f}"
                    rows.append(
                        [*reported, *cells[:5], share, f"{found['seconds']:.1f}", *cells[5:]]
                    )
                    print(" | ".join(rows[-1]), flush=True)
        print(markdown(f"Rambling: {len(bench.text.references)} sentences", HEAD, rows))


if __name__ == "__main__":
    run_script(main)
