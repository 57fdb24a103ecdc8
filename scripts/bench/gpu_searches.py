"""A step of each search on a GPU: milliseconds, and launches, graph launches, copies and waits as
torch's profiler counts them. A step is the difference of two lengths, as in counted_steps.py.

    python scripts/bench/gpu_searches.py [--device cpu] [--quick]
"""

import logging
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts" / "bench")]

import torch  # noqa: E402
from fairseq.token_generation_constraints import pack_constraints  # noqa: E402
from gpu_step import ms_of_a_step, parsed, random_model, waiting  # noqa: E402
from model.decoder_rows import model_of  # noqa: E402
from models import WORDS, batch, generators, on_device, run  # noqa: E402
from search.counted_steps import WAYS  # noqa: E402

from fairseq_ext.search.phrases.sentence import Constraint, SentenceConstraints  # noqa: E402
from fairseq_ext.search.request import Request  # noqa: E402

args = parsed(__doc__)
there = torch.device(args.device)
cuda = there.type == "cuda"
KINDS = {
    "launches": ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperative"),
    "graphs": ("cudaGraphLaunch", "cuGraphLaunch"),
    "copies": ("cudaMemcpy", "cuMemcpy", "cudaMemset", "cuMemset"),
    "waits": (
        "cudaStreamSynchronize",
        "cudaDeviceSynchronize",
        "cudaEventSynchronize",
        "cuStreamSynchronize",
    ),
    "kernels": (),  # on the device, those of graphs too
}


def calls_of(act):
    """CUDA's calls of the host, by kind."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
        act()
        waiting(args.device)()
    found = Counter()
    for event in seen.profiler.kineto_results.events():
        name = event.name()
        if "CUDA" in str(event.device_type()):
            found["kernels"] += not name.startswith(("Mem", "mem"))
        for kind, names in KINDS.items():
            found[kind] += name.startswith(names)
    return found


def searching(model, flags, words, lengths, beam):
    """What makes a search of a number of steps: a function, and its generator (None: stock's)."""
    sample, named, stock = batch(lengths, words=words), {}, isinstance(flags, str)
    sample = on_device(sample, there)
    of_stock = {"constraints": flags or None} if stock else {}
    if stock and flags:
        named["constraints"] = pack_constraints([[torch.tensor([9, 10])]] * len(lengths))
    elif "select" in flags:
        given = SentenceConstraints((Constraint("9 10", ((9, 10),)),))
        sample["requests"] = [Request(i, constraints=given) for i in range(len(lengths))]

    def of(steps):
        sizes = {"beam": 1 if "decoding" in flags else beam, "min_len": steps, "max_len_b": steps}
        pair = generators([model], {} if stock else flags, words=words, **sizes, **of_stock)
        generator = pair.stock if stock else pair.ours
        return lambda: run(generator, sample, **named), None if stock else generator

    return of


def a_step(model, flags, words, lengths, span, profiled, beam=5):
    """Milliseconds, and CUDA's calls."""
    of = searching(model, flags, words, lengths, beam)

    def taken(act, generator, steps):
        """Steps of a search."""
        if generator is None or "decoding" in flags:
            act()
            return steps
        before = generator.stats.decoder_calls
        act()
        return generator.stats.decoder_calls - before

    runs = []
    for steps in span:
        act, generator = of(steps)
        runs.append((act, taken(act, generator, steps)))
    ms = ms_of_a_step(runs, args.device, times=3 if flags != "unordered" else 1)
    if not profiled:
        return ms, {}
    found, calls = [], []
    for steps in profiled:
        act, generator = of(steps)
        act()
        calls.append(taken(act, generator, steps))
        found.append(calls_of(act))
    more = calls[1] - calls[0]
    return ms, {kind: (found[1][kind] - found[0][kind]) / more for kind in KINDS}


def table(title, model, words, lengths, span, profiled, lsh):
    print(f"\n### {title}\n")
    print("| search | ms a step | " + " | ".join(KINDS) + " |")
    print("| --- |" + " ---: |" * (1 + len(KINDS)), flush=True)
    # a string: fairseq's own generator, with these --constraints; the slowest is last
    ways = {"stock": "", **WAYS, "LSH": lsh, "stock, constrained": "unordered"}
    del ways["LSH, CUDA kernels"]
    for name, flags in ways.items():
        try:
            ms, rate = a_step(model, flags, words, lengths, span, profiled)
        except Exception as error:
            sentence = " ".join(str(error).split())[:300]
            print(f"| {name} | {type(error).__name__}: {sentence} |", flush=True)
            continue
        print(
            f"| {name} | {ms:.3f} | "
            + " | ".join(f"{rate[kind]:.2f}" if rate else "" for kind in KINDS)
            + " |",
            flush=True,
        )


logging.disable(logging.INFO)
quick, V = args.quick, 32000
small_layers = 2 if quick else 6
small = model_of(2, torch.float32, there, decoder_layers=small_layers)
spans = ((3, 6), (2, 4)) if quick else ((16, 48), (8, 16))
title = f"{small_layers} layers, float32, 4 sentences, beam 5 (window: beam 1)"
table(title, small, WORDS, [7, 5, 3, 1], *spans, WAYS["LSH"])
if not quick:
    big = random_model(V, 6, torch.float16, there)
    table(
        "Transformer-big, float16, 16 sentences, 32,000 words (not profiled)",
        big, V - 4, [24] * 16, (16, 48), None, {"softmax": "lsh"},
    )  # fmt: skip
