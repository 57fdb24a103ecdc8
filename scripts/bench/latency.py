"""How long does a user wait? Each question is a row of CASES.

    python scripts/bench/latency.py line --model DIR --text PREFIX --limit 300 --beams 1 5
    python scripts/bench/latency.py whole --model DIR --text PREFIX --limit 150 --repeats 7
    python scripts/bench/latency.py constrained --sets rand1 rand3 [--out OUT]

line: lines typed into fairseq-interactive, which has a buffer of one line, until their answers. The
first answer is counted from the start of the command.

whole: a whole command, from the start of Python to its end, on one line and on many. Each reads the
lines as they are, segments them with the model's SentencePiece, and writes text.
`python -m fairseq_ext.translate` has kept the state of the model before, by a run that is not
timed.

constrained: fairseq-interactive --constraints, of fairseq's own search and ours, with phrases of
each reference.

One thread, a process each, in turns; CPU seconds, user's and system's, which other work on the
machine disturbs less than the clock; p50 and p95 are by the clock.

    --beams N ...     (5)
    --repeats N       rounds; those of the case by default
    --sets SET ...    of the constraints (rand1 rand3)
    --out OUT         write OUT.md and OUT.json
"""

from __future__ import annotations

import statistics
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engines import SUPPORTED, convert
from harness import BenchError, Result, compare, compile_modules
from programs import interactive, typed, whole
from report import ROOT, Page, no_columns
from text import SETS, Text, extract, prepare, run_bench

CT2 = """
import sys, ctranslate2, sentencepiece
folder, pieces, kind, beam, size = sys.argv[1:]
cut = sentencepiece.SentencePieceProcessor(model_file=pieces)
how = dict(device="cpu", compute_type=kind, inter_threads=1, intra_threads=1)
translator = ctranslate2.Translator(folder, **how)
def answer(lines):
    words = [cut.encode(line.strip(), out_type=str) for line in lines]
    found = translator.translate_batch(words, beam_size=int(beam), max_batch_size=64,
                                       length_penalty=1, max_input_length=0,
                                       max_decoding_length=200)
    for each in found:
        print("D-0", 0, cut.decode(each.hypotheses[0]), sep="\\t")
    print("P-0", flush=True)
if size == "1":
    for line in sys.stdin:
        answer([line])
else:
    answer(list(sys.stdin))
"""


@dataclass(frozen=True)
class Case:
    """A question; limit and repeats: the defaults of the flags of their names; commands: our flags
    by name, of the program that is named first."""

    question: str
    limit: int
    repeats: int
    buffer: str
    commands: dict[str, str]


OURS = "--task translation_ext"
STOCK = {"stock": "interactive", "ours": f"interactive {OURS}"}
CASES = {
    "line": Case(
        "How long does a typed line take?",
        300,
        3,
        "--buffer-size 1",
        {**STOCK, "ours --int8": f"interactive {OURS} --int8", "CTranslate2": "ct2"},
    ),
    "whole": Case(
        "How long does a command take, on one line and on many?",
        150,
        7,
        "--buffer-size 1000 --max-tokens 4000",
        {
            **STOCK,
            "ours, translate": "translate",
            "ours, translate --int8": "translate --int8",
            "CTranslate2": "ct2",
        },
    ),
    "constrained": Case(
        "How long does fairseq-interactive take with required phrases?",
        320,
        3,
        "--constraints unordered --batch-size 32 --buffer-size 32",
        STOCK,
    ),
}


def commands(case: Case, text: Text, beam: int) -> Iterator[tuple[str, list[str]]]:
    """Name and words of each command; CTranslate2's where it is installed."""
    flags = interactive(text, "--beam", str(beam))
    for name, words in case.commands.items():
        program, *own = words.split()
        if program == "interactive":
            start = [sys.executable, "-m", "fairseq_cli.interactive", *flags]
            yield name, [*start, *case.buffer.split(), *own]
        elif program == "translate":
            start = [sys.executable, "-m", "fairseq_ext.translate", "--data", *flags]
            yield name, [*start, *own]
        else:
            try:
                folders = {kind: str(convert(text, kind)) for kind in SUPPORTED}
            except BenchError as error:
                print(f"CTranslate2 is left out: {error}")
                continue
            for kind, folder in folders.items():
                spm, size = str(text.model / "spm.model"), case.buffer.split()[1]
                more = [folder, spm, kind, str(beam), size]
                yield f"{name} {kind}", [sys.executable, "-c", CT2, *more]


def typed_columns(result: Result) -> dict[str, str]:
    """What a typed line's table has in addition."""
    stats = result.contender.stats
    parts = statistics.quantiles(stats["ms"], n=20)
    cells = {"p50 ms": f"{parts[9]:.1f}", "p95 ms": f"{parts[18]:.1f}"}
    return {"first answer s": f"{stats['first']:.2f}", **cells}


def texts(args: Namespace, text: Text) -> dict[str, list[str]]:
    """The lines that the commands of a case get, by what titles say of them."""
    lines = text.sources
    if args.case == "constrained":
        sets = {name: extract(text.references, name, 1) for name in args.sets}
        return {
            f", {name}": ["\t".join([x, *each]) for x, each in zip(lines, phrases, strict=True)]
            for name, phrases in sets.items()
        }
    if args.case == "whole":
        return {f", {count} lines": lines[:count] for count in (1, len(lines))}
    return {"": lines}


def main(args: Namespace, page: Page, place: Path) -> None:
    case = CASES[args.case]
    args.repeats, args.model = args.repeats or case.repeats, args.model.absolute()
    compile_modules(ROOT)
    program, more = (typed, typed_columns) if args.case == "line" else (whole, no_columns)
    pair = (args.src, args.tgt)
    text = prepare(place, args.model, args.text, *pair, args.limit or case.limit)
    for beam in args.beams:
        for about, lines in texts(args, text).items():
            named = commands(case, text, beam)
            made = [program(name, words, lines, place) for name, words in named]
            found = compare(made, args.repeats, title=f"beam {beam}{about}")
            page.add_comparison(found, ["stock"], more)


if __name__ == "__main__":
    run_bench(main, __doc__, {"sets": SETS}, CASES)
