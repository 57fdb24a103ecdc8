"""The output layer by itself: full, screened, LSH and TOP over vocabularies of 32,000 to
512,000 words, 1 to 64 rows.

    python scripts/bench/softmax.py [--words 32000 64000] [--rows 1 5 16 64] [--dim 512]
        [--threads 2] [--out OUT]
    python scripts/bench/softmax.py --words 256206 --dim 1024 --rows 1 5 16
        NLLB-200's output layer
    python scripts/bench/softmax.py --engines      the linear layers that screening could
                                                   use, instead

From features to the 10 best words of each row. Weights are random and features lie near a word's
embedding, so hits and recall say nothing here: what is timed is LSH at its default {K, u, W} with
T = 6,000 (half of the words, if they are fewer than 12,000) and the t whose list is nearest to
--list words. Ways are timed in turns, medians of --times; seconds of the process (--clock cpu, with
one thread) where the machine does other work. Then the memory: of the weights, and what each way
has next to them, by the process's resident pages before and after it is made.
"""

import functools
import gc
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from arguments import command_line
from report import machine, where_and_when

import fairseq_ext  # noqa: F401
from fairseq_ext.core.stats import Stats
from fairseq_ext.kernels.library import give_back_memory
from fairseq_ext.kernels.log_probs import log_softmax_
from fairseq_ext.kernels.transformer import PackedLinear
from fairseq_ext.model.transformer.weights import Linear
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.shortlists import ShortlistMeter
from fairseq_ext.search.strategies.softmax._shortlist import ShortlistSoftmax
from fairseq_ext.search.strategies.softmax.lsh import LSH
from fairseq_ext.search.strategies.softmax.screened import (
    TOLERANCE,
    Screen,
    Screened,
    ScreenedLogProbs,
    words_scored_again,
)

BEST = 10
Ways = dict[str, Callable[[], Any]]


def resident() -> float:
    """MiB of this process that are in memory now."""
    gc.collect()
    give_back_memory()
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def in_turns(
    ways: Ways, times: int, clock: Callable[[], float], before: Callable[[int], object]
) -> dict[str, float]:
    """Median milliseconds of each way; before: called with the number of each turn."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(times + 1):
        before(turn)
        for name, way in ways.items():
            start = clock()
            way()
            if turn:
                spent[name].append(1e3 * (clock() - start))
    return {name: statistics.median(values) for name, values in spent.items()}


class OutputLayer:
    """The softmax strategies over one random output layer."""

    def __init__(self, V: int, d: int, near: int):
        generator = torch.Generator().manual_seed(1)
        self.V, self.near = V, near
        self.weight = torch.randn(V, d, generator=generator) * d**-0.5
        linear = Linear(self.weight)

        def log_probs(features, temperature):
            logits = linear(features[0])
            return (
                log_softmax_(logits)
                if linear.is_compiled
                else torch.log_softmax(logits, dim=-1, out=logits)
            )

        self.decoder: Any = SimpleNamespace(log_probs=log_probs)
        before = resident()
        self.mib = {"weights": V * d * 4 / 2**20}  # and what each way holds next to them
        self.screen = Screen(
            self.weight, None, 1.0, words_scored_again(BEST // 2), [2, 3], TOLERANCE
        )
        self.screened = Screened(self.screen, 1.0, Stats())
        self.mib["screened"] = resident() - before
        common = dict(
            layers=[(self.weight, None)],
            base=torch.arange(min(6000, V // 2)),
            temperature=1.0,
            share="batch",
        )
        before = resident()
        meter = ShortlistMeter(Stats(), 5, 0)
        self.top = ShortlistSoftmax(meter=meter, **common)  # type: ignore
        self.mib["top"] = resident() - before
        before = resident()
        self.lsh = LSH(16, 3, 100, 2, meter=ShortlistMeter(Stats(), 5, 0), **common)
        self.lsh.probed = True
        self.mib["lsh"] = resident() - before

    def first_use(self, x: torch.Tensor) -> None:
        """Run every way once, and count what that leaves in memory."""
        before = resident()
        ways = self.ways(x)
        self.mib["lsh"] += resident() - before
        for name, way in ways.items():
            before = resident()
            way()
            name = name.removesuffix(", as used")
            self.mib[name] = self.mib.get(name, 0.0) + resident() - before

    def ways(self, x: torch.Tensor) -> Ways:
        beam, pool = one_sentence(x.size(0))
        hits = self.lsh.hits(x).amax(0)
        self.lsh.t = min(range(1, 12), key=lambda t: abs(int((hits >= t).sum()) - self.near))
        return {
            "full": lambda: LogProbs(self.decoder.log_probs([x], 1.0)).topk(BEST),
            "screened": lambda: ScreenedLogProbs(self.screened, self.decoder, x, self.screen).topk(
                BEST
            ),
            "screened, as used": lambda: self.screened(self.decoder, [x]).topk(BEST),
            "lsh": lambda: self.lsh(self.decoder, [x], beam, pool).topk(BEST),
            "top": lambda: self.top(self.decoder, [x], beam, pool).topk(BEST),
        }


def one_sentence(rows: int) -> tuple[Beam, Pool]:
    """A beam of `rows` rows before their first token, of a sentence that needs no words."""
    beam = Beam([0], rows, None, torch.zeros(rows, 1, dtype=torch.long), torch.zeros(rows, 0))
    return beam, Pool({}, torch.ones(1, dtype=torch.long), [1], torch.zeros(1, dtype=torch.long), 2)


def states(weight: torch.Tensor, rows: int, turn: int = 0) -> torch.Tensor:
    """Features (rows, d) as those of a trained model: near a word's embedding, so that the word has
    a probability of about 0.7 and the others share the rest (label smoothing leaves them as much).
    Every turn has others: of single ones screening scores far more words."""
    generator = torch.Generator().manual_seed(100 * turn + rows)
    word = weight[torch.randint(weight.size(0), (rows,), generator=generator)]
    x = word / word.norm(dim=1, keepdim=True).square() * (math.log(weight.size(0)) + 1.2)
    return x + 0.7 * torch.randn(x.shape, generator=generator)


def renew_(x: torch.Tensor, weight: torch.Tensor, turn: int) -> None:
    """Put the features of a turn into x (rows, d)."""
    x.copy_(states(weight, x.size(0), turn))


def engines(weight: torch.Tensor, x: torch.Tensor) -> Ways:
    """Linear layers over all words: by the compiled library with weights of 32, 16 and 8 bits, and
    by FBGEMM in half precision and int8."""
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    half = torch.ops.quantized.linear_prepack_fp16(weight, None)
    scale = (weight.abs().amax(1) / 127).double()
    quantised = torch.quantize_per_channel(
        weight, scale, torch.zeros(weight.size(0), dtype=torch.long), 0, torch.qint8
    )
    int8 = torch.ops.quantized.linear_prepack(quantised, None)
    torch.backends.quantized.engine = engine
    twice = torch.cat([x, x])
    compiled = {
        name: PackedLinear(weight, None, bits)
        for name, bits in (("float32", 32), ("16 bits", 16), ("8 bits", 8))
    }
    return {name: functools.partial(linear, x) for name, linear in compiled.items()} | {
        "half, FBGEMM": lambda: torch.ops.quantized.linear_dynamic_fp16(x, half),
        "int8, FBGEMM": lambda: torch.ops.quantized.linear_dynamic(x, int8, False),
        # high and low bytes of weights and states: high x (high, low), low x high
        "int8, two bytes": lambda: (
            torch.ops.quantized.linear_dynamic(twice, int8, False),
            torch.ops.quantized.linear_dynamic(x, int8, False),
        ),
    }


def main() -> None:
    parse = command_line(__doc__)
    parse.add_argument(
        "--words", type=int, nargs="+", default=[32_000, 64_000, 128_000, 256_000, 512_000]
    )
    parse.add_argument("--rows", type=int, nargs="+", default=[1, 5, 16, 64])
    parse.add_argument("--dim", type=int, default=512)
    parse.add_argument("--list", type=int, default=1000, help="words that LSH adds, about (1000)")
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--times", type=int, default=15)
    parse.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parse.add_argument("--engines", action="store_true")
    parse.add_argument("--out", type=Path, help="write OUT.md and OUT.json")
    args = parse.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.perf_counter if args.clock == "wall" else time.process_time
    out = []
    for V in args.words:
        layer = OutputLayer(V, args.dim, args.list) if not args.engines else None
        weight = torch.randn(V, args.dim) * args.dim**-0.5 if layer is None else layer.weight
        for rows in args.rows:
            x = states(weight, rows)
            with torch.no_grad():
                if layer is not None and rows == args.rows[0]:
                    layer.first_use(x)
                ways = engines(weight, x) if layer is None else layer.ways(x)
                spent = in_turns(ways, args.times, clock, functools.partial(renew_, x, weight))
            base = next(iter(spent.values()))
            print(
                f"{V:7} words {rows:3} rows  "
                + "  ".join(f"{n} {ms:.2f} ms ({base / ms:.2f}x)" for n, ms in spent.items()),
                flush=True,
            )
            out.append(
                {
                    "words": V,
                    "rows": rows,
                    "dim": args.dim,
                    "threads": args.threads,
                    "clock": args.clock,
                    "ms": spent,
                }
            )
            if layer is not None:
                out[-1]["mib"] = layer.mib
        if layer is not None:
            print(
                f"{V:7} words  "
                + "  ".join(f"{name} {mib:+,.0f} MiB" for name, mib in layer.mib.items()),
                flush=True,
            )
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.with_name(args.out.name + ".json").write_text(
            json.dumps(out, indent=1), encoding="utf-8"
        )
        args.out.with_name(args.out.name + ".md").write_text(page(out), encoding="utf-8")


def page(out: list[dict[str, Any]]) -> str:
    """The tables: milliseconds and times the first way, by rows; memory; where and when."""
    lines = []
    for words in dict.fromkeys(run["words"] for run in out):
        runs = [run for run in out if run["words"] == words]
        ways = list(runs[0]["ms"])
        lines += [
            f"### {words:,} words, {runs[0]['dim']} dimensions",
            "",
            "| rows | " + " | ".join(ways) + " |",
        ]
        lines += ["| ---: |" + " ---: |" * len(ways)]
        for run in runs:
            first = run["ms"][ways[0]]
            lines.append(
                f"| {run['rows']} | "
                + " | ".join(f"{ms:.2f} ms ({first / ms:.2f}x)" for ms in run["ms"].values())
                + " |"
            )
        if "mib" in runs[0]:
            lines += ["", f"MiB of the weights, {runs[0]['mib']['weights']:,.0f}; in addition: "]
            lines[-1] += (
                ", ".join(
                    f"{name} {mib:,.0f}"
                    for name, mib in runs[0]["mib"].items()
                    if name != "weights"
                )
                + "."
            )
        lines.append("")
    first_run = out[0]
    lines.append(
        f"Medians of alternating runs; threads: {first_run['threads']}, clock: "
        f"{first_run['clock']}. {where_and_when(machine())}"
    )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
