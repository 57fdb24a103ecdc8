"""How long does a line typed into fairseq-interactive take to its answer: stock fairseq, this
project, CTranslate2 called the same way?

    python scripts/bench/line.py --model DIR --text PREFIX --limit 300
    python scripts/bench/line.py --beams 1 5 [--out OUT]

All contenders run at once, each with a buffer of one line, and each line goes to one after the
other: only one of them works at a time, and other work on the machine disturbs all alike. Shown are
the first answer (from the start of the command), the median and the 95th percentile from newline
to answer, and where the CPU time of a line goes. CTranslate2 (its own beam search, the converted
model) is left out where it is not installed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from arguments import command_line, run_script, text_arguments
from checkouts import Checkout, this_checkout
from ct2 import convert
from harness import BenchError, compile_modules
from report import ROOT, write_page
from text import Text, prepare
from timed_parts import TIMED_PARTS

PARTS = ["encode text", "data set, batches", "decode", "detokenise", "rest"]
COMMAND = (
    TIMED_PARTS
    + """
import json, sys, time
import fairseq_cli.interactive as cli
from fairseq import tasks, utils
out, used, lines = sys.argv.pop(1), time.process_time, []

def setup_task(*arguments, setup=tasks.setup_task, **named):
    task = setup(*arguments, **named)
    wrap(task, "get_interactive_tokens_and_lengths", "encode text")
    wrap(task, "build_dataset_for_inference", "data set, batches")
    wrap(task, "inference_step", "decode")
    return task

def make_batches(*arguments, make=cli.make_batches):
    batches = make(*arguments)
    while True:
        with timed("data set, batches"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch

def buffered_read(*arguments, read=cli.buffered_read):
    for lines_read in read(*arguments):
        lines.append(used())
        if len(lines) == 2:
            parts.clear()  # the first line warms up
        yield lines_read
    parts["rest"] = used() - lines[1] - sum(parts.values())
    with open(out, "w") as file:
        json.dump({name: 1e3 * seconds / (len(lines) - 1) for name, seconds in parts.items()}, file)

tasks.setup_task, cli.make_batches, cli.buffered_read = setup_task, make_batches, buffered_read
wrap(utils, "post_process_prediction", "detokenise")
cli.cli_main()
"""
)
CTRANSLATE2 = """
import sys, ctranslate2, sentencepiece
folder, pieces, kind, beam = sys.argv[1:]
segment = sentencepiece.SentencePieceProcessor(model_file=pieces)
how = dict(device="cpu", compute_type=kind, inter_threads=1, intra_threads=1)
translator = ctranslate2.Translator(folder, **how)
for number, line in enumerate(sys.stdin):
    words = segment.encode(line.strip(), out_type=str)
    found = translator.translate_batch([words], beam_size=int(beam), num_hypotheses=1,
                                       return_scores=True, length_penalty=1,
                                       max_input_length=0, max_decoding_length=200)[0]
    print(f"H-{number}\\t{found.scores[0]}\\t{' '.join(found.hypotheses[0])}")
    print(f"D-{number}\\t{found.scores[0]}\\t{segment.decode(found.hypotheses[0])}")
    print(f"P-{number}", flush=True)
"""  # noqa: E501


class Talk:
    """A command that is given lines.

    seconds: of each line; cpu: CPU milliseconds of a line on average.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        checkout: Checkout,
        place: Path,
        parts: Path | None = None,
    ):
        self.name, self.parts_file = name, parts
        self.seconds: list[float] = []
        self.answers: list[str] = []
        self.start, self.errors = time.perf_counter(), tempfile.TemporaryFile("w+")
        environment = checkout.environment(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment,
            bufsize=1,
            cwd=place,  # Python looks for modules in the working directory first
        )

    def cpu(self) -> float:
        """CPU seconds of the process so far: Linux has a clock for each process."""
        return time.clock_gettime((~self.process.pid << 3) | 2)

    def query(self, line: str) -> None:
        """Give a line and wait for its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        before = time.perf_counter()
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        for said in self.process.stdout:
            if said.startswith("D-"):
                self.answers.append(said.rpartition("\t")[2].strip())
            if said.startswith("P-"):
                break
        else:
            self.errors.seek(0)
            raise BenchError(
                f"{self.name} ended: {(self.errors.read().strip() or '?').splitlines()[-1]}"
            )
        now = time.perf_counter()
        if not self.seconds:
            self.first, self.cpu_at_start = now - self.start, self.cpu()
        self.seconds.append(now - before)

    def end(self) -> None:
        """Let the command end; its CPU time and its parts are known then."""
        self.cpu_ms = 1e3 * (self.cpu() - self.cpu_at_start) / max(1, len(self.seconds) - 1)
        self.process.communicate()
        self.parts: dict[str, float] = (
            json.loads(self.parts_file.read_text()) if self.parts_file else {}
        )


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    tables = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = prepare(folder, args.model, args.text, args.src, args.tgt, args.limit)
        lines = (
            Path(f"{args.text}.{args.src}").read_text(encoding="utf-8").split("\n")[: args.limit]
        )
        for beam in args.beams:
            talks = []
            # one after the other: each first answer is timed alone
            for talk in contenders(args, text, beam):
                talk.query(lines[0])
                talks.append(talk)
            for line in lines[1:]:
                for talk in talks:
                    talk.query(line)
            for talk in talks:
                talk.end()
            tables.append(table(beam, talks))
            print(tables[-1], flush=True)
            write_page(args.out, tables)
    return 0


def contenders(args: argparse.Namespace, text: Text, beam: int):
    """The commands, started one at a time."""
    flags = [
        str(text.folder),
        "--path",
        str(text.model / "checkpoint.pt"),
        "--source-lang",
        text.source,
        "--target-lang",
        text.target,
    ]
    flags += ["--cpu", "--beam", str(beam), "--buffer-size", "1"]
    pieces = text.model / "spm.model"
    flags += (
        ["--bpe", "sentencepiece", "--sentencepiece-model", str(pieces)] if pieces.exists() else []
    )
    ours, this = ["--task", "translation_ext"], this_checkout()
    compile_modules(ROOT)
    all_flags = {"stock": [], "ours": ours, "ours --int8": [*ours, "--int8"]}
    for i, (name, more) in enumerate(all_flags.items()):
        out = text.folder / f"parts-{beam}-{i}.json"
        command = [this.python, "-c", COMMAND, str(out), *flags, *more]
        yield Talk(name, command, this, text.folder, out)
    try:
        folders = {kind: convert(text, kind) for kind in ("float32", "int8")}
    except BenchError as error:
        print(f"CTranslate2 is left out: {error}")
        return
    for kind, folder in folders.items():
        command = [sys.executable, "-c", CTRANSLATE2, str(folder), str(pieces), kind, str(beam)]
        yield Talk(f"CTranslate2 {kind}", command, this, text.folder)


def table(beam: int, talks: list[Talk]) -> str:
    """A row a contender: times, ratios over stock, the parts of a line."""
    head = [
        "contender",
        "first answer s",
        "its CPU s",
        "p50 ms",
        "p95 ms",
        "CPU ms",
        "p50 over stock's",
        "CPU over stock's",
    ]
    head += ["equal answers", *PARTS]
    out = [
        f"### beam {beam}",
        "",
        "| " + " | ".join(head) + " |",
        "| --- |" + " ---: |" * (len(head) - 1),
    ]
    stock = talks[0]
    for talk in talks:
        times = [1e3 * seconds for seconds in talk.seconds[1:]]
        median, slowest = statistics.median(times), statistics.quantiles(times, n=20)[-1]
        gain = 1e3 * statistics.median(stock.seconds[1:]) / median
        same = sum(a == b for a, b in zip(talk.answers, stock.answers, strict=True))
        cells = [
            talk.name,
            f"{talk.first:.2f}",
            f"{talk.cpu_at_start:.2f}",
            f"{median:.1f}",
            f"{slowest:.1f}",
            f"{talk.cpu_ms:.1f}",
        ]
        cells += [
            f"{gain:.1f}x",
            f"{stock.cpu_ms / talk.cpu_ms:.1f}x",
            f"{same} of {len(talk.answers)}",
        ]
        out.append(
            "| "
            + " | ".join(
                cells + [f"{talk.parts[part]:.2f}" if part in talk.parts else "" for part in PARTS]
            )
            + " |"
        )
    return "\n".join(
        [
            *out,
            "",
            (
                f"{len(stock.seconds)} lines, one thread; parts are CPU milliseconds of "
                "a line on average."
            ),
            "",
        ]
    )


def parser() -> argparse.ArgumentParser:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.set_defaults(limit=300)
    parse.add_argument("--beams", type=int, nargs="+", default=[5], help="beam sizes (5)")
    parse.add_argument("--out", type=Path, help="write OUT.md")
    return parse


if __name__ == "__main__":
    run_script(main)
