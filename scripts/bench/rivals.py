"""How fast is fairseq_ext next to other programs that decode the same text? A question is a row of
CASES: its contenders, text, flags and clock.

    python scripts/bench/rivals.py --model DIR --text PREFIX --threads 1 --limit 200 --limit-one 30
        --out results/rivals
    python scripts/bench/rivals.py shapes --shapes base big --beams 5 --out results/shapes
    python scripts/bench/rivals.py stock --clock cpu --threads 1 --beams 5 --over ours \
        --contenders ours "ours --no-repeat-ngram-size 3" stock "stock --no-repeat-ngram-size 3"

Each case decodes in bulk and one sentence at a time, at each of --beams. Outputs are compared
first; those that must be equal to the first contender's and are not get no speed, and the exit
status is 1. Contenders that are not exact (--int8, other programs) show BLEU. contenders.py says
how they are named. Peak memory is that of decoding, each contender in a process of its own. With
--clock cpu the time is what the threads of a contender's process have used: on a machine with
other work that is the fairer measure of one-thread contenders, and no measure of several workers.

The case `rivals` tries each of CTranslate2's settings for matrix products once on --try-lines
lines, with two threads both as two workers and as one; the best two of a type join the rounds. Then
it times whole commands, and shows the profile of a step next to the time that reading its weights
once takes. `shapes` and `firefox` have random weights and made-up text (random_models.py,
firefox.py); with --spread 0, which it needs, Marian joins them where it is installed. `sampling`
says with the mean length, score and distinct n-grams that all sample the same distribution.
Where no default is shown, the case has it:

    --limit-one N           sentences one at a time (100)
    --beams N ...           beam sizes
    --modes MODE ...        bulk, one, batches
    --contenders NAME ...   the first is the reference
    --over NAME ...         contenders that speed-ups are shown over
    --flags FLAGS           of fairseq-generate, for every contender, as one word
    --variants FLAGS [...]  more of them: each has tables of its own
    --parts PART [...]      further tables
    --clock CLOCK           what is measured, wall or cpu
    --no-memory             do not measure peak memory
    --memory-child          for a process that measures memory
    --try-lines N           lines that choose CTranslate2's settings (50)
    --no-whole              no whole commands
    --shapes SHAPE ...      random models instead
    --tokens N              target tokens of every made-up sentence (30)
    --spread X              standard deviation of a line's tokens; Marian needs 0
    --words N               of Firefox's vocabulary (32000)
    --folder DIR            where random models are kept; a temporary folder by default
"""

import argparse
import importlib.util
import itertools
import os
import re
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import firefox
import random_models
import torch
from contenders import OURS, build, load
from ct2 import convert
from harness import (
    CLOCKS,
    Comparison,
    Contender,
    compare,
    compile_modules,
    fix_threads,
    report_peak,
    whole_command,
)
from report import ROOT, Page, as_dict, comparison_table, named, table
from text import command_line, prepare, run_script, text_arguments, timing_arguments

from fairseq_ext.search.strategies.decoding.beam import beam_search

MODES = {"bulk": "--max-tokens 4000", "one": "--batch-size 1", "batches": "--batch-size 64"}
TITLES = {"bulk": "in bulk", "one": "one sentence at a time", "batches": "in batches"}
TYPES = ("float32", "int8")
CT2 = ("ctranslate2 float32 1x{threads}", "ctranslate2 int8 1x{threads}")
MARIAN = [f"marian {kind} {{threads}}" for kind in ("float32 32", "float32 64", "intgemm8 64")]
PACKED = "marian packed8avx512 {threads} 64"  # packed8avx2 aborts on a processor with AVX-512
BERGAMOT = "bergamot int8shiftAlphaAll"
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


@dataclass(frozen=True)
class Case:
    """A question; its fields are the defaults of the flags of their names.

    over: contenders that speed-ups are shown over; flags: of fairseq-generate, for every contender;
    variants: more of them, each with tables of its own; parts: further tables.
    """

    question: str
    page: str
    contenders: tuple[str, ...]
    over: tuple[str, ...] = ("stock",)
    beams: tuple[int, ...] = (1, 5, 20)
    modes: tuple[str, ...] = ("bulk", "one")
    flags: str = ""
    variants: tuple[str, ...] = ("",)
    clock: str = "wall"
    parts: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    spread: float = 10


CASES = {
    "rivals": Case(
        "How fast is ours next to stock and CTranslate2, and where does a step's time go?",
        "docs/results/rivals.md",
        ("stock", "set_beam_size", "ours --decoder-backend fairseq", "ours", "ours --int8"),
        parts=("settings", "whole", "steps"),
    ),
    "stock": Case(
        "How fast is ours without a flag of its own, and are its outputs stock's?",
        "docs/equality.md",
        ("stock", "set_beam_size", "ours", "ours --decoder-backend fairseq"),
        ("stock", "set_beam_size"),
    ),
    "shapes": Case(
        "What do models of real shapes cost?",
        "docs/results/shapes.md",
        ("stock", "ours", "ours --int8", *CT2),
        flags="--max-len-b {tokens}",
        shapes=("m2m", "nllb", "wmt19"),
    ),
    "firefox": Case(
        "How fast is ours next to Firefox's translator, in 8 bits and with a lexical shortlist?",
        "docs/results/shapes.md",
        ("stock", "ours --int8", "ours --int8 {lexicon}", BERGAMOT, f"{BERGAMOT} lexical"),
        ("stock", f"{BERGAMOT} lexical"),
        beams=(1, 5),
        flags="--max-len-b {tokens}",
        clock="cpu",
        shapes=("firefox",),
    ),
    "sampling": Case(
        "How fast are samples in bulk, by their number for each sentence?",
        "docs/candidates.md",
        ("stock", "ours", "ctranslate2 float32", "ours --int8", "ctranslate2 int8"),
        ("stock", "ctranslate2 float32", "ctranslate2 int8"),
        beams=(1, 10),
        modes=("batches",),
        flags="--nbest {beam} --sampling",
        variants=("--sampling-topk 10", "", "--sampling-topp 0.9"),
        clock="cpu",
        parts=("samples",),
    ),
}


class Bench:
    """One case on one model; text: by mode."""

    def __init__(self, args: argparse.Namespace, model: Path, prefix: str, folder: Path):
        self.args, self.clock = args, CLOCKS[args.clock]
        limits = {mode: args.limit_one if mode == "one" else args.limit for mode in args.modes}
        pair = args.src, args.tgt
        self.text = {m: prepare(folder / m, model, prefix, *pair, n) for m, n in limits.items()}
        # the first beam above 1, else the first
        self.beam = next((beam for beam in args.beams if beam > 1), args.beams[0])

    def contender(self, name: str, mode: str, beam: int, variant: str = "") -> Contender:
        """A contender, with the command that measures its memory."""
        args, text = self.args, self.text[mode]
        known = {"beam": beam, "tokens": args.tokens}
        flags = f"--cpu --beam {beam} {MODES[mode]} {args.flags.format(**known)} {variant}"
        lexicon = shlex.join(firefox.lexicon(text.model))
        full = name.format(threads=args.threads, lexicon=lexicon)
        made = build(full, text, shlex.split(flags), args.clock, not args.memory_child)
        made.name = name.format(threads=args.threads, lexicon="--softmax lexical")
        made.exact &= "--sampling" not in flags
        if not args.no_memory:
            one = dict(model=text.model, text=args.text, src=args.src, tgt=args.tgt)
            one |= dict(threads=args.threads, limit_one=args.limit_one, modes=mode, beams=beam)
            one |= {"limit": args.limit} if args.limit else {}
            words = [f"--{key.replace('_', '-')}={value}" for key, value in one.items()]
            words += [f"--flags={args.flags}", f"--variants={variant}", "--contenders", full]
            child = [sys.executable, __file__, "stock", *words, f"--tokens={args.tokens}"]
            made.memory_command = [*child, "--memory-child"]
        return made

    def comparisons(self, page: Page) -> Iterator[Comparison]:
        """A comparison for every mode, beam and variant."""
        args = self.args
        for mode, variant, beam in itertools.product(args.modes, args.variants, args.beams):
            # at beam 1 that switch does nothing
            names = [name for name in args.contenders if beam > 1 or name != "set_beam_size"]
            title = f"beam {beam}, {TITLES[mode]} ({MODES[mode]})" + f", {variant}" * bool(variant)
            found = compare(
                [self.contender(name, mode, beam, variant) for name in names],
                args.repeats,
                threads=args.threads,
                title=title,
                bleu=self.text[mode].bleu,
                clock=self.clock,
            )
            page.add(comparison_table(found, args.over), as_dict(found))
            yield found

    def settings(self) -> str:
        """Try CTranslate2's settings, which the environment has not chosen for all, warm and in
        bulk; the best two of a type become contenders. Returns a table of the seconds."""
        args, rows = self.args, []
        few = argparse.Namespace(**vars(args) | dict(no_memory=True, limit=args.try_lines))
        few.modes = ["bulk"]
        with tempfile.TemporaryDirectory() as folder:
            text = next(iter(self.text.values()))
            bench = Bench(few, text.model, args.text, Path(folder))
            for kind in TYPES:
                seconds = {}
                for shape, setting in itertools.product(shapes_of(args.threads), SETTINGS):
                    if set(re.findall(r"(\w+)=", setting)) & set(os.environ):
                        continue
                    name = f"ctranslate2 {kind} {shape}{setting}"
                    contender = bench.contender(name, "bulk", self.beam)
                    assert contender.taken is not None
                    contender.run()
                    seconds[name] = contender.taken(contender.run())
                rows += [[name, f"{taken:.2f}"] for name, taken in seconds.items()]
                best = sorted(seconds, key=seconds.__getitem__)[:2]
                args.contenders, args.over = [*args.contenders, *best], [*args.over, best[0]]
        return table(["setting", "seconds"], rows, "CTranslate2's settings") + (
            f"\nOne run of {args.try_lines} lines each, beam {self.beam}, in bulk. The best two of "
            "a type are in the tables.\n"
        )

    def whole(self) -> Comparison:
        """Complete commands at the first beam above 1."""
        compile_modules(ROOT)
        args, text = self.args, self.text["bulk"]
        flags = f"--cpu --beam {self.beam} --nbest {self.beam} {MODES['bulk']}".split()
        generate = str(Path(sys.executable).with_name("fairseq-generate"))
        rivals = [whole_command("stock", [generate, *text.flags, *flags])]
        for more in ([], ["--int8"]):
            command = [generate, *OURS, *text.flags, *flags, *more]
            rivals.append(whole_command(" ".join(["ours", *more]), command, exact=not more))
        for kind, shape in itertools.product(TYPES, shapes_of(args.threads)):
            start = [sys.executable, "-c", TRANSLATE, str(convert(text, kind)), str(text.file)]
            command = [*start, kind, str(self.beam), MODES["bulk"].split()[1], *shape.split("x")]
            rivals.append(whole_command(f"ctranslate2 {kind} {shape}", command, exact=False))
        for rival in rivals:
            rival.memory_command = () if args.no_memory else rival.memory_command
        title = f"whole commands, beam {self.beam}, {TITLES['bulk']}"
        return compare(rivals, args.repeats, threads=args.threads, title=title)

    def steps(self) -> str:
        """Where the time of a step of the loop goes at beam 5, as a table."""
        shown = {
            f"{' '.join(('ours', *flags))}, {TITLES[mode]}": self.profile(mode, flags)
            for mode in self.args.modes
            for flags in ((), ("--int8",))
        }
        columns = list(next(iter(shown.values())))
        rows = [[name, *cells.values()] for name, cells in shown.items()]
        return table(["", *columns], rows, "Where the time of a step goes") + (
            "\nMilliseconds of a step of the loop at beam 5. Floor: its weights read once at this "
            "machine's speed.\n"
        )

    def profile(self, mode: str, flags: tuple[str, ...]) -> dict[str, str]:
        """Cells of `steps` by column."""
        how = f"--cpu --beam 5 {MODES[mode]}".split()
        loaded = load([*OURS, *self.text[mode].flags, *how, *flags])
        generator = loaded.task.build_generator(loaded.models, loaded.cfg.generation)
        # the compiled search has no parts to be timed: the loop has
        generator.driver = partial(beam_search, generator.setup)
        step, seconds, calls = loaded.task.inference_step, {}, {}

        def decode() -> None:
            for batch in loaded.batches:
                step(generator, loaded.models, batch)

        decode()  # warm
        decoder, weights = generator.decoder, generator.decoder.weights[0]
        for owner, name, label in (
            (decoder, "read_source", "encoder"),
            (decoder, "step", "decoder layers"),
            (decoder, "log_probs", "output layer and softmax"),
            (decoder, "select", "reordering"),
            (generator.strategies, "select", "top-k"),
        ):
            setattr(owner, name, Timed(getattr(owner, name), self.clock, label, seconds, calls))
        rows, start = generator.stats.decoder_rows, self.clock()
        decode()
        total, rows = self.clock() - start, generator.stats.decoder_rows - rows
        count = calls["decoder layers"]
        linears = [part for layer in weights.layers for part in vars(layer).values()]
        linears = [part for part in linears if hasattr(part, "pack") and part.inputs]
        packed = [getattr(part.packed, "weight", None) for part in (*linears, weights.output)]
        size = sum(weight.nbytes for weight in packed if weight is not None)
        assert sum(seconds.values()) <= total, "the parts take longer than the whole"
        in_ms = {
            "whole step": total,
            **seconds,
            "rest of the search": total - sum(seconds.values()),
        }
        return {
            "rows": f"{rows / count:.0f}",
            **{label: f"{1e3 * each / count:.3f}" for label, each in in_ms.items()},
            "floor": f"{1e3 * size / bandwidth():.3f}",
            "MiB of weights": f"{size / 2**20:.1f}",
        }


class Timed:
    """A callable whose time and calls are added to those of its label; its other attributes are
    those of what it wraps."""

    def __init__(self, inner: Any, clock: Callable[[], float], label: str, seconds: dict, calls):
        self.inner, self.clock, self.label = inner, clock, label
        self.seconds, self.calls = seconds, calls

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        start = self.clock()
        out = self.inner(*arguments, **named)
        self.seconds[self.label] = self.seconds.get(self.label, 0.0) + self.clock() - start
        self.calls[self.label] = self.calls.get(self.label, 0) + 1
        return out

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def bandwidth() -> float:
    """Bytes a second that a reduction over 256 MiB reads, the best of five."""
    block = torch.ones(64 << 20)
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        block.sum()
        taken.append(time.perf_counter() - start)
    return block.nbytes / min(taken)


def shapes_of(threads: int) -> list[str]:
    """CTranslate2's workers x threads."""
    return list(dict.fromkeys([f"{threads}x1", f"1x{threads}"]))


def best_table(comparisons: list[Comparison]) -> str:
    """The best setting of CTranslate2 in each table, and how many times as fast ours is."""
    rows = []
    for comparison in comparisons:
        by_name = {result.contender.name: result for result in comparison.results}
        for kind, ours in (("float32", "ours"), ("int8", "ours --int8")):
            rivals = [name for name in by_name if name.startswith(f"ctranslate2 {kind}")]
            if rivals and ours in by_name:
                best = min(rivals, key=lambda name: statistics.median(by_name[name].seconds))
                gain = comparison.speed_up(ours, best)
                rows.append([comparison.title, best, ours, gain.shown(2, "x") if gain else "-"])
    head = ["table", "best setting", "ours", "times as fast"]
    return table(head, rows, "Ours over the best setting of CTranslate2")


def samples_table(comparisons: list[Comparison]) -> str:
    """How the samples of the contenders are distributed."""
    rows = []
    for comparison in comparisons:
        for result in comparison.results:
            every = [hypothesis for nbest in result.outputs for hypothesis in nbest]
            means = [
                statistics.mean(x) for x in ((len(t) for t, _ in every), (s for _, s in every))
            ]
            grams = [
                {tuple(t[i : i + size]) for t, _ in every for i in range(len(t) - size + 1)}
                for size in (1, 2, 4)
            ]
            cells = [f"{len(every)}", f"{means[0]:.2f}", f"{means[1]:.3f}"]
            rows.append(
                [comparison.title, result.contender.name, *cells, *(f"{len(g)}" for g in grams)]
            )
    head = ["table", "contender", "samples", "tokens", "score"]
    head += [f"distinct {size}-grams" for size in (1, 2, 4)]
    return table(head, rows, "Samples")


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    args = parser(words[0] if words and words[0] in CASES else "rivals").parse_args(words)
    fix_threads(args.threads)
    args.contenders = available(args)
    refused = False
    note = f"Clock: {args.clock}. Flags: `{flags_shown(words)}`"
    with tempfile.TemporaryDirectory() as folder:
        page = Page(None if args.memory_child else args.out)
        for label, model, prefix in texts_of(args, args.folder or Path(folder)):
            bench = Bench(args, model, prefix, Path(folder, "text", model.name))
            if args.memory_child:
                settings = (word for word in args.contenders[0].split() if "=" in word)
                os.environ.update(word.split("=", 1) for word in settings)  # of this process
                name = re.sub(r" \w+=\S*", "", args.contenders[0])
                report_peak(
                    bench.contender(name, args.modes[0], args.beams[0], args.variants[0]).run
                )
                return 0
            page.add(f"## {label}\n" if label else f"Model {named(model)}, text {named(prefix)}.\n")
            if "settings" in args.parts:
                page.add(bench.settings())
            made = list(bench.comparisons(page))
            refused |= any(comparison.refused for comparison in made)
            if "whole" in args.parts and "bulk" in bench.text and not args.no_whole:
                made.append(bench.whole())
                page.add(comparison_table(made[-1], args.over), as_dict(made[-1]))
            if "settings" in args.parts:
                page.add(best_table(made))
            if "steps" in args.parts:
                page.add(bench.steps())
            if "samples" in args.parts:
                page.add(samples_table(made))
        page.add(note + "\n")
    return int(refused)


def available(args: argparse.Namespace) -> list[str]:
    """The contenders whose programs are installed; Marian too, where it can read the lines."""
    names = [*args.contenders]
    if args.shapes and "firefox" not in args.shapes and args.spread == 0:
        names += [*MARIAN, *[PACKED] * (os.environ.get("FAIRSEQ_EXT_KERNELS") != "avx2")]
    for program, package in (("ctranslate2", "ctranslate2"), ("marian", "pymarian")):
        if importlib.util.find_spec(package) is None:
            names = [name for name in names if name.split()[0] != program]
    return names


def texts_of(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Title, model and prefix of the text of each model."""
    if not args.shapes:
        yield "", args.model, args.text
    for shape in args.shapes:
        if shape == "firefox":
            made, title = firefox.make(folder / shape, args.words), f"firefox: {args.words:,} words"
        else:
            made = random_models.make(
                random_models.SHAPES[shape], folder / shape, args.spread, shape
            )
            title = random_models.title(shape)
        args.text = str(made / "text")
        yield title, made, args.text


def flags_shown(words: list[str]) -> str:
    """The flags of a run, but for paths."""
    paths = ("--model", "--text", "--out", "--folder")
    pairs = zip(["", *words], words, strict=False)
    return shlex.join(word for before, word in pairs if before not in paths and word not in paths)


def parser(case: str) -> argparse.ArgumentParser:
    questions = "".join(f"\n{name}: {each.question} ({each.page})" for name, each in CASES.items())
    known = {"modes": MODES, "clock": CLOCKS, "shapes": [*random_models.SHAPES, "firefox"]}
    parse = command_line(f"{__doc__}{questions}", known)
    parse.add_argument("case", nargs="?", choices=CASES, default="rivals")
    text_arguments(parse)  # --limit: in bulk
    timing_arguments(parse)
    parse.set_defaults(**asdict(CASES[case]))
    return parse


if __name__ == "__main__":
    run_script(main)
