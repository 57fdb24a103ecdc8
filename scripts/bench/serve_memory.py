"""Does the server's memory stay flat over a long day, and is every request answered once, with the right text?

    python scripts/bench/serve_memory.py [--requests 100000] [--minutes 600] [--every 2500] [--workers 2] [--beam 2] [--out OUT]

Requests of every kind go to `python -m fairseq_ext.serve` with the demo model, `--connections` at a time: records, required phrases, terms
that no other request has, glossaries that are replaced, n-best lists, event streams (a third of them given up after the first event),
LibreTranslate's form, and requests that are wrong. Lines of the demo test set are asked for over and over, so that each translation can be
compared with the offline run's. After every so many requests the memory of the server and of all its processes is read from /proc: the
proportional set size, in which a page that several processes share counts once. It goes up and down with what is searched at the moment,
so medians are compared, of the first `--readings` from `--settle` requests on and of the last: status 1 if it grows by more than
`--allowed` per cent, or if a request has a wrong answer or none.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
from arguments import command_line, run_script, text_arguments
from harness import BenchError
from report import git
from servers import Running, running

KINDS = ("plain",) * 10 + ("phrase", "terms", "kept", "nbest", "stream", "stream", "gone", "libre", "refused", "put")


class Traffic:
    """Requests by number, what came of them, and the translations that plain ones must have."""

    def __init__(self, lines: list[str], expected: list[str], args: argparse.Namespace):
        self.lines, self.expected, self.args = lines, expected, args
        self.done: Counter[str] = Counter()
        self.bad: list[str] = []

    async def ask(self, client: httpx.AsyncClient, number: int) -> None:
        """Send one request and look at its answer."""
        kind, place = KINDS[number % len(KINDS)], number // len(KINDS) * 7 + number
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
        return (await client.post("/v1/translate", json={"source": line, "id": number})).json()["text"]

    async def nbest(self, client: httpx.AsyncClient, line: str, number: int) -> str:
        body = {"source": line, "nbest": self.args.beam, "detail": True}
        return (await client.post("/v1/translate", json=body)).json()["text"]

    async def libre(self, client: httpx.AsyncClient, line: str, number: int) -> str:
        body = {"q": line, "source": self.args.src, "target": self.args.tgt}
        return (await client.post("/translate", data=body)).json()["translatedText"]

    async def phrase(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        (met,) = (await client.post("/v1/translate", json={"source": line, "constraints": ["very"]})).json()["constraints"]
        return None if met["met"] else "without its phrase"

    async def terms(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        """The first word's translation is `very`; a term of this request alone is beside it."""
        word = line.split()[0]
        answer = (await client.post("/v1/translate", json={"source": line, "glossary": {word: "very", f"Wort{number}": "house"}})).json()
        return None if all(each["met"] for each in answer["constraints"]) else "without its term"

    async def kept(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        answer = await client.post("/v1/translate", json={"source": line, "glossary": "day"})
        return None if answer.status_code in (200, 404) else answer.text  # before the first one is put

    async def put(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        answer = await client.put("/v1/glossaries/day", content=f"Patient\tpatient\nWort{number}\thouse\n")
        return None if answer.status_code in (200, 201) else answer.text

    async def refused(self, client: httpx.AsyncClient, line: str, number: int) -> str | None:
        answer = await client.post("/v1/translate", content=b'{"source": ' if number % 40 < 20 else json.dumps({"source": number}).encode())
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

    async def run(self, server: Running) -> list[tuple[int, float, float]]:
        """All requests; (requests, MiB, seconds) after every so many."""
        readings: list[tuple[int, float, float]] = []
        numbers, start = itertools.count(), time.monotonic()
        limits = httpx.Limits(max_connections=self.args.connections)
        async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:

            async def work() -> None:
                for number in numbers:
                    if number >= self.args.requests or len(self.bad) > 20 or time.monotonic() - start > 60 * self.args.minutes:
                        return
                    await self.ask(client, number)
                    if self.done.total() % self.args.every == 0:
                        readings.append((self.done.total(), memory(server.pid), time.monotonic() - start))
                        print(row(readings[-1]), flush=True)

            await asyncio.gather(*(work() for _ in range(self.args.connections)))
        return readings


def processes(pid: int) -> Iterator[int]:
    """A process and all that it has started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from processes(int(child))


def memory(pid: int) -> float:
    """MiB of a process and all that it has started: the proportional set size."""
    kib = 0
    for each in processes(pid):
        lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        kib += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kib / 1024


def row(reading: tuple[int, float, float]) -> str:
    """A line of the table."""
    requests, mib, seconds = reading
    return f"| {requests:,} | {mib:.1f} | {requests / seconds:.0f} |"


def offline(args: argparse.Namespace, lines: list[str]) -> list[str]:
    """The translations of the offline run."""
    from fairseq_ext import Translator

    spm = str(args.model / "spm.model")
    pair = {"source_lang": args.src, "target_lang": args.tgt, "bpe": "sentencepiece", "sentencepiece_model": spm}
    made = Translator(str(args.model / "checkpoint.pt"), str(args.model), **pair, cpu=True, beam=args.beam)  # type: ignore[arg-type]
    return [found[0].text for found in made.translate(lines)]


def main(argv: list[str] | None = None) -> int:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.set_defaults(batch=32)
    parse.add_argument("--requests", type=int, default=100_000, help="(100000)")
    parse.add_argument("--every", type=int, default=2_500, help="requests from one reading to the next (2500)")
    parse.add_argument("--settle", type=int, default=20_000, help="requests before the first reading that counts (20000)")
    parse.add_argument("--readings", type=int, default=5, help="of the first and of the last median (5)")
    parse.add_argument("--allowed", type=float, default=3.0, help="growth from the first median to the last, in per cent (3)")
    parse.add_argument("--connections", type=int, default=16, help="requests at a time (16)")
    parse.add_argument("--workers", type=int, default=2, help="of one thread each (2)")
    parse.add_argument("--beam", type=int, default=2)
    parse.add_argument("--minutes", type=float, default=600.0, help="after which no more requests are sent (600)")
    parse.add_argument("--out", type=Path, help="write OUT.md")
    parse.add_argument("flags", nargs="*", help="behind --: decoding flags of the server")
    args = parse.parse_args(argv)
    lines = Path(f"{args.text}.{args.src}").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if len(line.split()) > 1][: args.limit]
    commit = (git("rev-parse", "--verify", "HEAD") or "none")[:7]
    traffic = Traffic(lines, offline(args, lines), args)
    head = "| requests | MiB | requests/s so far |\n| ---: | ---: | ---: |"
    print(head, flush=True)
    with tempfile.TemporaryDirectory() as folder, running(args, "refill", Path(folder)) as server:
        readings = asyncio.run(traffic.run(server))
        left = httpx.get(f"{server.url}/metrics").text
    at = [mib for requests, mib, _ in readings if requests >= args.settle]
    n = args.readings
    if len(at) < 2 * n and not traffic.bad:
        raise BenchError(f"{len(at)} readings from {args.settle} requests on are too few for two medians of {n}: lower --settle or --every")
    first, last = statistics.median(at[:n] or [0.0]), statistics.median(at[-n:] or [0.0])
    growth = 100 * (last / first - 1) if first else 0.0
    pending = next(line for line in left.splitlines() if line.startswith("fairseq_ext_pending "))
    kinds = ", ".join(f"{n:,} {kind}" for kind, n in traffic.done.items())
    says = (
        f"{traffic.done.total():,} requests ({kinds}), {len(traffic.bad)} with a wrong answer or none, {pending.split()[1]} left over; "
        f"median of the {n} readings from {args.settle:,} requests on: {first:.0f} MiB, of the last {n}: {last:.0f} MiB, {growth:+.1f}% "
        f"(allowed: {args.allowed:g}%); lowest and highest: {min(at, default=0.0):.0f} and {max(at, default=0.0):.0f} MiB. "
        f"Beam {args.beam}, {args.workers} workers, {args.connections} connections, {len(lines)} lines, "
        f"commit {commit}, {time.strftime('%Y-%m-%d', time.gmtime())}."
    )
    print("\n".join(["", says, *traffic.bad[:10]]), flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        table = "\n".join([head, *map(row, readings)])
        args.out.with_suffix(".md").write_text(f"{says}\n\n{table}\n", encoding="utf-8")
    return 0 if growth <= args.allowed and not traffic.bad and float(pending.split()[1]) == 0 else 1


if __name__ == "__main__":
    run_script(main)
