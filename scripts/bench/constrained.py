"""How does fairseq's own constrained search compare with ours, cell by cell? A cell is a set of
constraints at a beam. What constraints cost over search without them: `rivals.py constraints`.

    python scripts/bench/constrained.py --model DIR --text PREFIX --limit 300 --parts quality speed
        --speed-limit 60 --out OUT

quality: mean score of the best hypotheses, sentences that score better and worse, decoder rows
over unconstrained search; each search runs once. A cell is accepted where worse <= better + 2%
of the sentences. BLEU: of the outputs of the same searches, with 95 % intervals (intervals.py); a
difference is one of BLEU on the same resamples. speed: interleaved rounds; accepted from 5 times as
fast.
fairseq meets phrases inside words too, so the two compare under --constraint-boundary none;
whole words stand next to it. fairseq's beam has the rows of ours: one more than --beams where the
unconstrained output competes in a row. --constraint-compete: off, our searches without that row, or
search, with a search of its own.

With --out a finished cell is kept in OUT.cells and not measured again at the same commit. fairseq's
search stops at an assertion when a batch reaches the length limit with words unmet. Such a cell is
named above the table; a larger --max-len-b holds for all searches.

    --max-tokens N                of a batch (4000)
    --seed N                      of the extraction (1)
    --stock-sets SET ...          (all)
    --beams N ...                 (5 10 20)
    --constraint-compete WAY      of our searches; rows by default
    --max-len-b N                 200 by default
    --speed-limit N               sentences of the part speed; those of --limit by default
    --parts PART ...              (all)
    --repeats N                   timed rounds (5)
    --threads N                   of torch; all cores by default
    --out OUT                     write OUT.md and OUT.json
"""

from __future__ import annotations

import itertools
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))

from contenders import StockFailed, ours, stock_constrained
from harness import SCORE_TOLERANCE, BenchError, Contender, Outputs, Spread, compare
from intervals import bleu, counts_of, half, interval, resampled
from report import Page, cores, git, named
from text import MORE_SETS, Text, extract, prepare, run_bench
from write_up import kept

from fairseq_ext.search.strategies.select.dba import COMPETING_ROWS

# of the sentences: by how much those that score worse may outnumber those that score better
SHARE = 0.02
SPEED = 5.0  # times as fast as fairseq's own
INSIDE = ["--constraint-boundary", "none"]  # phrases count inside words too, as fairseq counts them
WHOLE = "whole words: "
QUALITY = "rows | mean score | fairseq's mean | better | worse | accepted".split(" | ")
BLEU = ["BLEU", "fairseq's BLEU", "difference", "over unconstrained", WHOLE + "BLEU"]
BLEU += [WHOLE + "difference"]
HEADS = {
    "quality": [*QUALITY, *(WHOLE + column for column in ("rows", "mean", "better", "worse"))],
    "bleu": BLEU,
    "speed": ["times as fast (min-max)", "accepted", "time over unconstrained"]
    + [WHOLE + column for column in ("times as fast", "time over unconstrained")],
}
Searches = dict[str, Contender]  # fairseq's, ours without constraints, DBA inside words and whole


def quality(searches: Searches, text: Text) -> dict[str, Any]:
    """Scores and BLEU of a cell."""
    outputs = {name: each.read(each.run()) for name, each in searches.items()}
    facts = against(text.references, {name: text.lines(each) for name, each in outputs.items()})
    rows = searches["free"].stats["decoder_rows"]
    for name in ("inside", "whole"):
        facts[name] |= scores(outputs[name], outputs["theirs"])
        facts[name]["rows"] = searches[name].stats["decoder_rows"] / rows
    return facts


def scores(outputs: Outputs, others: Outputs) -> dict[str, Any]:
    """How the best hypotheses stand to those of another search, of the sentences of which both have
    one; a score within float32's noise of the other's is equal."""
    pairs = [(a[0][1], b[0][1]) for a, b in zip(outputs, others, strict=True) if a and b]
    better = sum(a > b + SCORE_TOLERANCE for a, b in pairs)
    worse = sum(a < b - SCORE_TOLERANCE for a, b in pairs)
    mean, of_other = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
    found = dict(mean=mean, mean_of_other=of_other, better=better, worse=worse)
    return found | {"sentences": len(pairs), "accepted": worse <= better + SHARE * len(pairs)}


def against(
    references: Sequence[str], lines: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """BLEU of each search's lines with its interval, and how far it is from the others', with that
    difference's."""
    counts = {name: counts_of(found, references) for name, found in lines.items()}
    drawn = {name: resampled(each) for name, each in counts.items()}
    whole = {name: float(bleu(each.sum(0))) for name, each in counts.items()}
    facts: dict[str, dict[str, Any]] = {}
    for name in counts:
        over = {
            other: [whole[name] - whole[other], *interval(drawn[name] - drawn[other])]
            for other in lines
            if other != name
        }
        facts[name] = {"BLEU": whole[name], "interval": interval(drawn[name]), "over": over}
    return facts


def speed(searches: Searches, args: Namespace) -> dict[str, Any]:
    """Times of a cell: ratios of each round."""
    race = compare(list(searches.values()), args.repeats, threads=args.threads)
    stock, free = race.results[:2]
    facts = dict[str, Any]()
    for name in ("inside", "whole"):
        taken = race[name].seconds
        fast, more = Spread.ratio(stock.seconds, taken), Spread.ratio(taken, free.seconds)
        facts[name] = {"fast": [fast.median, fast.low, fast.high], "more": more.median}
    return facts


def row(part: str, name: str, beam: int, facts: dict[str, Any]) -> list[str]:
    """A cell as a row of its part's table."""
    inside, whole = facts["inside"], facts["whole"]

    def difference(each: dict[str, Any], other: str) -> str:
        value, low, high = each["over"][other]
        return f"{value:+.2f} ({low:+.2f} to {high:+.2f})"

    if part == "speed":
        fast = Spread(*inside["fast"])
        cells = [fast.shown(), "yes" if fast.median >= SPEED else "no", f"{inside['more']:.2f}"]
        cells += [f"{whole['fast'][0]:.2f}", f"{whole['more']:.2f}"]
    elif part == "bleu":
        theirs = facts["theirs"]
        of = [f"{each['BLEU']:.2f} {half(*each['interval'])}" for each in (inside, theirs, whole)]
        cells = [*of[:2], difference(inside, "theirs"), difference(inside, "free"), of[2]]
        cells.append(difference(whole, "theirs"))
    else:
        cells = [f"{inside['rows']:.3f}", f"{inside['mean']:.4f}", f"{inside['mean_of_other']:.4f}"]
        cells += [str(inside["better"]), str(inside["worse"])]
        cells += ["yes" if inside["accepted"] else "no", f"{whole['rows']:.3f}"]
        cells += [f"{whole['mean']:.4f}", str(whole["better"]), str(whole["worse"])]
    return [name, str(beam), *cells]


def cells(args: Namespace, page: Page, part: str, text: Text) -> None:
    """The tables of a part. Errors: BenchError where fairseq's search stops in each cell."""
    way, found, failed = args.constraint_compete, dict[tuple[str, int], Any](), ""
    more = COMPETING_ROWS if way in (None, "rows") else 0
    compete = ["--constraint-compete", way] if way else []
    limit = [] if args.max_len_b is None else ["--max-len-b", str(args.max_len_b)]
    flags = ["--cpu", "--max-tokens", str(args.max_tokens), *limit, "--beam"]
    own = ("out", "parts", "beams", "stock_sets", "speed_limit")
    key = {name: value for name, value in vars(args).items() if name not in own}
    key |= {"commit": git("rev-parse", "HEAD"), "sentences": len(text.references)}
    for beam, name in itertools.product(args.beams, args.stock_sets):
        phrases = extract(text.references, name, args.seed, text.usable)
        required = [*text.constraints(name, phrases), *compete]

        def run(beam: int = beam, phrases: list = phrases, required: list = required) -> dict:
            stock = [*flags, str(beam + more)]
            made = {"theirs": stock_constrained(text, stock, phrases, text.pieces)}
            ways = {"free": [], "inside": [*required, *INSIDE], "whole": required}
            for each, words in ways.items():
                made[each] = ours(text, [*flags, str(beam), *words], each, exact=False)
            return quality(made, text) if part == "quality" else speed(made, args)

        try:
            file = args.out and args.out.with_name(f"{args.out.name}.cells")
            of = f"{name}.{beam}.{part}.json"
            found[name, beam] = kept(file / of, key, run) if file else run()
        except StockFailed as error:
            failed += f" Without {name} at beam {beam}: {error}."
    if not found:
        raise BenchError(failed.strip())
    about = f"{named(args.model)}, {named(args.text)}, {len(text.references)} sentences, "
    about += f"{' '.join([*compete, *limit, 'beam of fairseq'])} +{more}.{failed}"
    for columns in ("quality", "bleu") if part == "quality" else ("speed",):
        title = {"bleu": "BLEU"}.get(columns, columns)
        title = f"fairseq's own constrained search against DBA: {title}, {about}"
        rows = [row(columns, *place, facts) for place, facts in found.items()]
        page.add_table(["set", "beam", *HEADS[columns]], rows, title)


def main(args: Namespace, page: Page, folder: Path) -> None:
    for part in args.parts:
        limit = args.speed_limit if part == "speed" and args.speed_limit else args.limit
        place = folder / part
        text = prepare(place, args.model, args.text, args.src, args.tgt, limit)
        cells(args, page, part, text)


if __name__ == "__main__":
    KNOWN = {"stock_sets": MORE_SETS, "parts": ("quality", "speed")}
    KNOWN |= {"constraint_compete": ("rows", "search", "off")}
    run_bench(main, __doc__, KNOWN, threads=cores())
