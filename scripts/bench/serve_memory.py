"""Does the server's memory stay flat over a long day, and is every request answered once,
with the right text?

    python scripts/bench/serve_memory.py [--requests 100000] [--minutes 600] [--every 2500]
        [--workers 2] [--beam 2] [--out OUT]

Requests of every kind go to `python -m fairseq_ext.serve` with the demo model, `--connections` at
a time: records, required phrases, terms that no other request has, glossaries that are replaced,
n-best lists, event streams (a third of them given up after the first event), LibreTranslate's form,
and requests that are wrong. Lines of the demo test set are requested over and over, so that each
translation can be compared with the offline run's. After every N requests none is sent until
all have their answers and the workers have given back what their steps left in pieces: then the
memory of the server and of all its processes is read, which is what it keeps. It is read under load
as well, in the middle of every round; those readings go up and down with what is searched at the
moment. Idle ones are compared, the median of the first `--readings` from `--settle` requests on
with that of the last: status 1 if memory grows by more than `--allowed` per cent, if a request has
a wrong answer or none, or if one is still in the server when no one waits for it.
"""

import argparse
import asyncio
import json
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import httpx
from arguments import command_line, run_script, text_arguments
from harness import BenchError
from report import git
from servers import Running, processes, running

KINDS = ("plain",) * 10 + (
    "phrase",
    "terms",
    "kept",
    "nbest",
    "stream",
    "stream",
    "gone",
    "libre",
    "refused",
    "put",
)
HEAD = "| requests | MiB idle | MiB busy | requests/s so far |\n| ---: | ---: | ---: | ---: |"
JSON, TSV = ({"Content-Type": kind} for kind in ("application/json", "text/tab-separated-values"))
IDLE = 2.5  # seconds without a request before a reading: a worker gives memory back after one
LEFT = 60.0  # seconds in which a request that no one waits for must have ended


class Reading(NamedTuple):
    """Memory after a number of requests."""

    requests: int
    idle: float  # MiB
    busy: float  # MiB in the middle of the round before it
    rate: float  # requests a second so far, the pauses left out

    def row(self) -> str:
        """A line of the table."""
        return f"| {self.requests:,} | {self.idle:.1f} | {self.busy:.1f} | {self.rate:.0f} |"


class Traffic:
    """Requests by number, the result of them, and the translations that plain ones must have."""

    def __init__(self, lines: list[str], expected: list[str], args: argparse.Namespace):
        self.lines, self.expected, self.args = lines, expected, args
        self.done: Counter[str] = Counter()
        self.bad: list[str] = []

    def kind_of(self, number: int) -> str:
        """The kind of a request."""
        return KINDS[number % len(KINDS)]

    async def query(self, client: httpx.AsyncClient, number: int) -> None:
        """Send one request and look at its answer."""
        kind, place = self.kind_of(number), number // len(KINDS) * 7 + number
        line, expected = self.lines[place % len(self.lines)], self.expected[place % len(self.lines)]
        try:
            if kind in ("stream", "gone"):
                found = await self.stream(client, line, give_up=kind == "gone")
            else:
                found = await getattr(self, kind)(client, line, number)
        except httpx.HTTPError as error:
            found = f"{type(error).__name__}: {error}"
        self.done[kind] += 1
        if found is not None and found != expected:
            self.bad.append(f"request {number} ({kind}): {found!r} is not {expected!r}")

    async def plain(self, client: httpx.AsyncClient, line: str, number: int) -> str:
        return (await client.post("/v1/translate", json={"source": line, "id": number})).json()[
            "text"
        ]

    async def nbest(self, client: httpx.AsyncClient, line: str, number: int) -> str:
        body = {"source": line, "nbest": self.args.beam, "detail": True}
        return (await client.post("/v1/translate", json=body)).json()["text"]

    async def libre(self, client: httpx.AsyncClient, line: str, number: int) -> str:
        body = {"q": line, "source": self.args.src, "target": self.args.tgt}
        return (await client.post("/translate", data=body)).json()["translatedText"]

    async def phrase(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        (met,) = (
            await client.post("/v1/translate", json={"source": line, "constraints": ["very"]})
        ).json()["constraints"]
        return None if met["met"] else "without its phrase"

    async def terms(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        """The first word's translation may be `very`, and the answer must say whether it is there;
        a term of this request alone is next to it."""
        word = line.split()[0]
        answer = (
            await client.post(
                "/v1/translate",
                json={"source": line, "glossary": {word: "very", f"Wort{number}": "house"}},
            )
        ).json()
        found = re.search(r"\bvery\b", answer["text"], re.IGNORECASE) is not None
        met = [each["met"] for each in answer["constraints"]]  # of each place in the source
        return None if met and any(met) == found else f"{met} of {answer['text']}"

    async def kept(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        answer = await client.post("/v1/translate", json={"source": line, "glossary": "day"})
        # before the first one is put
        return None if answer.status_code in (200, 404) else answer.text

    async def put(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        answer = await client.put(
            "/v1/glossaries/day", content=f"Patient\tpatient\nWort{number}\thouse\n", headers=TSV
        )
        return None if answer.status_code in (200, 201) else answer.text

    async def refused(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        body = b'{"source": ' if number % 40 < 20 else json.dumps({"source": number}).encode()
        answer = await client.post("/v1/translate", content=body, headers=JSON)
        return None if answer.status_code == 400 else answer.text

    async def stream(self, client: httpx.AsyncClient, line: str, give_up: bool) -> str | None:
        answers = []
        async with client.stream("POST", "/v1/translate/stream", json={"source": line}) as response:
            async for event in response.aiter_lines():
                if give_up:
                    return None
                if event.startswith("data: "):
                    answers.append(json.loads(event.removeprefix("data: ")))
        return answers[-1].get("text", str(answers[-1]))

    async def run(self, server: Running) -> list[Reading]:
        """All requests, in rounds, with a reading after each."""
        readings: list[Reading] = []
        seconds, end = 0.0, time.monotonic() + 60 * self.args.minutes
        limits = httpx.Limits(max_connections=self.args.connections)
        async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
            while (
                self.done.total() < self.args.requests
                and len(self.bad) <= 20
                and time.monotonic() < end
            ):
                start, first = time.monotonic(), self.done.total()
                busy = await self.round(
                    client, server, range(first, min(first + self.args.every, self.args.requests))
                )
                seconds += time.monotonic() - start
                await self.none_is_left(client)
                await asyncio.sleep(IDLE)
                readings.append(
                    Reading(
                        self.done.total(),
                        memory(processes(server.pid)),
                        busy,
                        self.done.total() / seconds,
                    )
                )
                print(readings[-1].row(), flush=True)
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
                self.bad.append(
                    f"{left:.0f} requests are still in the server after {self.done.total()}"
                )
                return
            await asyncio.sleep(0.1)


def pending(metrics: str) -> float:
    """How many requests a server has not answered."""
    return next(
        float(line.split()[1])
        for line in metrics.splitlines()
        if line.startswith("fairseq_ext_pending ")
    )


def memory(pids: Iterable[int]) -> float:
    """MiB of some processes, each page once, whatever else
    runs on the machine.

    Anonymous pages, such as those of heaps: their proportional set size, as none but these
    processes share them. Pages of files, such as libraries: of each file as much as the process has
    that holds most of it. Their proportional set size would be smaller the more other processes
    use the same libraries.
    """
    kib, of_files = 0, Counter[str]()
    for each in pids:
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
    """The translations of the offline run."""
    from fairseq_ext import Translator

    spm = str(args.model / "spm.model")
    pair = {
        "source_lang": args.src,
        "target_lang": args.tgt,
        "bpe": "sentencepiece",
        "sentencepiece_model": spm,
    }
    made = Translator(
        str(args.model / "checkpoint.pt"), str(args.model), **pair, cpu=True, beam=args.beam
    )  # type: ignore[arg-type]
    return [made.translate_text(line).text for line in lines]  # as a server reads it


def main(argv: list[str] | None = None) -> int:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.set_defaults(batch=32)
    parse.add_argument("--requests", type=int, default=100_000, help="(100000)")
    parse.add_argument(
        "--every", type=int, default=2_500, help="requests from one reading to the next (2500)"
    )
    parse.add_argument(
        "--settle",
        type=int,
        default=20_000,
        help="requests before the first reading that counts (20000)",
    )
    parse.add_argument(
        "--readings", type=int, default=5, help="of the first and of the last median (5)"
    )
    parse.add_argument(
        "--allowed",
        type=float,
        default=3.0,
        help="growth from the first median to the last, in per cent (3)",
    )
    parse.add_argument("--connections", type=int, default=16, help="requests at a time (16)")
    parse.add_argument("--workers", type=int, default=2, help="of one thread each (2)")
    parse.add_argument("--beam", type=int, default=2)
    parse.add_argument(
        "--minutes", type=float, default=600.0, help="after which no more requests are sent (600)"
    )
    parse.add_argument("--out", type=Path, help="write OUT.md")
    parse.add_argument("flags", nargs="*", help="behind --: decoding flags of the server")
    args = parse.parse_args(argv)
    lines = Path(f"{args.text}.{args.src}").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if len(line.split()) > 1][: args.limit]
    commit = (git("rev-parse", "--verify", "HEAD") or "none")[:7]
    traffic = Traffic(lines, offline(args, lines), args)
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as folder, running(args, "refill", Path(folder)) as server:
        readings = asyncio.run(traffic.run(server))
    at = [reading for reading in readings if reading.requests >= args.settle]
    n = args.readings
    if len(at) < 2 * n and not traffic.bad:
        raise BenchError(
            f"{len(at)} readings from {args.settle} requests on are too few for two medians of "
            f"{n}: lower --settle or --every"
        )
    idle, busy = ([getattr(reading, name) for reading in at] or [0.0] for name in ("idle", "busy"))
    first, last = statistics.median(idle[:n]), statistics.median(idle[-n:])
    growth = 100 * (last / first - 1) if first else 0.0
    kinds = ", ".join(f"{n:,} {kind}" for kind, n in traffic.done.items())
    says = (
        f"{traffic.done.total():,} requests ({kinds}), {len(traffic.bad)} with a wrong answer or "
        f"none; median of the {n} idle readings from {args.settle:,} requests on: {first:.0f} MiB, "
        f"of the last {n}: {last:.0f} MiB, {growth:+.1f}% (allowed: {args.allowed:g}%); busy: "
        f"{statistics.median(busy[:n]):.0f} and {statistics.median(busy[-n:]):.0f} MiB, from "
        f"{min(busy):.0f} to {max(busy):.0f}. "
        f"Beam {args.beam}, {args.workers} workers, {args.connections} connections, {len(lines)} "
        f"lines, commit {commit}, {time.strftime('%Y-%m-%d', time.gmtime())}."
    )
    print("\n".join(["", says, *traffic.bad[:10]]), flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        table = "\n".join([HEAD, *(reading.row() for reading in readings)])
        args.out.with_suffix(".md").write_text(f"{says}\n\n{table}\n", encoding="utf-8")
    return 0 if growth <= args.allowed and not traffic.bad else 1


if __name__ == "__main__":
    run_script(main)
