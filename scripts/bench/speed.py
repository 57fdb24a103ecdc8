"""Is this checkout as fast as another one? Fourteen cells, each as the other's time over ours.

    python scripts/bench/speed.py --before CHECKOUT PYTHON [--repeats 9] [--out OUT]
    python scripts/bench/speed.py --before CHECKOUT PYTHON --cells bulk "typed line" --limit 20

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
"""

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments" / "dba"))

import uvloop
from arguments import command_line, run_script, text_arguments
from checkouts import Checkout, before_argument, this_checkout
from equality import Outputs, check
from extract import extract
from harness import (
    BenchError,
    Contender,
    Spread,
    compare,
    compile_modules,
    fix_threads,
    query_process,
)
from line import Talk
from report import ROOT, spread, write_page
from serve import load, warm_up
from servers import running
from text import prepare
from whole import Command

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


class InProcess:
    """A Translator in a process of its own. Called, it makes calls; returns what the process
    answers."""

    def __init__(
        self, checkout: Checkout, place: Path, model: Path, calls: Any, flags: dict[str, Any]
    ):
        self.calls, self.errors = json.dumps(calls), tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [checkout.python, "-c", TRANSLATOR, str(model), json.dumps(flags)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=checkout.environment(),
            cwd=place,  # Python looks for modules in the working directory first
        )

    def __call__(self) -> dict[str, Any]:
        return query_process("Translator", self.process, self.errors, self.calls)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()


class Cells:
    """The contenders of each cell; `args` are the command line's."""

    def __init__(self, args: argparse.Namespace, folder: Path, stack: ExitStack):
        self.args, self.folder, self.stack = args, folder, stack
        self.text = prepare(folder, args.model, args.text, args.src, args.tgt, args.limit)
        source = Path(f"{args.text}.{args.src}").read_text(encoding="utf-8")
        self.lines = source.split("\n")[: len(self.text.references)]
        self.few = self.lines[
            : max(1, len(self.lines) // 2)
        ]  # of the cells that take them one by one
        self.servers: dict[str, str] = {}  # URLs

    def contender(self, cell: str, side: str, checkout: Checkout) -> Contender:
        """This cell's program of a checkout."""
        name, _, kind = cell.partition(", ")
        int8 = kind == "int8"
        if name in IN_PROCESS:
            return self.in_process(name, side, checkout, int8)
        if name in SERVED:
            return self.served(name, side, checkout)
        if name == "typed line":
            return self.typed(side, checkout, int8)
        words = self.interactive(checkout, int8, "1000")
        command = Command(side, words, checkout, self.folder)
        lines = [line + "\n" for line in self.few]
        return Contender(
            side,
            lambda: command(lines),
            lambda _: as_outputs(command.answers),
            exact=False,
            taken=lambda _: command.cpu[len(lines)][-1],
        )

    def in_process(self, name: str, side: str, checkout: Checkout, int8: bool) -> Contender:
        args = self.args
        flags = {"source_lang": args.src, "target_lang": args.tgt, "int8": int8}
        calls: list[dict[str, Any]] = [{"lines": self.lines}]
        if name == "one at a time":
            calls = [{"lines": [line]} for line in self.few]
        elif name == "constrained":
            calls[0]["constraints"] = extract(self.text.references, "rand2", seed=1)
        elif name == "glossary":
            flags["glossary"] = str(args.glossary.absolute())
        run = InProcess(checkout, self.folder, args.model, calls, flags)
        return Contender(
            side,
            run,
            lambda found: found["outputs"],
            exact=False,
            taken=lambda found: found["seconds"],
            close=run.close,
        )

    def interactive(self, checkout: Checkout, int8: bool, buffer: str) -> list[str]:
        """fairseq-interactive of a checkout."""
        args = self.args
        words = [str(self.text.folder), "--path", str(args.model / "checkpoint.pt"), "--cpu"]
        words += ["-s", args.src, "-t", args.tgt, "--task", "translation_ext", "--beam", "5"]
        pieces = args.model / "spm.model"
        if pieces.exists():
            words += ["--bpe", "sentencepiece", "--sentencepiece-model", str(pieces)]
        words += ["--buffer-size", buffer, "--max-tokens", "4000", *["--int8"] * int8]
        return checkout.command("fairseq-interactive", *words)

    def typed(self, side: str, checkout: Checkout, int8: bool) -> Contender:
        talk = Talk(side, self.interactive(checkout, int8, "1"), checkout, self.folder)

        def run() -> float:
            before = talk.cpu()
            for line in self.few:
                talk.query(line)
            return talk.cpu() - before

        return Contender(
            side,
            run,
            lambda _: as_outputs(talk.answers[-len(self.few) :]),
            exact=False,
            taken=lambda seconds: seconds,
            close=talk.end,
        )

    def served(self, name: str, side: str, checkout: Checkout) -> Contender:
        args = self.args
        if side not in self.servers:
            server = running(args, "refill", self.folder, checkout)
            url = self.stack.enter_context(server).url
            warm_up(url, self.lines)
            self.servers[side] = url
        burst = name == "HTTP requests"
        rate, seconds = (
            (20 * args.rate * args.seconds, 0.05) if burst else (args.rate, args.seconds)
        )
        answers: dict[str, str] = {}

        def run() -> float:
            start = time.perf_counter()
            found = uvloop.run(load(self.servers[side], self.lines, rate, seconds, 1, answers))
            taken = time.perf_counter() - start
            if found.failed:
                raise BenchError(f"{name}: {found.failed} requests of the server '{side}' failed")
            return taken if burst else found.p95

        return Contender(
            side,
            run,
            lambda _: as_outputs([answers[line] for line in sorted(answers)]),
            exact=False,
            taken=lambda seconds: seconds,
        )


def as_outputs(texts: Sequence[str]) -> Outputs:
    """Translations without scores."""
    return [[(text.split(), 0.0)] for text in texts]


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    args.model = args.model.absolute()
    logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line for each request
    compile_modules(ROOT)
    fix_threads(1)
    checkouts = {"ours": this_checkout(), "before": args.before}
    title = f"{args.repeats} rounds, before: commit {args.before.commit}"
    lines = [title, "", f"| {' | '.join(HEAD)} |", "| --- | ---: | ---: | --- | --- |"]
    print("\n".join(lines), flush=True)
    bad = False
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        cells = Cells(args, Path(name), stack)
        for cell in args.cells:
            sides = [cells.contender(cell, *side) for side in checkouts.items()]
            found = compare(sides, args.repeats, threads=1)
            ratio = found.speed_up("ours", "before")
            assert ratio is not None, "only contenders that must be exact are refused"
            verdict = check(found["before"].outputs, found["ours"].outputs)
            lost = ratio.high < LOST
            bad |= lost or bool(verdict.differing)
            seconds = f"{Spread.of(found['ours'].seconds).median:.3f}"
            row = [cell, seconds, spread(ratio), str(verdict), "lost" if lost else ""]
            lines.append(f"| {' | '.join(row)} |")
            print(lines[-1], flush=True)
            write_page(args.out, [*lines, ""])
    return int(bad)


def parser() -> argparse.ArgumentParser:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.set_defaults(limit=200)
    glossary = ROOT / "data" / "demo" / "nouns.tsv"
    parse.add_argument("--glossary", type=Path, default=glossary, help="terms (the demo's nouns)")
    parse.add_argument("--cells", nargs="+", choices=CELLS, default=CELLS, help="some only (all)")
    parse.add_argument("--repeats", type=int, default=9, help="timed rounds (9)")
    parse.add_argument("--rate", type=float, default=20.0, help="requests a second (20)")
    parse.add_argument("--seconds", type=float, default=5.0, help="that they arrive for (5)")
    parse.add_argument("--out", type=Path, help="write OUT.md")
    before_argument(parse)
    servers = {"beam": 5, "workers": 1, "batch": 32, "flags": []}
    parse.set_defaults(**servers)  # what servers.py takes
    return parse


if __name__ == "__main__":
    run_script(main)
