"""How many requests a second does the server take at a latency, against micro-batches,
CTranslate2 and one at a time?

    python scripts/bench/serve.py --model DIR --text PREFIX --workers 2 --out results/serve

Single sentences arrive as a Poisson process (open loop: they come whether or not earlier ones
are answered), the same arrivals for every server. A request's latency counts from its arrival,
so a generator that lags behind makes it longer, never shorter. The rate of a server is the highest
one of `--rates` with a p95 below `--limit-p95` and an answer to every request. It is found by
bisection, for `--seconds` a rate after a warm-up. The servers (programs.py) are measured in turns,
`--rounds` times. Other decoding flags go behind `--`.
CPU ms: CPU time of the server and all its processes while a rate was measured, over the requests.

The servers run in a folder of their own: name files in flags by absolute paths.

    --servers SERVER ...    which, in this order (all)
    --rates X ...           requests a second, ascending; 10 to 249, 15 % apart, by default
    --seconds X             of each rate (15)
    --limit-p95 X           seconds (0.5)
    --rounds N              times that each server is measured, in turns (1)
    --seed N                of the arrivals (1)
    --beam N                (5)
"""

import argparse
import asyncio
import bisect
import itertools
import math
import random
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import aiohttp
import httpx
import numpy as np
import uvloop
from harness import BenchError, Spread
from programs import SERVER_FLAGS, SERVERS, cpu_seconds, running
from report import Page, cores, named, table
from text import command_line, read_lines, run_script, text_arguments

WARM_UP = 24  # requests, one after another and then together
HEAD = "server | requests/s | answered | failed | p50 ms | p95 ms | p99 ms | CPU ms".split(" | ")


class Load(NamedTuple):
    """What a server did at one rate."""

    rate: float  # requests a second that were sent
    answered: int
    failed: int
    p50: float  # seconds
    p95: float
    p99: float
    cpu_ms: float = math.nan  # of the server, a request

    def row(self, name: str) -> list[str]:
        """A line of the table."""
        milliseconds = [f"{1000 * x:.0f}" for x in (self.p50, self.p95, self.p99)]
        counts = [f"{self.rate:g}", str(self.answered), str(self.failed)]
        return [name, *counts, *milliseconds, f"{self.cpu_ms:.1f}"]


async def load(
    url: str, lines: list[str], rate: float, seconds: float, seed: int, answers: dict[str, str]
) -> Load:
    """Send sentences at random times of this rate; wait for all answers, which are put in `answers`
    by their lines."""
    draw = random.Random(seed)
    arrivals, at = [], 0.0
    while (at := at + draw.expovariate(rate)) < seconds:
        arrivals.append((at, draw.choice(lines)))
    latencies: list[float] = []
    # aiohttp takes less than half of httpx's time, and uvloop less than asyncio's loop; the servers
    # on the same cores lack what it takes
    limits = {"connector": aiohttp.TCPConnector(limit=0), "timeout": aiohttp.ClientTimeout(600)}
    async with aiohttp.ClientSession(url, **limits) as client:
        start = time.perf_counter()

        async def query(at: float, line: str) -> None:
            await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
            async with client.post("/v1/translate", json={"source": line}) as response:
                if response.status == 200 and "text" in (said := await response.json()):
                    latencies.append(time.perf_counter() - start - at)
                    answers[line] = said["text"]

        await asyncio.gather(*(query(*each) for each in arrivals), return_exceptions=True)
    found = np.percentile(latencies, [50, 95, 99]) if latencies else np.full(3, np.inf)
    return Load(rate, len(latencies), len(arrivals) - len(latencies), *(float(x) for x in found))


def warm_up(url: str, lines: list[str]) -> None:
    """Translate some sentences, one after another, then together."""
    with httpx.Client(base_url=url, timeout=600) as client:
        for line in lines[: WARM_UP // 2]:
            client.post("/v1/translate", json={"source": line})
    uvloop.run(load(url, lines, 50.0, WARM_UP / 100, 0, {}))


def measure(args: argparse.Namespace, name: str, lines: list[str], folder: Path) -> list[Load]:
    """One server at the given rates, by bisection."""
    found: list[Load] = []
    with running(args, name, folder) as server:
        warm_up(server.url, lines)

        def fails(rate: float) -> bool:
            before = cpu_seconds(server.pid)
            each = uvloop.run(load(server.url, lines, rate, args.seconds, args.seed, {}))
            requests = max(1, each.answered + each.failed)
            used = cpu_seconds(server.pid) - before
            found.append(each._replace(cpu_ms=1000 * used / requests))
            print(" | ".join(found[-1].row(name)), flush=True)
            return bool(each.failed) or each.p95 >= args.limit_p95

        bisect.bisect_left(args.rates, True, key=fails)
    return sorted(found)


def best(found: list[Load], limit: float) -> float:
    """The highest rate up to which the limit was held; 0 for none."""
    held = itertools.takewhile(lambda each: not each.failed and each.p95 < limit, found)
    return max((each.rate for each in held), default=0.0)


def rates_table(args: argparse.Namespace, rounds: list[dict[str, list[Load]]]) -> str:
    """The rates of each server, and their ratios to the first one's."""
    reference, *_ = args.servers
    rates = [{name: best(found, args.limit_p95) for name, found in each.items()} for each in rounds]
    rows = []
    for name in args.servers:
        pairs = [(each[reference], each[name]) for each in rates if each.get(name)]
        ratio = f"{Spread.ratio(*zip(*pairs, strict=True)).median:.2f}x" if pairs else ""
        held = ", ".join(f"{each[name]:g}" for each in rates if name in each)
        rows.append([name, held, ratio if name != reference else ""])
    each_round = f"highest rate with p95 < {args.limit_p95:g} s, each round"
    return table(["server", each_round, f"{reference} has"], rows)


def main(argv: list[str] | None = None) -> int:
    rates = [round(10 * 1.15**i) for i in range(24)]
    parse = command_line(f"{__doc__}{SERVER_FLAGS}", {"servers": SERVERS}, rates=rates)
    text_arguments(parse)
    parse.add_argument("flags", nargs="*", help="behind --: decoding flags of our servers")
    args = parse.parse_args(argv)
    if args.rates != sorted(args.rates) or args.rates[0] <= 0:
        raise BenchError("--rates are not ascending numbers above 0")
    lines = [line for line in read_lines(args.text, args.src, args.limit) if line.strip()]
    rounds: list[dict[str, list[Load]]] = []
    note = (
        f"Model of {named(args.model)}, {len(lines)} lines of {named(args.text)}.{args.src}, beam "
        f"{args.beam}, float32{' '.join(['', *args.flags])}, {args.workers} workers of one thread, "
        f"{args.seconds:g} s a rate. The load generator and the HTTP process run on the same "
        f"{cores()} cores.\n"
    )
    print(" | ".join(HEAD), flush=True)
    page = Page(args.out, note)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            rounds.append({})
            for name in args.servers:
                rounds[-1][name] = measure(args, name, lines, Path(folder))
                every = [e.row(n) for found in rounds for n, loads in found.items() for e in loads]
                page.parts = [note, rates_table(args, rounds), table(HEAD, every)]
                page.write()
    print("\n".join(page.parts))
    return 0


if __name__ == "__main__":
    run_script(main)
