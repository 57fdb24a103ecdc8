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

import gc
import math
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from harness import CLOCKS, time_ways
from report import Page
from text import command_line

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
Ways = dict[str, Callable[[], Any]]


def resident() -> float:
    """MiB of this process that are in memory now."""
    gc.collect()
    give_back_memory()
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


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
        self.mib: dict[str, float] = {}  # what each way holds next to the weights
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


def main(argv: list[str] | None = None) -> None:
    args = command_line(__doc__, {"clock": CLOCKS}).parse_args(argv)
    torch.set_num_threads(args.threads)
    page = Page(args.out)
    for V in args.words:
        layer, rows, ways = OutputLayer(V, args.dim, args.list), [], {}
        for count in args.rows:
            x = states(layer.weight, count)
            with torch.no_grad():
                if count == args.rows[0]:
                    layer.first_use(x)
                ways = layer.ways(x)

                def renew(turn: int, x=x, weight=layer.weight) -> None:
                    x.copy_(states(weight, x.size(0), turn))

                spent, _ = time_ways(ways, args.times, CLOCKS[args.clock], renew)
            ms = [1e3 * statistics.median(seconds) for seconds in spent.values()]
            rows.append([str(count), *(f"{each:.2f} ms ({ms[0] / each:.2f}x)" for each in ms)])
        page.add_table(["rows", *ways], rows, f"{V:,} words, {args.dim} dimensions")
        more = ", ".join(f"{name} {mib:,.0f}" for name, mib in layer.mib.items())
        weights = V * args.dim * 4 / 2**20
        page.add(f"MiB of the weights, {weights:,.0f}; in addition: {more}.\n")
    how = f"Medians of alternating runs; threads: {args.threads}, clock: {args.clock}."
    page.add(f"{how}\n")


if __name__ == "__main__":
    main()
