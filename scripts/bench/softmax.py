"""The output layer by itself: full, screened, LSH and TOP over vocabularies of 32,000 to
512,000 words, 1 to 64 rows.

    python scripts/bench/softmax.py [--words 32000 64000] [--rows 1 5 16 64] [--dim 512]
        [--threads 2] [--out OUT]
    python scripts/bench/softmax.py --words 256206 --dim 1024 --rows 1 5 16
        NLLB-200's output layer

From features to the 10 best words of each row. Weights are random and features lie near a word's
embedding, so hits and recall say nothing here: what is timed is LSH at its default {K, u, W} with
T = 6,000 (half of the words, if they are fewer than 12,000) and the t whose list is nearest to
--list words. Ways are timed in turns, medians of --times; seconds of the process (--clock cpu, with
one thread) where the machine does other work. Then the memory: of the weights, and what each way
has next to them, by the process's resident pages before and after it is made.

    --words N ...    (32000 64000 128000 256000 512000)
    --rows N ...     (1 5 16 64)
    --dim N          (512)
    --list N         words that LSH adds, about (1000)
    --threads N      (2)
    --times N        (15)
    --clock CLOCK    wall or cpu (wall)
    --out OUT        write OUT.md and OUT.json
"""

import functools
import gc
import math
import os
import statistics
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import torch
from harness import CLOCKS, time_ways
from report import Page
from text import run_bench

import fairseq_ext  # noqa: F401
from fairseq_ext.core.stats import Stats
from fairseq_ext.kernels.library import give_back_memory
from fairseq_ext.kernels.log_probs import log_softmax_
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
T = TypeVar("T")


def resident() -> float:
    """MiB of this process that are in memory now."""
    gc.collect()
    give_back_memory()
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def softmax_of(weight: torch.Tensor, kind: str) -> LSH | ShortlistSoftmax:
    """`--softmax lsh` or `top` over an output layer."""
    base = torch.arange(min(6000, weight.size(0) // 2), device=weight.device)
    how = dict(layers=[(weight, None)], base=base, temperature=1.0, share="batch")
    meter = ShortlistMeter(Stats(), 5, 0)
    if kind == "top":
        return ShortlistSoftmax(meter=meter, **how)  # type: ignore[arg-type]
    return LSH(16, 3, 100, 2, meter=meter, **how)  # type: ignore[arg-type]  # K, u, W, t


def nearest(hits: torch.Tensor, size: int, tried: Iterable[int] = range(1, 12)) -> int:
    """The t whose list has nearly this size."""
    return min(tried, key=lambda t: abs(int((hits >= t).sum()) - size))


def one_sentence(rows: int, device: torch.device | str = "cpu") -> tuple[Beam, Pool]:
    """A beam of `rows` rows before their first token, of a sentence that needs no words."""
    first = torch.zeros(rows, 1, dtype=torch.long, device=device)
    lengths = torch.ones(1, dtype=torch.long, device=device)
    beam = Beam([0], rows, None, first, torch.zeros(rows, 0, device=device))
    return beam, Pool({}, lengths, [1], lengths - 1, 2)


def states(weight: torch.Tensor, rows: int, turn: int = 0) -> torch.Tensor:
    """Features (rows, d) as those of a trained model: near a word's embedding, so that the word has
    a probability of about 0.7 and the others share the rest (label smoothing leaves them as much).
    Every turn has others: of single ones screening scores far more words."""
    generator = torch.Generator().manual_seed(100 * turn + rows)
    word = weight[torch.randint(weight.size(0), (rows,), generator=generator)]
    x = word / word.norm(dim=1, keepdim=True).square() * (math.log(weight.size(0)) + 1.2)
    return x + 0.7 * torch.randn(x.shape, generator=generator)


def measured(args: Namespace, page: Page, V: int) -> None:
    """The table of one vocabulary."""
    weight = torch.randn(V, args.dim, generator=torch.Generator().manual_seed(1)) * args.dim**-0.5
    linear, mib = Linear(weight), dict[str, float]()

    def log_probs(features: list[torch.Tensor], temperature: float) -> torch.Tensor:
        logits = linear(features[0])
        soft = log_softmax_ if linear.is_compiled else functools.partial(torch.log_softmax, dim=-1)
        return soft(logits)

    def held(name: str, make: Callable[[], T]) -> T:
        """What it makes; what that holds in memory, next to the weights, is added."""
        before = resident()
        made = make()
        mib[name] = mib.get(name, 0.0) + resident() - before
        return made

    full = SimpleNamespace(log_probs=log_probs)
    again = words_scored_again(BEST // 2)
    screen = held("screened", lambda: Screen(weight, None, 1.0, again, [2, 3], TOLERANCE))
    screened = Screened(screen, 1.0, Stats())
    top, lsh = (held(kind, lambda kind=kind: softmax_of(weight, kind)) for kind in ("top", "lsh"))
    x = torch.empty(0)
    beam, pool = one_sentence(1)
    ways: dict[str, Callable[[], object]] = {
        "full": lambda: LogProbs(log_probs([x], 1.0)).topk(BEST),
        "screened": lambda: ScreenedLogProbs(screened, full, x, screen).topk(BEST),
        "screened, as used": lambda: screened(full, [x]).topk(BEST),
        "lsh": lambda: lsh(full, [x], beam, pool).topk(BEST),
        "top": lambda: top(full, [x], beam, pool).topk(BEST),
    }
    rows = []
    for count in args.rows:
        x, (beam, pool) = states(weight, count), one_sentence(count)
        with torch.no_grad():
            lsh.t = held("lsh", lambda x=x: nearest(lsh.hits(x).amax(0), args.list))
            for name, way in ways.items():
                held(name.removesuffix(", as used"), way)

            def renew(turn: int, x=x) -> None:
                x.copy_(states(weight, x.size(0), turn))

            spent = time_ways(ways, args.times, CLOCKS[args.clock], renew)
        ms = [1e3 * statistics.median(taken) for taken in spent.values()]
        rows.append([str(count), *(f"{each:.2f} ms ({ms[0] / each:.2f}x)" for each in ms)])
    page.add_table(["rows", *ways], rows, f"{V:,} words, {args.dim} dimensions")
    more = ", ".join(f"{name} {each:,.0f}" for name, each in mib.items())
    page.add(f"MiB of the weights, {V * args.dim * 4 / 2**20:,.0f}; in addition: {more}.\n")


def main(args: Namespace, page: Page, _: Path) -> None:
    for V in args.words:
        measured(args, page, V)
    how = f"Medians of alternating runs; threads: {args.threads}, clock: {args.clock}."
    page.add(f"{how}\n")


if __name__ == "__main__":
    run_bench(main, __doc__, {"clock": CLOCKS}, has_text=False)
