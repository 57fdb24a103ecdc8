"""The output layer on a GPU, from features to the 10 best words of each row: all words, LSH by its
CUDA kernels, LSH by torch's functions, for 32,000 to 256,206 words; and each kernel by itself.

    python scripts/bench/gpu_lsh.py [--device cpu] [--quick]
"""

# ruff: noqa: B023  (what is timed is called inside of its loop)

import argparse
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from softmax import BEST, one_sentence, states  # noqa: E402

from fairseq_ext.core.stats import Stats  # noqa: E402
from fairseq_ext.kernels import lsh_cuda, lsh_torch  # noqa: E402
from fairseq_ext.search.log_probs import LogProbs  # noqa: E402
from fairseq_ext.search.strategies.softmax import lsh as strategy  # noqa: E402
from fairseq_ext.search.strategies.softmax._lsh_index import Parameters  # noqa: E402
from fairseq_ext.search.strategies.softmax._shortlist import ShortlistMeter  # noqa: E402
from fairseq_ext.search.strategies.softmax.lsh import LSH  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda")
parser.add_argument("--quick", action="store_true")
args = parser.parse_args()
there = torch.device("cuda" if args.device == "cuda" else "cpu")
cuda = there.type == "cuda"
wait = torch.cuda.synchronize if cuda else lambda: None
missing = lsh_cuda.unavailable_reason()
WAYS = ("CUDA kernels", "torch's functions")


def line(*cells):
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def head(title, *cells, words=1):
    """A heading and the head of a table, whose first columns hold words."""
    print(f"\n### {title}\n")
    line(*cells)
    line(*["---"] * words, *["---:"] * (len(cells) - words))


def median(act, times=5 if args.quick else 40):
    """Microseconds, host included: a decoder waits for what follows."""
    spent = []
    for turn in range(times + 5):
        wait()
        start = time.perf_counter()
        act()
        wait()
        if turn >= 5:
            spent.append(1e6 * (time.perf_counter() - start))
    return statistics.median(spent)


def on_device(beam, pool):
    """What has tensors, with them on the device."""
    for each in (beam, pool):
        for name, value in list(vars(each).items()):
            if isinstance(value, torch.Tensor):
                object.__setattr__(each, name, value.to(there))
    return beam, pool


@torch.no_grad()
def layer(V, d, dtype, rows_list):
    weight = torch.randn(V, d, generator=torch.Generator().manual_seed(1)) * d**-0.5
    on = weight.to(there, dtype)
    decoder = SimpleNamespace(
        log_probs=lambda x, t: torch.log_softmax((x[0] @ on.t()).float(), dim=-1)
    )
    both = {}
    real = strategy.kernels_for
    for name in WAYS:
        strategy.kernels_for = real if name == WAYS[0] else lambda weight: lsh_torch
        try:
            both[name] = LSH(
                Parameters(16, 3, 100, 1, "direct"),
                2,
                None,
                layers=[(on, None)],
                base=torch.arange(min(6000, V // 2), device=there),
                temperature=1.0,
                share="batch",
                meter=ShortlistMeter(Stats(), 5, 0),
            )
        finally:
            strategy.kernels_for = real
        both[name].probed = True
    for rows in rows_list:
        x = states(weight, rows).to(there, dtype)
        beam, pool = on_device(*one_sentence(rows))
        found = {}
        cells = [median(lambda: LogProbs(decoder.log_probs([x], 1.0)).topk(BEST))]
        for name, lsh in both.items():
            hits = lsh.hits(x).amax(0)
            lsh.t = min(range(1, 12), key=lambda t: abs(int((hits >= t).sum()) - 1000))
            strategy.kernels_for = real if name == WAYS[0] else lambda weight: lsh_torch
            try:
                cells.append(median(lambda lsh=lsh: lsh(decoder, [x], beam, pool).topk(BEST)))
                found[name] = lsh(decoder, [x], beam, pool).topk(BEST)[1]
            finally:
                strategy.kernels_for = real
        same = len({str(each.tolist()) for each in found.values()}) == 1
        line(
            f"{V} x {d}, {str(dtype)[6:]}",
            rows,
            *(f"{us:.0f}" for us in cells),
            "the same" if same else "not the same",
        )


@torch.no_grad()
def parts(V, d, rows):
    """Each kernel next to torch's function of the same name."""
    g = torch.Generator().manual_seed(1)
    weight = (torch.randn(V, d, generator=g) * d**-0.5).to(there)
    x = states(weight.cpu(), rows).to(there)
    dims = lsh_torch.draw_dimensions(d, 16, 3, 100, 1).to(there)
    always = torch.zeros(V, dtype=torch.bool, device=there)
    always[:6000] = True
    took = {}
    for kernels in (lsh_cuda, lsh_torch):
        if kernels is lsh_cuda and missing:
            continue
        codes = kernels.wta_hash(weight, dims, 3)
        spans = lsh_torch.sort_words(codes)
        direct, cuckoo = lsh_torch.build_direct(spans, 1 << 12), kernels.build_cuckoo(spans, 1)
        of_rows = kernels.wta_hash(x, dims, 3)
        start, length = kernels.lookup_direct(of_rows, direct)
        words = spans.words.view(-1)
        hits = kernels.count_hits(start, length, words, V)
        most = hits.amax(0)
        t = min(range(1, 12), key=lambda t: abs(int((most >= t).sum()) - 1000))
        ids = kernels.compact(hits, t, always)
        acts = {
            "wta_hash": lambda: kernels.wta_hash(x, dims, 3),
            "lookup_direct": lambda: kernels.lookup_direct(of_rows, direct),
            "lookup_cuckoo": lambda: kernels.lookup_cuckoo(of_rows, cuckoo, V),
            "count_hits": lambda: kernels.count_hits(start, length, words, V),
            "compact": lambda: kernels.compact(hits, t, always),
            "gather": lambda: kernels.gather(weight, ids),
        }
        naive = {
            "count_hits": lambda: lsh_cuda.count_hits(start, length, words, V, warp=False),
            "compact": lambda: lsh_cuda.compact(hits, t, always, optimised=False),
        }
        took[kernels, False] = {what: median(act) for what, act in acts.items()}
        if kernels is lsh_cuda:
            took[kernels, True] = {what: median(act) for what, act in naive.items()}
    for what in took[lsh_torch, False]:
        cells = [
            took.get(way, {}).get(what)
            for way in ((lsh_cuda, False), (lsh_cuda, True), (lsh_torch, False))
        ]
        line(what, f"{V} x {d}", rows, *("" if us is None else f"{us:.0f}" for us in cells))


print(
    "Microseconds, the host's included: medians."
    + (f" No CUDA kernels: {missing}." if missing else "")
)
head(
    "The output layer, from features to the best words of each row",
    "words x dimensions, type", "rows", "all words", *WAYS, "words of both",
)  # fmt: skip
if args.quick:
    layer(4000, 64, torch.float32, [5])
else:
    for V, d in ((32000, 1024), (64000, 512), (256206, 1024)):
        for dtype in (torch.float32, torch.float16):
            try:
                layer(V, d, dtype, [1, 5, 12, 80])
            except Exception as error:
                line(f"{V} x {d}, {str(dtype)[6:]}", f"{type(error).__name__}: {str(error)[:300]}")
head(
    "Each kernel by itself",
    "kernel", "words x dimensions", "rows", WAYS[0], "its naive form", WAYS[1], words=2,
)  # fmt: skip
for rows in (5,) if args.quick else (5, 12, 80):  # 12: Tables 3 and 4 of the paper
    parts(4000 if args.quick else 32000, 512, rows)
