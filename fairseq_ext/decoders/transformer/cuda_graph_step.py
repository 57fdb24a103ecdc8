"""One decoder step of fixed shapes as one launch: static buffers, and the operations on them recorded once (a CUDA graph).

A recorded step does the same operations at the same addresses each time; nothing of it may depend on a number that the host knows.
So what moves from step to step is data: token ids, positions, the mask, and the cell behind which new keys and values are stored.
Cells that no row of the group has read are masked, and so is padding of the source; sentences that are not there compute something
that nobody reads, from numbers that are finite.

Source: CUDA graphs as `torch.cuda.graph` records them (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs).

Shapes: S sentences that the buffers have room for, s <= S of the group, n rows, W places of each sentence, C cells that the
buffers have room for, b new tokens a row, d features, H heads, h = d / H, L layers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.decoders.transformer.kv_cache import Memory
from fairseq_ext.decoders.transformer.layers import at_rows, decode, embed
from fairseq_ext.decoders.transformer.rows import State
from fairseq_ext.decoders.transformer.weights import Weights

Run = Callable[[], list[Tensor]]


class CudaGraph:
    """A function of static tensors, recorded; a call launches all of it at once and gives the same tensors each time."""

    def __init__(self, run: Run, pool: Any):
        """pool: torch.cuda.graph_pool_handle(), the memory of what is computed between."""
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
    """Records functions as CUDA graphs that share the memory of what is computed between, since no two run at once. So what a graph
    gives must be read before another one runs."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self.first = CudaGraph(lambda: [torch.zeros(1, device="cuda")], self.handle)  # a pool lives as long as one of its graphs

    def __call__(self, run: Run) -> CudaGraph:
        return CudaGraph(run, self.handle)


class Buffers:
    """The memories of one group at a time, at fixed addresses: while a group is here, its memories are views of these tensors."""

    def __init__(self, like: list[Memory], sentences: int, cells: int, source: int):
        self.shape = (sentences, cells, source)
        self.memories = []
        for memory in like:
            L, two, _, H, _, h = memory.own.shape
            own = memory.own.new_zeros(L, two, sentences, H, cells, h)
            keys = memory.own.new_zeros(L, two, sentences, H, source, h)
            self.memories.append(Memory(own, keys, keys.new_zeros(sentences, 1, 1, source)))
        self.bytes = Buffers.count_bytes(like, sentences, cells, source)
        self.group: weakref.ref[State] | None = None

    @staticmethod
    def count_bytes(like: list[Memory], sentences: int, cells: int, source: int) -> int:
        """Bytes that such buffers take, the small ones left out."""
        line = sum(m.own.size(0) * 2 * m.own.size(3) * m.own.size(5) * m.own.element_size() for m in like)
        return line * sentences * (cells + source)

    @property
    def is_free(self) -> bool:
        """Whether no group that is still needed has anything here."""
        state = None if self.group is None else self.group()
        return state is None or not any(self.has(state))

    def has(self, state: State) -> list[bool]:
        """Which of a group's memories lie here: own and source of each model."""
        pairs = zip(self.memories, state.memories, strict=True)
        return [here.data_ptr() == theirs.data_ptr() for a, b in pairs for here, theirs in ((a.own, b.own), (a.source, b.source))]

    def take_(self, state: State, cells: int) -> None:
        """Move a group's memories, of which so many cells are filled, in here."""
        for here, memory in zip(self.memories, state.memories, strict=True):
            s, width = memory.source.size(2), memory.source.size(4)
            for tensor in (here.own, here.source):  # what is left of another group could be NaN, which no mask hides
                tensor.zero_()
            here.own[:, :, :s, :, :cells] = memory.own[..., :cells, :]
            here.source[:, :, :s, :, :width] = memory.source
            mask = memory.source.new_zeros(s, 1, 1, width) if memory.source_mask is None else memory.source_mask
            memory.own, memory.source = here.own.narrow(2, 0, s), here.source.narrow(2, 0, s)
            memory.source_mask = F.pad(mask, (0, self.shape[2] - width), value=-torch.inf)
            memory.folded, memory.views = None, []
        self.group = weakref.ref(state)

    def refresh_(self, state: State) -> None:
        """Where sentences have moved within the buffers, their source mask follows."""
        for here, memory in zip(self.memories, state.memories, strict=True):
            assert here.source_mask is not None and memory.source_mask is not None
            if memory.source_mask.data_ptr() != here.source_mask.data_ptr():
                here.source_mask.zero_().narrow(0, 0, memory.source.size(2)).copy_(memory.source_mask)
                memory.source_mask = here.source_mask.narrow(0, 0, memory.source.size(2))


class StepGraph:
    """A step of b tokens in each of W rows a sentence, on some buffers."""

    def __init__(self, weights: list[Weights], buffers: Buffers, W: int, b: int):
        (S, C, _), like = buffers.shape, buffers.memories[0].own
        self.weights, self.b = weights, b
        self.positions = [model.positions for model in weights]
        self.state = State(S, S * W, W, None, C, None, 0, 0, buffers.memories)
        self.ids = torch.zeros(S, W * b, dtype=torch.long, device=like.device)
        self.position = torch.zeros(S, W, dtype=torch.long, device=like.device)  # tokens that each row has read before
        self.mask = like.new_zeros(S, 1, W * b, C)
        self.before = torch.zeros(1, dtype=torch.long, device=like.device)  # cells in use before
        self.new = torch.arange(W * b, device=like.device)
        self.run: Run = self.compute  # until it is recorded
        self.calls = 0

    @property
    def is_stale(self) -> bool:
        """Whether a table of positions has been replaced by a longer one."""
        return any(weights.positions is not before for weights, before in zip(self.weights, self.positions, strict=True))

    def compute(self) -> list[Tensor]:
        """Each model's features (S x W x b, features): what is recorded."""
        cell = self.before + self.new
        out = []
        for weights, memory in zip(self.weights, self.state.memories, strict=True):
            x = embed(weights, self.ids.flatten(), self.b, self.position.flatten(), 0)
            out.append(decode(weights, memory, self.state, x, self.b, self.mask, cell)[0])
        return out

    def fill_(self, state: State, tokens: Tensor, position: int | Tensor, mask: Tensor | None) -> None:
        """A group's tokens (n, b), the tokens that its rows had read before, and its mask (s or 1, 1, W x b, cells in use)."""
        s, fill = state.sentences, state.row_of_place()
        put_(self.ids, at_rows(tokens, fill, 1).reshape(s, -1), state.slot)
        if isinstance(position, int):
            self.position.fill_(position)
        else:
            put_(self.position, at_rows(position[:, None], fill, 1).view(s, -1), state.slot)
        W, C = self.position.size(1), self.mask.size(3)
        if mask is None:
            mask = self.mask.new_zeros(1, 1, W * self.b, state.cells)
        # subtle: whole lines, so that sentences that are not there keep a mask under which they see something
        put_(self.mask, F.pad(mask, (0, C - state.cells), value=-torch.inf).expand(s, -1, -1, -1), state.slot)
        self.before.fill_(state.cells - W * self.b)

    def read(self, state: State) -> list[Tensor]:
        """Run the step; each model's features (n x b, features) in tensors of their own."""
        out = []
        for x in self.run():
            sentences = x.view(self.ids.size(0), -1)  # (S, W x b x features)
            sentences = sentences[: state.sentences].clone() if state.slot is None else sentences.index_select(0, state.slot)
            out.append(at_rows(sentences.view(-1, x.size(1)), state.place, self.b))
        return out


def put_(target: Tensor, value: Tensor, slot: Tensor | None) -> None:
    """Write values (s, ...) into the first lines of target (S, ...), or into lines slot (s,)."""
    if slot is None:
        target[: value.size(0)] = value
    else:
        target.index_copy_(0, slot, value)
