"""The tables of the LSH paper that are times on a GPU, in its shapes (1,000 dimensions, 12 rows):

Table 3: the product of the output layer, with 12 rows and with one;
Table 4: each stage of the softmax, full and LSH, and the naive forms of two stages;
Table 7: speed-up of the softmax for the four sizes of vocabulary, and of a whole step of the search
with an LSTM of Table 1's size.

Then the output layer from features to the 10 best words of each row: all words, LSH by its CUDA
kernels, LSH by torch's functions, for 32,000 to 256,206 words.

    python scripts/bench/gpu_lsh.py [--device cpu] [--quick]

Weights are random, and features lie near a word's embedding (softmax.py). Two times stand next to
each other: `device`, the duration of the kernels and copies by torch's profiler, and `host`, until
the host has waited for the result, which for short kernels is mostly the time to launch them.
"""

# ruff: noqa: B023  (what is timed is called inside of its loop)

import functools
import logging
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts" / "bench")]
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY  # noqa: E402
from gpu_step import median_us, ms_of_a_step, parsed  # noqa: E402
from models import batch, generators, run, task  # noqa: E402
from models import on_device as batch_on_device  # noqa: E402
from softmax import BEST, one_sentence, states  # noqa: E402

from fairseq_ext.core.stats import Stats  # noqa: E402
from fairseq_ext.kernels import lsh_cuda, lsh_torch  # noqa: E402
from fairseq_ext.search.log_probs import LogProbs  # noqa: E402
from fairseq_ext.search.shortlists import ShortlistMeter  # noqa: E402
from fairseq_ext.search.strategies.softmax import lsh as strategy  # noqa: E402
from fairseq_ext.search.strategies.softmax.lsh import LSH  # noqa: E402

args = parsed(__doc__)
there = torch.device(args.device)
cuda = there.type == "cuda"
missing = lsh_cuda.unavailable_reason()
WAYS = ("CUDA kernels", "torch's functions")
print(f"No CUDA kernels: {missing}." if missing else "Kernels: CUDA.", flush=True)


def head(title, *cells):
    """A heading and the head of a table."""
    print(f"\n### {title}\n\n| " + " | ".join(cells) + " |\n| --- |" + " ---: |" * (len(cells) - 1))


def median(act):
    return median_us(act, args.device, 5 if args.quick else 40)


def device_us(act, times=5 if args.quick else 20):
    """Microseconds of kernels and copies on the device, a call; nan on a CPU."""
    if not cuda:
        return float("nan")
    from torch.profiler import ProfilerActivity, profile

    act()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(times):
            act()
        torch.cuda.synchronize()
    events = [e for e in seen.profiler.kineto_results.events() if "CUDA" in str(e.device_type())]
    return sum(event.duration_ns() for event in events) / 1e3 / times


def both_us(act):
    return device_us(act), median(act)


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
                *(16, 3, 100, 2),  # K, u, W, t
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
        line, found = {}, {}
        line["full"] = median(lambda: LogProbs(decoder.log_probs([x], 1.0)).topk(BEST))
        for name, lsh in both.items():
            hits = lsh.hits(x).amax(0)
            lsh.t = min(range(1, 12), key=lambda t: abs(int((hits >= t).sum()) - 1000))
            strategy.kernels_for = real if name == WAYS[0] else lambda weight: lsh_torch
            try:
                line[name] = median(lambda lsh=lsh: lsh(decoder, [x], beam, pool).topk(BEST))
                found[name] = lsh(decoder, [x], beam, pool).topk(BEST)[1]
            finally:
                strategy.kernels_for = real
        same = len({str(each.tolist()) for each in found.values()}) == 1
        print(
            f"| {V} x {d}, {str(dtype)[6:]} | {rows} | "
            + " | ".join(f"{us:.0f}" for us in line.values())
            + f" | {'the same' if same else '**not the same**'} |",
            flush=True,
        )


@torch.no_grad()
def products(V, d):
    """Table 3."""
    title = f"Table 3: products (rows, {d}) x ({d}, {V}), float32"
    head(title, "rows", "device ms", "Gflop/s", "host ms")
    weight = torch.randn(V, d, device=there)
    for rows in (12, 1):
        x = torch.randn(rows, d, device=there)
        device, host = both_us(lambda: x @ weight.t())
        rate = 2e-3 * rows * d * V / device
        print(f"| {rows} | {device / 1e3:.4f} | {rate:.1f} | {host / 1e3:.4f} |", flush=True)


@torch.no_grad()
def stages(V, d, K, u, W, rows=12, size=6177, whole=False):
    """Table 4 for a shortlist of `size` words, as the paper's; returns the speed-up of Table 7.
    whole: no table, only the speed-up."""
    kernels = lsh_cuda if cuda and lsh_cuda.unavailable_reason() is None else lsh_torch
    weight = torch.randn(V, d, generator=torch.Generator().manual_seed(1)) * d**-0.5
    x = states(weight, rows).to(there)
    weight = weight.to(there)
    index = lsh_torch.build_index(weight, K, u, W, 1, kernels.wta_hash)
    dims, offsets, words = index.dimensions, index.offsets, index.words
    codes = kernels.wta_hash(x, dims, u)
    start, length = kernels.lookup(codes, offsets)
    hits = kernels.count_hits(start, length, words, V)
    found = hits.amax(0)
    # t: about 1,000 words by their hits; the most frequent words fill the list up to its size
    t = min(range(1, W), key=lambda t: abs(int((found >= t).sum()) - size // 6))
    listed = found >= t
    always = (~listed).cumsum(0) <= size - int(listed.sum())
    ids = kernels.compact(hits, t, always)
    short = kernels.gather(weight, ids)
    logits, full_logits = x @ short.t(), x @ weight.t()

    def lookup(**form):
        start, length = kernels.lookup(codes, offsets)
        return kernels.count_hits(start, length, words, V, **form)

    def all_stages():
        start, length = kernels.lookup(kernels.wta_hash(x, dims, u), offsets)
        ids = kernels.compact(kernels.count_hits(start, length, words, V), t, always)
        return torch.log_softmax(x @ kernels.gather(weight, ids).t(), dim=-1)

    acts = {
        "full: softmax": lambda: torch.log_softmax(x @ weight.t(), dim=-1),
        "full: matrix multiply": lambda: x @ weight.t(),
        "full: normalization": lambda: torch.log_softmax(full_logits, dim=-1),
        "LSH: softmax": all_stages,
        "LSH: WTA hash": lambda: kernels.wta_hash(x, dims, u),
        "LSH: lookup": lookup,
        "LSH: candidate list": lambda: kernels.compact(hits, t, always),
        "LSH: construct E": lambda: kernels.gather(weight, ids),
        "LSH: matrix multiply": lambda: x @ short.t(),
        "LSH: normalization": lambda: torch.log_softmax(logits, dim=-1),
    }
    naive = {}
    if whole:
        acts = {name: act for name, act in acts.items() if name.endswith("softmax")}
    elif kernels is lsh_cuda:
        naive = {
            "LSH: lookup": [lambda: lookup(warp=False)],
            # a counter and a sort; torch's nonzero, which is CUB's copy-if
            "LSH: candidate list": [
                lambda: kernels.compact(hits, t, always, optimised=False),
                lambda: lsh_torch.compact(hits, t, always),
            ],
        }
        for name, forms in naive.items():
            if not all(form().equal(acts[name]()) for form in forms):
                print("THE NAIVE FORM FINDS OTHER WORDS:", name)
    spent = {name: both_us(act) for name, act in acts.items()}
    forms_columns = [
        f"{form}: {column}"
        for form in ("naive", "torch's nonzero")
        for column in ("device us", "slowdown", "host us", "slowdown")
        if naive
    ]
    head(
        f"Table 4: {V} words x {d}, {rows} rows, {{{K}, {u}, {W}}}, t = {t}: {ids.numel()} words "
        f"listed, spans of {length.float().mean():.1f} words, the longest {int(length.max())}",
        "stage", "device us", "share", "host us", *forms_columns,
    )  # fmt: skip
    for name, (device, host) in spent.items():
        all_of_it = spent[name.split(":")[0] + ": softmax"][0]
        line = f"| {name} | {device:.1f} | {100 * device / all_of_it:.1f} % | {host:.1f} |"
        cells = []
        for form in naive.get(name, ()):
            slow, slow_host = both_us(form)
            cells += [f"{slow:.1f}", f"{slow / device:.2f}x"]
            cells += [f"{slow_host:.1f}", f"{slow_host / host:.2f}x"]
        cells += [""] * (len(forms_columns) - len(cells))
        print(line + "".join(f" {cell} |" for cell in cells), flush=True)
    full, lsh = spent["full: softmax"], spent["LSH: softmax"]
    return f"device {full[0] / lsh[0]:.2f}x, host {full[1] / lsh[1]:.2f}x"


def overall(V, d, flags, beam=12):
    """A step of the search with Table 1's LSTM: two layers, no attention."""
    torch.manual_seed(1)
    sizes = {f"{side}_{what}": d for side in ("encoder", "decoder") for what in ("embed_dim",)}
    sizes |= {"encoder_hidden_size": d, "decoder_hidden_size": d, "decoder_out_embed_dim": d}
    sizes |= {"encoder_layers": 2, "decoder_layers": 2, "decoder_attention": "0"}
    made = Namespace(arch="lstm", dropout=0.0, criterion="cross_entropy", **sizes)
    ARCH_CONFIG_REGISTRY["lstm"](made)
    words = V - 4
    model = ARCH_MODEL_REGISTRY["lstm"].build_model(made, task(words=words)).to(there).eval()
    sample = batch_on_device(batch([24], words=words), there)
    ms = {}
    for name, softmax in (("full", {}), ("LSH", flags)):
        runs = []
        for steps in (4, 8) if args.quick else (16, 48):
            ours = generators(
                [model], softmax, words=words, beam=beam, min_len=steps, max_len_b=steps
            ).ours
            runs.append((functools.partial(run, ours, sample), steps))
        ms[name] = ms_of_a_step(runs, args.device)
    print(
        f"\nA step at beam {beam} with an LSTM of 2 x {d}, {V} words: full "
        f"{ms['full']:.3f} ms, LSH {ms['LSH']:.3f} ms, {ms['full'] / ms['LSH']:.2f}x; "
        f"{ours.stats.softmax.vocab_mean.value():.0f} words listed",
        flush=True,
    )


def guarded(act, *shape):
    try:
        return act(*shape)
    except Exception as error:
        print(f"{act.__name__} {shape}: {type(error).__name__}: {str(error)[:300]}", flush=True)


logging.disable(logging.INFO)
guarded(products, 3000 if args.quick else 50000, 100 if args.quick else 1000)
gained = {}
for V in (4000, 5000) if args.quick else (40000, 50000, 66000, 25000):  # F2E, J2E, E2J, U2E
    for K in (8, 16):
        shape = (V, 100, K, 3, 50, 12, 600) if args.quick else (V, 1000, K, 3, 500, 12, 6177)
        gained[V, K] = guarded(stages, *shape, bool(gained) and V not in (4000, 40000))
head("Table 7: full over LSH, the softmax", "words, K", "full / LSH")
for (V, K), gain in gained.items():
    print(f"| {V}, {K} | {gain} |")
LSTM = {
    "softmax": "lsh",
    "lsh_bands": 50 if args.quick else 500,
}
LSTM |= {"lsh_hits": 3, "lsh_top": 300 if args.quick else 6000}
guarded(overall, 4000 if args.quick else 40000, 100 if args.quick else 1000, LSTM)
head(
    "The output layer, from features to the best words of each row, microseconds",
    "words x dimensions, type", "rows", "all words", *WAYS, "words of both",
)  # fmt: skip
if args.quick:
    layer(4000, 64, torch.float32, [5])
else:
    for V, d in ((32000, 1024), (64000, 512), (256206, 1024)):
        for dtype in (torch.float32, torch.float16):
            guarded(layer, V, d, dtype, [1, 5, 12, 80])
