"""How fast is fairseq_ext against stock fairseq and CTranslate2, where does a step's time go, and
what is the least it could take?

    python scripts/bench/rivals.py --model DIR --text PREFIX --threads 1 --limit 200 --limit-one 30
        --out results/rivals

Three parts: decoding only (in bulk and one sentence at a time, beam 1, 5 and 20), whole commands
(start-up, loading, printing), and the profile of a step next to the time that reading its weights
once takes. Outputs are compared first, as in default_vs_stock.py, whose flags and contenders
these are; CTranslate2 gets the same beam and length penalty, and runs with each of its settings
for matrix products (SETTINGS), with two threads both as two workers and as one. Each of these is
tried once on --try-lines lines, and the best two of a type join the rounds; a note has the time of
every one. Contenders that are not exact (CTranslate2, --int8) show BLEU. With --clock cpu the time
is what the threads of a contender's process have used: on a machine with other work that is the
fairer measure of one-thread contenders, and no measure of several workers.
"""

import argparse
import os
import re
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import default_vs_stock
import torch
from arguments import run_script
from contenders import OURS, load
from ct2 import convert
from default_vs_stock import CLOCKS, MODES, TITLES, decode_only, setting
from harness import Comparison, ProcessContender, compare, compile_modules, fix_threads
from report import ROOT, markdown, write
from text import Text, prepare

from fairseq_ext.search.strategies.decoding.beam import beam_search

CONTENDERS = ["stock", "set_beam_size", "ours --decoder-backend fairseq", "ours", "ours --int8"]
WORKERS = ["ours --cpu-workers {}", "ours --cpu-workers {} --int8"]
TYPES = ("float32", "int8")
# the first: what it chooses for this processor
SETTINGS = [
    "",
    " CT2_FORCE_CPU_ISA=AVX512",
    " CT2_USE_MKL=1",
    " CT2_USE_MKL=1 CT2_USE_EXPERIMENTAL_PACKED_GEMM=1",
]
TRANSLATE = """
import sys, ctranslate2
folder, source, kind, beam, tokens, workers, threads = sys.argv[1:]
lines = [line.split() for line in open(source, encoding="utf-8")]
translator = ctranslate2.Translator(folder, device="cpu", compute_type=kind,
                                    inter_threads=int(workers), intra_threads=int(threads))
found = translator.translate_batch(lines, beam_size=int(beam), max_batch_size=int(tokens),
                                   batch_type="tokens", return_scores=True,
                                   length_penalty=1, num_hypotheses=int(beam),
                                   max_input_length=0, max_decoding_length=200)
for number, result in enumerate(found):
    for words, score in zip(result.hypotheses, result.scores):
        print(f"H-{number}\\t{score / 0.6931471805599453}\\t{' '.join(words)}")
"""  # noqa: E501


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    given = [word for word in (sys.argv[1:] if argv is None else argv) if word]
    fix_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        text = {}
        for mode in args.modes:
            Path(folder, mode).mkdir()
            limit = args.limit_one if mode == "one" else args.limit
            text[mode] = prepare(
                Path(folder, mode), args.model, args.text, args.src, args.tgt, limit
            )
        notes = [setting(args), f"Flags: `{flags_shown(given)}`"]
        below: list[str] = []
        if args.contenders is None:
            args.contenders = [*CONTENDERS, *workers(args.threads)]
            tried = {kind: try_settings(args, kind) for kind in TYPES}
            for seconds in tried.values():
                args.contenders += sorted(seconds, key=seconds.__getitem__)[:2]
            args.over = ["stock", *(args.contenders[i] for i in (-4, -2))]
            below.append(tried_table(args, tried))
            print(below[-1], flush=True)
        comparisons = decode_only(args, text, CLOCKS[args.clock])
        if "bulk" in text and args.whole:
            comparisons.append(whole_commands(args, text["bulk"]))
            print(markdown(comparisons[-1], args.over), flush=True)
        below.insert(0, best_table(comparisons))
        below.append(steps_table(args, text))
        print("\n".join(below), flush=True)
        if args.out:
            below.append("\n\n".join(notes) + "\n")
            write(args.out, comparisons, args.over, below=below)
    return 1 if any(comparison.refused for comparison in comparisons) else 0


def flags_shown(given: list[str]) -> str:
    """The flags of this run, but for paths."""
    paths = ("--model", "--text", "--out")
    pairs = zip(["", *given], given, strict=False)
    return shlex.join(word for flag, word in pairs if flag not in paths and word not in paths)


def workers(threads: int) -> list[str]:
    """Ours with a process a thread, where there are several."""
    return [name.format(threads) for name in WORKERS] if threads > 1 else []


def shapes(threads: int) -> list[str]:
    """CTranslate2's workers x threads."""
    return list(dict.fromkeys([f"{threads}x1", f"1x{threads}"]))


def first_beam(args: argparse.Namespace) -> int:
    """The first beam above 1, else the first."""
    return next((beam for beam in args.beams if beam > 1), args.beams[0])


def choices() -> list[str]:
    """CTranslate2's, without what the environment has chosen for all."""
    return [each for each in SETTINGS if not set(re.findall(r"(\w+)=", each)) & set(os.environ)]


def try_settings(args: argparse.Namespace, kind: str) -> dict[str, float]:
    """Seconds of each setting of CTranslate2 on the first lines: once, warm, in bulk."""
    few = argparse.Namespace(**vars(args) | {"no_memory": True})
    with tempfile.TemporaryDirectory() as folder:
        lines = prepare(Path(folder), args.model, args.text, args.src, args.tgt, args.try_lines)
        seconds = {}
        for shape in shapes(args.threads):
            for chosen in choices():
                name = f"ctranslate2 {kind} {shape}{chosen}"
                contender = default_vs_stock.build(few, lines, "bulk", first_beam(args), name)
                assert contender.taken is not None
                contender.run()
                seconds[name] = contender.taken(contender.run())
    return seconds


def tried_table(args: argparse.Namespace, tried: dict[str, dict[str, float]]) -> str:
    """What `try_settings` found, a setting a row."""
    lines = [
        "### CTranslate2's settings",
        "",
        f"One run of {args.try_lines} lines each, beam {first_beam(args)}, in bulk. "
        "The best two of a type are in the tables above.",
        "",
        "| setting | seconds |",
        "| --- | ---: |",
    ]
    lines += [f"| {name} | {t:.2f} |" for seconds in tried.values() for name, t in seconds.items()]
    return "\n".join(lines) + "\n"


def best_table(comparisons: list[Comparison]) -> str:
    """The best setting of CTranslate2 in each table, and how many times as fast ours is."""
    lines = [
        "### Ours over the best setting of CTranslate2",
        "",
        "| table | best setting | ours | times as fast |",
        "| --- | --- | --- | ---: |",
    ]
    for comparison in comparisons:
        names = [result.contender.name for result in comparison.results]
        for kind, ours in (("float32", "ours"), ("int8", "ours --int8")):
            rivals = [
                result
                for result in comparison.results
                if result.contender.name.startswith(f"ctranslate2 {kind}")
            ]
            if not rivals or ours not in names:
                continue
            best = min(rivals, key=lambda result: statistics.median(result.seconds)).contender
            gain = comparison.speed_up(ours, best.name)
            times = f"{gain.median:.2f}x ({gain.low:.2f}-{gain.high:.2f})" if gain else "-"
            lines.append(f"| {comparison.title} | {best.name} | {ours} | {times} |")
    return "\n".join(lines) + "\n"


def whole_commands(args: argparse.Namespace, text: Text) -> Comparison:
    """Complete commands at the first beam above 1."""
    compile_modules(ROOT)
    beam = str(first_beam(args))
    flags = [*text.flags, "--cpu", "--beam", beam, "--nbest", beam, *MODES["bulk"]]
    generate = str(Path(sys.executable).with_name("fairseq-generate"))
    source = str(text.folder / f"test.{text.source}-{text.target}.{text.source}")
    rivals = [ProcessContender("stock", [generate, *flags])]
    for more in ([], ["--int8"]):
        given = [generate, *OURS, *flags, *more]
        rivals.append(ProcessContender(" ".join(["ours", *more]), given, exact=not more))
    for kind in TYPES:
        for shape in shapes(args.threads):
            start = [sys.executable, "-c", TRANSLATE, str(convert(text, kind)), source]
            command = [*start, kind, beam, MODES["bulk"][1], *shape.split("x")]
            rivals.append(ProcessContender(f"ctranslate2 {kind} {shape}", command, exact=False))
    if args.no_memory:
        for rival in rivals:
            rival.memory_command = ()
    title = f"whole commands, beam {beam}, {TITLES['bulk']}"
    return compare(rivals, args.repeats, threads=args.threads, title=title)


class Parts:
    """Time spent in functions that are wrapped in place."""

    def __init__(self, clock: Callable[[], float]):
        self.clock = clock
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def wrap(self, owner: Any, name: str, label: str) -> None:
        setattr(owner, name, Timed(getattr(owner, name), self, label))


class Timed:
    """A callable that adds its time and calls to `parts`; its other attributes are
    those of what it wraps."""

    def __init__(self, inner: Any, parts: Parts, label: str):
        self.inner, self.parts, self.label = inner, parts, label

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        start = self.parts.clock()
        out = self.inner(*arguments, **named)
        self.parts.seconds[self.label] = (
            self.parts.seconds.get(self.label, 0.0) + self.parts.clock() - start
        )
        self.parts.calls[self.label] = self.parts.calls.get(self.label, 0) + 1
        return out

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def steps_table(args: argparse.Namespace, text: dict[str, Text]) -> str:
    """Where the time of a step of the loop goes at beam 5, as a table."""
    profiles = {
        (mode, flags): profile(args, text[mode], mode, flags)
        for mode in args.modes
        for flags in ((), ("--int8",))
    }
    columns = list(next(iter(profiles.values())))
    lines = [
        "### Where the time of a step goes",
        "",
        "Milliseconds of a step of the loop at beam 5. Floor: its weights read once at this "
        "machine's speed.",
        "",
        f"| | {' | '.join(columns)} |",
        f"| --- |{' ---: |' * len(columns)}",
    ]
    for (mode, flags), shares in profiles.items():
        name = ", ".join([" ".join(("ours", *flags)), TITLES[mode].partition(" (")[0]])
        lines.append(f"| {name} | {' | '.join(shares.values())} |")
    return "\n".join(lines) + "\n"


def profile(
    args: argparse.Namespace, text: Text, mode: str, flags: tuple[str, ...]
) -> dict[str, str]:
    """Cells of `steps_table` by column."""
    loaded = load([*OURS, *text.flags, "--cpu", "--beam", "5", *MODES[mode], *flags])
    generator = loaded.task.build_generator(loaded.models, loaded.cfg.generation)
    # the compiled search has no parts to be timed: the loop has
    generator.driver = partial(beam_search, generator.setup)
    decode = lambda: [  # noqa: E731
        loaded.task.inference_step(generator, loaded.models, batch) for batch in loaded.batches
    ]
    decode()  # warm
    clock = CLOCKS[args.clock]
    parts, decoder, weights = Parts(clock), generator.decoder, generator.decoder.weights[0]
    parts.wrap(decoder, "read_source", "encoder")
    parts.wrap(decoder, "step", "decoder layers")
    parts.wrap(decoder, "log_probs", "output layer and softmax")
    parts.wrap(decoder, "select", "reordering")
    parts.wrap(generator.strategies, "select", "top-k")
    rows, start = generator.stats.decoder_rows, clock()
    decode()
    total, rows = clock() - start, generator.stats.decoder_rows - rows
    steps = parts.calls["decoder layers"]
    linears = [
        part for layer in weights.layers for part in vars(layer).values() if hasattr(part, "pack")
    ]
    linears = [part for part in linears if part.inputs and part is not None] + [weights.output]
    size = sum(
        part.packed.weight.nbytes
        for part in linears
        if getattr(part.packed, "weight", None) is not None
    )
    floor = size / bandwidth()
    shares = {label: 1e3 * seconds / steps for label, seconds in parts.seconds.items()}
    rest = 1e3 * (total - sum(parts.seconds.values())) / steps
    return {
        "rows": f"{rows / steps:.0f}",
        "whole step": f"{1e3 * total / steps:.3f}",
        **{label: f"{share:.3f}" for label, share in shares.items()},
        "rest of the search": f"{rest:.3f}",
        "floor": f"{1e3 * floor:.3f}",
        "MiB of weights": f"{size / 2**20:.1f}",
    }


def bandwidth() -> float:
    """Bytes a second that a reduction over 256 MiB reads, the best of five."""
    block = torch.ones(64 << 20)
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        block.sum()
        taken.append(time.perf_counter() - start)
    return block.nbytes / min(taken)


def parser() -> argparse.ArgumentParser:
    parse = default_vs_stock.parser()
    parse.description = __doc__
    parse.set_defaults(contenders=None, over=["stock"])
    parse.add_argument(
        "--try-lines", type=int, default=50, help="lines that choose CTranslate2's settings (50)"
    )
    parse.add_argument(
        "--no-whole", dest="whole", action="store_false", help="leave the whole commands out"
    )
    return parse


if __name__ == "__main__":
    run_script(main)
