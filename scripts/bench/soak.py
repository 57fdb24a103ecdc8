"""Does the server answer every request, once and with the right text, and does its memory stay flat
over a long day; and while its processes are killed and clients vanish?

    python scripts/bench/soak.py [--requests 100000] [--minutes 600] [--every 2500] [--out OUT]
    python scripts/bench/soak.py --trouble 30 --rate 8 --minutes 60 --every 240

Requests of every kind go to `python -m fairseq_ext.serve` with the demo model, `--connections` at
a time or at random times of a `--rate`: records, required phrases, terms that no other request has,
glossaries that are replaced, n-best lists, event streams (a third of them given up after the first
event), LibreTranslate's form, and requests that are wrong. Lines of the demo test set are requested
over and over, so that each translation can be compared with the offline run's. After every N
requests none is sent until all have their answers and the workers have given back what their steps
left in pieces: then the memory of the server and of all its processes is read, which is what it
keeps. It is read under load as well, in the middle of every round; those readings go up and down
with what is searched at the moment. Idle ones are compared, the median of the first `--readings`
from `--settle` requests on with that of the last.

With --trouble SECONDS there are also requests whose glossary has 300 KB, and clients that close
their connection while the request runs; and so often a worker is killed, a worker is stopped
(SIGSTOP), or the process that forks them is killed. `/health` is requested ten times a second.

Status 1 if memory grows by more than `--allowed` per cent, if a request has a wrong answer or none,
if one is still in the server when no one waits for it, or, with --trouble, if /health took 100 ms
or more in more than 0.1% of the requests or 1 s once.

    --beam N           (2)
    --requests N       (100000)
    --minutes X        after which no round is begun (600)
    --every N          requests from one reading to the next (2500)
    --settle N         requests before the first reading that counts; a fifth by default
    --readings N       of the first and of the last median (5)
    --allowed X        growth of the median in per cent (3)
    --connections N    requests at a time (16)
    --rate X           requests a second, at random times, instead
    --trouble X        seconds from one kill or stop to the next (none)
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import random
import re
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
from harness import BenchError
from report import Page, table
from servers import SERVER_FLAGS, Running, cpu_seconds, running
from text import command_line, read_lines, run_script, text_arguments

KINDS = ["plain"] * 10
KINDS += "phrase terms kept nbest stream stream gone libre refused put".split()
TROUBLED = [*KINDS * 5, "large", "vanished", "vanished", "vanished"]
HEAD = ["requests", "MiB idle", "MiB busy", "requests/s so far"]
JSON, TSV = ({"Content-Type": kind} for kind in ("application/json", "text/tab-separated-values"))
IDLE = 2.5  # seconds without a request before a reading: a worker gives memory back after one
LEFT = 60.0  # seconds in which a request that no one waits for must have ended
LARGE = 15_000  # terms of 20 bytes
TROUBLES = ("kill a worker", "stop a worker", "kill a worker", "kill the fork server")
SLOW, TOO_SLOW = 0.1, 1.0  # seconds of an answer of /health
MARK = "FAIRSEQ_EXT_SOAK"  # in the environment of the server and all its processes
SILENCE = 10  # seconds after which a stopped worker is replaced


class Reading(NamedTuple):
    """Memory in MiB after a number of requests, and in the middle of the round before; requests
    a second so far, the pauses left out."""

    requests: int
    idle: float
    busy: float
    rate: float

    def row(self) -> list[str]:
        return [f"{self.requests:,}", f"{self.idle:.1f}", f"{self.busy:.1f}", f"{self.rate:.0f}"]


class Traffic:
    """Requests by number, the result of them, and the translations that plain ones must have."""

    def __init__(self, lines: list[str], expected: list[str], args: argparse.Namespace):
        self.lines, self.expected, self.args = lines, expected, args
        self.kinds = TROUBLED if args.trouble else KINDS
        self.done: Counter[str] = Counter()
        self.bad: list[str] = []

    async def query(self, client: httpx.AsyncClient, number: int) -> None:
        """Send one request and look at its answer."""
        kind, step = self.kinds[number % len(self.kinds)], len(self.kinds)
        place = (number // step * 7 + number) % len(self.lines)
        try:
            found = await getattr(self, kind)(client, self.lines[place], number)
        except (httpx.HTTPError, KeyError, IndexError) as error:  # or an answer without a text
            found = f"{type(error).__name__}: {error}"
        self.done[kind] += 1
        if found is not None and found != self.expected[place]:
            self.bad.append(f"request {number} ({kind}): {found!r}, not {self.expected[place]!r}")

    async def record(self, client: httpx.AsyncClient, **body: object) -> dict:
        return (await client.post("/v1/translate", json=body)).json()

    async def plain(self, client: httpx.AsyncClient, line: str, number: int) -> str:
        return (await self.record(client, source=line, id=number))["text"]

    async def nbest(self, client: httpx.AsyncClient, line: str, number: int) -> str:
        more = {"nbest": self.args.beam, "detail": True}
        return (await self.record(client, source=line, **more))["text"]

    async def libre(self, client: httpx.AsyncClient, line: str, number: int) -> str:
        body = {"q": line, "source": self.args.src, "target": self.args.tgt}
        return (await client.post("/translate", data=body)).json()["translatedText"]

    async def phrase(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        (met,) = (await self.record(client, source=line, constraints=["very"]))["constraints"]
        return None if met["met"] else "without its phrase"

    async def terms(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        """The first word's translation may be `very`, and the answer must say whether it is there;
        a term of this request alone is next to it."""
        glossary = {line.split()[0]: "very", f"Wort{number}": "house"}
        answer = await self.record(client, source=line, glossary=glossary)
        found = re.search(r"\bvery\b", answer["text"], re.IGNORECASE) is not None
        met = [each["met"] for each in answer["constraints"]]  # of each place in the source
        return None if met and any(met) == found else f"{met} of {answer['text']}"

    async def kept(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        answer = await client.post("/v1/translate", json={"source": line, "glossary": "day"})
        # before the first one is put
        return None if answer.status_code in (200, 404) else answer.text

    async def put(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        terms = f"Patient\tpatient\nWort{number}\thouse\n"
        answer = await client.put("/v1/glossaries/day", content=terms, headers=TSV)
        return None if answer.status_code in (200, 201) else answer.text

    async def refused(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        body = b'{"source": ' if number % 40 < 20 else json.dumps({"source": number}).encode()
        answer = await client.post("/v1/translate", content=body, headers=JSON)
        return None if answer.status_code == 400 else answer.text

    async def stream(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        answers = []
        async with client.stream("POST", "/v1/translate/stream", json={"source": line}) as response:
            async for event in response.aiter_lines():
                if event.startswith("data: "):
                    answers.append(json.loads(event.removeprefix("data: ")))
        return answers[-1].get("text", str(answers[-1]))

    async def gone(self, client: httpx.AsyncClient, line: str, number: int) -> None:
        """A stream that is given up after its first event."""
        async with client.stream("POST", "/v1/translate/stream", json={"source": line}) as response:
            async for _ in response.aiter_lines():
                return

    async def large(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        """As `terms`, with many more of them that the line does not have."""
        terms = {f"Wort{number % 7}-{i}": "house" for i in range(LARGE)}
        answer = await self.record(client, source=line, glossary={line.split()[0]: "very", **terms})
        return None if all(each["met"] for each in answer["constraints"]) else "without its term"

    async def vanished(self, client: httpx.AsyncClient, line: str, number: int) -> None:
        """The client closes the connection, at once or while the request is decoded."""
        with contextlib.suppress(httpx.TimeoutException):
            wait = httpx.Timeout(600, read=(0.001, 0.01, 0.05)[number % 3])
            await client.post("/v1/translate", json={"source": " ".join([line] * 3)}, timeout=wait)

    async def run(self, server: Running) -> list[Reading]:
        """All requests, in rounds, with a reading after each."""
        args, readings = self.args, []
        seconds, end = 0.0, time.monotonic() + 60 * args.minutes
        limits = httpx.Limits(max_connections=None if args.rate else args.connections)
        async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
            while (first := self.done.total()) < args.requests and time.monotonic() < end:
                start, last = time.monotonic(), min(first + args.every, args.requests)
                busy = await self.round(client, range(first, last))
                seconds += time.monotonic() - start
                if self.done.total() != last:
                    self.bad.append(f"{last - self.done.total()} requests have no answer")
                await self.none_is_left(client)
                await asyncio.sleep(IDLE)
                readings.append(Reading(last, memory(started()), busy, last / seconds))
                print(" | ".join(readings[-1].row()), f"load {os.getloadavg()[0]:.1f}", flush=True)
                if len(self.bad) > 20:
                    break
        return readings

    async def round(self, client: httpx.AsyncClient, numbers: range) -> float:
        """Requests of these numbers; MiB when half of them are answered."""
        left, busy, rate = iter(numbers), 0.0, self.args.rate
        draw, start, at = random.Random(numbers.start), time.monotonic(), 0.0

        async def work() -> None:
            nonlocal busy
            for number in left:
                await self.query(client, number)
                if self.done.total() == (numbers.start + numbers.stop) // 2:
                    busy = memory(started())
                if rate:
                    return

        async def later(seconds: float) -> None:
            await asyncio.sleep(max(0.0, start + seconds - time.monotonic()))
            await work()

        if rate:
            times = [at := at + draw.expovariate(rate) for _ in numbers]
            await asyncio.gather(*map(later, times))
        else:
            await asyncio.gather(*(work() for _ in range(self.args.connections)))
        return busy

    async def none_is_left(self, client: httpx.AsyncClient) -> None:
        """Wait until the server has no request; those that were given up take a moment."""
        end = time.monotonic() + LEFT
        while left := pending((await client.get("/metrics")).text):
            if time.monotonic() > end:
                self.bad.append(f"{left:.0f} requests are still there after {self.done.total()}")
                return
            await asyncio.sleep(0.1)


class Repeated(threading.Thread):
    """Does something every few seconds, until `stop`."""

    def __init__(self, every: float, act: Callable[[], None]):
        super().__init__(daemon=True)
        self.every, self.act, self.over = every, act, threading.Event()
        self.start()

    def run(self) -> None:
        at = time.monotonic() + self.every
        while not self.over.wait(max(0.0, at - time.monotonic())):
            self.act()
            at += self.every

    def stop(self) -> None:
        self.over.set()
        self.join(60)


class Health:
    """Requests /health on one connection; seconds of each answer."""

    def __init__(self, url: str):
        address = urlsplit(url)
        self.seconds: list[float] = []
        self.failed = 0
        self.connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)

    def __call__(self) -> None:
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

    def verdict(self) -> tuple[bool, str]:
        """Whether the answers were quick enough, and a sentence."""
        slow, longest = sum(s >= SLOW for s in self.seconds), max(self.seconds, default=0.0)
        share = slow / max(1, len(self.seconds))
        said = f"{len(self.seconds):,} requests of /health, {self.failed} failed, {share:.3%} took "
        said += f"{1000 * SLOW:.0f} ms or more, the longest {1000 * longest:.0f} ms; "
        return not self.failed and share <= 0.001 and longest <= TOO_SLOW, said


class Trouble:
    """Kills and stops processes of the server."""

    def __init__(self, server: int):
        self.server, self.done, self.draw = server, Counter[str](), random.Random(2)

    def __call__(self) -> None:
        name = TROUBLES[self.done.total() % len(TROUBLES)]
        try:
            parents = {pid: parent_of(pid) for pid in started() if pid != self.server}
            of_server = [pid for pid, parent in parents.items() if parent == self.server]
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


def pending(metrics: str) -> float:
    """How many requests a server has not answered."""
    return float(re.search(r"^fairseq_ext_pending (\S+)", metrics, re.MULTILINE)[1])  # type: ignore


def memory(pids: Iterable[int]) -> float:
    """MiB of some processes, each page once, whatever else runs on the machine.

    Anonymous pages, such as those of heaps: their proportional set size, as none but these
    processes share them. Pages of files, such as libraries: of each file as much as the process has
    that holds most of it. Their proportional set size would be smaller the more other processes
    use the same libraries.
    """
    kib, of_files = 0, Counter[str]()
    for each in pids:
        with contextlib.suppress(OSError, StopIteration):  # a process has ended meanwhile
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            kib += next(int(line.split()[1]) for line in rollup if line.startswith("Pss_Anon:"))
            of_files |= files_of(each)  # of both the larger
    return (kib + of_files.total()) / 1024


def files_of(pid: int) -> Counter[str]:
    """KiB that a process has in memory of each file, the pages left out that it has written to."""
    found, path = Counter[str](), ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *values = line.split(maxsplit=5)
        if not name.endswith(":"):  # a mapping: addresses, rights, offset, device, inode and path
            path = values[4] if len(values) > 4 and values[4].startswith("/") else ""
        elif path and name in ("Rss:", "Anonymous:"):
            found[path] += int(values[0]) if name == "Rss:" else -int(values[0])
    return found


def offline(args: argparse.Namespace, lines: list[str]) -> list[str]:
    """The translations of the offline run, as a server reads the lines."""
    from fairseq_ext import Translator

    pair = {"source_lang": args.src, "target_lang": args.tgt}
    made = Translator.from_folder(args.model, cpu=True, beam=args.beam, **pair)
    return [made.translate_text(line).text for line in lines]


def main(argv: list[str] | None = None) -> int:
    parse = command_line(f"{__doc__}{SERVER_FLAGS}")
    text_arguments(parse)
    parse.add_argument("flags", nargs="*", help="behind --: decoding flags of the server")
    args = parse.parse_args(argv)
    args.flags = ["--worker-timeout", str(SILENCE), *args.flags] if args.trouble else args.flags
    os.environ[MARK] = str(os.getpid())
    lines = [line for line in read_lines(args.text, args.src) if len(line.split()) > 1]
    traffic = Traffic(lines[: args.limit], offline(args, lines[: args.limit]), args)
    with tempfile.TemporaryDirectory() as folder, running(args, "refill", Path(folder)) as server:
        health, trouble = Health(server.url), Trouble(server.pid)
        repeated = [Repeated(0.1, health), Repeated(args.trouble, trouble)] if args.trouble else []
        readings = asyncio.run(traffic.run(server))
        for each in repeated:
            each.stop()
        used = cpu_seconds(server.pid)
    settle = args.requests // 5 if args.settle is None else args.settle
    at, n = [reading for reading in readings if reading.requests >= settle], args.readings
    if len(at) < 2 * n and not traffic.bad:
        raise BenchError(
            f"{len(at)} readings from {settle} requests on are too few for two medians of {n}: "
            "lower --settle or --every"
        )
    idle, busy = ([getattr(reading, name) for reading in at] or [0.0] for name in ("idle", "busy"))
    first_mib, last_mib = (statistics.median(part) for part in (idle[:n], idle[-n:]))
    growth = 100 * (last_mib / first_mib - 1) if first_mib else 0.0
    quick, said = health.verdict() if args.trouble else (True, "")
    troubles = f"{counted(trouble.done)}; " if args.trouble else ""
    note = (
        f"{counted(traffic.done)}, {len(traffic.bad)} with a wrong answer or none; {troubles}"
        f"median of the {n} idle readings from {settle:,} requests on: {first_mib:.0f} MiB, of "
        f"the last {n}: {last_mib:.0f} MiB, {growth:+.1f}% (allowed: {args.allowed:g}%); busy: "
        f"from {min(busy):.0f} to {max(busy):.0f} MiB; {said}CPU {used:.0f} s. Beam {args.beam}, "
        f"{args.workers} workers, {len(traffic.lines)} lines.\n"
    )
    print("\n".join(traffic.bad[:10]))
    Page(args.out, note).add(table(HEAD, [reading.row() for reading in readings]))
    return 0 if growth <= args.allowed and not traffic.bad and quick else 1


def counted(names: Counter[str]) -> str:
    """How many there are of each."""
    of_each = ", ".join(f"{number:,} {name}" for name, number in names.items())
    return f"{names.total():,} ({of_each})"


if __name__ == "__main__":
    run_script(main)
