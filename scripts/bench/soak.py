"""Does the server answer every request, once and with the right text, and does its memory stay flat
over a long day?

    python scripts/bench/soak.py [--requests 100000] [--minutes 600] [--every 2500] [--out OUT]

Requests of every kind go to `python -m fairseq_ext.serve` with the demo model, `--connections` at
a time: records, required phrases, terms that no other request has,
glossaries that are replaced, n-best lists, event streams (a third of them given up after the first
event), LibreTranslate's form, and requests that are wrong. Lines of the demo test set are requested
over and over, so that each translation can be compared with the offline run's. After every N
requests none is sent until all have their answers and the workers have given back what their steps
left in pieces: then the memory of the server and of all its processes is read, which is what it
keeps. It is read under load as well, in the middle of every round; those readings go up and down
with what is searched at the moment. Idle ones are compared, the median of the first `--readings`
from `--settle` requests on with that of the last.

Status 1 if memory grows by more than `--allowed` per cent, if a request has a wrong answer or none,
or if one is still in the server when no one waits for it.

    --beam N           (2)
    --requests N       (100000)
    --minutes X        after which no round is begun (600)
    --every N          requests from one reading to the next (2500)
    --settle N         requests before the first reading that counts; a fifth by default
    --readings N       of the first and of the last median (5)
    --allowed X        growth of the median in per cent (3)
    --connections N    requests at a time (16)
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from harness import BenchError
from programs import SERVER_FLAGS, Running, cpu_seconds, processes, running
from report import Page
from text import command_line, read_lines, run_script, text_arguments

KINDS = ["plain"] * 10
KINDS += "phrase terms kept nbest stream stream gone libre refused put".split()
HEAD = ["requests", "MiB idle", "MiB busy", "requests/s so far"]
JSON, TSV = ({"Content-Type": kind} for kind in ("application/json", "text/tab-separated-values"))
IDLE = 2.5  # seconds without a request before a reading: a worker gives memory back after one
LEFT = 60.0  # seconds in which a request that no one waits for must have ended


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
        self.done: Counter[str] = Counter()
        self.bad: list[str] = []

    def words(self, kind: str, line: str, number: int) -> dict[str, Any]:
        """A request; a kind that is not named here is one of a record."""
        args = self.args
        record: dict[str, Any] = {
            "plain": {"id": number},
            "nbest": {"nbest": args.beam, "detail": True},
            "phrase": {"constraints": ["very"]},
            # the first word's translation may be `very`; a term of this request alone is next to it
            "terms": {"glossary": {line.split()[0]: "very", f"Wort{number}": "house"}},
            "kept": {"glossary": "day"},
        }
        body = b'{"source": ' if number % 40 < 20 else json.dumps({"source": number}).encode()
        terms = f"Patient\tpatient\nWort{number}\thouse\n"
        form = {"q": line, "source": args.src, "target": args.tgt}
        others = {
            "libre": {"url": "/translate", "data": form},
            "refused": {"content": body, "headers": JSON},
            "put": {"method": "PUT", "url": "/v1/glossaries/day", "content": terms, "headers": TSV},
            "stream": {"url": "/v1/translate/stream", "json": {"source": line}},
        }
        found = {"json": {"source": line} | record.get(kind, {})}
        return {"method": "POST", "url": "/v1/translate"} | others.get(kind, found)

    async def query(self, client: httpx.AsyncClient, number: int) -> None:
        """Send one request and look at its answer."""
        kind, step = KINDS[number % len(KINDS)], len(KINDS)
        place = (number // step * 7 + number) % len(self.lines)
        line, expected = self.lines[place], self.expected[place]
        try:
            if kind in ("stream", "gone"):
                fault = await self.stream(client, line, expected, kind == "gone")
            else:
                answer = await client.request(**self.words(kind, line, number))
                fault = fault_of(kind, answer, expected)
        except (httpx.HTTPError, KeyError, IndexError) as error:  # or an answer without a text
            fault = f"{type(error).__name__}: {error}"
        self.done[kind] += 1
        if fault:
            self.bad.append(f"request {number} ({kind}): {fault}, not {expected!r}")

    async def stream(
        self, client: httpx.AsyncClient, line: str, expected: str, is_gone: bool
    ) -> str:
        """What is wrong with a stream of events, or nothing; is_gone: it is given up after its
        first event."""
        last = {"text": ""}
        async with client.stream(**self.words("stream", line, 0)) as response:
            async for event in response.aiter_lines():
                if is_gone:
                    return ""
                if event.startswith("data: "):
                    last = json.loads(event.removeprefix("data: "))
        return "" if last.get("text") == expected else str(last)

    async def run(self, server: Running) -> list[Reading]:
        """All requests, in rounds, with a reading after each."""
        args, readings = self.args, []
        seconds, end = 0.0, time.monotonic() + 60 * args.minutes
        limits = httpx.Limits(max_connections=args.connections)
        async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
            while (first := self.done.total()) < args.requests and time.monotonic() < end:
                start, last = time.monotonic(), min(first + args.every, args.requests)
                busy = await self.round(client, server, range(first, last))
                seconds += time.monotonic() - start
                if self.done.total() != last:
                    self.bad.append(f"{last - self.done.total()} requests have no answer")
                await self.none_is_left(client)
                await asyncio.sleep(IDLE)
                readings.append(Reading(last, memory(processes(server.pid)), busy, last / seconds))
                print(" | ".join(readings[-1].row()), f"load {os.getloadavg()[0]:.1f}", flush=True)
                if len(self.bad) > 20:
                    break
        return readings

    async def round(self, client: httpx.AsyncClient, server: Running, numbers: range) -> float:
        """Requests of these numbers; MiB when half of them are answered."""
        left, busy = iter(numbers), 0.0

        async def work() -> None:
            nonlocal busy
            for number in left:
                await self.query(client, number)
                if self.done.total() == (numbers.start + numbers.stop) // 2:
                    busy = memory(processes(server.pid))

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


def fault_of(kind: str, answer: httpx.Response, expected: str) -> str:
    """What is wrong with an answer, or nothing."""
    codes = {"put": (200, 201), "refused": (400,), "kept": (200, 404)}  # before the first is put
    if kind in codes:
        return "" if answer.status_code in codes[kind] else answer.text
    said = answer.json()
    if kind in ("phrase", "terms"):  # of each place of a term in the source
        met = [each["met"] for each in said["constraints"]]
        there = re.search(r"\bvery\b", said["text"], re.IGNORECASE) is not None
        right = met == [True] if kind == "phrase" else met and any(met) == there
        return "" if right else f"{met} of {said['text']}"
    text = said["translatedText" if kind == "libre" else "text"]
    return "" if text == expected else repr(text)


def pending(metrics: str) -> float:
    """How many requests a server has not answered."""
    return float(re.search(r"^fairseq_ext_pending (\S+)", metrics, re.MULTILINE)[1])  # type: ignore


def memory(pids: Iterable[int]) -> float:
    """MiB of some processes' anonymous pages, such as those of heaps, each page once. Pages of
    files, such as libraries, do not grow, and are shared with what else runs on the machine."""
    kib = 0
    for each in pids:
        with contextlib.suppress(OSError, StopIteration):  # a process has ended meanwhile
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            kib += next(int(line.split()[1]) for line in rollup if line.startswith("Pss_Anon:"))
    return kib / 1024


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
    lines = [line for line in read_lines(args.text, args.src) if len(line.split()) > 1]
    traffic = Traffic(lines[: args.limit], offline(args, lines[: args.limit]), args)
    with tempfile.TemporaryDirectory() as folder, running(args, "refill", Path(folder)) as server:
        readings = asyncio.run(traffic.run(server))
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
    note = (
        f"{counted(traffic.done)}, {len(traffic.bad)} with a wrong answer or none; "
        f"median of the {n} idle readings from {settle:,} requests on: {first_mib:.0f} MiB, of "
        f"the last {n}: {last_mib:.0f} MiB, {growth:+.1f}% (allowed: {args.allowed:g}%); busy: "
        f"from {min(busy):.0f} to {max(busy):.0f} MiB; CPU {used:.0f} s. Beam {args.beam}, "
        f"{args.workers} workers, {len(traffic.lines)} lines.\n"
    )
    print("\n".join(traffic.bad[:10]))
    Page(args.out, note).add_table(HEAD, [reading.row() for reading in readings])
    return int(growth > args.allowed or bool(traffic.bad))


def counted(names: Counter[str]) -> str:
    """How many there are of each."""
    of_each = ", ".join(f"{number:,} {name}" for name, number in names.items())
    return f"{names.total():,} ({of_each})"


if __name__ == "__main__":
    run_script(main)
