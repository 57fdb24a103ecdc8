"""Rows of tokens next to a decoder of the transformer backend: every step is compared with
fairseq's teacher forcing. `Graphed` rows record their steps, on a CPU too, where `Recorded` stands
for a CUDA graph."""

from __future__ import annotations

import functools
import random
from argparse import Namespace
from collections.abc import Callable, Iterator

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from models import TRANSFORMER, alone, batch, dictionary, on_device, task
from pretended_device import Graph
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_ext.model.transformer import cuda_graph as graphs
from fairseq_ext.model.transformer import weights
from fairseq_ext.model.transformer.cuda_graph import CudaGraphCache, cuda_graphs
from fairseq_ext.model.transformer.decoder import TransformerBackend
from fairseq_ext.model.transformer.rows import RowGroup
from fairseq_ext.search.pool import Pool

EOS = dictionary().eos()
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
MODELS = {
    "post-norm": {},
    "pre-norm": dict(encoder_normalize_before=True, decoder_normalize_before=True),
    "pre-norm without final norm": dict(decoder_normalize_before=True, no_decoder_final_norm=True),
    "learned positions, all tied": dict(share_all_embeddings=True, decoder_learned_pos=True),
    "output tied": dict(share_decoder_input_output_embed=True, no_scale_embedding=True),
    "normalised embeddings": dict(layernorm_embedding=True, activation_fn="gelu"),
    "no positions": dict(no_token_positional_embeddings=True, activation_fn="relu_squared"),
    "other encoder width": dict(
        encoder_embed_dim=24, encoder_attention_heads=3, encoder_ffn_embed_dim=20
    ),
    "other output width": dict(decoder_output_dim=12),
    "other embedding width": dict(decoder_input_dim=12),
    "four heads, one layer": dict(
        decoder_attention_heads=4, decoder_layers=1, activation_fn="tanh"
    ),
    "layer drop": dict(decoder_layerdrop=0.5, decoder_layers=3),
}


def model_of(
    seed: int = 1,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
    arch: str = "transformer",
    **flags,
):
    """A random Transformer; its biases and norms are random too, so that none can be forgotten."""
    torch.manual_seed(seed)
    args = Namespace(arch=arch, **(TRANSFORMER | flags))
    ARCH_CONFIG_REGISTRY[arch](args)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task())
    if "decoder_input_dim" in flags:  # fairseq's decoder provides for it, its models do not
        model.decoder.embed_tokens = torch.nn.Embedding(
            len(dictionary()), flags["decoder_input_dim"], dictionary().pad()
        )
        model.decoder.project_in_dim = torch.nn.Linear(
            flags["decoder_input_dim"], model.decoder.embed_dim, bias=False
        )
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight += torch.randn_like(weight) * 0.3
    return model.to(dtype).to(device).eval()


class Rows:
    """Rows of tokens next to a decoder; every step is compared with teacher forcing,
    one sentence at a time."""

    backend: Callable = TransformerBackend

    def __init__(self, models: list, lengths: list[int], seed: int = 0):
        self.random = random.Random(seed)
        self.models = models
        self.device = next(models[0].parameters()).device
        self.sample = on_device(batch(lengths, seed), self.device)
        net_input = self.sample["net_input"]
        self.pool = Pool(
            net_input, net_input["src_lengths"], [50] * len(lengths), self.sample["id"], EOS
        )
        self.decoder = self.backend(models)
        self.tolerance = TOLERANCE[next(models[0].parameters()).dtype]

    def start(self, sentences: list[int]) -> None:
        self.decoder.admit(self.pool.inputs(sentences))
        self.rows = {s: [[EOS]] for s in sentences}  # sentence -> its rows of tokens

    def expected(self, model, sentence: int, rows: list[list[int]]) -> list[torch.Tensor]:
        """Features (L, d) of each row, rows of any lengths."""
        with torch.no_grad():
            source = model.encoder.forward_torchscript(alone(self.sample, sentence)["net_input"])
            read = model.decoder.extract_features
            return [read(self.tensor([row]), encoder_out=source)[0][0] for row in rows]

    def step(self, new: int = 1, length: torch.Tensor | None = None) -> None:
        """Read the last `new` tokens of every row and compare their features."""
        tokens = self.tensor([row[-new:] for row in self.all_rows()])
        features = self.decoder.step(tokens, *[new, length] * (new > 1 or length is not None))
        for model, got in zip(self.models, features, strict=True):
            expected = torch.stack(
                [f[-new:] for s, rows in self.rows.items() for f in self.expected(model, s, rows)]
            )
            torch.testing.assert_close(
                got, expected if new > 1 else expected[:, 0], rtol=0, atol=self.tolerance
            )

    def tensor(self, values: list) -> torch.Tensor:
        return torch.tensor(values, device=self.device)

    def lengths(self) -> torch.Tensor:
        """What the decoder has read of each row: all but its last token."""
        return self.tensor([len(row) - 1 for row in self.all_rows()])

    def all_rows(self) -> list[list[int]]:
        return [row for rows in self.rows.values() for row in rows]

    def become(self, rows: list[list[int]]) -> None:
        """The sentences' rows, in order, are these now."""
        left = iter(rows)
        self.rows = {s: [next(left) for _ in each] for s, each in self.rows.items()}

    def read_blocks(self, turns: int, width: int) -> None:
        """Start with all sentences, read blocks of random drafts, and keep the first of each and
        some of the draft; the next is new."""
        self.start(list(range(len(self.pool))))
        if width > 1:
            self.step()
            self.select(uniform=True, may_drop=False, width=width)
        length = self.lengths()
        for _ in range(turns):
            b = self.random.choice([2, 3, 5])
            self.become([[*row, *[self.token() for _ in range(b - 1)]] for row in self.all_rows()])
            self.step(new=b, length=length)
            taken = [self.random.randint(1, b) for _ in self.all_rows()]
            self.become(
                [
                    [*row[: len(row) - b + k], self.token()]
                    for row, k in zip(self.all_rows(), taken, strict=True)
                ]
            )
            length = self.lengths()

    def select(
        self, uniform: bool, may_drop: bool, width: int | None = None, grow: bool = True
    ) -> None:
        """Continue random rows of each sentence by a random token; drop some sentences."""
        live = list(self.rows)
        kept = [s for s in live if not may_drop or self.random.random() < 0.8] or live[:1]
        counts = [len(rows) for rows in self.rows.values()]
        first = {s: sum(counts[:i]) for i, s in enumerate(live)}
        width = width or self.random.randint(1, 4)
        chosen = {
            s: self.random.choices(
                range(len(self.rows[s])), k=width if uniform else self.random.randint(1, 4)
            )
            for s in kept
        }
        row = self.tensor([first[s] + i for s in kept for i in chosen[s]])
        sentence = None if len(kept) == len(live) else self.tensor([live.index(s) for s in kept])
        sentence_of_row = self.tensor([place for place, s in enumerate(kept) for _ in chosen[s]])
        largest = max(map(len, chosen.values()))
        self.decoder.select(row, sentence, width if uniform else -largest, sentence_of_row)
        self.rows = {
            s: [[*self.rows[s][i], *([self.token()] if grow else [])] for i in chosen[s]]
            for s in kept
        }
        if self.backend is TransformerBackend:
            group = self.decoder.group
            assert group.rows == row.numel() and (group.place is None) == uniform

    def step_without_a_look(self) -> None:
        """Read the last token of every row."""
        self.decoder.step(self.tensor(self.all_rows()))

    def storm(self, widths: str) -> Iterator[None]:
        """Eight steps of all sentences, which are reordered and, from the fourth on, dropped;
        widths: uniform, ragged, or mixed."""
        self.start(list(range(len(self.pool))))
        for step in range(8):
            self.step()
            yield
            ragged = widths == "ragged" or (widths == "mixed" and self.random.random() < 0.3)
            self.select(uniform=not ragged, may_drop=step > 2)

    def long_rows(self, steps: int, width: int) -> Iterator[None]:
        """Steps of all sentences, of which every eighth is compared, and with
        a sentence alone each."""
        self.start(list(range(len(self.pool))))
        for step in range(steps):
            if step % 8 == 0 or len(self.pool) == 1:
                self.step()
            else:
                self.step_without_a_look()
            yield
            self.select(uniform=True, may_drop=step > 30, width=width)

    def groups(self, uniform: bool, *started: tuple[list[int], int]) -> list[tuple]:
        """Groups of sentences after the same number of steps, with their tokens."""
        out = []
        for sentences, steps in started:
            self.start(sentences)
            for _ in range(steps):
                self.step()
                self.select(uniform=uniform, may_drop=False, width=2)
            out.append((self.decoder.set_aside(), self.rows))
        return out

    def merge(self, groups: list[tuple], uniform: bool, may_drop: bool) -> None:
        """Join groups one after another; three steps after each."""
        group, tokens = groups[0]
        for other, more in groups[1:]:
            self.decoder.resume(RowGroup.join(group, other))
            self.rows = tokens | more
            for _ in range(3):
                self.step()
                self.select(uniform=uniform, may_drop=may_drop)
            group, tokens = self.decoder.set_aside(), self.rows

    def go_beyond(self, limit: int) -> None:
        """Steps up to the model's learned positions; one more is refused."""
        self.start(list(range(len(self.pool))))
        for _ in range(limit):
            self.step()
            self.select(uniform=True, may_drop=False)
        with pytest.raises(IndexError, match=f"beyond the model's {limit}"):
            self.decoder.step(torch.full((len(self.all_rows()), 1), EOS, device=self.device))

    def go_on(self, steps: int) -> None:
        """Steps of all sentences, two rows each."""
        self.start(list(range(len(self.pool))))
        for _ in range(steps):
            self.step()
            self.select(uniform=True, may_drop=False, width=2)

    def train_further(self) -> None:
        """Every weight changes, without a version counter that says, as under an optimiser."""
        for weight in self.models[0].parameters():
            weight.data.add_(torch.randn_like(weight), alpha=0.1)

    def token(self) -> int:
        return self.random.randrange(4, len(dictionary()))


class Recorded(TorchDispatchMode):
    """What a CUDA graph does, on a CPU: the same operations again, with the numbers and at the
    addresses of the first time."""

    def __init__(self, compute):
        super().__init__()
        self.graph, self.replays = Graph(), 0
        compute()
        with self:
            self.out = compute()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.graph.add(func, args, kwargs or {}, out)
        return out

    def __call__(self):
        self.replays += 1
        self.graph.replay()
        return self.out


class Frozen:
    """A graph that does not read its inputs again."""

    def __init__(self, compute):
        self.out = compute()

    def __call__(self):
        return self.out


def fails(compute):
    raise RuntimeError("no such thing")


def run_plain_linears(monkeypatch) -> None:
    """As on a GPU: no compiled step; and caches that begin small, so
    that they are outgrown."""
    monkeypatch.setattr(weights, "library", lambda: None)
    monkeypatch.setattr(graphs, "FIRST_POSITIONS", 1)


@pytest.fixture(autouse=True)
def plain_linears(monkeypatch):
    run_plain_linears(monkeypatch)


def recording(device, **settings):
    """What makes graphs for a backend on this device."""
    if device.type == "cuda":
        return functools.partial(cuda_graphs(), **({"patience": 0} | settings))
    return functools.partial(
        CudaGraphCache, **({"capture": Recorded, "limit": 1 << 30, "patience": 0} | settings)
    )


class Graphed(Rows):
    """Rows whose decoder records its steps."""

    def __init__(self, models, lengths, seed=0, **settings):
        super().__init__(models, lengths, seed)
        self.decoder = TransformerBackend(models, make_graphs=recording(self.device, **settings))

    @property
    def graphs(self) -> CudaGraphCache:
        return self.decoder.graphs

    def replays(self) -> int:
        assert not self.graphs.logged_reasons and not self.graphs.broken
        return sum(
            step.run.replays
            for step in self.graphs.steps.values()
            if isinstance(step.run, Recorded)
        )
