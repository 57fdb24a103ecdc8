"""How long does a whole command take, from the start of Python to its end, on one line and on many:
fairseq-interactive of stock and with our task, `python -m fairseq_ext.translate` from what it has
kept, and CTranslate2's Python client?

    python scripts/bench/whole.py --model DIR --text PREFIX --limit 150 --repeats 7 [--out OUT]
    python scripts/bench/whole.py --before CHECKOUT PYTHON

Each reads the lines as they are, segments them with the model's SentencePiece, and writes
text; one thread, a process each, in turns, every other round backwards. CPU is the time of
the processor, user's and system's, which other work on the machine disturbs less than the
clock. Ratios are medians over rounds. "ours" kept: the state of the model is kept before, by
a start that is not timed.
--before adds the same commands of another checkout of this project, run by its own Python.
"""

import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from arguments import command_line, run_script, text_arguments
from checkouts import Checkout, before_argument, is_ours, this_checkout, versions
from ct2 import convert
from harness import BenchError, compile_modules
from report import ROOT, before_over_ours, before_table, write_page
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
    before_argument(parse)
    args = parse.parse_args(argv)
    args.model = args.model.absolute()
    compile_modules(ROOT)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        folder = place / "ours"
        folder.mkdir()
        text = prepare(folder, args.model, args.text, args.src, args.tgt, args.limit)
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
        this = this_checkout()
        shared = interactive(this, text.folder, flags)
        checkouts = versions(args.before)
        data = text.folder
        ours = {which: commands_of(checkouts[which], data, flags, which) for which in checkouts}
        rival = [sys.executable, "-c", CT2]
        commands = [Command("stock fairseq-interactive", shared, this, place)]
        for more in next(iter(ours.values())):
            commands += [
                Command(f"{which}, {more}", words[more], checkouts[which], place)
                for which, words in ours.items()
            ]
        for kind in ("float32", "int8"):
            command = [*rival, str(convert(text, kind)), segmentation, "5", kind]
            commands.append(Command(f"CTranslate2 {kind}", command, this, place))
        for command in commands:  # warms the files, and keeps the model's state
            Command(command.name, command.words, command.checkout, place)(lines[:1])
        for turn in range(args.repeats):
            for some in (lines[:1], lines):
                for command in commands[:: -1 if turn % 2 else 1]:
                    command(some)
            reported = table(commands, len(lines))
            if args.before:
                reported += "\n" + versions_table(commands, len(lines), args.before.commit)
            print(reported, flush=True)
            write_page(args.out, [reported])
    return 0


def interactive(checkout: Checkout, data: Path, flags: list[str]) -> list[str]:
    """fairseq-interactive by the Python of a checkout."""
    command = [checkout.python, "-m", "fairseq_cli.interactive", str(data), *flags]
    return [*command, "--buffer-size", "1000", "--max-tokens", "4000"]


def commands_of(
    checkout: Checkout, data: Path, flags: list[str], which: str
) -> dict[str, list[str]]:
    """The commands of a checkout, by the rest of their names. Two versions would overwrite what the
    other one has kept of the model: each has a data folder of its own, and so a file of its own."""
    if which != "ours":
        data = Path(shutil.copytree(data, data.with_name(which)))
    own = [checkout.python, "-m", "fairseq_ext.translate", "--data", str(data), *flags]
    return {
        "fairseq-interactive": [*interactive(checkout, data, flags), "--task", "translation_ext"],
        "translate": own,
        "translate --int8": [*own, "--int8"],
    }


def versions_table(commands: list[Command], many: int, commit: str) -> str:
    """What --before gives: the other checkout's times over those of ours."""
    named, rows = {command.name: command for command in commands}, []
    for ours in (command for command in commands if is_ours(command.name.replace(",", " "))):
        before = named.get("before" + ours.name.removeprefix("ours"))
        if before is not None:
            times = [(before.cpu, ours.cpu), (before.clock, ours.clock)]
            pairs = [(theirs[n], mine[n]) for n in (1, many) for theirs, mine in times]
            ratios = [before_over_ours(*pair) for pair in pairs]
            same = sum(a == b for a, b in zip(before.answers, ours.answers, strict=True))
            rows.append([ours.name, *ratios, f"{same} of {many} equal"])
    sizes = ("one line", f"{many} lines")
    measures = [f"{lines}: {what} (min-max)" for lines in sizes for what in ("CPU", "clock")]
    return "\n".join([*before_table(measures, rows, commit), ""])


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
