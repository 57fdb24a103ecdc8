"""One decoder step of fixed shapes as one launch: static buffers, and the operations on them recorded once (a CUDA graph).

A recorded step does the same operations at the same addresses each time; nothing of it may depend on a number that the host knows.
So what moves from step to step is data: token ids, positions, the mask, and the cache position behind which new keys and values go.
Positions that no row of the group has read are masked, and so is padding of the source. Slots without a sentence compute something
that nobody reads, from numbers that are finite.

Source: CUDA graphs as `torch.cuda.graph` records them (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs).

Shapes: S sentences that the buffers have room for, s <= S of the group, n rows, W places of each sentence, C positions that the
buffers have room for, b new tokens a row, d features, H heads, h = d / H, L layers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.model.transformer.key_values import KeyValues
from fairseq_ext.model.transformer.kv_cache import KVCache
from fairseq_ext.model.transformer.layers import at_rows, decode, embed
from fairseq_ext.model.transformer.rows import Step
from fairseq_ext.model.transformer.weights import Weights

Run = Callable[[], list[Tensor]]


class CudaGraph:
    """A function of static tensors, recorded; a call launches all of it at once and returns the same tensors each time."""

    def __init__(self, run: Run, pool: Any):
        """pool: torch.cuda.graph_pool_handle(), the memory of intermediate results."""
        with torch.cuda.stream(torch.cuda.current_stream()):  # a recording that fails may leave another stream behind
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                run()  # libraries set themselves up in the first call, which cannot be recorded
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
                self.out = run()

    def __call__(self) -> list[Tensor]:
        self.graph.replay()
        return self.out


class GraphPool:
    """Records functions as CUDA graphs that share the memory of intermediate results, since no two run at once.

    So the results of one graph must be read before another one runs.
    """

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self.first = CudaGraph(lambda: [torch.zeros(1, device="cuda")], self.handle)  # a pool lives as long as one of its graphs

    def __call__(self, run: Run) -> CudaGraph:
        return CudaGraph(run, self.handle)


class Buffers:
    """Keys and values of one group at a time, at fixed addresses: while a group is here, its cache consists of views of these."""

    def __init__(self, like: list[KeyValues], sentences: int, positions: int, source: int):
        self.shape = (sentences, positions, source)
        self.models = []
        for model in like:
            L, two, _, H, _, h = model.target.shape
            target = model.target.new_zeros(L, two, sentences, H, positions, h)
            keys = model.target.new_zeros(L, two, sentences, H, source, h)
            self.models.append(KeyValues(target, keys, keys.new_zeros(sentences, 1, 1, source)))
        self.bytes = Buffers.count_bytes(like, sentences, positions, source)
        self.cache: weakref.ref[KVCache] | None = None  # what is here, or was here last

    @staticmethod
    def count_bytes(like: list[KeyValues], sentences: int, positions: int, source: int) -> int:
        """Return the bytes that such buffers take, the small ones left out."""
        line = sum(m.target.size(0) * 2 * m.target.size(3) * m.target.size(5) * m.target.element_size() for m in like)
        return line * sentences * (positions + source)

    @property
    def is_free(self) -> bool:
        """Whether no group that is still needed has anything here."""
        cache = None if self.cache is None else self.cache()
        return cache is None or not any(self.has(cache))

    def has(self, cache: KVCache) -> list[bool]:
        """Return which of a cache's tensors lie here: target and source of each model."""
        pairs = zip(self.models, cache.models, strict=True)
        tensors = ((x, y) for here, there in pairs for x, y in ((here.target, there.target), (here.source, there.source)))
        return [x.data_ptr() == y.data_ptr() for x, y in tensors]

    def take_(self, cache: KVCache, positions: int) -> None:
        """Move a cache, of which so many positions are filled, in here."""
        for here, model in zip(self.models, cache.models, strict=True):
            s, width = model.source.size(2), model.source.size(4)
            for tensor in (here.target, here.source):  # what is left of another group could be NaN, which no mask hides
                tensor.zero_()
            here.target[:, :, :s, :, :positions] = model.target[..., :positions, :]
            here.source[:, :, :s, :, :width] = model.source
            mask = model.full_source_mask()
            model.target, model.source = here.target.narrow(2, 0, s), here.source.narrow(2, 0, s)
            model.source_mask = F.pad(mask, (0, self.shape[2] - width), value=-torch.inf)
            model.folded, model.views = None, []
        self.cache = weakref.ref(cache)

    def refresh_(self, cache: KVCache) -> None:
        """Bring the source mask to where sentences have moved within the buffers."""
        for here, model in zip(self.models, cache.models, strict=True):
            assert here.source_mask is not None and model.source_mask is not None
            if model.source_mask.data_ptr() != here.source_mask.data_ptr():
                here.source_mask.zero_().narrow(0, 0, model.source.size(2)).copy_(model.source_mask)
                model.source_mask = here.source_mask.narrow(0, 0, model.source.size(2))


class CudaGraphStep:
    """A step of b tokens in each of W rows a sentence, on some buffers."""

    def __init__(self, weights: list[Weights], buffers: Buffers, W: int, b: int):
        (S, C, _), like = buffers.shape, buffers.models[0].target
        self.weights, self.buffers, self.b = weights, buffers, b
        self.positions = [model.positions for model in weights]
        self.ids = torch.zeros(S, W * b, dtype=torch.long, device=like.device)
        self.past = torch.zeros(S, W, dtype=torch.long, device=like.device)  # tokens that each row has read before
        self.mask = like.new_zeros(S, 1, W * b, C)
        self.before = torch.zeros(1, dtype=torch.long, device=like.device)  # cache positions in use before
        self.new = torch.arange(W * b, device=like.device)
        self.step = Step(b, self.past.flatten(), 0, S, W, None, None, C, self.mask)
        self.run: Run = self.compute  # until it is recorded
        self.calls = 0

    @property
    def is_stale(self) -> bool:
        """Whether a table of position embeddings has been replaced by a longer one."""
        return any(weights.positions is not before for weights, before in zip(self.weights, self.positions, strict=True))

    def compute(self) -> list[Tensor]:
        """Return each model's features (S x W x b, features). This is what is recorded."""
        position = self.before + self.new
        out = []
        for weights, cache in zip(self.weights, self.buffers.models, strict=True):
            x = embed(weights, self.ids.flatten(), self.b, self.past.flatten())
            out.append(decode(weights, cache, self.step, x, position)[0])
        return out

    def fill_(self, step: Step, tokens: Tensor) -> None:
        """Write a group's step into the static tensors: its tokens (n, b), past, mask and position."""
        s, fill = step.sentences, step.row_of_place()
        put_(self.ids, at_rows(tokens, fill, 1).reshape(s, -1), step.slot)
        if isinstance(step.past, int):
            self.past.fill_(step.past)
        else:
            put_(self.past, at_rows(step.past[:, None], fill, 1).view(s, -1), step.slot)
        mask = step.mask
        if mask is None:
            mask = self.mask.new_zeros(1, 1, step.width * self.b, step.positions)
        # subtle: whole lines, so that slots without a sentence keep a mask under which they see something
        put_(self.mask, F.pad(mask, (0, self.mask.size(3) - step.positions), value=-torch.inf).expand(s, -1, -1, -1), step.slot)
        self.before.fill_(step.before)

    def read(self, step: Step) -> list[Tensor]:
        """Run the step; return each model's features (n x b, features) in tensors of their own."""
        out = []
        for x in self.run():
            sentences = x.view(self.ids.size(0), -1)  # (S, W x b x features)
            sentences = sentences[: step.sentences].clone() if step.slot is None else sentences.index_select(0, step.slot)
            out.append(at_rows(sentences.view(-1, x.size(1)), step.place, self.b))
        return out


def put_(target: Tensor, value: Tensor, slot: Tensor | None) -> None:
    """Write values (s, ...) into the first lines of target (S, ...), or into lines slot (s,)."""
    if slot is None:
        target[: value.size(0)] = value
    else:
        target.index_copy_(0, slot, value)
