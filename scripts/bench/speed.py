"""Is this checkout as fast as another one? Fourteen cells, each as the other's time over ours.

    python scripts/bench/speed.py --before CHECKOUT PYTHON [--repeats 9] [--out OUT]
    python scripts/bench/speed.py --before CHECKOUT PYTHON --cells "bulk, int8" --limit 20

bulk: `Translator.translate` of all lines. one at a time: a call for each line. constrained: in
bulk, two words of each reference required. glossary: in bulk, with --glossary. typed line:
fairseq-interactive with a buffer of one line, running already. whole command: fairseq-interactive
from start to end. Each in float32 and in int8 (--int8), one thread, in CPU seconds of the process.
HTTP requests: the seconds that a server of one worker takes for requests that arrive all at once;
HTTP p95: the 95th percentile of latency where they arrive at --rate; both by the clock.

The programs run by the Python of their own checkout, and use only what does not move between
versions: commands, `Translator` and HTTP. The two sides run in turns, every other round backwards,
after a round that warms up. A ratio is the median over the rounds (lowest-highest); above 1, this
checkout takes less. A cell is lost where the highest lies below 0.97 too. Outputs are compared.
Exit status 1 where a cell is lost or an output differs.

    --glossary FILE            terms; the demo's nouns by default
    --cells CELL ...           some only (all)
    --repeats N                timed rounds (9)
    --rate X                   requests a second (20)
    --seconds X                that they arrive for (5)
    --out OUT                  write OUT.md
    --before CHECKOUT PYTHON   another checkout, and the Python of its environment (required)
"""

import argparse
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import uvloop
from harness import (
    BenchError,
    Child,
    Contender,
    Spread,
    check,
    compare,
    compile_modules,
    fix_threads,
)
from programs import Checkout, Timed, checked, interactive, running, timed, typed, whole
from report import ROOT, Page
from serve import load, warm_up
from text import command_line, extract, prepare, run_script, text_arguments

LOST = 0.97
IN_PROCESS = ("bulk", "one at a time", "constrained", "glossary")
COMMANDS = ("typed line", "whole command")
SERVED = ("HTTP requests", "HTTP p95")
CELLS = [f"{name}, {kind}" for name in IN_PROCESS + COMMANDS for kind in ("float32", "int8")]
CELLS += SERVED
HEAD = ["cell", "ours, s", "before / ours (min-max)", "outputs of before and ours", "lost"]
TRANSLATOR = """
import json, os, sys, time
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what others print is no answer
from fairseq_ext import Translator
translator = Translator.from_folder(sys.argv[1], cpu=True, beam=5, **json.loads(sys.argv[2]))
for calls in map(json.loads, sys.stdin):
    start = time.process_time()
    found = [each for call in calls for each in translator.translate(**call)]
    seconds = time.process_time() - start
    outputs = [[(each.tokens, each.score) for each in nbest] for nbest in found]
    print(json.dumps({"seconds": seconds, "outputs": outputs}), file=answers, flush=True)
"""


class Cells:
    """The contenders of each cell; `args` are the command line's."""

    def __init__(self, args: argparse.Namespace, folder: Path, stack: ExitStack):
        self.args, self.folder, self.stack = args, folder, stack
        self.text = prepare(folder, args.model, args.text, args.src, args.tgt, args.limit)
        self.lines = self.text.sources
        # of the cells that take them one by one
        self.few = self.lines[: max(1, len(self.lines) // 2)]
        self.servers: dict[str, str] = {}  # URLs

    def contender(self, cell: str, side: str, checkout: Checkout) -> Contender:
        """This cell's program of a checkout."""
        name, _, kind = cell.partition(", ")
        int8 = kind == "int8"
        if name in IN_PROCESS:
            return self.in_process(name, side, checkout, int8)
        if name in SERVED:
            return self.served(side, checkout, name == "HTTP requests")
        is_typed = name == "typed line"
        flags = ["--task", "translation_ext", "--beam", "5", "--max-tokens", "4000"]
        flags += ["--buffer-size", "1" if is_typed else "1000", *["--int8"] * int8]
        program = str(Path(checkout.python).with_name("fairseq-interactive"))
        words = [program, *interactive(self.text, *flags)]
        return (typed if is_typed else whole)(side, words, self.few, self.folder, checkout)

    def in_process(self, name: str, side: str, checkout: Checkout, int8: bool) -> Contender:
        """A Translator in a process of its own."""
        args = self.args
        flags = {"source_lang": args.src, "target_lang": args.tgt, "int8": int8}
        calls: list[dict[str, object]] = [{"lines": self.lines}]
        if name == "one at a time":
            calls = [{"lines": [line]} for line in self.few]
        elif name == "constrained":
            calls[0]["constraints"] = extract(self.text.references, "rand2", seed=1)
        elif name == "glossary":
            flags["glossary"] = str(args.glossary.absolute())
        command = [checkout.python, "-c", TRANSLATOR, str(args.model), json.dumps(flags)]
        # Python looks for modules in the working directory first
        child = Child("Translator", command, env=checkout.environment(), cwd=self.folder)
        made = timed(side, lambda: child.request(calls), child.close)
        made.read, made.taken = (lambda found: found["outputs"]), (lambda found: found["seconds"])
        return made

    def served(self, side: str, checkout: Checkout, burst: bool) -> Contender:
        args = self.args
        if side not in self.servers:
            server = running(args, "refill", self.folder, checkout)
            self.servers[side] = self.stack.enter_context(server).url
            warm_up(self.servers[side], self.lines)
        rate = 20 * args.rate * args.seconds if burst else args.rate
        answers: dict[str, str] = {}

        def run() -> Timed:
            start, seconds = time.perf_counter(), 0.05 if burst else args.seconds
            found = uvloop.run(load(self.servers[side], self.lines, rate, seconds, 1, answers))
            taken = time.perf_counter() - start
            if found.failed:
                raise BenchError(f"HTTP: {found.failed} requests of the server '{side}' failed")
            return Timed(taken if burst else found.p95, [answers[line] for line in sorted(answers)])

        return timed(side, run)


def main(argv: list[str] | None = None) -> int:
    glossary = ROOT / "data" / "demo" / "nouns.tsv"
    # beam to flags: those that programs.py takes
    more = dict(glossary=glossary, beam=5, workers=1, batch=32, flags=[])
    parse = command_line(__doc__, {"cells": CELLS}, **more)
    text_arguments(parse)
    parse.set_defaults(limit=200)
    args = parse.parse_args(argv)
    args.model, args.before = args.model.absolute(), checked(*args.before)
    compile_modules(ROOT)
    fix_threads(1)
    checkouts = {"ours": Checkout(), "before": args.before}
    rows, bad = [], False
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        cells = Cells(args, Path(name), stack)
        for cell in args.cells:
            sides = [cells.contender(cell, *side) for side in checkouts.items()]
            found = compare(sides, args.repeats, threads=1)
            ours, before = found["ours"], found["before"]
            ratio = Spread.ratio(before.seconds, ours.seconds)
            verdict = check(before.outputs, ours.outputs)
            lost = ratio.high < LOST
            bad |= lost or bool(verdict.differing)
            cost = f"{Spread.of(ours.seconds).median:.3f}"
            rows.append([cell, cost, ratio.shown(3), str(verdict), "lost" if lost else ""])
            print(" | ".join(rows[-1]), flush=True)
    title = f"{args.repeats} rounds, before: commit {args.before.commit}\n"
    Page(args.out, title).add_table(HEAD, rows)
    return int(bad)


if __name__ == "__main__":
    run_script(main)
