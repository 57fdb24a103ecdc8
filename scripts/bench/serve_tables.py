"""The tables of serve.py: what the servers did at each rate."""

import argparse
import statistics
from typing import NamedTuple

from servers import SERVERS

HEAD = "| server | requests/s | answered | failed | p50 ms | p95 ms | p99 ms | CPU ms |\n"
HEAD += "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"


class Load(NamedTuple):
    """What a server did at one rate."""

    rate: float  # requests a second that were sent
    answered: int
    failed: int
    p50: float  # seconds
    p95: float
    p99: float
    cpu_ms: float | None = None  # of the server, a request; None in rounds of earlier versions


Rounds = list[dict[str, list[Load]]]  # of each round the loads of each server


def good(args: argparse.Namespace, each: Load) -> bool:
    """Whether the server has held the limit at this rate."""
    return not each.failed and each.p95 < args.limit_p95


def best(args: argparse.Namespace, found: list[Load]) -> float:
    """The highest rate up to which the limit was held; 0 for none."""
    held = 0.0
    for each in found:
        if not good(args, each):
            break
        held = each.rate
    return held


def row(name: str, each: Load) -> str:
    """A line of the table."""
    milliseconds = " | ".join(f"{1000 * x:.0f}" for x in (each.p50, each.p95, each.p99))
    cpu = "" if each.cpu_ms is None else f"{each.cpu_ms:.1f}"
    return f"| {name} | {each.rate:g} | {each.answered} | {each.failed} | {milliseconds} | {cpu} |"


def tables(args: argparse.Namespace, rounds: Rounds) -> str:
    """The rates of each server, their ratios to the first one's, and every load."""
    names = [name for name in SERVERS if any(name in found for found in rounds)]
    reference = names[0]
    lines = [
        f"| server | highest rate with p95 < {args.limit_p95:g} s, each round | {reference} has |",
        "| --- | --- | ---: |",
    ]
    for name in names:
        held = [best(args, found[name]) for found in rounds if name in found]
        pairs = [
            (best(args, found[reference]), best(args, found[name]))
            for found in rounds
            if name in found and reference in found
        ]
        ratios = [ours / theirs for ours, theirs in pairs if theirs]
        ratio = f"{statistics.median(ratios):.2f}x" if ratios and name != reference else ""
        lines.append(f"| {name} | {', '.join(f'{rate:g}' for rate in held)} | {ratio} |")
    rows = [row(name, each) for found in rounds for name, loads in found.items() for each in loads]
    return "\n".join([*lines, "", HEAD, *rows])
