"""What do constraints cost, and how does fairseq's own constrained search compare?

    python scripts/bench/constrained.py --out results/constrained
    python scripts/bench/constrained.py --model DIR --text PREFIX --limit 200 --repeats 5
        --parts sets constant interactive
    python scripts/bench/constrained.py --model DIR --text PREFIX --limit 300 --parts quality speed
        --speed-limit 60 --out OUT

sets: unconstrained search against DBA with constraints from the references (rand1..rand4, phr4),
alone, with --prune-finished, and with --stop optimal. "time" is over the unconstrained search,
"rows" the decoder's rows over its rows, "a row" their quotient: what is left of the time when extra
steps are taken out; "rows after the best" is the share of the rows that were spent once the best
hypothesis was finished (Section 6.4 of the paper: garbage), which pruning and --stop optimal cut;
"tokens" the outputs' length over the first's. constant: the same sentences with one constraint
token and with ten or more. interactive: the complete command fairseq-interactive --constraints,
stock and ours, batches of 32; "decoding" is what the command itself reports as its translation
time. words: what it costs that phrases count as whole words (constrained_default.py).
quality, speed: fairseq's own constrained search against DBA on rand1..rand4 and phr2..phr4, at each
of --beams: mean scores of the best hypotheses, sentences with a better and with a worse one; how
many times as fast (constrained_stock.py). With --out a finished cell is kept in OUT.cells and not
measured again: an interrupted run goes on, and --stock-sets and --beams make short pieces of a long
one. fairseq's search stops at an assertion when a batch reaches the length limit with words unmet.
Such a cell is named above the table; a larger --max-len-b holds for all searches. fairseq's beam
has the rows of ours: one more than --beams where the unconstrained output competes in a row.
--constraint-compete: off, our searches without that row, or search, with a search of its own.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

sys.path += [
    str(Path(__file__).resolve().parents[1] / name) for name in ("experiments", "experiments/dba")
]

import constrained_default
import constrained_interactive
from arguments import command_line, run_script, text_arguments, timing_arguments
from constrained_stock import HEADS as STOCK_HEADS
from constrained_stock import Cells, Searches, quality, speed
from counted import TIMES, Counted, Row, after_the_best, print_tables, race, ratios, searching
from extract import MORE_SETS, SETS, extract
from harness import fix_threads
from report import named
from text import Text, prepare

from fairseq_ext.search.strategies.select.dba import COMPETING_ROWS

SEARCHES = {
    "unconstrained": None,
    "DBA": [],
    "DBA, --prune-finished 20": ["--prune-finished", "20"],
    "DBA, --prune-finished 3": ["--prune-finished", "3"],
    "DBA, unnormalised scores, --stop optimal": ["--unnormalized", "--stop", "optimal"],
}
FEW, MANY = "1 constraint token", "10 or more"
COMPETE = "--constraint-compete"


def tokens(c: Counted) -> int:
    """Of all best hypotheses."""
    return sum(len(hypotheses[0][0]) for hypotheses in c.outputs)


class Bench:
    def __init__(self, args: argparse.Namespace, folder: Path):
        self.args, self.folder = args, folder
        self.text = self.prepared("all", args.text, args.limit)
        self.common = ["--cpu", "--beam", str(args.beam), "--max-tokens", str(args.max_tokens)]
        self.compete = [] if args.constraint_compete is None else [COMPETE, args.constraint_compete]

    def prepared(self, name: str, prefix: str, limit: int | None = None) -> Text:
        place = self.folder / name
        place.mkdir()
        text = prepare(place, self.args.model, prefix, self.args.src, self.args.tgt, limit)
        spm = self.args.model / "spm.model"
        self.bpe = (
            ["--bpe", "sentencepiece", "--sentencepiece-model", str(spm)] if spm.exists() else []
        )
        return text

    def pieces(self) -> Callable[[str], list[str]]:
        if not self.bpe:
            return str.split
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_file=self.bpe[-1])
        return lambda phrase: processor.encode(phrase, out_type=str)

    def usable(self) -> Callable[[str], bool]:
        """Whether the target dictionary can write a phrase."""
        known = {
            line.split(" ")[0]
            for line in (self.text.folder / f"dict.{self.args.tgt}.txt")
            .read_text(encoding="utf-8")
            .splitlines()
        }
        pieces = self.pieces()
        return lambda phrase: known.issuperset(pieces(phrase))

    def file(self, name: str, lines: Sequence[Sequence[str]]) -> list[str]:
        """Flags that give these constraints, and how they compete."""
        path = self.folder / f"{name}.tsv"
        path.write_text("".join("\t".join(phrases) + "\n" for phrases in lines), encoding="utf-8")
        return ["--constraints-file", str(path), *self.bpe, *self.compete]

    def raced(self, text: Text, searches: dict[str, list[str]]) -> list[Row]:
        """A row of the table for each search; ratios are over the first."""
        counted = [
            searching(text, [*self.common, *flags], name) for name, flags in searches.items()
        ]
        races = race(text, counted, self.args.repeats, self.args.threads)
        rows = []
        for c, result, times in zip(counted, races.results, ratios(races, counted), strict=True):
            met = f"{c.stats['met']} of {c.stats['given']}" if "given" in c.stats else ""
            length = f"{tokens(c) / tokens(counted[0]):.3f}"
            rows.append(
                [
                    c.contender.name,
                    *times,
                    after_the_best(c, self.args.beam),
                    length,
                    f"{result.bleu:.2f}",
                    met,
                ]
            )
        return rows

    def sets(self) -> list[tuple[str, list[Row]]]:
        out = []
        for name in self.args.sets:
            given = self.file(
                name, extract(self.text.references, name, self.args.seed, self.usable())
            )
            rows = self.raced(
                self.text,
                {search: [] if more is None else given + more for search, more in SEARCHES.items()},
            )
            out.append((f"{name}, beam {self.args.beam}", rows))
        return out

    def constant(self) -> list[tuple[str, list[Row]]]:
        """The same sentences with one token and with at least ten, both out of the reference."""
        pieces, usable, draw = self.pieces(), self.usable(), random.Random(self.args.seed)
        kept, few, many = [], [], []
        sources = Path(f"{self.args.text}.{self.args.src}").read_text(encoding="utf-8").split("\n")
        for source, reference in zip(sources, self.text.references, strict=False):
            words = [word for word in reference.split() if usable(word)]
            single = [word for word in words if len(pieces(word)) == 1]
            if not single or sum(len(pieces(word)) for word in words) < 10:
                continue
            draw.shuffle(words)
            chosen: list[str] = []
            while sum(len(pieces(word)) for word in chosen) < 10:
                chosen.append(words[len(chosen)])
            kept.append((source, reference))
            few.append([draw.choice(single)])
            many.append(chosen)
        for language, side in zip(
            (self.args.src, self.args.tgt), zip(*kept, strict=True), strict=True
        ):
            (self.folder / f"long.{language}").write_text(
                "".join(line + "\n" for line in side), encoding="utf-8"
            )
        text = self.prepared("long", str(self.folder / "long"))
        rows = self.raced(
            text, {FEW: self.file("few", few), MANY: self.file("many", many), "unconstrained": []}
        )
        return [
            (
                (
                    f"one constraint token, and ten or more, beam {self.args.beam}, "
                    f"{len(kept)} sentences"
                ),
                rows,
            )
        ]

    def interactive(self) -> list[tuple[str, list[Row]]]:
        """fairseq-interactive --constraints as a user runs it."""
        sources = Path(f"{self.args.text}.{self.args.src}").read_text(encoding="utf-8").split("\n")
        out = []
        for name in self.args.interactive_sets:
            constraints = extract(self.text.references, name, self.args.seed, self.usable())[
                : self.args.limit_interactive
            ]
            file = self.folder / f"{name}.input"
            lines = zip(sources, constraints, strict=False)
            file.write_text(
                "".join("\t".join([source, *phrases]) + "\n" for source, phrases in lines),
                encoding="utf-8",
            )
            flags = [str(self.text.folder), *self.text.flags[1:-2], *self.bpe]
            flags += ["--constraints", "unordered", "--cpu", "--beam", str(self.args.beam)]
            flags += ["--batch-size", "32", "--buffer-size", "32", "--input", str(file)]
            rows = constrained_interactive.rows(flags, self.args.repeats)
            out.append(
                (
                    (
                        f"fairseq-interactive --constraints, {name}, beam {self.args.beam}, "
                        f"{len(constraints)} sentences"
                    ),
                    rows,
                )
            )
        return out

    def words(self) -> list[tuple[str, list[Row]]]:
        """What it costs that phrases count as whole words."""
        rows = []
        for name in self.args.sets:
            phrases = extract(self.text.references, name, self.args.seed, self.usable())
            given = [*self.common, *self.file(name, phrases)]
            how = (self.args.repeats, self.args.threads)
            rows.append(constrained_default.row(self.text, name, given, phrases, *how))
        return [
            (
                (
                    f"phrases as whole words, beam {self.args.beam}, {len(self.text.references)} "
                    "sentences"
                ),
                rows,
            )
        ]

    def quality(self) -> list[tuple[str, str, list[Row]]]:
        """Scores next to those of fairseq's own constrained search."""
        return self.against_stock(
            "quality", self.text, lambda searches: quality(searches, self.text)
        )

    def speed(self) -> list[tuple[str, str, list[Row]]]:
        """Times next to those of fairseq's own constrained search."""
        text = (
            self.text
            if self.args.speed_limit is None
            else self.prepared("speed", self.args.text, self.args.speed_limit)
        )
        return self.against_stock(
            "speed", text, lambda searches: speed(searches, self.args.repeats, self.args.threads)
        )

    def against_stock(
        self, part: str, text: Text, run: Callable[[Searches], dict]
    ) -> list[tuple[str, str, list[Row]]]:
        """The tables of a part, each with the name of its columns, of the cells that this and
        earlier runs have measured."""
        args = self.args
        size = (args.model / "checkpoint.pt").stat().st_size
        key = [
            named(args.model),
            size,
            named(args.text),
            args.src,
            args.tgt,
            len(text.references),
            args.seed,
            args.max_tokens,
        ]
        key += [] if args.max_len_b is None else [f"max_len_b {args.max_len_b}"]
        more = COMPETING_ROWS if args.constraint_compete in (None, "rows") else 0
        key += [*self.compete, f"beam of fairseq +{more}"]
        key += [args.repeats, args.threads] if part == "speed" else ["intervals", "rambling"]
        cells = Cells.read(
            part, key, None if args.out is None else args.out.with_name(f"{args.out.name}.cells")
        )
        limit = [] if args.max_len_b is None else ["--max-len-b", str(args.max_len_b)]
        for beam in args.beams:
            for name in args.stock_sets:
                flags = ["--cpu", "--max-tokens", str(args.max_tokens), *limit]
                phrases = extract(text.references, name, args.seed, self.usable())
                given, beams = self.file(name, phrases), (beam, beam + more)
                made = partial(Searches.of, text, flags, beams, phrases, given, self.pieces())
                cells.measure(name, beam, lambda made=made: run(made()))
                failed = f": {cells.failed[name, beam]}" if (name, beam) in cells.failed else ""
                print(f"{part}: {name}, beam {beam}{failed}", file=sys.stderr, flush=True)
        about = (
            f"{named(args.model)}, {named(args.text)}, {len(text.references)} "
            f"sentences, {' '.join([*self.compete, *limit, 'beam of fairseq'])} +{more}"
        )
        title = f"fairseq's own constrained search against DBA: {part}, {about}"
        bleu = (
            [
                (
                    "bleu",
                    *cells.table(
                        f"fairseq's own constrained search against DBA: BLEU, {about}", "bleu"
                    ),
                )
            ]
            if part == "quality"
            else []
        )
        return [(part, *cells.table(title)), *bleu]


HEADS = {
    "sets": ["search", *TIMES, "rows after the best", "tokens", "BLEU", "met"],
    **STOCK_HEADS,
    "words": constrained_default.HEAD,
    "interactive": constrained_interactive.HEAD,
}
HEADS["constant"] = HEADS["sets"]


def main() -> None:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.add_argument(
        "--limit-interactive", type=int, default=320, help="sentences for fairseq-interactive (320)"
    )
    parse.add_argument("--beam", type=int, default=10, help="(10)")
    parse.add_argument("--max-tokens", type=int, default=4000, help="of a batch (4000)")
    parse.add_argument("--seed", type=int, default=1, help="of the extraction (1)")
    parse.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parse.add_argument("--interactive-sets", nargs="+", choices=SETS, default=["rand1", "rand3"])
    parse.add_argument("--stock-sets", nargs="+", choices=MORE_SETS, default=list(MORE_SETS))
    parse.add_argument(
        "--beams",
        type=int,
        nargs="+",
        default=[5, 10, 20],
        help="of the parts quality and speed (5 10 20)",
    )
    parse.add_argument(
        COMPETE, choices=["rows", "search", "off"], help="of our searches (the default: rows)"
    )
    parse.add_argument(
        "--max-len-b",
        type=int,
        help="--max-len-b of fairseq and DBA in the parts quality and speed (200)",
    )
    parse.add_argument("--speed-limit", type=int, help="sentences of the part speed (--limit)")
    parts = [part for part in HEADS if part != "bleu"]  # that comes with quality
    parse.add_argument(
        "--parts", nargs="+", choices=parts, default=["sets", "constant", "interactive"]
    )
    timing_arguments(parse)
    args = parse.parse_args()
    fix_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder))
        made = ((part, *table) for part in args.parts for table in getattr(bench, part)())
        print_tables(((title, HEADS[columns], rows) for *_, columns, title, rows in made), args.out)


if __name__ == "__main__":
    run_script(main)
