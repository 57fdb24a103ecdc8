"""How fast is fairseq_ext next to other programs that decode the same text, and what do its own
searches cost? A question is a row of CASES: its contenders, text, flags and clock.

    python scripts/bench/rivals.py --model DIR --text PREFIX --threads 1 --limit 200 --limit-one 30
        --out results/rivals
    python scripts/bench/rivals.py shapes --shapes base big --beams 5 --out results/shapes
    python scripts/bench/rivals.py stock --clock cpu --threads 1 --beams 5 --over ours
        --contenders ours "ours --no-repeat-ngram-size 3" stock "stock --no-repeat-ngram-size 3"

Each case decodes in bulk and one sentence at a time, at each of --beams. Outputs are compared
first; those that must be equal to the first contender's and are not get no speed, and the exit
status is 1. Contenders that are not exact (--int8, other programs, constraints) show BLEU.
contenders.py says how they are named. Peak memory is that of decoding, each contender in a process
of its own. With --clock cpu the time is what the threads of a contender's process have used: on a
machine with other work that is the fairer measure of one-thread contenders, and no measure of
several workers.

The case `rivals` tries each of CTranslate2's settings for matrix products once on --try-lines
lines, with two threads both as two workers and as one; the best two of a type join the rounds.
`shapes` and `firefox` have random weights and made-up text (random_models.py, marian.py); with
--spread 0, which it needs, Marian joins them where it is installed. `constraints` and `words`
require phrases of the references (`extract` in text.py); rows is the decoder's rows over the first
contender's. Where no default is shown, the case has it:

    --limit-one N           sentences one at a time (100)
    --beams N ...           beam sizes
    --modes MODE ...        bulk, one, batches
    --contenders NAME ...   the first is the reference
    --over NAME ...         contenders that speed-ups are shown over; the first by default
    --flags FLAGS           of fairseq-generate, for every contender, as one word
    --variants FLAGS [...]  more of them, or sets of phrases: each has tables of its own
    --clock CLOCK           what is measured, wall or cpu
    --no-memory             do not measure peak memory
    --try-lines N           lines that choose CTranslate2's settings; 0 for none
    --glossary FILE         the demo's handbook by default
    --shapes SHAPE ...      random models instead
    --tokens N              target tokens of every made-up sentence (30)
    --spread X              standard deviation of a line's tokens; Marian needs 0
    --words N               of Firefox's vocabulary (32000)
    --repeats N             timed rounds (5)
    --threads N             of torch; all cores by default
    --out OUT               write OUT.md and OUT.json
    --folder DIR            where random models are kept; a temporary folder by default
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shlex
import statistics
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import marian
import random_models
from contenders import build
from harness import CLOCKS, Comparison, Contender, Result, compare, fix_threads
from report import ROOT, Page, cores, named, table, without_places
from text import (
    MORE_SETS,
    SETS,
    command_line,
    extract,
    prepare,
    run_script,
    text_arguments,
)

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


@dataclass(frozen=True)
class Case:
    """A question; its fields are the defaults of the flags of their names."""

    question: str
    page: str
    contenders: tuple[str, ...]
    over: tuple[str, ...] = ()
    beams: tuple[int, ...] = (1, 5, 20)
    modes: tuple[str, ...] = ("bulk", "one")
    flags: str = ""
    variants: tuple[str, ...] = ("",)
    clock: str = "wall"
    try_lines: int = 0
    shapes: tuple[str, ...] = ()
    spread: float = 10


CASES = {
    "rivals": Case(
        "How fast is ours next to stock and CTranslate2?",
        "docs/results/rivals.md",
        ("stock", "set_beam_size", "ours --decoder-backend fairseq", "ours", "ours --int8"),
        ("stock",),
        try_lines=50,
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
    ),
    "constraints": Case(
        "What do required phrases cost, over the search without them?",
        "docs/results/constrained.md",
        ("ours", "ours {phrases}", "ours {phrases} --prune-finished 3")
        + ("ours {phrases} --unnormalized --stop optimal",),
        beams=(10,),
        modes=("bulk",),
        variants=tuple(SETS),
    ),
    "words": Case(
        "What do phrases cost because they count as whole words, and in the case of glossaries?",
        "docs/results/constrained.md",
        ("ours {phrases} --constraint-boundary none --constraint-case exact", "ours {phrases}")
        + ("ours {phrases} --constraint-case initial",),
        beams=(10,),
        modes=("bulk",),
        variants=tuple(SETS),
    ),
    "placement": Case(
        "What does a glossary cost whose terms are placed?",
        "docs/results/placement.md",
        ("ours", "ours {glossary}"),
        beams=(1, 5),
        modes=("bulk",),
        clock="cpu",
    ),
}


class Bench:
    """One case on one model; text: by mode."""

    def __init__(self, args: Namespace, model: Path, prefix: str, folder: Path):
        self.args, self.clock, self.folder = args, CLOCKS[args.clock], folder
        lay_out = partial(prepare, model=model, text=prefix, source=args.src, target=args.tgt)
        limits = {mode: args.limit_one if mode == "one" else args.limit for mode in args.modes}
        self.text = {mode: lay_out(folder / mode, limit=n) for mode, n in limits.items()}
        self.text["few"] = lay_out(folder / "few", limit=args.try_lines)

    def contender(self, name: str, mode: str, beam: int, variant: str = "") -> Contender:
        """A contender, and what makes it again where memory is measured."""
        args, text = self.args, self.text[mode]
        sizes, phrases = {"beam": beam, "tokens": args.tokens}, []
        if variant in MORE_SETS:
            required = extract(text.references, variant, 1, text.usable)
            variant, phrases = "", text.constraints(variant, required)
        flags = f"--cpu --beam {beam} {MODES.get(mode, MODES['bulk'])} "
        words = shlex.split(flags + f"{args.flags.format(**sizes)} {variant}")
        glossary = ["--glossary", str(args.glossary), *text.bpe]
        of = {"lexicon": marian.lexicon(text.model), "phrases": phrases, "glossary": glossary}
        shown = name.format(threads=args.threads, **{key: flag(each) for key, each in of.items()})
        full = name.format(threads=args.threads, **{k: shlex.join(x) for k, x in of.items()})
        made = build(full, text, words, args.clock)
        made.name = shown
        made.exact &= "--sampling" not in words
        if not args.no_memory and mode != "few":
            made.again = partial(build, full, text, words, apart=False)
        return made

    def comparisons(self, page: Page) -> Iterator[Comparison]:
        """A comparison for every mode, beam and variant."""
        args = self.args
        for mode, variant, beam in itertools.product(args.modes, args.variants, args.beams):
            # at beam 1 that switch does nothing
            names = [name for name in args.contenders if beam > 1 or name != "set_beam_size"]
            title = f"beam {beam}, {TITLES[mode]} ({MODES[mode]})" + f", {variant}" * bool(variant)
            made = [self.contender(name, mode, beam, variant) for name in names]
            how = dict(threads=args.threads, bleu=self.text[mode].bleu, clock=self.clock)
            found = compare(made, args.repeats, title=title, **how)

            def rows(result: Result, first: Contender = made[0]) -> dict[str, str]:
                stats = result.contender.stats
                share = stats["decoder_rows"] / first.stats["decoder_rows"]
                met = "{met} of {given}".format(
                    **stats.get("constraints") or {"met": 0, "given": 0}
                )
                return {"rows": f"{share:.3f}", "met": met}

            more = [rows] if variant in MORE_SETS else []
            page.add_comparison(found, args.over, *more)
            yield found

    def settings(self) -> str:
        """Try CTranslate2's settings, which the environment has not chosen for all, warm and in
        bulk; the best two of a type become contenders. Returns a table of the seconds."""
        args, rows = self.args, []
        # the first beam above 1, else the first
        beam = next((beam for beam in args.beams if beam > 1), args.beams[0])
        for kind in TYPES:
            seconds = {}
            shapes = dict.fromkeys([f"{args.threads}x1", f"1x{args.threads}"])
            for shape, setting in itertools.product(shapes, SETTINGS):
                if set(re.findall(r"(\w+)=", setting)) & set(os.environ):
                    continue
                name = f"ctranslate2 {kind} {shape}{setting}"
                contender = self.contender(name, "few", beam)
                assert contender.taken is not None
                contender.run()
                seconds[name] = contender.taken(contender.run())
            rows += [[name, f"{taken:.2f}"] for name, taken in seconds.items()]
            best = sorted(seconds, key=seconds.__getitem__)[:2]
            args.contenders, args.over = [*args.contenders, *best], [*args.over, best[0]]
        return table(["setting", "seconds"], rows, "CTranslate2's settings") + (
            f"\nOne run of {args.try_lines} lines each, beam {beam}, in bulk. The best two of "
            "a type are in the tables.\n"
        )


def flag(words: Sequence[str]) -> str:
    """The flag that a table shows for several: the first, with its value where that is no path."""
    return " ".join(word for word in words[:2] if "/" not in word)


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


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    args = parser(words[0] if words and words[0] in CASES else "rivals").parse_args(words)
    fix_threads(args.threads)
    args.contenders = available(args)
    refused = False
    note = f"Clock: {args.clock}. Flags: `{without_places(shlex.join(words))}`"
    with tempfile.TemporaryDirectory() as folder:
        page = Page(args.out)
        for label, model, prefix in texts_of(args, args.folder or Path(folder)):
            bench = Bench(args, model, prefix, Path(folder, "text", model.name))
            page.add(f"## {label}\n" if label else f"Model {named(model)}, text {named(prefix)}.\n")
            if args.try_lines:
                page.add(bench.settings())
            made = list(bench.comparisons(page))
            refused |= any(comparison.refused for comparison in made)
            if args.try_lines:
                page.add(best_table(made))
        page.add(note + "\n")
    return int(refused)


def available(args: Namespace) -> list[str]:
    """The contenders whose programs are installed; Marian too, where it can read the lines."""
    names = [*args.contenders]
    if args.shapes and "firefox" not in args.shapes and args.spread == 0:
        names += [*MARIAN, *[PACKED] * (os.environ.get("FAIRSEQ_EXT_KERNELS") != "avx2")]
    for program, package in (("ctranslate2", "ctranslate2"), ("marian", "pymarian")):
        if importlib.util.find_spec(package) is None:
            names = [name for name in names if name.split()[0] != program]
    return names


def texts_of(args: Namespace, folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Title, model and prefix of the text of each model."""
    if not args.shapes:
        yield "", args.model, args.text
    for shape in args.shapes:
        if shape == "firefox":
            made, title = marian.make(folder / shape, args.words), f"firefox: {args.words:,} words"
        else:
            of = random_models.SHAPES[shape]
            made = random_models.make(of, folder / shape, args.spread, shape)
            title = random_models.title(shape)
        yield title, made, str(made / "text")


def parser(case: str) -> ArgumentParser:
    questions = "".join(f"\n{name}: {each.question} ({each.page})" for name, each in CASES.items())
    known = {"modes": MODES, "clock": CLOCKS, "shapes": [*random_models.SHAPES, "firefox"]}
    parse = command_line(f"{__doc__}{questions}", known, threads=cores())
    parse.add_argument("case", nargs="?", choices=CASES, default="rivals")
    text_arguments(parse)  # --limit: in bulk
    handbook = ROOT / "data" / "demo" / "terms.handbook.tsv"
    parse.set_defaults(**asdict(CASES[case]), glossary=handbook)
    return parse


if __name__ == "__main__":
    run_script(main)
