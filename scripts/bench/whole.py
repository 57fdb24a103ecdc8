"""How long does a whole command take, from the start of Python to its end, on one line and on many:
fairseq-interactive of stock and with our task, `python -m fairseq_ext.translate` from what it has
kept, and CTranslate2's Python client?

    python scripts/bench/whole.py --model DIR --text PREFIX --limit 150 --repeats 7 [--out OUT]

Each reads the lines as they are, segments them with the model's SentencePiece, and writes
text; one thread, a process each, in turns, every other round backwards. CPU is the time of
the processor, user's and system's, which other work on the machine disturbs less than the
clock. Ratios are medians over rounds. "ours" kept: the state of the model is kept before, by
a start that is not timed.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from arguments import command_line, run_script, text_arguments
from checkouts import Checkout, this_checkout
from ct2 import convert
from harness import BenchError, compile_modules
from report import ROOT, write_page
from text import prepare

CT2 = """
import sys
import ctranslate2, sentencepiece
folder, segmentation, beam, kind = sys.argv[1:]
cut = sentencepiece.SentencePieceProcessor(model_file=segmentation)
how = dict(device="cpu", compute_type=kind, inter_threads=1, intra_threads=1)
translator = ctranslate2.Translator(folder, **how)
lines = [cut.encode(line.strip(), out_type=str) for line in sys.stdin]
found = translator.translate_batch(lines, beam_size=int(beam), max_batch_size=64,
                                   max_decoding_length=200, max_input_length=0)
for each in found:
    print(cut.decode(each.hypotheses[0]))
"""  # noqa: E501


@dataclass
class Command:
    """A command that reads lines; its processor seconds and those of the clock,
    one entry a round."""

    name: str
    words: list[str]
    checkout: Checkout
    place: Path  # its working directory: Python may look for modules there first
    cpu: dict[int, list[float]] = field(default_factory=dict)
    clock: dict[int, list[float]] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)

    def __call__(self, lines: list[str]) -> None:
        environment = self.checkout.environment(OMP_NUM_THREADS="1")
        before, start = used(), time.perf_counter()
        done = subprocess.run(
            self.words,
            input="".join(lines),
            capture_output=True,
            text=True,
            env=environment,
            cwd=self.place,
            check=False,
        )
        self.cpu.setdefault(len(lines), []).append(used() - before)
        self.clock.setdefault(len(lines), []).append(time.perf_counter() - start)
        if done.returncode:
            raise BenchError(
                f"{self.name} ended with code {done.returncode}: "
                f"{(done.stderr.strip() or '?').splitlines()[-1]}"
            )
        said = done.stdout.splitlines()
        self.answers = [line.split("\t")[2] for line in said if line.startswith("D-")] or said


def used() -> float:
    """Processor seconds of all children so far."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def main(argv: list[str] | None = None) -> int:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.set_defaults(limit=150)
    parse.add_argument("--out", type=Path, help="write OUT.md")
    parse.add_argument("--repeats", type=int, default=7, help="rounds (7)")
    args = parse.parse_args(argv)
    args.model = args.model.absolute()
    compile_modules(ROOT)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        text = prepare(place, args.model, args.text, args.src, args.tgt, args.limit)
        lines = (
            Path(f"{args.text}.{args.src}")
            .read_text(encoding="utf-8")
            .splitlines(keepends=True)[: args.limit]
        )
        segmentation = str(args.model / "spm.model")
        pair, model = (
            ["-s", args.src, "-t", args.tgt],
            ["--path", str(args.model / "checkpoint.pt"), "--cpu", "--beam", "5"],
        )
        flags = [*pair, *model, "--bpe", "sentencepiece", "--sentencepiece-model", segmentation]
        shared = [sys.executable, "-m", "fairseq_cli.interactive", str(place), *flags]
        shared += ["--buffer-size", "1000", "--max-tokens", "4000"]
        own = [sys.executable, "-m", "fairseq_ext.translate", "--data", str(place), *flags]
        words = {
            "stock fairseq-interactive": shared,
            "ours, fairseq-interactive": [*shared, "--task", "translation_ext"],
            "ours, translate": own,
            "ours, translate --int8": [*own, "--int8"],
        }
        for kind in ("float32", "int8"):
            folder = str(convert(text, kind))
            words[f"CTranslate2 {kind}"] = [sys.executable, "-c", CT2]
            words[f"CTranslate2 {kind}"] += [folder, segmentation, "5", kind]
        this = this_checkout()
        commands = [Command(name, command, this, place) for name, command in words.items()]
        for command in commands:  # warms the files, and keeps the model's state
            Command(command.name, command.words, command.checkout, place)(lines[:1])
        for turn in range(args.repeats):
            for some in (lines[:1], lines):
                for command in commands[:: -1 if turn % 2 else 1]:
                    command(some)
            reported = table(commands, len(lines))
            print(reported, flush=True)
            write_page(args.out, [reported])
    return 0


def table(commands: list[Command], many: int) -> str:
    """A row a command: seconds on one line and on all, and what they are of stock's,
    round by round."""
    stock = commands[0]
    head = [
        "command",
        "one line: CPU s",
        "clock s",
        "over stock's CPU",
        f"{many} lines: CPU s",
        "clock s",
        "times stock",
        "equal",
    ]
    rows = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for command in commands:

        def times(n: int, of: Command = command) -> float:
            return statistics.median(
                theirs / ours for ours, theirs in zip(of.cpu[n], stock.cpu[n], strict=True)
            )

        one, all_lines = (
            [f"{statistics.median(values[n]):.2f}" for values in (command.cpu, command.clock)]
            for n in (1, many)
        )
        same = sum(a == b for a, b in zip(command.answers, stock.answers, strict=True))
        rows.append(
            [
                command.name,
                *one,
                f"{1 / times(1):.2f}",
                *all_lines,
                f"{times(many):.2f}x",
                f"{same} of {many}",
            ]
        )
    rounds = len(stock.cpu[many])
    return "\n".join(
        [
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
            f"Medians of {rounds} rounds in turns, one thread, beam 5.",
            "",
        ]
    )


if __name__ == "__main__":
    run_script(main)
