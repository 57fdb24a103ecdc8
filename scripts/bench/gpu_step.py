"""One decoder step on a GPU: fairseq's own, ours operation by operation, ours as one CUDA graph,
next to the least it could take.

    python scripts/bench/gpu_step.py [--dtype float16 bfloat16 float32]
        [--shapes 1x1 1x5 16x5 64x5 128x5] [--layers 6] [--device cpu] [--quick] [--out FILE.json]

A step reads one token in every row, scores all words and puts the rows in another order, as beam
search does; the host waits for it, as beam search does. Random weights of the Transformer-big shape
(d 1024, f 4096, 16 heads, 32,000 words); shapes are sentences x beam. All three read the same
tokens, and none gets a time whose log-probabilities are not fairseq's. Milliseconds: median of the
last --timed steps of every round; the first round is warm-up (graphs are recorded in it).

The floor is what a step must read: the decoder's weights, and keys and values of the source
and of each row's history, shared prefixes counted once a row; divided by the bandwidth of
a copy measured here. Behind it: what the other scripts of a GPU share, their command line, and
times until the device is done.

    --dtype TYPE ...      (all)
    --shapes SHAPE ...    sentences x beam (1x1 1x5 16x5 64x5 128x5)
    --layers N            (6)
    --words N             (32000)
    --source N            source tokens of each sentence (25)
    --steps N             steps of a sentence (30)
    --timed N             number of last ones that are timed (10)
    --rounds N            (5)
    --out FILE            for figures as JSON
"""

import argparse
import functools
import json
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from text import command_line
from torch import Tensor

import fairseq_ext  # noqa: F401
from fairseq_ext.model.choose import TOLERANCE, relative
from fairseq_ext.model.transformer.cuda_graph import CudaGraphCache, MakeGraphs, cuda_graphs
from fairseq_ext.model.transformer.decoder import TransformerBackend

BIG = "transformer_vaswani_wmt_en_de_big"
SMALL = {
    f"{side}_{what}": n
    for side in ("encoder", "decoder")
    for what, n in (("embed_dim", 16), ("ffn_embed_dim", 24), ("attention_heads", 2))
}

SHARED = """
    --device DEVICE    cuda or cpu (cuda)
    --quick            small sizes: to try the script
"""


def parsed(doc: str | None, argv: list[str] | None = None, **choices: Any) -> argparse.Namespace:
    """The arguments, --device and --quick among them. Raises SystemExit where they name a GPU and
    there is none."""
    args = command_line(f"{doc}{SHARED}", {"device": ["cuda", "cpu"], **choices}).parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "there is no GPU here (torch.cuda.is_available() is False); --device cpu --quick tries "
            "the script"
        )
    return args


def waiting(device: str) -> Callable[[], None]:
    """What returns when the device has done its work."""
    return torch.cuda.synchronize if device == "cuda" else lambda: None


def seconds(act: Callable[[], Any], device: str, times: int, warmup: int = 0) -> list[float]:
    """Of each call after the warm-up, until the device is done."""
    wait, spent = waiting(device), []
    for _ in range(warmup + times):
        wait()
        start = time.perf_counter()
        act()
        wait()
        spent.append(time.perf_counter() - start)
    return spent[warmup:]


def median_us(act: Callable[[], Any], device: str, times: int) -> float:
    """Microseconds, host included: a decoder waits for what follows."""
    return 1e6 * statistics.median(seconds(act, device, times, warmup=5))


def ms_of_a_step(runs: list[tuple[Callable[[], Any], int]], device: str, times: int = 3) -> float:
    """The least milliseconds of a long run less those of a short one, divided by the steps that it
    takes more; runs: the short one and the long one, each with its number of steps."""
    (short, few), (long, many) = [
        (min(seconds(act, device, times, warmup=1)), steps) for act, steps in runs
    ]
    return 1e3 * (long - short) / (many - few)


def random_model(words: int, layers: int, dtype: torch.dtype, device: str, **sizes: int) -> Any:
    """A model no one has trained; sizes: fairseq's flags, where they differ from
    Transformer-big's."""
    torch.manual_seed(1)
    dictionary = Dictionary()
    for i in range(words - len(dictionary)):
        dictionary.add_symbol(f"w{i}")
    args = Namespace(
        arch=BIG, encoder_layers=layers, decoder_layers=layers, share_all_embeddings=True, **sizes
    )
    ARCH_CONFIG_REGISTRY[BIG](args)
    both = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    return ARCH_MODEL_REGISTRY[BIG].build_model(args, both).to(dtype).to(device).eval()


class Stock:
    """fairseq's modules as its generator calls them."""

    def __init__(self, model: Any, inputs: dict[str, Tensor], beam: int):
        self.model, self.past = model, {}  # type: ignore[var-annotated]
        self.source = model.encoder.forward_torchscript(inputs)
        rows = torch.arange(
            inputs["src_tokens"].size(0), device=inputs["src_tokens"].device
        ).repeat_interleave(beam)
        self.source = model.encoder.reorder_encoder_out(self.source, rows)

    def step(self, tokens: Tensor, order: Tensor | None) -> Tensor:
        if order is not None:
            self.model.decoder.reorder_incremental_state_scripting(self.past, order)
            self.source = self.model.encoder.reorder_encoder_out(self.source, order)
        out = self.model.decoder(tokens, encoder_out=self.source, incremental_state=self.past)
        return self.model.get_normalized_probs(
            (out[0][:, -1:], out[1]), log_probs=True, sample=None
        )[:, -1]


class Ours:
    """The fast decoder, which begins with one row a sentence."""

    def __init__(self, decoder: TransformerBackend, inputs: dict[str, Tensor], beam: int):
        S, device = inputs["src_tokens"].size(0), inputs["src_tokens"].device
        self.decoder, self.beam = decoder, beam
        self.sentence = torch.arange(S, device=device).repeat_interleave(beam)
        decoder.admit(inputs)

    def step(self, tokens: Tensor, order: Tensor | None) -> Tensor:
        if order is None:
            return self.decoder.log_probs(
                self.decoder.step(tokens[:: self.beam]), 1.0
            ).repeat_interleave(self.beam, 0)
        row = order if self.decoder.live.width == self.beam else self.sentence
        self.decoder.select(row, None, self.beam, self.sentence)
        return self.decoder.log_probs(self.decoder.step(tokens), 1.0)


def contenders(model: Any, make_graphs: MakeGraphs) -> dict[str, Callable[[dict, int], Any]]:
    """By name: what starts a batch of inputs at a beam."""
    eager, graphs = (
        TransformerBackend([model]),
        TransformerBackend([model], make_graphs=make_graphs),
    )
    return {
        "stock": lambda inputs, beam: Stock(model, inputs, beam),
        "eager": lambda inputs, beam: Ours(eager, inputs, beam),
        "graphs": lambda inputs, beam: Ours(graphs, inputs, beam),
    }


@torch.no_grad()
def measure(
    ways: dict[str, Callable[[dict, int], Any]],
    inputs: dict,
    beam: int,
    words: int,
    steps: int,
    timed: int,
    rounds: int,
    tolerance: float,
) -> dict[str, float]:
    """Milliseconds of a step, by name.

    Raises SystemExit where one gives other log-probabilities than the first.
    """
    device = inputs["src_tokens"].device
    n = inputs["src_tokens"].size(0) * beam
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(4, words, (n, steps), generator=generator).to(device)
    tokens[:, 0] = 2
    # the rows of a sentence the other way round
    order = torch.arange(n, device=device).view(-1, beam).flip(1).flatten()
    spent: dict[str, list[float]] = {name: [] for name in ways}
    wait = waiting(device.type)
    expected = None
    for turn in range(rounds + 1):
        for name, way in ways.items():
            rows = way(inputs, beam)
            for i in range(steps):
                wait()
                start = time.perf_counter()
                out = rows.step(tokens[:, : i + 1], order if i else None)
                wait()
                if turn and i >= steps - timed:
                    spent[name].append(1e3 * (time.perf_counter() - start))
            expected = out.float() if expected is None else expected
            if relative(out.float(), expected) > tolerance:
                raise SystemExit(
                    f"{name} gives other log-probabilities than stock, so there is nothing to time"
                )
    return {name: statistics.median(values) for name, values in spent.items()}


def bandwidth(device: str) -> float:
    """Bytes a second of a copy, reading and writing counted."""
    source = torch.zeros(1 << (30 if device == "cuda" else 24), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / min(seconds(lambda: target.copy_(source), device, 10))


def bytes_of_a_step(model: Any, sentences: int, beam: int, source: int, history: int) -> int:
    """What a step must read."""
    decoder = model.decoder
    weight = decoder.output_projection.weight
    layers = sum(p.numel() for p in decoder.layers.parameters())
    # not a step's business
    once = [
        m
        for layer in decoder.layers
        for m in (layer.encoder_attn.k_proj, layer.encoder_attn.v_proj)
    ]
    cross = sum(p.numel() for module in once for p in module.parameters())
    line = 2 * len(decoder.layers) * decoder.embed_dim  # keys and values of a token in all layers
    return weight.element_size() * (
        layers - cross + weight.numel() + line * sentences * (source + beam * history)
    )


def main(argv: list[str]) -> None:
    args = parsed(__doc__, argv, dtype=["float16", "bfloat16", "float32"])
    sizes: dict[str, int] = {}
    if args.quick:
        args.dtype, args.shapes = ["float32"], ["2x5"]
        args.layers, args.words, args.rounds = 2, 99, 1
        sizes = SMALL
    cuda = args.device == "cuda"
    make_graphs = cuda_graphs() if cuda else no_graphs()
    gpu = torch.cuda.get_device_name() if cuda else None
    rate = bandwidth(args.device)
    print(
        f"Milliseconds a step. `floor` is what a step must read, by the bandwidth of a copy "
        f"({rate / 1e12:.2f} TB/s).\n"
    )
    print(
        "| type | sentences x beam | stock | eager | graphs | floor | stock / graphs | "
        "graphs / floor |\n" + 8 * "|---" + "|"
    )
    results = []
    for name in args.dtype:
        dtype = getattr(torch, name)
        model = random_model(args.words, args.layers, dtype, args.device, **sizes)
        ways = contenders(model, make_graphs)
        for shape in args.shapes:
            sentences, beam = map(int, shape.split("x"))
            inputs = source_of(sentences, args.source, args.words, args.device)
            span = args.steps, args.timed, args.rounds
            ms = measure(ways, inputs, beam, args.words, *span, TOLERANCE[dtype])
            history = args.steps - args.timed // 2
            floor = 1e3 * bytes_of_a_step(model, sentences, beam, args.source, history) / rate
            times = " | ".join(f"{value:.3f}" for value in (*ms.values(), floor))
            print(
                f"| {name} | {shape} | {times} | {ms['stock'] / ms['graphs']:.1f}x | "
                f"{ms['graphs'] / floor:.1f}x |",
                flush=True,
            )
            results.append(dict(dtype=name, sentences=sentences, beam=beam, floor=floor, **ms))
    if args.out is not None:
        args.out.write_text(
            json.dumps(dict(gpu=gpu, bandwidth=rate, results=results), indent=1) + "\n"
        )


def no_graphs() -> MakeGraphs:
    """In place of graphs, where there is no GPU: the same buffers, and each step is computed."""
    return functools.partial(CudaGraphCache, capture=lambda compute: compute, limit=1 << 30)


def source_of(sentences: int, width: int, words: int, device: str) -> dict[str, Tensor]:
    """Random source sentences without padding."""
    tokens = torch.randint(4, words, (sentences, width), generator=torch.Generator().manual_seed(3))
    tokens[:, -1] = 2
    return {
        "src_tokens": tokens.to(device),
        "src_lengths": torch.full((sentences,), width, device=device),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
