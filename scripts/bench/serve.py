"""How many requests a second does the server take at a latency, against micro-batches, CTranslate2 and one at a time?

    python scripts/bench/serve.py --model DIR --text PREFIX --workers 2 --out results/serve
    python scripts/bench/serve.py --model DIR --text PREFIX --workers 2 --rates 20 40 80 --seconds 60 --every-rate

Single sentences arrive as a Poisson process (open loop: they come whether or not earlier ones are answered), the same arrivals for every
server. A request's latency counts from its arrival, so a generator that lags behind makes it longer, never shorter. The rate of a server
is the highest one of `--rates` with a p95 below `--limit-p95` and an answer to every request. It is found by bisection, for `--seconds` a
rate after a warm-up; `--every-rate` tries them all from the lowest on, until two have failed. The servers (servers.py) are measured in
turns, `--rounds` times; where OUT.json is there already, these rounds are added to its own. Other decoding flags go behind `--`.
"""

import argparse
import asyncio
import bisect
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import aiohttp
import httpx
import numpy as np
import uvloop
from arguments import command_line, run_script, text_arguments
from harness import BenchError
from report import machine
from servers import SERVERS, running

HEAD = "| server | requests/s | answered | failed | p50 ms | p95 ms | p99 ms |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
WARM_UP = 24  # requests, one after another and then together


class Load(NamedTuple):
    """What a server did at one rate."""

    rate: float  # requests a second that were sent
    answered: int
    failed: int
    p50: float  # seconds
    p95: float
    p99: float


async def load(url: str, lines: list[str], rate: float, seconds: float, seed: int) -> Load:
    """Send sentences at random times of this rate; wait for all answers."""
    draw = random.Random(seed)
    arrivals, at = [], 0.0
    while (at := at + draw.expovariate(rate)) < seconds:
        arrivals.append((at, draw.choice(lines)))
    latencies: list[float] = []
    # aiohttp takes less than half of httpx's time, and uvloop less than asyncio's loop; the servers on the same cores lack what it takes
    limits = {"connector": aiohttp.TCPConnector(limit=0), "timeout": aiohttp.ClientTimeout(600)}
    async with aiohttp.ClientSession(url, **limits) as client:
        start = time.perf_counter()

        async def ask(at: float, line: str) -> None:
            await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
            async with client.post("/v1/translate", json={"source": line}) as response:
                if response.status == 200 and "text" in await response.json():
                    latencies.append(time.perf_counter() - start - at)

        await asyncio.gather(*(ask(*each) for each in arrivals), return_exceptions=True)
    found = np.percentile(latencies, [50, 95, 99]) if latencies else np.full(3, np.inf)
    return Load(rate, len(latencies), len(arrivals) - len(latencies), *(float(x) for x in found))


def warm_up(url: str, lines: list[str]) -> None:
    """Translate some sentences, one after another, then together."""
    with httpx.Client(base_url=url, timeout=600) as client:
        for line in lines[: WARM_UP // 2]:
            client.post("/v1/translate", json={"source": line})
    uvloop.run(load(url, lines, 50.0, WARM_UP / 100, 0))


def measure(args: argparse.Namespace, name: str, lines: list[str], folder: Path) -> list[Load]:
    """One server at the rates that it is asked for."""
    found: list[Load] = []
    with running(args, name, folder) as server:
        warm_up(server.url, lines)

        def holds(rate: float) -> bool:
            found.append(uvloop.run(load(server.url, lines, rate, args.seconds, args.seed)))
            print(row(name, found[-1]), flush=True)
            return good(args, found[-1])

        if args.every_rate:
            failed = 0
            for rate in args.rates:
                failed += not holds(rate)
                if failed == 2:
                    break
        else:
            bisect.bisect_left(args.rates, True, key=lambda rate: not holds(rate))
    return sorted(found)


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
    return f"| {name} | {each.rate:g} | {each.answered} | {each.failed} | {milliseconds} |"


def tables(args: argparse.Namespace, rounds: list[dict[str, list[Load]]]) -> str:
    """What was measured: the rates of each server, their ratios to the first one's, and every load."""
    names = [name for name in SERVERS if any(name in found for found in rounds)]
    reference = names[0]
    lines = [f"| server | highest rate with p95 < {args.limit_p95:g} s, each round | {reference} has |", "| --- | --- | ---: |"]
    for name in names:
        held = [best(args, found[name]) for found in rounds if name in found]
        pairs = [(best(args, found[reference]), best(args, found[name])) for found in rounds if name in found and reference in found]
        ratios = [ours / theirs for ours, theirs in pairs if theirs]
        ratio = f"{statistics.median(ratios):.2f}x" if ratios and name != reference else ""
        lines.append(f"| {name} | {', '.join(f'{rate:g}' for rate in held)} | {ratio} |")
    rows = [row(name, each) for found in rounds for name, loads in found.items() for each in loads]
    return "\n".join([*lines, "", HEAD, *rows])


def main(argv: list[str] | None = None) -> int:
    parse = command_line(__doc__)
    text_arguments(parse)
    rates = [round(10 * 1.15**i) for i in range(24)]
    parse.add_argument("--servers", nargs="+", choices=list(SERVERS), default=list(SERVERS), help="which, in this order (all)")
    parse.add_argument("--rates", nargs="+", type=float, default=rates, help="requests a second, ascending (10 to 249, 15%% apart)")
    parse.add_argument("--every-rate", action="store_true", help="no bisection")
    parse.add_argument("--seconds", type=float, default=15.0, help="of each rate (15)")
    parse.add_argument("--limit-p95", type=float, default=0.5, help="seconds (0.5)")
    parse.add_argument("--workers", type=int, default=2, help="of one thread each (2)")
    parse.add_argument("--beam", type=int, default=5)
    parse.add_argument("--batch", type=int, default=32, help="largest micro-batch of ct2 (32)")
    parse.add_argument("--rounds", type=int, default=1, help="times that every server is measured, in turns (1)")
    parse.add_argument("--words", type=int, nargs=2, metavar=("LEAST", "MOST"), help="lines of so many words only")
    parse.add_argument("--seed", type=int, default=1, help="of the arrivals (1)")
    parse.add_argument("--out", type=Path, help="write OUT.md and OUT.json")
    parse.add_argument("flags", nargs="*", help="behind --: decoding flags of the servers of this package")
    args = parse.parse_args(argv)
    if args.rates != sorted(args.rates) or args.rates[0] <= 0:
        raise BenchError("--rates are not ascending numbers above 0")
    lines = [line for line in Path(f"{args.text}.{args.src}").read_text(encoding="utf-8").split("\n") if line.strip()][: args.limit]
    if args.words:
        lines = [line for line in lines if args.words[0] <= len(line.split()) <= args.words[1]]
    print(HEAD, flush=True)
    rounds = earlier(args)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            rounds.append({})
            for name in args.servers:
                rounds[-1][name] = measure(args, name, lines, Path(folder))
                write(args, rounds, len(lines))
    print(f"\n{tables(args, rounds)}")
    return 0


def earlier(args: argparse.Namespace) -> list[dict[str, list[Load]]]:
    """The rounds that OUT.json has."""
    file = args.out.with_suffix(".json") if args.out else None
    if file is None or not file.exists():
        return []
    return [{name: [Load(**each) for each in loads] for name, loads in found.items()} for found in json.loads(file.read_text())["rounds"]]


def write(args: argparse.Namespace, rounds: list[dict[str, list[Load]]], lines: int) -> None:
    """OUT.md and OUT.json, after every server."""
    if args.out is None:
        return
    facts = machine()
    text, flags = f"{Path(args.text).name}.{args.src}", " ".join(["", *args.flags])
    says = [
        f"Model of {args.model.parent.name}, {lines} lines of {text}, beam {args.beam}, float32{flags},",
        f"{args.workers} workers of one thread, {args.seconds:g} s a rate.",
        f"The load generator and the HTTP process run on the same {facts['cores']} cores of {facts['cpu']}.",
        f"torch {facts['torch']}, commit {(facts['git_commit'] or 'none')[:7]}, {facts['date']}.",
    ]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".md").write_text(f"{' '.join(says)}\n\n{tables(args, rounds)}\n", encoding="utf-8")
    record = {"machine": facts, "text": args.text, "seconds": args.seconds, "flags": args.flags}
    record["rounds"] = [{name: [each._asdict() for each in loads] for name, loads in found.items()} for found in rounds]
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_script(main)
