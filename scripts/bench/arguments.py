"""The command lines of the scripts that measure: what several of them request, and how they end."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from harness import BenchError
from report import ROOT, cores


def command_line(description: str | None) -> argparse.ArgumentParser:
    """A parser without flags, whose help begins with the script's own text."""
    return argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def text_arguments(parse: argparse.ArgumentParser, flag: str = "--text") -> None:
    """Model and text; without arguments the demo's."""
    demo = ROOT / "checkpoints" / "demo"
    parse.add_argument(
        "--model",
        type=Path,
        default=demo,
        help="folder with checkpoint.pt, dict.*.txt, spm.model (the demo model)",
    )
    default = str(ROOT / "data" / "demo" / "test")
    parse.add_argument(flag, default=default, help="prefix of the two text files (the demo's)")
    parse.add_argument("--src", default="de", help="source language and suffix (de)")
    parse.add_argument("--tgt", default="en", help="target language and suffix (en)")
    parse.add_argument("--limit", type=int, help="first sentences only (all)")


def timing_arguments(parse: argparse.ArgumentParser) -> None:
    """How it is timed, and where the tables go."""
    parse.add_argument("--repeats", type=int, default=5, help="timed rounds (5)")
    parse.add_argument("--threads", type=int, default=cores(), help="torch threads (all cores)")
    parse.add_argument("--out", type=Path, help="write OUT.md and OUT.json")


def run_script(main: Callable[[], int | None]) -> None:
    """Run a script's main; a benchmark that cannot go on ends in one sentence."""
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"error: {error}")
