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
time. words: what phrases cost because they count as whole words, which is the default: DBA as
`--constraint-boundary none --constraint-case exact` has it, by default (accepted where it takes at
most 5% longer), and in the case of glossaries; "whole already": sentences whose phrases all stand
as words in what the first search finds; "changed": those of them for which the default finds
another translation.
quality, speed: fairseq's own constrained search against DBA on rand1..rand4 and phr2..phr4, at each
of --beams: mean scores of the best hypotheses, sentences with a better and with a worse one; how
many times as fast (constrained_stock.py). With --out a finished cell is kept in OUT.cells and not
measured again: an interrupted run goes on, and --stock-sets and --beams make short pieces of a long
one. fairseq's search stops at an assertion when a batch reaches the length limit with words unmet.
Such a cell is named above the table; a larger --max-len-b holds for all searches. fairseq's beam
has the rows of ours: one more than --beams where the unconstrained output competes in a row.
--constraint-compete: off, our searches without that row, or search, with a search of its own.

    --limit-interactive N         sentences for fairseq-interactive (320)
    --beam N                      (10)
    --max-tokens N                of a batch (4000)
    --seed N                      of the extraction (1)
    --sets SET ...                (all)
    --interactive-sets SET ...    (rand1 rand3)
    --stock-sets SET ...          (all)
    --beams N ...                 of the parts quality and speed (5 10 20)
    --constraint-compete WAY      of our searches; rows by default
    --max-len-b N                 of fairseq and DBA in the parts quality and speed; 200 by default
    --speed-limit N               sentences of the part speed; those of --limit by default
    --parts PART ...              (sets constant interactive)
"""

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import constrained_stock
from contenders import OURS, ours
from extract import MORE_SETS, SETS, extract
from harness import BenchError, Comparison, Contender, Spread, compare, fix_threads, time_ways
from report import Page
from text import (
    Text,
    command_line,
    prepare,
    run_script,
    segmenter,
    text_arguments,
    timing_arguments,
)

from fairseq_ext.search.phrases.pieces import normal
from fairseq_ext.search.phrases.places import find_phrase

SEARCHES = {
    "DBA": [],
    "DBA, --prune-finished 20": ["--prune-finished", "20"],
    "DBA, --prune-finished 3": ["--prune-finished", "3"],
    "DBA, unnormalised scores, --stop optimal": ["--unnormalized", "--stop", "optimal"],
}
COMPETE = "--constraint-compete"
MOST = 1.05  # times the time that whole words may take
WORDS = {
    "inside words too": ["--constraint-boundary", "none", "--constraint-case", "exact"],
    "default": [],
    "as glossaries": ["--constraint-case", "initial"],
}


class Bench:
    """The text, its phrases, and a method a part, which adds its tables to a page."""

    def __init__(self, args: argparse.Namespace, folder: Path):
        self.args, self.folder = args, folder
        self.text = self.prepared(args.limit)
        self.common = ["--cpu", "--beam", str(args.beam), "--max-tokens", str(args.max_tokens)]
        self.compete = [] if args.constraint_compete is None else [COMPETE, args.constraint_compete]
        segment = segmenter(args.model / "spm.model")
        self.pieces: Callable[[str], list[str]] = lambda phrase: segment(phrase).split()
        words = (self.text.folder / f"dict.{args.tgt}.txt").read_text(encoding="utf-8").splitlines()
        known = {line.split(" ")[0] for line in words}
        # whether the target dictionary can write a phrase
        self.usable = lambda phrase: known.issuperset(self.pieces(phrase))

    def prepared(self, limit: int | None, **keep: Any) -> Text:
        args = self.args
        place = self.folder / f"text{len(list(self.folder.iterdir()))}"
        return prepare(place, args.model, args.text, args.src, args.tgt, limit, **keep)

    def phrases(self, name: str, references: Sequence[str] | None = None) -> list[list[str]]:
        """Phrases of the references of a set."""
        lines = self.text.references if references is None else references
        return extract(lines, name, self.args.seed, self.usable)

    def file(self, name: str, lines: Sequence[Sequence[str]]) -> list[str]:
        """Flags that give these constraints, and how they compete."""
        path = self.folder / f"{name}.tsv"
        path.write_text("".join("\t".join(phrases) + "\n" for phrases in lines), encoding="utf-8")
        return ["--constraints-file", str(path), *self.text.bpe, *self.compete]

    def search(self, text: Text, flags: Sequence[str], name: str) -> Contender:
        return ours(text, [*self.common, *flags], name, exact=False)

    def race(self, page: Page, title: str, text: Text, searches: dict[str, list[str]]) -> None:
        """A table with a row for each search; ratios are over the first."""
        args = self.args
        made = [self.search(text, flags, name) for name, flags in searches.items()]
        races = compare(made, args.repeats, threads=args.threads, bleu=text.bleu)
        head = ["search", "seconds", "time (min-max)", "rows", "a row", "rows after the best"]
        rows = [self.row(races, number) for number in range(len(made))]
        page.add_table([*head, "tokens", "BLEU", "met"], rows, title)

    def row(self, races: Comparison, number: int) -> list[str]:
        """A search: seconds, and time, decoder rows and time a row over the first search's."""
        first, result = races.results[0], races.results[number]
        stats, best = (
            result.contender.stats,
            [[len(nbest[0][0]) for nbest in each.outputs] for each in (first, result)],
        )
        time, more = (
            Spread.ratio(result.seconds, first.seconds),
            stats["decoder_rows"] / first.contender.stats["decoder_rows"],
        )
        # of a beam that is full until the best hypothesis is finished
        useful = sum(1 + self.args.beam * (length - 1) for length in best[1])
        cells = [f"{Spread.of(result.seconds).median:.2f}", time.shown(), f"{more:.3f}"]
        cells += [
            f"{time.median / more:.2f}",
            f"{max(0.0, 1 - useful / stats['decoder_rows']):.0%}",
        ]
        met = "{met} of {given}".format(**found) if (found := stats.get("constraints")) else ""
        tokens = f"{sum(best[1]) / sum(best[0]):.3f}"
        return [result.contender.name, *cells, tokens, f"{result.bleu:.2f}", met]

    def sets(self, page: Page) -> None:
        for name in self.args.sets:
            given = self.file(name, self.phrases(name))
            searches = {search: given + more for search, more in SEARCHES.items()}
            title = f"{name}, beam {self.args.beam}"
            self.race(page, title, self.text, {"unconstrained": [], **searches})

    def constant(self, page: Page) -> None:
        """The same sentences with one token and with at least ten, both out of the reference."""
        draw = random.Random(self.args.seed)
        few: dict[int, list[str]] = {}
        many: dict[int, list[str]] = {}
        for number, reference in enumerate(self.text.references):
            words = [word for word in reference.split() if self.usable(word)]
            single = [word for word in words if len(self.pieces(word)) == 1]
            if not single or sum(len(self.pieces(word)) for word in words) < 10:
                continue
            draw.shuffle(words)
            chosen: list[str] = []
            while sum(len(self.pieces(word)) for word in chosen) < 10:
                chosen.append(words[len(chosen)])
            few[number], many[number] = [draw.choice(single)], chosen
        text = self.prepared(self.args.limit, keep=few.__contains__)
        flags = {
            "1 constraint token": self.file("few", [*few.values()]),
            "10 or more": self.file("many", [*many.values()]),
            "unconstrained": [],
        }
        about = f"beam {self.args.beam}, {len(few)} sentences"
        self.race(page, f"one constraint token, and ten or more, {about}", text, flags)

    def interactive(self, page: Page) -> None:
        """fairseq-interactive --constraints as a user runs it."""
        args, text = self.args, self.text
        for name in args.interactive_sets:
            phrases, file = self.phrases(name)[: args.limit_interactive], self.folder / "input"
            rows = zip(text.sources, phrases, strict=False)
            lines = ["\t".join([source, *each]) for source, each in rows]
            file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
            flags = [*text.flags[:-2], *text.bpe, "--constraints", "unordered", "--cpu"]
            flags += ["--beam", str(args.beam), "--input", str(file)]
            flags += "--batch-size 32 --buffer-size 32".split()
            stock = [str(Path(sys.executable).with_name("fairseq-interactive"))]
            commands = {"stock": [*stock, *flags], "ours": [*stock, *OURS, *flags]}
            ways = {kind: partial(translation_time, words) for kind, words in commands.items()}
            spent, decoding = time_ways(ways, args.repeats, time.perf_counter)
            rows = []
            for kind in ways:
                taken = spent[kind], decoding[kind]
                theirs = spent["stock"], decoding["stock"]
                medians = [Spread.of(each).median for each in taken]
                gains = [Spread.ratio(a, b).median for a, b in zip(theirs, taken, strict=True)]
                rows.append([kind, *(f"{value:.2f}" for value in (*medians, *gains))])
            head = ["command", "seconds", "decoding", "times stock", "decoding, times stock"]
            about = f"{name}, beam {args.beam}, {len(phrases)} sentences"
            page.add_table(head, rows, f"fairseq-interactive --constraints, {about}")

    def words(self, page: Page) -> None:
        """What it costs that phrases count as whole words."""
        args, rows = self.args, []
        for name in args.sets:
            phrases = self.phrases(name)
            given = self.file(name, phrases)
            made = [self.search(self.text, [*given, *flags], way) for way, flags in WORDS.items()]
            inside, *others = compare(made, args.repeats, threads=args.threads).results
            default, glossary = (Spread.ratio(each.seconds, inside.seconds) for each in others)
            lines = (self.text.lines(each.outputs) for each in (inside, others[0]))
            same = [
                before == after
                for before, after, wanted in zip(*lines, phrases, strict=True)
                if all(find_phrase(normal(p), normal(before), 0, True)[1] >= 0 for p in wanted)
            ]
            cells = [f"{Spread.of(inside.seconds).median:.2f}", default.shown(3)]
            cells += ["yes" if default.median <= MOST else "no", f"{glossary.median:.3f}"]
            rows.append([name, *cells, str(len(same)), str(same.count(False))])
        head = ["set", "inside words too: seconds", "default: time (min-max)", "accepted"]
        about = f"beam {args.beam}, {len(self.text.references)} sentences"
        head += ["as glossaries: time", "whole already", "changed"]
        page.add_table(head, rows, f"phrases as whole words, {about}")

    def quality(self, page: Page) -> None:
        constrained_stock.tables(self, page, "quality", self.text)

    def speed(self, page: Page) -> None:
        limit = self.args.speed_limit
        text = self.text if limit is None else self.prepared(limit)
        constrained_stock.tables(self, page, "speed", text)


def translation_time(command: Sequence[str]) -> float:
    """Run fairseq-interactive; the seconds of its decoding as it reports them."""
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    said = re.search(r"translation time: ([\d.]+)", done.stdout + done.stderr)
    if done.returncode or not said:
        last = (done.stderr.strip() or "nothing").splitlines()[-1]
        raise BenchError(f"fairseq-interactive ended with code {done.returncode} and said: {last}")
    return float(said[1])


PARTS = ["sets", "constant", "interactive", "words", "quality", "speed"]


def main(argv: list[str] | None = None) -> None:
    known = {"sets": SETS, "interactive_sets": SETS, "stock_sets": MORE_SETS, "parts": PARTS}
    parse = command_line(__doc__, {**known, "constraint_compete": ["rows", "search", "off"]})
    text_arguments(parse)
    timing_arguments(parse)
    args = parse.parse_args(argv)
    fix_threads(args.threads)
    page = Page(args.out)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder))
        for part in args.parts:
            getattr(bench, part)(page)


if __name__ == "__main__":
    run_script(main)
