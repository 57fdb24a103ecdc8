"""The paper's methods as fairseq-generate flags, run in turns on one text, with time, decoder
steps and expansions.

Timesteps are calls of the decoder; expansions are the live hypotheses that these calls extended,
so that fairseq's first step over k copies of a sentence's one hypothesis counts as one. The useful
share is expansions over rows that went through the decoder. An ensemble counts once. FIXED is
fairseq's own generator; the others are ours. DEFAULT and DEFAULT-STREAM stop as fairseq does, as
a command without --stop, the others as the paper does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path += [
    str(Path(__file__).resolve().parents[2] / "bench"),
    str(Path(__file__).resolve().parents[1]),
]

from contenders import OURS, decode, load, make_generator, read  # noqa: E402
from harness import BenchError, Contender, Outputs, check, compare  # noqa: E402, F401
from report import ROOT, cores, machine, named  # noqa: E402, F401
from text import (  # noqa: E402, F401
    Text,
    command_line,
    prepare,
    run_script,
    text_arguments,
)
from write_up import kept, made_by  # noqa: E402

SAME_AS = {  # outputs that must be equal
    "FIXED-STREAM": "FIXED-OURS",
    "VAR-STREAM": "VAR-BATCH",
    "VAR-STR-FIFO": "VAR-BATCH",
    "VAR-STR-FLUSH": "VAR-BATCH",
    "DEFAULT-STREAM": "DEFAULT",
}


@dataclass
class Setting:
    """The paper's letters; rows: total beam width of a step where that is limited
    instead of sentences."""

    k: int
    n: int  # sentences
    delta: float
    M: int
    eps: float = 1 / 6
    rows: int | None = None


def methods(s: Setting) -> dict[str, list[str]]:
    """The flags of every method; GREEDY takes as many rows as the others."""
    batch = ["--batch-size", str(s.n)]
    beam = ["--beam", str(s.k)]
    keep = ["--stop", "ranked"]
    prune = [*keep, "--prune-threshold", str(s.delta), "--prune-children", str(s.M)]
    stream = ["--schedule", "stream", "--stream-width", str(s.n), "--refill-threshold", str(s.eps)]
    if s.rows is not None:
        stream += ["--stream-rows", str(s.rows)]
    fifo = ["--stream-order", "fifo"]
    return {
        "GREEDY": ["--beam", "1", "--batch-size", str(s.n * s.k if s.rows is not None else s.n)],
        "FIXED": [*beam, *batch],
        "FIXED-OURS": [*beam, *batch, *keep],
        "FIXED-STREAM": [*beam, *batch, *keep, *stream],
        "VAR-BATCH": [*beam, *batch, *prune],
        "VAR-STREAM": [*beam, *batch, *prune, *stream],
        "VAR-STR-FIFO": [*beam, *batch, *prune, *stream, *fifo],
    }


def flushed(s: Setting) -> dict[str, list[str]]:
    """The flags of the stream that finishes all its sentences after every 2 n (footnote 3)."""
    return {"VAR-STR-FLUSH": [*methods(s)["VAR-STREAM"], "--stream-flush", str(2 * s.n)]}


def defaults(s: Setting) -> dict[str, list[str]]:
    """The flags of batches and streams with fairseq's own stopping criterion."""
    batch = ["--beam", str(s.k), "--batch-size", str(s.n)]
    stream = ["--schedule", "stream", "--stream-width", str(s.n), "--refill-threshold", str(s.eps)]
    return {"DEFAULT": batch, "DEFAULT-STREAM": [*batch, *stream]}


@dataclass
class Row:
    """A line of a table."""

    method: str
    quality: dict[str, float]  # such as {"BLEU": 41.6}
    seconds: list[float]  # a value for each round
    timesteps: int
    expansions: int
    useful: float
    signature: str
    outputs: str = ""  # how they stand to those of the method that must give the same


@dataclass
class Decoding:
    """A method with its models, batches and generator."""

    name: str
    flags: list[str]
    text: Text
    stock: bool = False
    timesteps: int = 0
    rows: int = 0
    expansions: int = 0
    outputs: Outputs = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loaded = load([*([] if self.stock else OURS), *self.text.flags, *self.flags])
        self.generator = make_generator(self.loaded, self.name)
        if self.stock:
            self.count_calls(self.loaded.models[0].decoder)

    def count_calls(self, decoder: Any) -> None:
        """Count the calls and rows of fairseq's decoder; it is called by its `forward`,
        which no hook sees."""
        forward = decoder.forward

        def counted(tokens, *args, **kwargs):
            self.timesteps += 1
            self.rows += tokens.size(0)
            self.expansions += tokens.size(0) // (self.beam if tokens.size(1) == 1 else 1)
            return forward(tokens, *args, **kwargs)

        decoder.forward = counted

    @property
    def beam(self) -> int:
        return self.loaded.cfg.generation.beam

    def run(self) -> list:
        before = None if self.stock else self.generator.stats.copy()
        self.timesteps = self.rows = self.expansions = 0
        out = decode(self.loaded, self.generator)
        if before is not None:
            found = self.generator.stats.since(before).as_dict()
            self.timesteps, self.rows, self.expansions = (
                found["decoder_calls"],
                found["decoder_rows"],
                found["expansions"],
            )
        return out

    def contender(self) -> Contender:
        def keep(raw: list) -> Outputs:
            self.outputs = read(raw)
            return self.outputs

        return Contender(self.name, self.run, keep, exact=False)

    @property
    def signature(self) -> str:
        own = getattr(getattr(self.generator, "stats", None), "signature", "fairseq")
        return f"{own} ({' '.join(self.flags)})"


def measure(
    text: Text,
    wanted: dict[str, list[str]],
    quality: Callable[[Outputs], dict[str, float]],
    args: argparse.Namespace,
    kind: type[Decoding] = Decoding,
) -> list[dict[str, Any]]:
    """Run these methods in turns; every row's seconds come from the same rounds."""
    decodings = {
        name: kind(name, ["--cpu", *flags], text, stock=name == "FIXED")
        for name, flags in wanted.items()
    }
    comparison = compare(
        [d.contender() for d in decodings.values()],
        args.repeats,
        args.warmup,
        args.threads,
        clock=clock_of(args),
    )
    out = []
    for name, d in decodings.items():
        row = Row(
            name,
            quality(d.outputs),
            comparison[name].seconds,
            d.timesteps,
            d.expansions,
            d.expansions / d.rows,
            d.signature,
        )
        same = decodings.get(SAME_AS.get(name, ""))
        if same is not None:
            row.outputs = f"{check(d.outputs, same.outputs)} to {same.name}"
        out.append(asdict(row))
    return out


def add_text_arguments(parse: argparse.ArgumentParser, limit: int) -> None:
    text_arguments(parse)
    parse.set_defaults(limit=limit)


def add_timing_arguments(parse: argparse.ArgumentParser) -> None:
    parse.add_argument("--repeats", type=int, default=3, help="timed rounds (3)")
    parse.add_argument("--warmup", type=int, default=0, help="rounds before them (0)")
    parse.add_argument("--threads", type=int, default=1, help="torch threads (1)")
    parse.add_argument(
        "--cpu-time",
        action="store_true",
        help="seconds of processor time, for a machine with other work on it",
    )


def clock_of(args: argparse.Namespace) -> Callable[[], float]:
    return time.process_time if args.cpu_time else time.perf_counter


def timing(args: argparse.Namespace) -> str:
    kind = "processor time" if args.cpu_time else "time"
    return f"{kind} of {args.repeats} round(s), {args.threads} thread(s)"


def cached(
    file: Path, key: Sequence[Any], make: Callable[[], list[dict[str, Any]]], about: str = ""
) -> list[dict[str, Any]]:
    """The rows in `file` if they were made from the same key, else new ones.

    about: what the rows were made with, for the tables.
    """
    # other code, other times
    files = sorted((ROOT / "fairseq_ext").rglob("*.py"))
    code = [path.read_text(encoding="utf-8") for path in files]
    known = hashlib.sha256(json.dumps([code, *key], sort_keys=True, default=str).encode())

    def made() -> dict[str, Any]:
        rows = make()
        where = f"load average {os.getloadavg()[0]:.1f} on {cores()} cores, {made_by(machine())}"
        return {"about": f"{about}; {where}", "rows": rows}

    return kept(file, known.hexdigest(), made)["rows"]
