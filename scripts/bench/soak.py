"""Does the server answer every request, and stay quick and flat, while its processes are killed and
stopped and clients vanish?

    python scripts/bench/soak.py [--minutes 60] [--rate 8] [--trouble 30] [--out OUT]

Requests of every kind (serve_memory.py) go to `python -m fairseq_ext.serve` with the demo model, at
random times of this rate, whether or not earlier ones are answered; with them requests whose
glossary has 300 KB, and clients that close their connection while the request runs. Every
`--trouble` seconds a worker is killed, a worker is stopped (SIGSTOP), or the process that forks
them is killed. `/health` is requested ten times a second, and memory is read every half minute.

Status 1 if a request has a wrong answer or none, if one is still in the server when no one waits
for it, if memory (the median of the last `--readings`) is more than `--allowed` per cent above that
from the tenth minute on (a sixth of a shorter run), or if /health took 100 ms or more in more than
0.1% of the requests or 1 s once. The load of the machine is printed, since others run there too.
"""

import asyncio
import contextlib
import http.client
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import serve_memory
from arguments import command_line, run_script, text_arguments
from report import git
from serve_memory import memory, offline, pending
from servers import Running, cpu_seconds, running

KINDS = (*serve_memory.KINDS * 5, "large", "vanished", "vanished", "vanished")
LARGE = 15_000  # terms of 20 bytes
TROUBLES = ("kill a worker", "stop a worker", "kill a worker", "kill the fork server")
SETTLED = 600.0  # seconds before the first reading of memory that counts
READ = 30.0  # seconds from one reading to the next
SLOW, TOO_SLOW = 0.1, 1.0  # seconds of an answer of /health
MARK = "FAIRSEQ_EXT_SOAK"  # in the environment of the server and all its processes
SILENCE = 10  # seconds after which a stopped worker is replaced


class Traffic(serve_memory.Traffic):
    """Requests by number, those included that are large or whose client vanishes."""

    async def large(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        """As `terms`, with many more of them that the line does not have."""
        terms = {f"Wort{number % 7}-{i}": "house" for i in range(LARGE)}
        body = {"source": line, "glossary": {line.split()[0]: "very", **terms}}
        answer = (await client.post("/v1/translate", json=body)).json()
        return None if all(each["met"] for each in answer["constraints"]) else "without its term"

    async def vanished(self, client: httpx.AsyncClient, line: str, number: int) -> None:
        """The client closes the connection, at once or while the request is decoded."""
        with contextlib.suppress(httpx.TimeoutException):
            wait = httpx.Timeout(600, read=(0.001, 0.01, 0.05)[number % 3])
            await client.post("/v1/translate", json={"source": " ".join([line] * 3)}, timeout=wait)

    async def send(self, server: Running, seconds: float) -> None:
        """Send requests at random times; wait for the answers."""
        draw, number, tasks = random.Random(1), 0, set[asyncio.Task]()
        start, at = time.monotonic(), 0.0
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
            while (at := at + draw.expovariate(self.args.rate)) < seconds and len(self.bad) < 20:
                await asyncio.sleep(max(0.0, start + at - time.monotonic()))
                task = asyncio.create_task(self.query(client, number))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                number += 1
            while tasks:
                await asyncio.wait(tasks)
            if self.done.total() != number:
                self.bad.append(f"{number - self.done.total()} requests have no answer")
            await self.none_is_left(client)

    def kind_of(self, number: int) -> str:
        """The kind of a request."""
        return KINDS[number % len(KINDS)]


class Watcher(threading.Thread):
    """Does something again and again, until it is stopped.

    every: seconds from one call of `act` to the next.
    """

    def __init__(self, every: float):
        super().__init__(daemon=True)
        self.every, self.over = every, threading.Event()

    def run(self) -> None:
        at = time.monotonic() + self.every
        while not self.over.wait(max(0.0, at - time.monotonic())):
            self.act()
            at += self.every

    def act(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.over.set()
        self.join(60)


class Health(Watcher):
    """Requests /health on one connection; seconds of each answer."""

    def __init__(self, url: str):
        super().__init__(0.1)
        self.seconds: list[float] = []
        self.failed = 0
        address = urlsplit(url)
        self.connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)

    def act(self) -> None:
        begin = time.perf_counter()
        try:
            self.connection.request("GET", "/health")
            response = self.connection.getresponse()
            response.read()
            self.failed += response.status != 200
        except (OSError, http.client.HTTPException):
            self.connection.close()
            self.failed += 1
        self.seconds.append(time.perf_counter() - begin)


class Trouble(Watcher):
    """Kills and stops processes of the server."""

    def __init__(self, server: Running, every: float):
        super().__init__(every)
        self.server, self.done, self.draw = server, Counter[str](), random.Random(2)

    def act(self) -> None:
        name = TROUBLES[self.done.total() % len(TROUBLES)]
        try:
            parents = {pid: parent_of(pid) for pid in started() if pid != self.server.pid}
            of_server = [pid for pid, parent in parents.items() if parent == self.server.pid]
            others = [pid for pid in parents if pid not in of_server]
            victim = self.draw.choice(of_server if name.endswith("server") else others)
            os.kill(victim, signal.SIGSTOP if name.startswith("stop") else signal.SIGKILL)
        except (OSError, ValueError, IndexError):  # it is being replaced
            name = "nothing"
        self.done[name] += 1


def started() -> list[int]:
    """The server and all its processes, those too whose parent was killed."""
    mark, found = f"{MARK}={os.getpid()}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def parent_of(pid: int) -> int:
    """The parent of a process (raises OSError)."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Memory(Watcher):
    """Reads the memory of all processes, in MiB, by seconds since the start."""

    def __init__(self, server: Running, traffic: Traffic):
        super().__init__(READ)
        self.server, self.traffic = server, traffic
        self.start_at = time.monotonic()
        self.readings: list[tuple[float, float]] = []

    def act(self) -> None:
        with contextlib.suppress(OSError, StopIteration):  # a process has ended meanwhile
            mib, at = memory(started()), time.monotonic() - self.start_at
            self.readings.append((at, mib))
            done, load = self.traffic.done.total(), os.getloadavg()[0]
            print(f"| {at / 60:.1f} | {done:,} | {mib:.1f} | {load:.1f} |", flush=True)


def main(argv: list[str] | None = None) -> int:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.set_defaults(batch=32)
    parse.add_argument("--minutes", type=float, default=60.0, help="(60)")
    parse.add_argument("--rate", type=float, default=8.0, help="requests a second (8)")
    parse.add_argument(
        "--trouble", type=float, default=30.0, help="seconds from one kill or stop to the next (30)"
    )
    parse.add_argument(
        "--readings", type=int, default=10, help="of the first and of the last median (10)"
    )
    parse.add_argument("--allowed", type=float, default=5.0, help="growth in per cent (5)")
    parse.add_argument("--workers", type=int, default=2, help="of one thread each (2)")
    parse.add_argument("--beam", type=int, default=2)
    parse.add_argument("--out", type=Path, help="write OUT.md")
    parse.add_argument("flags", nargs="*", help="behind --: decoding flags of the server")
    args = parse.parse_args(argv)
    args.flags = ["--worker-timeout", str(SILENCE), *args.flags]
    lines = Path(f"{args.text}.{args.src}").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if len(line.split()) > 1][: args.limit]
    os.environ[MARK] = str(os.getpid())
    traffic, seconds = Traffic(lines, offline(args, lines), args), 60 * args.minutes
    print("| minutes | answers | MiB | load |\n| ---: | ---: | ---: | ---: |", flush=True)
    with tempfile.TemporaryDirectory() as folder, running(args, "refill", Path(folder)) as server:
        health, trouble = Health(server.url), Trouble(server, args.trouble)
        reading = Memory(server, traffic)
        for each in (health, trouble, reading):
            each.start()
        asyncio.run(traffic.send(server, seconds))
        for each in (trouble, health, reading):
            each.stop()
        left = pending(httpx.get(f"{server.url}/metrics").text)
        used = cpu_seconds(server.pid)
    settled = min(SETTLED, seconds / 6)
    mib = [value for at, value in reading.readings if at >= settled]
    first, last = (statistics.median(part or [0.0]) for part in parts(mib, args.readings))
    slow = sum(each >= SLOW for each in health.seconds)
    share, longest = slow / max(1, len(health.seconds)), max(health.seconds, default=0.0)
    growth = 100 * (last / first - 1) if first else 0.0
    says = (
        f"{counted(traffic.done)}, {len(traffic.bad)} with a wrong answer or none, {left:.0f} left "
        f"in the server; {counted(trouble.done)}; memory {first:.0f} MiB from minute "
        f"{settled / 60:.0f} on, {last:.0f} MiB at the end, {growth:+.1f}% (allowed: "
        f"{args.allowed:g}%); {len(health.seconds):,} requests of /health, {health.failed} failed, "
        f"{share:.3%} took {1000 * SLOW:.0f} ms or more, the longest {1000 * longest:.0f} ms; CPU "
        f"{used:.0f} s in {args.minutes:g} minutes at {args.rate:g} requests a second. Beam "
        f"{args.beam}, {args.workers} workers, {len(lines)} lines, commit "
        f"{(git('rev-parse', '--verify', 'HEAD') or 'none')[:7]}, "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}."
    )
    print("\n".join(["", says, *traffic.bad[:10]]), flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.with_suffix(".md").write_text(f"{says}\n", encoding="utf-8")
    wrong = traffic.bad or left or health.failed
    return 1 if wrong or growth > args.allowed or share > 0.001 or longest > TOO_SLOW else 0


def parts(readings: list[float], count: int) -> tuple[list[float], list[float]]:
    """The first and the last readings, of which none is in both."""
    count = min(count, len(readings) // 2)
    return readings[:count], readings[len(readings) - count :]


def counted(names: Counter[str]) -> str:
    """How many there are of each."""
    of_each = ", ".join(f"{number:,} {name}" for name, number in names.items())
    return f"{names.total():,} ({of_each})"


if __name__ == "__main__":
    run_script(main)
