"""What do constraints cost, and how does fairseq's own constrained search compare?

    python scripts/bench/constrained.py --out results/constrained
    python scripts/bench/constrained.py --model DIR --text PREFIX --limit 200 --repeats 5 --parts sets constant interactive
    python scripts/bench/constrained.py --model DIR --text PREFIX --limit 100 --repeats 1 --parts stock --beams 5 10 20

sets: unconstrained search against DBA with constraints from the references (rand1..rand4, phr4), alone, with --prune-finished, and with
--stop optimal. "time" is over the unconstrained search, "rows" the decoder's rows over its rows, "a row" their quotient: what is left of
the time when extra steps are taken out; "rows after the best" is the share of the rows that were spent once the best hypothesis was
finished (Section 6.4 of the paper: garbage), which pruning and --stop optimal cut; "tokens" the outputs' length over the first's.
constant: the same sentences with one constraint token and with ten or more. interactive: the complete command fairseq-interactive
--constraints, stock and ours, batches of 32; "decoding" is what the command itself reports as its translation time.
stock: fairseq's own constrained search against DBA on rand1..rand4 and phr2..phr4, at each of --beams: how many times as fast, mean
scores of the best hypotheses, sentences with a better and with a worse one. A row is accepted where worse <= better + 2% of the
sentences and DBA is 5 times as fast. fairseq meets phrases inside words too, so scores compare under --constraint-boundary none; what
whole words cost stands beside it. With --out a finished cell of this part is kept in OUT.cells and not measured again.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments" / "dba"))

from against_stock import SPEED, compare_scores, stock_constrained
from arguments import command_line, run_script, text_arguments, timing_arguments
from contenders import OURS
from counted import TIMES, Counted, Row, after_the_best, print_tables, race, ratios, searching
from extract import MORE_SETS, SETS, extract
from harness import BenchError, Spread, compare, fix_threads
from text import Text, prepare

SEARCHES = {
    "unconstrained": None,
    "DBA": [],
    "DBA, --prune-finished 20": ["--prune-finished", "20"],
    "DBA, --prune-finished 3": ["--prune-finished", "3"],
    "DBA, raw scores, --stop optimal": ["--unnormalized", "--stop", "optimal"],
}
AGAINST_STOCK = {"DBA, phrases inside words too": ["--constraint-boundary", "none"], "DBA, whole words": []}
FEW, MANY = "1 constraint token", "10 or more"


def tokens(c: Counted) -> int:
    """Of all best hypotheses."""
    return sum(len(hypotheses[0][0]) for hypotheses in c.outputs)


class Bench:
    def __init__(self, args: argparse.Namespace, folder: Path):
        self.args, self.folder = args, folder
        self.text = self.prepared("all", args.text, args.limit)
        self.common = ["--cpu", "--beam", str(args.beam), "--max-tokens", str(args.max_tokens)]

    def prepared(self, name: str, prefix: str, limit: int | None = None) -> Text:
        place = self.folder / name
        place.mkdir()
        text = prepare(place, self.args.model, prefix, self.args.src, self.args.tgt, limit)
        spm = self.args.model / "spm.model"
        self.bpe = ["--bpe", "sentencepiece", "--sentencepiece-model", str(spm)] if spm.exists() else []
        return text

    def pieces(self) -> Callable[[str], list[str]]:
        if not self.bpe:
            return str.split
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_file=self.bpe[-1])
        return lambda phrase: processor.encode(phrase, out_type=str)

    def usable(self) -> Callable[[str], bool]:
        """Whether the target dictionary can write a phrase."""
        known = {line.split(" ")[0] for line in (self.text.folder / f"dict.{self.args.tgt}.txt").read_text(encoding="utf-8").splitlines()}
        pieces = self.pieces()
        return lambda phrase: known.issuperset(pieces(phrase))

    def file(self, name: str, lines: Sequence[Sequence[str]]) -> list[str]:
        """Flags that give these constraints."""
        path = self.folder / f"{name}.tsv"
        path.write_text("".join("\t".join(phrases) + "\n" for phrases in lines), encoding="utf-8")
        return ["--constraints-file", str(path), *self.bpe]

    def raced(self, text: Text, searches: dict[str, list[str]]) -> list[Row]:
        """A row of the table for each search; ratios are over the first."""
        counted = [searching(text, [*self.common, *flags], name) for name, flags in searches.items()]
        races = race(text, counted, self.args.repeats, self.args.threads)
        rows = []
        for c, times, result in zip(counted, ratios(races, counted), races.results, strict=True):
            met = f"{c.stats['met']} of {c.stats['given']}" if "given" in c.stats else ""
            length = f"{tokens(c) / tokens(counted[0]):.3f}"
            rows.append([c.contender.name, *times, after_the_best(c, self.args.beam), length, f"{result.bleu:.2f}", met])
        return rows

    def sets(self) -> list[tuple[str, list[Row]]]:
        out = []
        for name in self.args.sets:
            given = self.file(name, extract(self.text.references, name, self.args.seed, self.usable()))
            rows = self.raced(self.text, {search: [] if more is None else given + more for search, more in SEARCHES.items()})
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
        for language, side in zip((self.args.src, self.args.tgt), zip(*kept, strict=True), strict=True):
            (self.folder / f"long.{language}").write_text("".join(line + "\n" for line in side), encoding="utf-8")
        text = self.prepared("long", str(self.folder / "long"))
        rows = self.raced(text, {FEW: self.file("few", few), MANY: self.file("many", many), "unconstrained": []})
        return [(f"constant in the number of constraints, beam {self.args.beam}, {len(kept)} sentences", rows)]

    def interactive(self) -> list[tuple[str, list[Row]]]:
        """fairseq-interactive --constraints as a user runs it."""
        sources = Path(f"{self.args.text}.{self.args.src}").read_text(encoding="utf-8").split("\n")
        out = []
        for name in self.args.interactive_sets:
            constraints = extract(self.text.references, name, self.args.seed, self.usable())[: self.args.limit_interactive]
            file = self.folder / f"{name}.input"
            lines = zip(sources, constraints, strict=False)
            file.write_text("".join("\t".join([source, *phrases]) + "\n" for source, phrases in lines), encoding="utf-8")
            command = [str(Path(sys.executable).parent / "fairseq-interactive"), str(self.text.folder), *self.text.flags[1:-2], *self.bpe]
            command += ["--constraints", "unordered", "--cpu", "--beam", str(self.args.beam), "--batch-size", "32", "--buffer-size", "32"]
            command += ["--input", str(file)]
            times: dict[str, list[tuple[float, float]]] = {"stock": [], "ours": []}
            for _ in range(self.args.repeats):
                for which, flags in (("stock", []), ("ours", OURS)):
                    times[which].append(timed([*command, *flags]))
            rows = []
            for which, taken in times.items():
                seconds = [f"{Spread.of(column).median:.2f}" for column in zip(*taken, strict=True)]
                gain = [Spread.of([b[i] / a[i] for a, b in zip(taken, times["stock"], strict=True)]).median for i in (0, 1)]
                rows.append([which, *seconds, *(f"{g:.2f}" for g in gain)])
            out.append((f"fairseq-interactive --constraints, {name}, beam {self.args.beam}, {len(constraints)} sentences", rows))
        return out

    def stock(self) -> Iterator[tuple[str, list[Row]]]:
        """One table for each set and beam; the cells that an earlier run has measured are read."""
        for beam in self.args.beams:
            for name in self.args.stock_sets:
                title = f"fairseq's own constrained search, {name}, beam {beam}, {len(self.text.references)} sentences"
                key = [str(self.args.model), self.args.text, title, self.args.seed, self.args.repeats, self.args.max_tokens]
                file = None if self.args.out is None else self.args.out.with_name(f"{self.args.out.name}.cells") / f"{name}.{beam}.json"
                if file is not None and file.exists() and (saved := json.loads(file.read_text(encoding="utf-8")))["key"] == key:
                    yield title, saved["rows"]
                    continue
                rows = self.against_stock(name, beam)
                if file is not None:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(json.dumps({"key": key, "rows": rows}, indent=1) + "\n", encoding="utf-8")
                yield title, rows

    def against_stock(self, name: str, beam: int) -> list[Row]:
        """A row for fairseq's search, for unconstrained search, and for DBA in both countings."""
        flags = ["--cpu", "--beam", str(beam), "--max-tokens", str(self.args.max_tokens)]
        phrases = extract(self.text.references, name, self.args.seed, self.usable())
        given = self.file(name, phrases)
        theirs = stock_constrained(self.text, flags, phrases, self.pieces(), "fairseq")
        free = searching(self.text, flags, "unconstrained")
        ours = [searching(self.text, [*flags, *given, *more], which) for which, more in AGAINST_STOCK.items()]
        contenders = [c.contender for c in (theirs, free, *ours)]
        stock, *races = compare(contenders, self.args.repeats, threads=self.args.threads, bleu=self.text.bleu).results
        rows = [["fairseq", "1.00", "", f"{compare_scores(theirs.outputs, theirs.outputs).mean:.4f}", "", "", f"{stock.bleu:.2f}", ""]]
        for c, result in zip((free, *ours), races, strict=True):
            speed = Spread.of([a / b for a, b in zip(stock.seconds, result.seconds, strict=True)]).median
            cells = ["", "", ""]
            if c is not free:
                scores = compare_scores(c.outputs, theirs.outputs)
                cells = [f"{scores.mean:.4f}", str(scores.better), str(scores.worse)]
            verdict = ""
            if c is ours[0]:  # the same problem as fairseq's
                verdict = "yes" if scores.accepted and speed >= SPEED else "no"
            more = f"{c.stats['rows'] / free.stats['rows']:.3f}"
            rows.append([c.contender.name, f"{speed:.2f}", more, *cells, f"{result.bleu:.2f}", verdict])
        return rows


def timed(command: Sequence[str]) -> tuple[float, float]:
    """Seconds of a whole fairseq-interactive run, and of its decoding as it reports them."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    seconds = time.perf_counter() - start
    said = re.search(r"translation time: ([\d.]+)", done.stdout + done.stderr)
    if done.returncode or not said:
        last = (done.stderr.strip() or "nothing").splitlines()[-1]
        raise BenchError(f"{' '.join(Path(part).name for part in command[:1])} ended with code {done.returncode} and said: {last}")
    return seconds, float(said[1])


HEADS = {
    "sets": ["search", *TIMES, "rows after the best", "tokens", "BLEU", "met"],
    "stock": ["search", "times as fast", "rows", "mean score", "better", "worse", "BLEU", "accepted"],
    "interactive": ["command", "seconds", "decoding", "times stock", "decoding, times stock"],
}
HEADS["constant"] = HEADS["sets"]


def main() -> None:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.add_argument("--limit-interactive", type=int, default=320, help="sentences for fairseq-interactive (320)")
    parse.add_argument("--beam", type=int, default=10, help="(10)")
    parse.add_argument("--max-tokens", type=int, default=4000, help="of a batch (4000)")
    parse.add_argument("--seed", type=int, default=1, help="of the extraction (1)")
    parse.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parse.add_argument("--interactive-sets", nargs="+", choices=SETS, default=["rand1", "rand3"])
    parse.add_argument("--stock-sets", nargs="+", choices=MORE_SETS, default=list(MORE_SETS))
    parse.add_argument("--beams", type=int, nargs="+", default=[5, 10, 20], help="of the part stock (5 10 20)")
    parse.add_argument("--parts", nargs="+", choices=HEADS, default=["sets", "constant", "interactive"])
    timing_arguments(parse)
    args = parse.parse_args()
    fix_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder))
        print_tables(((title, HEADS[part], rows) for part in args.parts for title, rows in getattr(bench, part)()), args.out)


if __name__ == "__main__":
    run_script(main)
