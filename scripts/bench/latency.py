"""How long does a user wait? Each of three questions is a row of CASES.

    python scripts/bench/latency.py line --model DIR --text PREFIX --limit 300 --beams 1 5
    python scripts/bench/latency.py whole --model DIR --text PREFIX --limit 150 --repeats 7
    python scripts/bench/latency.py startup --commands interactive api doctor [--out OUT]

line: a line typed into fairseq-interactive, until its answer. All contenders run at once, each with
a buffer of one line, and each line goes to one after the other: only one of them works at a time,
and other work on the machine disturbs all alike. Shown are the first answer (from the start of the
command), the median and the 95th percentile, and where the CPU time of a line goes.

whole: a whole command, from the start of Python to its end, on one line and on many. Each reads the
lines as they are, segments them with the model's SentencePiece, and writes text; one thread, a
process each, in turns, every other round backwards. `python -m fairseq_ext.translate` has kept the
state of the model before, by a start that is not timed. CPU is the time of the processor, user's
and system's, which other work on the machine disturbs less than the clock.

startup: where the CPU time of a whole command goes. Functions of fairseq are wrapped;
start-up is all but decoding. Next to it: the peak of resident memory.

    --beams N ...           of `line` (5)
    --commands COMMAND ...  of `startup` (generate interactive)
    --repeats N             rounds; 7 of `whole`, 3 of `startup` by default
    --out OUT               write OUT.md
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ct2 import convert
from harness import BenchError, Spread, compile_modules, in_turns
from programs import Command, Talk, interactive
from report import ROOT, Page, table
from text import Text, command_line, prepare, run_script, text_arguments

TIMED_PARTS = """
import contextlib
parts = {}  # seconds of each, less those of parts inside it

@contextlib.contextmanager
def timed(part):
    before, inside = used(), sum(parts.values())
    try:
        yield
    finally:
        parts[part] = parts.get(part, 0.0) + used() - before - (sum(parts.values()) - inside)

def wrap(owner, name, part):
    inner = getattr(owner, name)
    def outer(*arguments, **named):
        with timed(part):
            return inner(*arguments, **named)
    setattr(owner, name, outer)
"""
TYPED = (
    TIMED_PARTS
    + """
import atexit, json, sys, time
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
    lines.append(used())
    if len(lines) == 2:
        parts.clear()  # the first line warms up
    batches = make(*arguments)
    while True:
        with timed("data set, batches"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch

def save():
    parts["rest"] = used() - lines[1] - sum(parts.values())
    with open(out, "w") as file:
        json.dump({name: 1e3 * seconds / (len(lines) - 1) for name, seconds in parts.items()}, file)

tasks.setup_task, cli.make_batches = setup_task, make_batches
wrap(utils, "post_process_prediction", "detokenise")
atexit.register(save)
cli.cli_main()
"""
)
STARTED = (
    TIMED_PARTS
    + """
import atexit, json, os, resource, sys
def used():
    times = resource.getrusage(resource.RUSAGE_SELF)
    return times.ru_utime + times.ru_stime
command, out = sys.argv.pop(1), sys.argv.pop(1)
if command != "api":  # whose process this is shows in these
    sys.argv[0], sys.orig_argv = "fairseq-" + command, sys.argv

import importlib.util
if importlib.util.find_spec("fairseq_cli"):  # as a command does: this wakes the start-up file
    import fairseq_cli
with timed("import torch"):
    import torch
with timed("import fairseq and the tasks"):
    if command == "api":
        import fairseq_ext
        from fairseq_ext import Translator
    else:
        import importlib
        cli = importlib.import_module("fairseq_cli." + command)
    from fairseq import checkpoint_utils, options, tasks
for name in ("get_generation_parser", "parse_args_and_arch"):
    wrap(options, name, "flags, configuration")
configure = "convert_namespace_to_omegaconf"
for name, module in list(sys.modules.items()):  # where it is does not matter, and changes
    if name.partition(".")[0] in ("fairseq_ext", "fairseq_cli") and configure in vars(module):
        wrap(module, configure, "flags, configuration")
wrap(checkpoint_utils, "load_model_ensemble", "checkpoint, data")
setup = tasks.setup_task
def setup_task(*arguments, **named):
    task = setup(*arguments, **named)
    for name in ("load_dataset", "build_tokenizer", "build_bpe"):
        wrap(task, name, "checkpoint, data")
    wrap(task, "build_generator", "generator")
    wrap(task, "inference_step", "decoding")
    return task
tasks.setup_task = setup_task
wrap(tasks, "setup_task", "checkpoint, data")
def save():
    parts["peak MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with open(out, "w") as file:
        json.dump(parts, file)
atexit.register(save)
if command == "api":
    data, path, source, target = sys.argv[1:5]
    flags = dict(beam=5, cpu=True, source_lang=source, target_lang=target, path=path, data=data)
    lines = [line.strip() for line in sys.stdin]
    for found in fairseq_ext.Translator(**flags).translate(lines):
        print(found[0].text)
else:
    cli.cli_main()
"""
)
CT2_TYPED = """
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
"""
CT2_WHOLE = """
import sys
import ctranslate2, sentencepiece
folder, segmentation, kind, beam = sys.argv[1:]
cut = sentencepiece.SentencePieceProcessor(model_file=segmentation)
how = dict(device="cpu", compute_type=kind, inter_threads=1, intra_threads=1)
translator = ctranslate2.Translator(folder, **how)
lines = [cut.encode(line.strip(), out_type=str) for line in sys.stdin]
found = translator.translate_batch(lines, beam_size=int(beam), max_batch_size=64,
                                   max_decoding_length=200, max_input_length=0)
for each in found:
    print(cut.decode(each.hypotheses[0]))
"""
PARTS = ["encode text", "data set, batches", "decode", "detokenise", "rest"]  # of a line
STEPS = ["import torch", "import fairseq and the tasks", "flags, configuration"]
STEPS += ["checkpoint, data", "generator", "decoding", "rest"]  # of a command
OURS = ["--task", "translation_ext"]


def ct2_commands(text: Text, code: str, beam: int) -> Iterator[tuple[str, list[str]]]:
    """CTranslate2's Python client in both types, where it is installed."""
    try:
        folders = {kind: str(convert(text, kind)) for kind in ("float32", "int8")}
    except BenchError as error:
        print(f"CTranslate2 is left out: {error}")
        return
    for kind, folder in folders.items():
        spm = str(text.model / "spm.model")
        yield f"CTranslate2 {kind}", [sys.executable, "-c", code, folder, spm, kind, str(beam)]


def line(args: argparse.Namespace, text: Text, page: Page) -> None:
    for beam in args.beams:
        flags = interactive(text, "--beam", str(beam), "--buffer-size", "1")
        commands, parts = {}, {}
        kinds = {"stock": [], "ours": OURS, "ours --int8": [*OURS, "--int8"]}
        for name, more in kinds.items():
            parts[name] = text.folder / f"parts-{beam}-{len(parts)}.json"
            start = [sys.executable, "-c", TYPED, str(parts[name])]
            commands[name] = [*start, *flags, *more]
        commands |= dict(ct2_commands(text, CT2_TYPED, beam))
        talks = []
        for name, command in commands.items():  # one after the other: each first answer alone
            talks.append(Talk(name, command, text.folder))
            talks[-1].translate(text.sources[0])
        for each in text.sources[1:]:
            for talk in talks:
                talk.translate(each)
        for talk in talks:
            talk.end()
        rows, stock = [], talks[0]
        for talk in talks:
            times = [1e3 * seconds for seconds in talk.seconds[1:]]
            median, slowest = statistics.median(times), statistics.quantiles(times, n=20)[-1]
            gain = 1e3 * statistics.median(stock.seconds[1:]) / median
            cells = [f"{talk.first:.2f}", f"{talk.cpu_at_start:.2f}"]
            cells += [f"{ms:.1f}" for ms in (median, slowest, talk.cpu_ms)]
            cells += [f"{gain:.1f}x", f"{stock.cpu_ms / talk.cpu_ms:.1f}x"]
            cells.append(same(talk.answers, stock.answers))
            ms = json.loads(parts[talk.name].read_text()) if talk.name in parts else {}
            shown = (f"{ms[part]:.2f}" if part in ms else "" for part in PARTS)
            rows.append([talk.name, *cells, *shown])
        head = ["contender", "first answer s", "its CPU s", "p50 ms", "p95 ms", "CPU ms"]
        head += ["p50 over stock's", "CPU over stock's", "equal answers", *PARTS]
        note = (
            f"{len(stock.seconds)} lines, one thread; parts: CPU milliseconds of a line on average."
        )
        page.add(f"{table(head, rows, f'beam {beam}')}\n{note}\n")


def whole(args: argparse.Namespace, text: Text, page: Page) -> None:
    flags = interactive(text, "--beam", "5")
    shared = [sys.executable, "-m", "fairseq_cli.interactive", *flags]
    shared += ["--buffer-size", "1000", "--max-tokens", "4000"]
    data, *rest = flags
    own = [sys.executable, "-m", "fairseq_ext.translate", "--data", data, *rest]
    words = {
        "stock fairseq-interactive": shared,
        "ours, fairseq-interactive": [*shared, *OURS],
        "ours, translate": own,
        "ours, translate --int8": [*own, "--int8"],
        **dict(ct2_commands(text, CT2_WHOLE, 5)),
    }
    lines = [line + "\n" for line in text.sources]
    # of each the command on one line, and on all
    pairs = [
        [Command(name, command, text.folder) for _ in range(2)] for name, command in words.items()
    ]
    answers: dict[str, list[str]] = {}
    for one, _ in pairs:  # warms the files, and keeps the model's state
        Command(one.name, one.words, text.folder)(lines[:1])
    for which, some in ((0, lines[:1]), (1, lines)):
        for _, pair in in_turns(pairs, args.repeats):
            answers[pair[which].name] = pair[which](some)
    rows, stock = [], pairs[0]
    for pair in pairs:
        cells = [[f"{statistics.median(each):.2f}" for each in (c.cpu, c.clock)] for c in pair]
        over = Spread.ratio(pair[0].cpu, stock[0].cpu).median
        times = Spread.ratio(stock[1].cpu, pair[1].cpu).median
        equal = same(answers[pair[0].name], answers[stock[0].name])
        rows.append([pair[0].name, *cells[0], f"{over:.2f}", *cells[1], f"{times:.2f}x", equal])
    head = [
        "command",
        "one line: CPU s",
        "clock s",
        "over stock's CPU",
        f"{len(lines)} lines: CPU s",
    ]
    note = f"Medians of {args.repeats} rounds in turns, one thread, beam 5."
    page.add(f"{table([*head, 'clock s', 'times stock', 'equal'], rows)}\n{note}\n")


def startup(args: argparse.Namespace, text: Text, page: Page) -> None:
    lines = text.file.read_text(encoding="utf-8").splitlines(keepends=True)
    parts = text.folder / "parts.json"
    for command in args.commands:
        start = [sys.executable, "-c", STARTED, command, str(parts)]
        if command == "doctor":
            runs = {"ours": [sys.executable, "-m", "fairseq_ext.doctor"]}
        elif command == "api":
            checkpoint = str(text.model / "checkpoint.pt")
            runs = {"ours": [*start, str(text.folder), checkpoint, text.source, text.target]}
        else:
            own = ["--buffer-size", "100"] if command == "interactive" else text.flags[-2:]
            model = text.flags[: text.flags.index("--dataset-impl")]
            flags = [*start, *model, *own, *"--cpu --beam 5 --max-tokens 4000".split()]
            runs = {"stock": flags, "ours": [*flags, *OURS]}
        kept = None if command == "doctor" else parts
        commands = [Command(name, words, text.folder, parts=kept) for name, words in runs.items()]
        for _, each in in_turns(commands, args.repeats):
            each(lines)
        page.add(startup_table(command, commands))


def startup_table(command: str, commands: list[Command]) -> str:
    """Medians of CPU seconds, a row a part, and each contender's start-up over that
    of ours, round by round."""
    cells: dict[str, list[str]] = {part: [] for part in [*STEPS, "whole", "start-up", "peak MiB"]}
    starts = []
    for each in commands:
        rounds = each.in_parts or [{} for _ in each.cpu]
        for seconds, parts in zip(each.cpu, rounds, strict=True):
            parts["whole"] = seconds
            parts["rest"] = seconds - sum(parts.get(part, 0.0) for part in STEPS)
            parts["start-up"] = seconds - parts.get("decoding", 0.0)
        starts.append([parts["start-up"] for parts in rounds])
        for part, shown in cells.items():
            known = [parts[part] for parts in rounds if part in parts]
            digits = 0 if part == "peak MiB" else 2
            shown.append(f"{statistics.median(known):.{digits}f}" if known else "")
    rows = [[part, *shown] for part, shown in cells.items() if any(shown)]
    ratios = [Spread.ratio(starts[-1], theirs).median for theirs in starts]
    rows.append(["start-up of ours over it", *(f"{ratio:.2f}" for ratio in ratios)])
    note = f"CPU seconds, medians of {len(starts[0])} alternating rounds."
    return f"{table(['part', *(each.name for each in commands)], rows, command)}\n{note}\n"


def same(answers: list[str], expected: list[str]) -> str:
    """How many answers are those of stock."""
    equal = sum(a == b for a, b in zip(answers, expected, strict=True))
    return f"{equal} of {len(expected)}"


CASES = {"line": (line, 300, 1), "whole": (whole, 150, 7), "startup": (startup, 150, 3)}


def main(argv: list[str] | None = None) -> int:
    parse = command_line(__doc__, {"commands": ["generate", "interactive", "api", "doctor"]})
    parse.add_argument("case", choices=CASES)
    text_arguments(parse)
    args = parse.parse_args(argv)
    run, limit, repeats = CASES[args.case]
    args.repeats, args.model = args.repeats or repeats, args.model.absolute()
    compile_modules(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        pair = args.src, args.tgt
        text = prepare(Path(folder), args.model, args.text, *pair, args.limit or limit)
        run(args, text, Page(args.out))
    return 0


if __name__ == "__main__":
    run_script(main)
