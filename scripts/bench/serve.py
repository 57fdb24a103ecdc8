"""How many requests a second does the server take at a latency, against micro-batches, CTranslate2 and one at a time?

    python scripts/bench/serve.py --model DIR --text PREFIX --workers 2 --rates 4 8 12 16 20 24 28 32 40 48 --seconds 60 --out results/serve

Single sentences arrive as a Poisson process (open loop: they come whether or not earlier ones are answered), the same arrivals for every
server. A request's latency counts from its arrival, so a generator that lags behind makes it longer, never shorter. The rate of a server
is the highest one listed up to which every rate had a p95 below `--limit-p95` and every request an answer; a server that has failed at
two rates is not asked for higher ones.

| server | |
| --- | --- |
| refill | `python -m fairseq_ext.serve`: waiting sentences join the running search at any step |
| batch | the same with `--schedule batch`: a micro-batch starts when the one before it has ended |
| one | the same with `--stream-width 1`: one request at a time in each worker |
| ct2 | CTranslate2 behind FastAPI with micro-batches (serve_ct2.py), `pip install ctranslate2` |

`--seconds` of each rate, after a warm-up. Other decoding flags go behind `--`, for instance `-- --stream-width 24`.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
from arguments import command_line, run_script, text_arguments
from harness import BenchError

HERE = Path(__file__).parent
SERVERS = {"refill": [], "batch": ["--schedule", "batch"], "one": ["--stream-width", "1"], "ct2": None}
WARM_UP = 24  # requests, one after another and then together
START = 300  # seconds that a server has to load


class Load(NamedTuple):
    """What a server did at one rate."""

    rate: float  # requests a second that were sent
    answered: int
    failed: int
    p50: float  # seconds
    p95: float
    p99: float


def command(args: argparse.Namespace, name: str, port: int, folder: Path) -> list[str]:
    """The command of a server."""
    model, spm = args.model, str(args.model / "spm.model")
    if name == "ct2":
        given = [str(model / "checkpoint.pt"), str(model), args.src, args.tgt, spm, str(folder / "ctranslate2")]
        numbers = {"--port": port, "--beam": args.beam, "--workers": args.workers, "--batch": args.batch}
        return [sys.executable, str(HERE / "serve_ct2.py"), *given, *(str(x) for pair in numbers.items() for x in pair)]
    given = ["--path", str(model / "checkpoint.pt"), "--data", str(model), "-s", args.src, "-t", args.tgt, "--cpu"]
    given += ["--bpe", "sentencepiece", "--sentencepiece-model", spm, "--beam", str(args.beam)]
    given += ["--cpu-workers", str(args.workers), "--port", str(port)]
    limits = ["--max-queue", "100000", "--deadline", "600", "--grace", "0"]
    return [sys.executable, "-m", "fairseq_ext.serve", *given, *limits, *args.flags, *(SERVERS[name] or [])]


@contextmanager
def running(args: argparse.Namespace, name: str, folder: Path):
    """A server that is ready; its address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command(args, name, port, folder), stdout=log, stderr=log, env=environment)
    try:
        end = time.monotonic() + START
        while True:
            if process.poll() is not None or time.monotonic() > end:
                last = (folder / f"{name}.log").read_text().strip().splitlines()[-1:] or ["it says nothing"]
                raise BenchError(f"the server '{name}' does not start: {last[0]}")
            try:
                if httpx.get(f"http://127.0.0.1:{port}/ready", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def load(url: str, lines: list[str], rate: float, seconds: float, seed: int) -> Load:
    """Send sentences at random times of this rate; wait for all answers."""
    draw = random.Random(seed)
    arrivals, at = [], 0.0
    while (at := at + draw.expovariate(rate)) < seconds:
        arrivals.append((at, draw.choice(lines)))
    latencies: list[float] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        start = time.perf_counter()

        async def ask(at: float, line: str) -> None:
            await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
            response = await client.post("/v1/translate", json={"source": line})
            if response.status_code == 200 and "text" in response.json():
                latencies.append(time.perf_counter() - start - at)

        await asyncio.gather(*(ask(*each) for each in arrivals), return_exceptions=True)
    found = np.percentile(latencies, [50, 95, 99]) if latencies else np.full(3, np.inf)
    return Load(rate, len(latencies), len(arrivals) - len(latencies), *(float(x) for x in found))


def warm_up(url: str, lines: list[str]) -> None:
    """Translate some sentences, one after another, then together."""
    with httpx.Client(base_url=url, timeout=600) as client:
        for line in lines[: WARM_UP // 2]:
            client.post("/v1/translate", json={"source": line})
    asyncio.run(load(url, lines, 50.0, WARM_UP / 100, 0))


def measure(args: argparse.Namespace, name: str, lines: list[str], folder: Path) -> list[Load]:
    """One server at every rate."""
    found: list[Load] = []
    with running(args, name, folder) as url:
        warm_up(url, lines)
        for rate in args.rates:
            found.append(asyncio.run(load(url, lines, rate, args.seconds, args.seed)))
            print(row(name, found[-1]), flush=True)
            if sum(not good(args, each) for each in found) == 2:
                break
    return found


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


def main(argv: list[str] | None = None) -> int:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.add_argument("--servers", nargs="+", choices=list(SERVERS), default=list(SERVERS), help="which, in this order (all)")
    parse.add_argument("--rates", nargs="+", type=float, default=[2, 4, 8, 16, 32, 64], help="requests a second, ascending")
    parse.add_argument("--seconds", type=float, default=60.0, help="of each rate (60)")
    parse.add_argument("--limit-p95", type=float, default=0.5, help="seconds (0.5)")
    parse.add_argument("--workers", type=int, default=2, help="of one thread each (2)")
    parse.add_argument("--beam", type=int, default=5)
    parse.add_argument("--batch", type=int, default=32, help="largest micro-batch of ct2 (32)")
    parse.add_argument("--rounds", type=int, default=1, help="times that every server is measured, in turns (1)")
    parse.add_argument("--seed", type=int, default=1, help="of the arrivals (1)")
    parse.add_argument("--out", type=Path, help="write OUT.md and OUT.json")
    parse.add_argument("flags", nargs="*", help="behind --: decoding flags of the servers of this package")
    args = parse.parse_args(argv)
    if args.rates != sorted(args.rates) or args.rates[0] <= 0:
        raise BenchError("--rates are not ascending numbers above 0")
    lines = [line for line in Path(f"{args.text}.{args.src}").read_text(encoding="utf-8").split("\n") if line.strip()][: args.limit]
    head = "| server | requests/s | answered | failed | p50 ms | p95 ms | p99 ms |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    print(head, flush=True)
    rounds: list[dict[str, list[Load]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            rounds.append({name: measure(args, name, lines, Path(folder)) for name in args.servers})
    rates = {name: [best(args, found[name]) for found in rounds] for name in args.servers}
    end = "\n".join(f"| {name} | {', '.join(f'{rate:g}' for rate in held)} |" for name, held in rates.items())
    summary = f"\n| server | highest rate with p95 < {args.limit_p95:g} s |\n| --- | --- |\n{end}"
    print(summary)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        rows = [row(name, each) for found in rounds for name, loads in found.items() for each in loads]
        args.out.with_suffix(".md").write_text("\n".join([head, *rows, summary, ""]), encoding="utf-8")
        record = {"argv": sys.argv[1:] if argv is None else argv, "rates": rates}
        record["rounds"] = [{name: [each._asdict() for each in loads] for name, loads in found.items()} for found in rounds]
        args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    run_script(main)
