"""How long does a whole command take, from the start of Python to its end, on one line and on many: fairseq-interactive of stock and with
our task, `python -m fairseq_ext.translate` from what it has kept, and CTranslate2's Python client?

    python scripts/bench/whole.py --model DIR --text PREFIX --limit 150 --repeats 7 [--out OUT]

Each reads the lines as they are, segments them with the model's SentencePiece, and writes text; one thread, a process each, in turns, every
other round backwards. CPU is the time of the processor, user's and system's, which other work on the machine disturbs less than the clock.
Ratios are medians over rounds. "ours" kept: the state of the model is kept before, by a start that is not timed.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from arguments import command_line, run_script, text_arguments
from ct2 import convert
from harness import BenchError, compile_modules
from report import ROOT, write_page
from text import prepare

CT2 = """
import sys
import ctranslate2, sentencepiece
folder, segmentation, beam, kind = sys.argv[1:]
cut = sentencepiece.SentencePieceProcessor(model_file=segmentation)
translator = ctranslate2.Translator(folder, device="cpu", compute_type=kind, inter_threads=1, intra_threads=1)
lines = [cut.encode(line.strip(), out_type=str) for line in sys.stdin]
found = translator.translate_batch(lines, beam_size=int(beam), max_batch_size=64, max_decoding_length=200, max_input_length=0)
for each in found:
    print(cut.decode(each.hypotheses[0]))
"""


@dataclass
class Command:
    """A command that reads lines; its processor seconds and those of the clock, one entry a round."""

    name: str
    words: list[str]
    cpu: dict[int, list[float]] = field(default_factory=dict)
    clock: dict[int, list[float]] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)

    def __call__(self, lines: list[str], environment: dict[str, str]) -> None:
        before, start = used(), time.perf_counter()
        done = subprocess.run(self.words, input="".join(lines), capture_output=True, text=True, env=environment, check=False)
        self.cpu.setdefault(len(lines), []).append(used() - before)
        self.clock.setdefault(len(lines), []).append(time.perf_counter() - start)
        if done.returncode:
            raise BenchError(f"{self.name} ended with code {done.returncode}: {(done.stderr.strip() or '?').splitlines()[-1]}")
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
    compile_modules(ROOT)
    with tempfile.TemporaryDirectory() as name:
        text = prepare(Path(name), args.model, args.text, args.src, args.tgt, args.limit)
        lines = Path(f"{args.text}.{args.src}").read_text(encoding="utf-8").splitlines(keepends=True)[: args.limit]
        segmentation = str(args.model / "spm.model")
        pair, model = ["-s", args.src, "-t", args.tgt], ["--path", str(args.model / "checkpoint.pt"), "--cpu", "--beam", "5"]
        cut = ["--bpe", "sentencepiece", "--sentencepiece-model", segmentation]
        shared = [sys.executable, "-m", "fairseq_cli.interactive", str(text.folder), *pair, *model, *cut]
        shared += ["--buffer-size", "1000", "--max-tokens", "4000"]
        own = [sys.executable, "-m", "fairseq_ext.translate", "--data", str(text.folder), *pair, *model, *cut]
        rival = [sys.executable, "-c", CT2, str(convert(text)), segmentation, "5"]
        commands = [
            Command("stock fairseq-interactive", shared),
            Command("ours, fairseq-interactive", [*shared, "--task", "translation_ext"]),
            Command("ours, translate", own),
            Command("ours, translate --int8", [*own, "--int8"]),
            Command("CTranslate2 float32", [*rival, "float32"]),
            Command("CTranslate2 int8", [*rival, "int8"]),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        for command in commands:  # warms the files, and keeps the model's state
            Command(command.name, command.words)(lines[:1], environment)
        for turn in range(args.repeats):
            for some in (lines[:1], lines):
                for command in commands[:: -1 if turn % 2 else 1]:
                    command(some, environment)
            print(table(commands, len(lines)), flush=True)
            write_page(args.out, [table(commands, len(lines))])
    return 0


def table(commands: list[Command], many: int) -> str:
    """A row a command: seconds on one line and on all, and what they are of stock's, round by round."""
    stock = commands[0]
    head = ["command", "one line: CPU s", "clock s", "over stock's CPU", f"{many} lines: CPU s", "clock s", "times stock", "equal"]
    rows = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for command in commands:
        def times(n: int, of: Command = command) -> float:
            return statistics.median(theirs / ours for ours, theirs in zip(of.cpu[n], stock.cpu[n], strict=True))

        one, all_lines = ([f"{statistics.median(values[n]):.2f}" for values in (command.cpu, command.clock)] for n in (1, many))
        same = sum(a == b for a, b in zip(command.answers, stock.answers, strict=True))
        rows.append([command.name, *one, f"{1 / times(1):.2f}", *all_lines, f"{times(many):.2f}x", f"{same} of {many}"])
    rounds = len(stock.cpu[many])
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", f"Medians of {rounds} rounds in turns, one thread, beam 5.", ""])


if __name__ == "__main__":
    run_script(main)
