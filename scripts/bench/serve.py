"""How many requests a second does the server take at a latency, against micro-batches,
CTranslate2 and one at a time?

    python scripts/bench/serve.py --model DIR --text PREFIX --workers 2 --out results/serve
    python scripts/bench/serve.py --model DIR --text PREFIX --workers 2 --rates 20 40 80
        --seconds 60 --every-rate

Single sentences arrive as a Poisson process (open loop: they come whether or not earlier ones
are answered), the same arrivals for every server. A request's latency counts from its arrival,
so a generator that lags behind makes it longer, never shorter. The rate of a server is the highest
one of `--rates` with a p95 below `--limit-p95` and an answer to every request. It is found by
bisection, for `--seconds` a rate after a warm-up; `--every-rate` tries them all from the lowest
on, until two have failed. The servers (servers.py) are measured in turns, `--rounds` times; where
OUT.json is there already, these rounds are added to its own. Other decoding flags go behind `--`.
CPU ms: CPU time of the server and all its processes while a rate was measured, over the requests.

The servers run in a folder of their own: name files in flags by absolute paths.
"""

import argparse
import asyncio
import bisect
import json
import math
import random
import tempfile
import time
from pathlib import Path

import aiohttp
import httpx
import numpy as np
import uvloop
from arguments import command_line, run_script, text_arguments
from harness import BenchError
from report import machine
from serve_tables import HEAD, Load, Rounds, good, row, tables
from servers import SERVERS, cpu_seconds, running

WARM_UP = 24  # requests, one after another and then together


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
    """One server at the given rates."""
    found: list[Load] = []
    with running(args, name, folder) as server:
        warm_up(server.url, lines)

        def holds(rate: float) -> bool:
            before = cpu_seconds(server.pid)
            each = uvloop.run(load(server.url, lines, rate, args.seconds, args.seed, {}))
            used, requests = cpu_seconds(server.pid) - before, each.answered + each.failed
            known = requests and not math.isnan(used)
            found.append(each._replace(cpu_ms=1000 * used / requests if known else None))
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


def main(argv: list[str] | None = None) -> int:
    parse = command_line(__doc__)
    text_arguments(parse)
    rates = [round(10 * 1.15**i) for i in range(24)]
    parse.add_argument(
        "--servers",
        nargs="+",
        choices=list(SERVERS),
        default=list(SERVERS),
        help="which, in this order (all)",
    )
    parse.add_argument(
        "--rates",
        nargs="+",
        type=float,
        default=rates,
        help="requests a second, ascending (10 to 249, 15%% apart)",
    )
    parse.add_argument("--every-rate", action="store_true", help="no bisection")
    parse.add_argument("--seconds", type=float, default=15.0, help="of each rate (15)")
    parse.add_argument("--limit-p95", type=float, default=0.5, help="seconds (0.5)")
    parse.add_argument("--workers", type=int, default=2, help="of one thread each (2)")
    parse.add_argument("--beam", type=int, default=5)
    parse.add_argument("--batch", type=int, default=32, help="largest micro-batch of ct2 (32)")
    parse.add_argument(
        "--rounds", type=int, default=1, help="times that every server is measured, in turns (1)"
    )
    parse.add_argument(
        "--words", type=int, nargs=2, metavar=("LEAST", "MOST"), help="lines of so many words only"
    )
    parse.add_argument("--seed", type=int, default=1, help="of the arrivals (1)")
    parse.add_argument("--out", type=Path, help="write OUT.md and OUT.json")
    parse.add_argument(
        "flags", nargs="*", help="behind --: decoding flags of the servers of this package"
    )
    args = parse.parse_args(argv)
    if args.rates != sorted(args.rates) or args.rates[0] <= 0:
        raise BenchError("--rates are not ascending numbers above 0")
    lines = [
        line
        for line in Path(f"{args.text}.{args.src}").read_text(encoding="utf-8").split("\n")
        if line.strip()
    ][: args.limit]
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
    return [
        {name: [Load(**each) for each in loads] for name, loads in found.items()}
        for found in json.loads(file.read_text())["rounds"]
    ]


def write(args: argparse.Namespace, rounds: Rounds, lines: int) -> None:
    """OUT.md and OUT.json, after every server."""
    if args.out is None:
        return
    facts = machine()
    text, flags = f"{Path(args.text).name}.{args.src}", " ".join(["", *args.flags])
    says = [
        (
            f"Model of {'/'.join(args.model.resolve().parts[-2:])}, {lines} lines of {text}, "
            f"beam {args.beam}, float32{flags},"
        ),
        f"{args.workers} workers of one thread, {args.seconds:g} s a rate.",
        (
            f"The load generator and the HTTP process run on the same {facts['cores']} cores "
            f"of {facts['cpu']}."
        ),
        f"torch {facts['torch']}, commit {(facts['git_commit'] or 'none')[:7]}, {facts['date']}.",
    ]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    page = f"{' '.join(says)}\n\n{tables(args, rounds)}\n"
    args.out.with_suffix(".md").write_text(page, encoding="utf-8")
    record = {"machine": facts, "text": args.text, "seconds": args.seconds, "flags": args.flags}
    record["rounds"] = [
        {name: [each._asdict() for each in loads] for name, loads in found.items()}
        for found in rounds
    ]
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_script(main)
