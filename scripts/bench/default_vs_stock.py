"""How fast is fairseq_ext with no flag of its own, against stock fairseq and against stock
with `set_beam_size`?

    python scripts/bench/default_vs_stock.py --out results/default_vs_stock
    python scripts/bench/default_vs_stock.py --model DIR --text PREFIX --src de --tgt en --limit 200
        --repeats 7

Beam 1, 5 and 20, in bulk (--max-tokens 4000) and one sentence at a time (--batch-size 1). Outputs
must be equal, or no speed is shown and the exit status is 1. Peak memory is that of decoding, each
contender in a process of its own.

A contender is a word and fairseq-generate flags of its own: "stock", "set_beam_size", "ours",
"ours --decoder-backend fairseq", "ctranslate2 float32 2x1" (compute type, workers x threads), and
behind it settings of its process (one of its own) such as CT2_USE_MKL=1, and "marian float32 1 64"
(type, threads, sentences a batch; marian.py says of which models). Flags that change translations
(CHANGING) are not compared with the first contender's:

    python scripts/bench/default_vs_stock.py --clock cpu --threads 1 --beams 5 --over ours \
        --contenders ours "ours --no-repeat-ngram-size 3" stock "stock --no-repeat-ngram-size 3"
"""

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from arguments import command_line, run_script, text_arguments, timing_arguments
from contenders import ours, stock, stock_fused_encoder, stock_set_beam_size
from ct2 import ctranslate2
from harness import BenchError, Comparison, Contender, compare, fix_threads, report_peak
from marian import marian
from report import markdown, named, write
from text import Text, prepare

from fairseq_ext.kernels import library

CHANGING = {"--int8", "--no-repeat-ngram-size"}
STOCK = {"stock": stock, "set_beam_size": stock_set_beam_size, "fused_encoder": stock_fused_encoder}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
MODES = {"bulk": ["--max-tokens", "4000"], "one": ["--batch-size", "1"]}
TITLES = {"bulk": "in bulk (--max-tokens 4000)", "one": "one sentence at a time (--batch-size 1)"}


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        text = {}
        for mode in args.modes:
            limit = args.limit_one if mode == "one" else args.limit
            place = Path(folder, mode)
            place.mkdir()
            text[mode] = prepare(place, args.model, args.text, args.src, args.tgt, limit)
        if args.memory_child:
            fix_threads(args.threads)
            words = shlex.split(args.contenders[0])  # settings of a process are this process's own
            os.environ.update(
                word.split("=", 1) for word in words if words[0] == "ctranslate2" and "=" in word
            )
            name = shlex.join(
                word for word in words if words[0] != "ctranslate2" or "=" not in word
            )
            report_peak(build(args, text[args.modes[0]], args.modes[0], args.beams[0], name).run)
            return 0
        comparisons = decode_only(args, text, CLOCKS[args.clock])
    return 1 if any(comparison.refused for comparison in comparisons) else 0


def decode_only(
    args: argparse.Namespace, text: dict[str, Text], clock: Callable[[], float]
) -> list[Comparison]:
    """A comparison for every mode and beam, shown and written as each is done."""
    comparisons: list[Comparison] = []
    for mode in args.modes:
        for beam in args.beams:
            # at beam 1 that switch does nothing
            names = [name for name in args.contenders if beam > 1 or name != "set_beam_size"]
            contenders = [build(args, text[mode], mode, beam, name) for name in names]
            title = f"beam {beam}, {TITLES[mode]}"
            comparisons.append(
                compare(
                    contenders,
                    args.repeats,
                    threads=args.threads,
                    title=title,
                    bleu=text[mode].bleu,
                    clock=clock,
                )
            )
            print(markdown(comparisons[-1], args.over), flush=True)
            if args.out:
                write(args.out, comparisons, args.over, setting(args))
    return comparisons


def setting(args: argparse.Namespace) -> str:
    """What is measured, in a sentence."""
    text = f"{named(args.text)}.{args.src}"
    return f"Model {named(args.model)}, text {text}, clock: {args.clock}."


def build(args: argparse.Namespace, text: Text, mode: str, beam: int, name: str) -> Contender:
    """The contender that `name` describes, with the command that measures its memory."""
    kind, *rest = shlex.split(name)
    flags = ["--cpu", "--beam", str(beam), *MODES[mode], *shlex.split(args.flags)]
    if kind == "ours":
        contender = ours(text, flags + rest, name, exact=not CHANGING & set(rest))
    elif kind == "ctranslate2":
        settings = dict(word.split("=", 1) for word in rest if "=" in word)
        compute_type, _, shape = " ".join(
            [word for word in rest if "=" not in word] or ["float32", "1x1"]
        ).partition(" ")
        workers, _, threads = (shape or "1x1").partition("x")
        if not (workers.isdigit() and threads.isdigit()):
            raise BenchError(f"{name!r} should end in workers x threads, as in 2x1")
        contender = ctranslate2(
            text,
            flags,
            compute_type,
            int(workers),
            int(threads),
            name,
            None if args.memory_child else settings,  # whose memory is that of this process
            args.clock,
        )
    elif kind == "marian":
        kinds, counts = (
            [word for word in rest if not word.isdigit()],
            [int(word) for word in rest if word.isdigit()],
        )
        threads, batch = [*counts, *(1, 0)[len(counts) :]]
        contender = marian(
            text,
            flags,
            *kinds or ["float32"],
            threads=threads,
            batch=batch if mode == "bulk" else 1,
            name=name,
        )
    elif kind in STOCK:
        contender = STOCK[kind](text, flags + rest, name)
    else:
        raise BenchError(
            f"no contender {name!r}: take {', '.join(STOCK)}, ours (and flags), ctranslate2 TYPE "
            "NxTHREADS or marian TYPE"
        )
    by = "stock" if "fairseq" in rest else kind  # --decoder-backend fairseq
    contender.instructions = contender.instructions or instructions(by, "--int8" in rest)
    if not args.no_memory:
        contender.memory_command = memory_command(args, mode, beam, name)
    return contender


def instructions(kind: str, int8: bool) -> str:
    """What this process uses of the processor: torch, or the compiled step."""
    if kind in STOCK:
        return f"torch {torch.backends.cpu.get_cpu_capability()}"
    if kind != "ours" or library.is_off():
        return ""
    return library.level() if int8 else library.level().replace("vnni", "")


def memory_command(args: argparse.Namespace, mode: str, beam: int, name: str) -> list[str]:
    """This script again, for one contender and one setting."""
    same = [
        "--model",
        str(args.model),
        "--text",
        args.text,
        "--src",
        args.src,
        "--tgt",
        args.tgt,
        "--threads",
        str(args.threads),
    ]
    same += ["--limit-one", str(args.limit_one)] + (
        ["--limit", str(args.limit)] if args.limit else []
    )
    same += [f"--flags={args.flags}"] if args.flags else []
    one = ["--modes", mode, "--beams", str(beam), "--contenders", name, "--memory-child"]
    return [sys.executable, str(Path(__file__).resolve()), *same, *one]


def parser() -> argparse.ArgumentParser:
    parse = command_line(__doc__)
    text_arguments(parse)  # --limit: in bulk
    parse.add_argument("--limit-one", type=int, default=100, help="sentences one at a time (100)")
    parse.add_argument(
        "--beams", type=int, nargs="+", default=[1, 5, 20], help="beam sizes (1 5 20)"
    )
    parse.add_argument(
        "--modes", nargs="+", choices=MODES, default=list(MODES), help="bulk, one (both)"
    )
    contenders = ["stock", "set_beam_size", "ours", "ours --decoder-backend fairseq"]
    parse.add_argument(
        "--contenders",
        nargs="+",
        default=contenders,
        help=f"the first is the reference ({contenders})",
    )
    parse.add_argument(
        "--over",
        nargs="+",
        default=["stock", "set_beam_size"],
        help="contenders that speed-ups are shown over",
    )
    parse.add_argument(
        "--flags", default="", help="fairseq-generate flags of every contender, as one word (none)"
    )
    timing_arguments(parse)
    parse.add_argument("--clock", choices=CLOCKS, default="wall", help="what is measured (wall)")
    parse.add_argument("--no-memory", action="store_true", help="do not measure peak memory")
    parse.add_argument("--memory-child", action="store_true", help=argparse.SUPPRESS)
    return parse


if __name__ == "__main__":
    run_script(main)
