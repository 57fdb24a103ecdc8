"""What do a decoder's step, each search and LSH cost on a GPU?

    python scripts/bench/gpu.py [--parts step searches lsh] [--out scripts/bench/results/gpu]
    python scripts/bench/gpu.py --device cpu --quick    on a small model, where there is no GPU

step: fairseq's own decoder, ours operation by operation, ours as one CUDA graph, with random
weights of the Transformer-big shape. A step reads one token in every row, scores all words and puts
the rows in another order; the host waits for it, as beam search does. All read the same tokens, and
none gets a time whose log-probabilities are not fairseq's. The floor is what a step must read: the
decoder's weights, keys and values of the source and of each row's history; divided by the bandwidth
of a copy measured here.

searches: a step of each search of tests/search/counted_steps.py, with launches, graph launches,
copies and waits as torch's profiler counts them: the difference of two lengths.

lsh: the LSH paper's tables that are times on a GPU, in its shapes. Table 4: each stage of the
softmax, and the naive forms of two; Table 7: speed-up of the softmax. Then the output layer from
features to the 10 best words of each row. Features lie near a word's embedding (softmax.py).
`device` is the duration of kernels and copies by torch's profiler, `host` until the host has
waited.

    --parts PART ...    (all)
    --device DEVICE     cuda or cpu (cuda)
    --quick             small sizes: to try the script
    --commit NAME       where the copy has no history of its own
    --out OUT           (scripts/bench/results/gpu)
"""

from __future__ import annotations

import functools
import logging
import statistics
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts" / "bench")]

import random_models  # noqa: E402
import torch  # noqa: E402
from fairseq.token_generation_constraints import pack_constraints  # noqa: E402
from harness import BenchError, in_turns  # noqa: E402
from model.decoder_rows import model_of  # noqa: E402
from models import WORDS, batch, generators, run  # noqa: E402
from models import on_device as batch_on_device  # noqa: E402
from report import Page  # noqa: E402
from search.counted_steps import WAYS  # noqa: E402
from softmax import BEST, nearest, one_sentence, softmax_of, states  # noqa: E402
from text import command_line, run_script  # noqa: E402
from torch import Tensor  # noqa: E402

from fairseq_ext.kernels import lsh_cuda, lsh_torch  # noqa: E402
from fairseq_ext.model.choose import TOLERANCE, relative  # noqa: E402
from fairseq_ext.model.transformer.cuda_graph import (  # noqa: E402
    CudaGraphCache,
    MakeGraphs,
    cuda_graphs,
)
from fairseq_ext.model.transformer.decoder import TransformerBackend  # noqa: E402
from fairseq_ext.search.log_probs import LogProbs  # noqa: E402
from fairseq_ext.search.phrases.sentence import Constraint, SentenceConstraints  # noqa: E402
from fairseq_ext.search.request import Request  # noqa: E402
from fairseq_ext.search.strategies.softmax import lsh as strategy  # noqa: E402

SHAPES = [(1, 1), (1, 5), (16, 5), (64, 5), (128, 5)]  # sentences, beam
SOURCE, STEPS, TIMED, ROUNDS = 25, 30, 10, 5  # source tokens; steps, and how many are timed
KINDS = {  # CUDA's calls of the host, by the beginnings of their names
    "launches": ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperative"),
    "graphs": ("cudaGraphLaunch", "cuGraphLaunch"),
    "copies": ("cudaMemcpy", "cuMemcpy", "cudaMemset", "cuMemset"),
    "waits": tuple(f"cuda{of}Synchronize" for of in ("Stream", "Device", "Event"))
    + ("cuStreamSynchronize",),
    "kernels": (),  # on the device, those of graphs too
}
Act = Callable[[], object]
Inputs = dict[str, Tensor]


def wait(device: torch.device) -> None:
    """Until the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds(act: Act, device: torch.device, times: int, warmup: int = 1) -> list[float]:
    """Of each call after the warm-up, until the device is done."""
    spent = []
    for _ in range(warmup + times):
        wait(device)
        start = time.perf_counter()
        act()
        wait(device)
        spent.append(time.perf_counter() - start)
    return spent[warmup:]


def ms_of_a_step(runs: Sequence[tuple[Act, int]], device: torch.device, times: int = 3) -> float:
    """The least milliseconds of a long run less those of a short one, divided by the steps that it
    takes more; runs: the short one and the long one, each with its number of steps."""
    (short, few), (long, many) = [(min(seconds(act, device, times)), n) for act, n in runs]
    return 1e3 * (long - short) / (many - few)


def profiled(act: Act, device: torch.device) -> Iterator[tuple[str, bool, int]]:
    """Name, whether it is on the device, and nanoseconds of each event of a call."""
    from torch.profiler import ProfilerActivity, profile

    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
        act()
        wait(device)
    for event in seen.profiler.kineto_results.events():
        yield event.name(), "CUDA" in str(event.device_type()), event.duration_ns()


# ---- a decoder's step


def random_model(words: int, dtype: torch.dtype, device: torch.device, **sizes: int) -> Any:
    """A model no one has trained; sizes: fairseq's settings, where they differ from
    Transformer-big's."""
    shape = random_models.SHAPES["big"][1] | sizes
    return random_models.build(shape, random_models.dictionary(words))[0].to(device, dtype).eval()


class Stock:
    """fairseq's modules as its generator calls them."""

    def __init__(self, model: Any, inputs: Inputs, beam: int):
        self.model, self.past = model, dict[str, Any]()
        count, device = inputs["src_tokens"].size(0), inputs["src_tokens"].device
        rows = torch.arange(count, device=device).repeat_interleave(beam)
        self.source = model.encoder.forward_torchscript(inputs)
        self.source = model.encoder.reorder_encoder_out(self.source, rows)

    def step(self, tokens: Tensor, order: Tensor | None) -> Tensor:
        model = self.model
        if order is not None:
            model.decoder.reorder_incremental_state_scripting(self.past, order)
            self.source = model.encoder.reorder_encoder_out(self.source, order)
        x, more = model.decoder(tokens, encoder_out=self.source, incremental_state=self.past)
        return model.get_normalized_probs((x[:, -1:], more), log_probs=True, sample=None)[:, -1]


class Ours:
    """The fast decoder, which begins with one row a sentence."""

    def __init__(self, decoder: TransformerBackend, inputs: Inputs, beam: int):
        count, device = inputs["src_tokens"].size(0), inputs["src_tokens"].device
        self.decoder, self.beam = decoder, beam
        self.sentence = torch.arange(count, device=device).repeat_interleave(beam)
        decoder.admit(inputs)

    def step(self, tokens: Tensor, order: Tensor | None) -> Tensor:
        decoder, beam = self.decoder, self.beam
        if order is None:
            first = decoder.log_probs(decoder.step(tokens[::beam]), 1.0)
            return first.repeat_interleave(beam, 0)
        row = order if decoder.live.width == beam else self.sentence
        decoder.select(row, None, beam, self.sentence)
        return decoder.log_probs(decoder.step(tokens), 1.0)


Starts = Mapping[str, Callable[[Inputs, int], Stock | Ours]]


def contenders(model: Any, make_graphs: MakeGraphs) -> dict[str, Callable[[Inputs, int], Any]]:
    """By name: what starts a batch of inputs at a beam."""
    eager = TransformerBackend([model])
    graphs = TransformerBackend([model], make_graphs=make_graphs)
    return {
        "stock": functools.partial(Stock, model),
        "eager": functools.partial(Ours, eager),
        "graphs": functools.partial(Ours, graphs),
    }


def no_graphs() -> MakeGraphs:
    """In place of graphs, where there is no GPU: the same buffers, and each step is computed."""
    return functools.partial(CudaGraphCache, capture=lambda compute: compute, limit=1 << 30)


def source_of(sentences: int, width: int, words: int, device: torch.device) -> Inputs:
    """Random source sentences without padding."""
    tokens = torch.randint(4, words, (sentences, width), generator=torch.Generator().manual_seed(3))
    tokens[:, -1] = 2
    lengths = torch.full((sentences,), width, device=device)
    return {"src_tokens": tokens.to(device), "src_lengths": lengths}


@torch.no_grad()
def measure(
    ways: Starts, inputs: Inputs, beam: int, words: int, span: tuple[int, int, int], most: float
) -> dict[str, float]:
    """Milliseconds of a step by name: the median of the last ones of every round; the first round
    is warm-up, in which graphs are recorded. span: steps, how many are timed, rounds.

    Errors: BenchError where log-probabilities differ from the first's by more than `most`.
    """
    device, (steps, timed, rounds) = inputs["src_tokens"].device, span
    n = inputs["src_tokens"].size(0) * beam
    tokens = torch.randint(4, words, (n, steps), generator=torch.Generator().manual_seed(2))
    tokens[:, 0] = 2
    tokens = tokens.to(device)
    # the rows of a sentence the other way round
    order = torch.arange(n, device=device).view(-1, beam).flip(1).flatten()
    spent: dict[str, list[float]] = {name: [] for name in ways}
    expected = None
    for turn, name in in_turns(list(ways), rounds + 1):
        rows, out = ways[name](inputs, beam), torch.empty(0)
        for i in range(steps):
            wait(device)
            start = time.perf_counter()
            out = rows.step(tokens[:, : i + 1], order if i else None)
            wait(device)
            if turn and i >= steps - timed:
                spent[name].append(1e3 * (time.perf_counter() - start))
        expected = out.float() if expected is None else expected
        if relative(out.float(), expected) > most:
            raise BenchError(f"{name} gives other log-probabilities than stock")
    return {name: statistics.median(values) for name, values in spent.items()}


def bandwidth(device: torch.device) -> float:
    """Bytes a second of a copy, reading and writing counted."""
    size = 1 << (30 if device.type == "cuda" else 24)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / min(seconds(lambda: target.copy_(source), device, 10))


def bytes_of_a_step(model: Any, sentences: int, beam: int, source: int, history: int) -> int:
    """What a step must read."""
    decoder = model.decoder
    weight = decoder.output_projection.weight
    of_layers = sum(p.numel() for p in decoder.layers.parameters())
    for layer in decoder.layers:  # read once a sentence
        for module in (layer.encoder_attn.k_proj, layer.encoder_attn.v_proj):
            of_layers -= sum(p.numel() for p in module.parameters())
    line = 2 * len(decoder.layers) * decoder.embed_dim  # keys and values of a token in all layers
    tokens = sentences * (source + beam * history)
    return weight.element_size() * (of_layers + weight.numel() + line * tokens)


def step(page: Page, args: Namespace) -> None:
    there, words, span = torch.device(args.device), 32_000, (STEPS, TIMED, ROUNDS)
    kinds, shapes, sizes = [torch.float16, torch.bfloat16, torch.float32], SHAPES, dict[str, int]()
    if args.quick:
        kinds, shapes, words, sizes = kinds[2:], [(2, 5)], 99, SMALL
        span = (STEPS, TIMED, 1)
    rate, rows = bandwidth(there), list[list[str]]()
    for dtype in kinds:
        model = random_model(words, dtype, there, **sizes)
        ways = contenders(model, cuda_graphs() if there.type == "cuda" else no_graphs())
        for sentences, beam in shapes:
            inputs = source_of(sentences, SOURCE, words, there)
            ms = measure(ways, inputs, beam, words, span, TOLERANCE[dtype])
            read = bytes_of_a_step(model, sentences, beam, SOURCE, STEPS - TIMED // 2)
            floor = 1e3 * read / rate
            cells = [str(dtype)[6:], f"{sentences}x{beam}"]
            cells += [f"{each:.3f}" for each in (*ms.values(), floor)]
            cells += [f"{ms['stock'] / ms['graphs']:.1f}x", f"{ms['graphs'] / floor:.1f}x"]
            rows.append(cells)
    head = "type | sentences x beam | stock | eager | graphs | floor | stock / graphs"
    page.add_table([*head.split(" | "), "graphs / floor"], rows, "A step of Transformer-big")
    page.add(f"Milliseconds a step. The copy's bandwidth is {rate / 1e12:.2f} TB/s.\n")


SMALL = random_models.sizes(2, 16, 24, 2)


# ---- a step of each search


def a_step(
    model: Any,
    flags: Any,
    words: int,
    lengths: list[int],
    spans: Sequence[tuple[int, int]],
    device: torch.device,
    beam: int = 5,
) -> list[str]:
    """Milliseconds, and CUDA's calls where there is a second span; flags: of ours, or those
    `--constraints` of fairseq's."""
    sample, stock = batch_on_device(batch(lengths, words=words), device), isinstance(flags, str)
    named, of_stock = {}, {"constraints": flags or None} if stock else {}
    if stock and flags:
        named["constraints"] = pack_constraints([[torch.tensor([9, 10])]] * len(lengths))
    elif "select" in flags:
        phrase = SentenceConstraints((Constraint("9 10", ((9, 10),)),))
        sample["requests"] = [Request(i, constraints=phrase) for i in range(len(lengths))]

    def of(steps: int) -> tuple[Act, int]:
        """A search of that length, warm, and the steps that it takes."""
        sizes = {"beam": 1 if "decoding" in flags else beam, "min_len": steps, "max_len_b": steps}
        pair = generators([model], {} if stock else flags, words=words, **sizes, **of_stock)
        generator = pair.stock if stock else pair.ours
        before = 0 if stock else generator.stats.decoder_calls
        run(generator, sample, **named)
        if not stock and "decoding" not in flags:
            steps = generator.stats.decoder_calls - before
        return lambda: run(generator, sample, **named), steps

    slow = flags == "unordered"
    cells = [f"{ms_of_a_step([of(n) for n in spans[0]], device, 1 if slow else 3):.3f}"]
    if len(spans) == 1:
        return [*cells, *[""] * len(KINDS)]
    runs, found = [of(n) for n in spans[1]], []
    for act, _ in runs:
        calls = Counter[str]()
        for name, on_device, _ in profiled(act, device):
            calls["kernels"] += on_device and not name.startswith(("Mem", "mem"))
            calls.update(kind for kind, names in KINDS.items() if name.startswith(names))
        found.append(calls)
    more = runs[1][1] - runs[0][1]
    return [*cells, *(f"{(found[1][kind] - found[0][kind]) / more:.2f}" for kind in KINDS)]


def searches(page: Page, args: Namespace) -> None:
    there, layers = torch.device(args.device), 2 if args.quick else 6
    spans = ((3, 6), (2, 4)) if args.quick else ((16, 48), (8, 16))
    small = model_of(2, torch.float32, there, decoder_layers=layers)
    title = f"{layers} layers, float32, 4 sentences, beam 5 (window: beam 1)"
    tables = [(title, small, WORDS, [7, 5, 3, 1], spans, WAYS["LSH"])]
    if not args.quick:
        big = random_model(32_000, torch.float16, there)
        title = "Transformer-big, float16, 16 sentences, 32,000 words (not profiled)"
        tables.append((title, big, 31_996, [24] * 16, spans[:1], {"softmax": "lsh"}))
    for title, model, words, lengths, of, lsh in tables:
        # a string: fairseq's own generator, with these --constraints; the slowest is last
        ways = {"stock": "", **WAYS, "LSH": lsh, "stock, constrained": "unordered"}
        del ways["LSH, CUDA kernels"]
        rows = []
        for name, flags in ways.items():
            rows.append([name, *a_step(model, flags, words, lengths, of, there)])
        page.add_table(["search", "ms a step", *KINDS], rows, title)


# ---- LSH


@contextmanager
def kernels_of(way: str) -> Iterator[None]:
    """LSH runs CUDA kernels, where there are any, or torch's functions."""
    own = strategy.kernels_for
    if way != "CUDA kernels":
        strategy.kernels_for = lambda weight: lsh_torch
    try:
        yield
    finally:
        strategy.kernels_for = own


def both_us(act: Act, args: Namespace) -> tuple[float, float]:
    """Microseconds of a call: of kernels and copies on the device (nan on a CPU), and of
    the host."""
    there, times = torch.device(args.device), 5 if args.quick else 20
    host = 1e6 * statistics.median(seconds(act, there, 2 * times, warmup=5))
    if there.type != "cuda":
        return float("nan"), host
    events = profiled(lambda: [act() for _ in range(times)], there)
    return sum(ns for _, on_device, ns in events if on_device) / 1e3 / times, host


@torch.no_grad()
def stages(
    page: Page, args: Namespace, V: int, d: int, K: int, W: int, size: int, whole: bool
) -> str:
    """Table 4 for a shortlist of `size` words, as the paper's, with 12 rows; the speed-up of Table
    7. whole: without the stages."""
    compiled = args.device == "cuda" and lsh_cuda.unavailable_reason() is None
    kernels: Any = lsh_cuda if compiled else lsh_torch
    weight = torch.randn(V, d, generator=torch.Generator().manual_seed(1)) * d**-0.5
    x, weight = states(weight, 12).to(args.device), weight.to(args.device)
    index = lsh_torch.build_index(weight, K, 3, W, 1, kernels.wta_hash)
    codes = kernels.wta_hash(x, index.dimensions, 3)
    start, length = kernels.lookup(codes, index.offsets)
    hits = kernels.count_hits(start, length, index.words, V)
    # about 1,000 words by their hits; the most frequent words fill the list up to its size
    t = nearest(hits.amax(0), size // 6, range(1, W))
    listed = hits.amax(0) >= t
    always = (~listed).cumsum(0) <= size - int(listed.sum())
    ids = kernels.compact(hits, t, always)
    short = kernels.gather(weight, ids)
    logits, full_logits = x @ short.t(), x @ weight.t()

    def lookup(**form: bool) -> Tensor:
        return kernels.count_hits(*kernels.lookup(codes, index.offsets), index.words, V, **form)

    def all_stages() -> Tensor:
        found = kernels.lookup(kernels.wta_hash(x, index.dimensions, 3), index.offsets)
        ids = kernels.compact(kernels.count_hits(*found, index.words, V), t, always)
        return torch.log_softmax(x @ kernels.gather(weight, ids).t(), dim=-1)

    acts: dict[str, Callable[[], Tensor]] = {
        "full: softmax": lambda: torch.log_softmax(x @ weight.t(), dim=-1),
        "full: matrix multiply": lambda: x @ weight.t(),
        "full: normalization": lambda: torch.log_softmax(full_logits, dim=-1),
        "LSH: softmax": all_stages,
        "LSH: WTA hash": lambda: kernels.wta_hash(x, index.dimensions, 3),
        "LSH: lookup": lookup,
        "LSH: candidate list": lambda: kernels.compact(hits, t, always),
        "LSH: construct E": lambda: kernels.gather(weight, ids),
        "LSH: matrix multiply": lambda: x @ short.t(),
        "LSH: normalization": lambda: torch.log_softmax(logits, dim=-1),
    }
    naive: dict[str, list[Callable[[], Tensor]]] = {}
    if whole:
        acts = {name: act for name, act in acts.items() if name.endswith("softmax")}
    elif compiled:  # a counter and a sort; torch's nonzero, which is CUB's copy-if
        naive = {"LSH: lookup": [lambda: lookup(warp=False)]}
        naive["LSH: candidate list"] = [
            lambda: kernels.compact(hits, t, always, optimised=False),
            lambda: lsh_torch.compact(hits, t, always),
        ]
        for name, forms in naive.items():
            assert all(form().equal(acts[name]()) for form in forms), f"{name}: other words"
    spent, rows = {name: both_us(act, args) for name, act in acts.items()}, []
    for name, (device, host) in spent.items():
        share = 100 * device / spent[f"{name.split(':')[0]}: softmax"][0]
        cells = [name, f"{device:.1f}", f"{share:.1f} %", f"{host:.1f}"]
        for form in naive.get(name, ()):
            slow, slow_host = both_us(form, args)
            cells += [f"{slow:.1f}", f"{slow / device:.2f}x"]
            cells += [f"{slow_host:.1f}", f"{slow_host / host:.2f}x"]
        rows.append(cells + [""] * (4 + 8 * bool(naive) - len(cells)))
    head = ["stage", "device us", "share", "host us"]
    for form in ("naive", "torch's nonzero") if naive else ():
        head += [f"{form}: {what}" for what in ("device us", "slowdown", "host us", "slowdown")]
    title = f"Table 4: {V} words x {d}, 12 rows, {{{K}, 3, {W}}}, t = {t}: {ids.numel()} words "
    title += f"listed, spans of {length.float().mean():.1f} words, the longest {int(length.max())}"
    page.add_table(head, rows, title)
    pairs = zip(spent["full: softmax"], spent["LSH: softmax"], strict=True)
    return "device {:.2f}x, host {:.2f}x".format(*(full / short for full, short in pairs))


@torch.no_grad()
def layer(args: Namespace, V: int, d: int, dtype: torch.dtype, counts: list[int]) -> list:
    """Rows of the output layer's table."""
    weight = torch.randn(V, d, generator=torch.Generator().manual_seed(1)) * d**-0.5
    on, both, rows = weight.to(args.device, dtype), {}, []
    full = SimpleNamespace(
        log_probs=lambda x, t: torch.log_softmax((x[0] @ on.t()).float(), dim=-1)
    )
    for way in ("CUDA kernels", "torch's functions"):
        with kernels_of(way):
            both[way] = softmax_of(on, "lsh")
    for n in counts:
        x = states(weight, n).to(args.device, dtype)
        beam, pool = one_sentence(n, args.device)
        us = [both_us(lambda x=x: LogProbs(full.log_probs([x], 1.0)).topk(BEST), args)[1]]
        found = set()
        for way, lsh in both.items():
            with kernels_of(way):
                lsh.t = nearest(lsh.hits(x).amax(0), 1000)
                act = functools.partial(lsh, full, [x], beam, pool)
                us.append(both_us(lambda act=act: act().topk(BEST), args)[1])
                found.add(str(act().topk(BEST)[1].tolist()))
        same = "the same" if len(found) == 1 else "**not the same**"
        rows.append([f"{V} x {d}, {str(dtype)[6:]}", str(n), *(f"{x:.0f}" for x in us), same])
    return rows


def lsh(page: Page, args: Namespace) -> None:
    missing = lsh_cuda.unavailable_reason()
    page.add(f"No CUDA kernels: {missing}.\n" if missing else "Kernels: CUDA.\n")
    quick = args.quick
    gains = []
    for V in (4000, 5000) if quick else (40_000, 50_000, 66_000, 25_000):  # F2E, J2E, E2J, U2E
        for K in (8, 16):
            of = (100, K, 50, 600) if quick else (1000, K, 500, 6177)
            whole = bool(gains) and V not in (4000, 40_000)
            gains.append([f"{V}, {K}", stages(page, args, V, *of, whole)])
    page.add_table(["words, K", "full / LSH"], gains, "Table 7: full over LSH, the softmax")
    shapes = [(4000, 64)] if quick else [(32_000, 1024), (64_000, 512), (256_206, 1024)]
    rows = []
    for V, d in shapes:
        for dtype in (torch.float32,) if quick else (torch.float32, torch.float16):
            rows += layer(args, V, d, dtype, [5] if quick else [1, 5, 12, 80])
    head = ["words x dimensions, type", "rows", "all words", "CUDA kernels", "torch's functions"]
    title = "The output layer, from features to the best words of each row, microseconds"
    page.add_table([*head, "words of both"], rows, title)


PARTS: dict[str, tuple[str, Callable[[Page, Namespace], None]]] = {
    "step": ("A step of Transformer-big's decoder", step),
    "searches": ("A step of each search", searches),
    "lsh": ("LSH", lsh),
}


def main(argv: list[str] | None = None) -> int:
    known = {"parts": PARTS, "device": ["cuda", "cpu"]}
    args = command_line(__doc__, known).parse_args(argv)
    has_gpu = args.device == "cuda"
    if has_gpu and not torch.cuda.is_available():
        raise BenchError("there is no GPU here: --device cpu --quick tries the script")
    logging.disable(logging.INFO)
    device = f"One {torch.cuda.get_device_name()}" if has_gpu else "No GPU: a try on a CPU"
    page = Page(args.out, f"{device}{args.commit and f', commit {args.commit}' or ''}.\n")
    for name in args.parts:
        title, part = PARTS[name]
        page.add(f"## {title}\n")
        part(page, args)
    return 0


if __name__ == "__main__":
    run_script(main)
