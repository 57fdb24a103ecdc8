"""Decoder steps recorded as CUDA graphs (`--cuda-graphs`), and the cache of recorded steps.

The cache decides which steps are recorded, on which buffers, and how much memory they take. A group
of rows gets buffers whose sizes are rounded up to a few numbers (`bucket`). Its KV cache moves
there once, and stays until it needs larger buffers or half of its sentences have left. Later groups
reuse the buffers and the recorded steps. The first steps of a new shape run operation by operation
on the same buffers, since recording costs as much as several steps. Entries used longest ago are
dropped at the limits: MAX_STEPS recorded steps, and `limit` bytes of buffers. Intermediate results
lie in one pool, which has the size of the largest step.

A step outside these limits runs operation by operation (layers.py), and one line in the log gives
the reason.

Shapes: S sentence slots of the buffers, s <= S sentences of the group, n rows, W places of each
sentence, C positions of the buffers, b new tokens a row, d features, L layers, H heads, h = d / H.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.model.transformer.cache import KeyValues, KVCache
from fairseq_ext.model.transformer.layers import decode, embed, gather_rows
from fairseq_ext.model.transformer.rows import Step
from fairseq_ext.model.transformer.weights import Weights

# ---- One recorded step
#
# A decoder step of fixed shapes is one launch: static buffers, and the operations on them recorded
# once (a CUDA graph).
#
# A recorded step does the same operations at the same addresses each time; it must not depend on a
# number on the host. So everything that changes from step to step is data on the device: token ids,
# positions, the mask, and the cache position after which new keys and values are stored. Positions
# that no row of the group has read are masked, and so is padding of the source. Slots without a
# sentence compute values that are not used; their inputs are finite.
#
# Source: CUDA graphs, recorded by `torch.cuda.graph`
# (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs).


Run = Callable[[], list[Tensor]]


class CudaGraph:
    """A recorded function of static tensors; a call launches it at once and returns the same
    tensors each time."""

    def __init__(self, run: Run, pool: Any):
        """pool: torch.cuda.graph_pool_handle(), the memory of intermediate results."""
        # a recording that fails may leave another stream as the current one
        with torch.cuda.stream(torch.cuda.current_stream()):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                run()  # libraries initialise in the first call, which cannot be recorded
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
                self.out = run()

    def __call__(self) -> list[Tensor]:
        self.graph.replay()
        return self.out


class GraphPool:
    """Records functions as CUDA graphs that share the memory of intermediate results.

    Only one graph may run at a time, and its results must be read before another one runs.
    """

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        # a pool lives as long as one of its graphs
        self.first = CudaGraph(lambda: [torch.zeros(1, device="cuda")], self.handle)

    def __call__(self, run: Run) -> CudaGraph:
        return CudaGraph(run, self.handle)


class Buffers:
    """Keys and values of one group at a time, at fixed addresses; the cache of the group consists
    of views of these tensors."""

    def __init__(self, like: list[KeyValues], sentences: int, positions: int, source: int):
        self.shape = (sentences, positions, source)
        self.models = []
        for model in like:
            L, two, _, H, _, h = model.target.shape
            target = model.target.new_zeros(L, two, sentences, H, positions, h)
            keys = model.target.new_zeros(L, two, sentences, H, source, h)
            self.models.append(KeyValues(target, keys, keys.new_zeros(sentences, 1, 1, source)))
        self.bytes = Buffers.count_bytes(like, sentences, positions, source)
        self.cache: weakref.ref[KVCache] | None = None  # the last cache that moved in

    @staticmethod
    def count_bytes(like: list[KeyValues], sentences: int, positions: int, source: int) -> int:
        """Return the bytes of such buffers, without the small ones."""
        line = sum(
            m.target.size(0) * 2 * m.target.size(3) * m.target.size(5) * m.target.element_size()
            for m in like
        )
        return line * sentences * (positions + source)

    @property
    def is_free(self) -> bool:
        """Whether no group that is still needed uses these buffers."""
        cache = None if self.cache is None else self.cache()
        return cache is None or not any(self.lies_here(cache))

    def lies_here(self, cache: KVCache) -> list[bool]:
        """Return for each tensor of a cache (target and source of each model) whether it lies in
        these buffers."""
        pairs = zip(self.models, cache.models, strict=True)
        tensors = (
            (x, y)
            for here, there in pairs
            for x, y in ((here.target, there.target), (here.source, there.source))
        )
        return [x.data_ptr() == y.data_ptr() for x, y in tensors]

    def move_in_(self, cache: KVCache, positions: int) -> None:
        """Move a cache with `positions` filled positions into these buffers."""
        for here, model in zip(self.models, cache.models, strict=True):
            s, width = model.source.size(2), model.source.size(4)
            # values of an earlier group may be NaN, and a mask does not hide NaN
            for tensor in (here.target, here.source):
                tensor.zero_()
            here.target[:, :, :s, :, :positions] = model.target[..., :positions, :]
            here.source[:, :, :s, :, :width] = model.source
            mask = model.full_source_mask()
            model.target, model.source = here.target.narrow(2, 0, s), here.source.narrow(2, 0, s)
            model.source_mask = F.pad(mask, (0, self.shape[2] - width), value=-torch.inf)
            model.views = []
        self.cache = weakref.ref(cache)

    def refresh_(self, cache: KVCache) -> None:
        """Update the source mask after sentences have moved within the buffers."""
        for here, model in zip(self.models, cache.models, strict=True):
            assert here.source_mask is not None and model.source_mask is not None
            if model.source_mask.data_ptr() != here.source_mask.data_ptr():
                here.source_mask.zero_().narrow(0, 0, model.source.size(2)).copy_(model.source_mask)
                model.source_mask = here.source_mask.narrow(0, 0, model.source.size(2))


class CudaGraphStep:
    """A step of b tokens in each of W rows a sentence, on given buffers."""

    def __init__(self, weights: list[Weights], buffers: Buffers, W: int, b: int):
        (S, C, _), like = buffers.shape, buffers.models[0].target
        self.weights, self.buffers, self.b = weights, buffers, b
        self.positions = [model.positions for model in weights]
        self.ids = torch.zeros(S, W * b, dtype=torch.long, device=like.device)
        # number of tokens that each row has read before
        self.past = torch.zeros(S, W, dtype=torch.long, device=like.device)
        self.mask = like.new_zeros(S, 1, W * b, C)
        # cache positions in use before
        self.positions_before = torch.zeros(1, dtype=torch.long, device=like.device)
        self.new = torch.arange(W * b, device=like.device)
        self.step = Step(b, self.past.flatten(), 0, S, W, None, None, C, self.mask)
        self.run: Run = self.compute  # replaced by the recorded graph
        self.calls = 0

    @property
    def is_stale(self) -> bool:
        """Whether a table of position embeddings has been replaced by a longer one."""
        return any(
            weights.positions is not before
            for weights, before in zip(self.weights, self.positions, strict=True)
        )

    def compute(self) -> list[Tensor]:
        """Return each model's features (S x W x b, features). This function is recorded."""
        position = self.positions_before + self.new
        out = []
        for weights, cache in zip(self.weights, self.buffers.models, strict=True):
            x = embed(weights, self.ids.flatten(), self.b, self.past.flatten())
            out.append(decode(weights, cache, self.step, x, position)[0])
        return out

    def fill_(self, step: Step, tokens: Tensor) -> None:
        """Write a group's step into the static tensors: tokens (n, b), past, mask and position."""
        s, fill = step.sentences, step.row_of_place()
        write_rows_(self.ids, gather_rows(tokens, fill, 1).reshape(s, -1), step.slot)
        if isinstance(step.past, int):
            self.past.fill_(step.past)
        else:
            write_rows_(self.past, gather_rows(step.past[:, None], fill, 1).view(s, -1), step.slot)
        mask = step.mask
        if mask is None:
            mask = self.mask.new_zeros(1, 1, step.width * self.b, step.positions)
        # subtle: whole lines, so that slots without a sentence keep a mask with at least one
        # visible position
        write_rows_(
            self.mask,
            F.pad(mask, (0, self.mask.size(3) - step.positions), value=-torch.inf).expand(
                s, -1, -1, -1
            ),
            step.slot,
        )
        self.positions_before.fill_(step.positions_before)

    def read(self, step: Step) -> list[Tensor]:
        """Run the step; return each model's features (n x b, features) in new tensors."""
        out = []
        for x in self.run():
            sentences = x.view(self.ids.size(0), -1)  # (S, W x b x features)
            sentences = (
                sentences[: step.sentences].clone()
                if step.slot is None
                else sentences.index_select(0, step.slot)
            )
            out.append(gather_rows(sentences.view(-1, x.size(1)), step.place, self.b))
        return out


def write_rows_(target: Tensor, value: Tensor, slot: Tensor | None) -> None:
    """Write values (s, ...) into the first lines of target (S, ...), or into lines slot (s,)."""
    if slot is None:
        target[: value.size(0)] = value
    else:
        target.index_copy_(0, slot, value)


# ---- The cache of recorded steps


logger = logging.getLogger("fairseq_ext")

Capture = Callable[[Run], Run]  # records a function of static tensors

PATIENCE = 4  # steps of a new shape before it is recorded: the estimated cost of recording
MAX_STEPS = 96  # recorded steps
# new tokens of a step, padding included; larger steps keep a GPU busy without graphs
MAX_TOKENS_PER_STEP = 4096
MAX_TOKENS_PER_ROW = 16  # new tokens a row
FIRST_POSITIONS = 2048  # positions of new buffers, summed over sentences; growing needs a copy
SHARE = 0.25  # of the GPU's memory, for buffers


def bucket(n: int, least: int = 1) -> int:
    """Return the smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... that is at least n and at least
    `least`."""
    n = max(n, least)
    power = 1 << (n - 1).bit_length()
    return power * 3 // 4 if power > 2 and n <= power * 3 // 4 else power


class CudaGraphCache:
    """The recorded steps of one model or ensemble."""

    def __init__(
        self,
        weights: list[Weights],
        capture: Capture,
        limit: int,
        patience: int = PATIENCE,
        max_steps: int = MAX_STEPS,
    ):
        self.weights, self.capture, self.limit = weights, capture, limit
        self.patience, self.max_steps = patience, max_steps
        self.buffers: list[Buffers] = []  # the last used ones at the end
        # by buffers, W and b; the last used ones at the end
        self.steps: OrderedDict[tuple[Buffers, int, int], CudaGraphStep] = OrderedDict()
        self.logged_reasons: set[str] = set()
        self.broken = False  # recording has failed

    def read(self, cache: KVCache, step: Step, tokens: Tensor) -> list[Tensor] | None:
        """Return each model's features (n x b, features) of tokens (n, b); None if the step has no
        graph."""
        buffers = self.find(cache, step)
        if buffers is None:
            return None
        if not all(buffers.lies_here(cache)):
            buffers.move_in_(cache, step.positions_before)
        buffers.refresh_(cache)
        recorded = self.step_on(buffers, step.width, step.b)
        recorded.fill_(step, tokens)
        if recorded.calls == self.patience:
            try:
                recorded.run = self.capture(recorded.compute)
            except RuntimeError as error:
                self.broken = True
                logger.warning(
                    "decoder steps run operation by operation, because recording one as a "
                    "CUDA graph failed: %s",
                    error,
                )
        recorded.calls += 1
        return recorded.read(step)

    def find(self, cache: KVCache, step: Step) -> Buffers | None:
        """Return buffers for this cache: those that it uses, if they are still large enough, else
        free ones. They are marked as the last used."""
        sentences = bucket(cache.slots)
        positions = bucket(cache.capacity, min(256, max(32, FIRST_POSITIONS // sentences)))
        shape = (sentences, positions, bucket(cache.models[0].source.size(4), 16))
        if self.broken:
            return None
        if step.b > MAX_TOKENS_PER_ROW or sentences * step.width * step.b > MAX_TOKENS_PER_STEP:
            self.log_fallback(
                f"it has more than {MAX_TOKENS_PER_ROW} tokens a row, or {MAX_TOKENS_PER_STEP} in "
                "all"
            )
            return None
        same = [x for x in self.buffers if x.shape == shape]
        found = next((x for x in same if all(x.lies_here(cache))), None) or next(
            (x for x in reversed(same) if x.is_free), None
        )
        found = found or self.make(cache, shape)
        if found is not None:
            self.buffers = [x for x in self.buffers if x is not found] + [found]
        return found

    def make(self, cache: KVCache, shape: tuple[int, int, int]) -> Buffers | None:
        """Return new buffers; the oldest free ones are dropped if the limit would be exceeded. None
        if that is not enough."""
        needed = Buffers.count_bytes(cache.models, *shape)
        for old in self.buffers if needed <= self.limit else ():
            if sum(x.bytes for x in self.buffers) + needed > self.limit and old.is_free:
                self.drop(old)
        if sum(x.bytes for x in self.buffers) + needed > self.limit:
            self.log_fallback(f"its KV cache would take more than {self.limit >> 20} MiB")
            return None
        try:
            return Buffers(cache.models, *shape)
        except torch.cuda.OutOfMemoryError:
            for old in self.buffers:
                if old.is_free:
                    self.drop(old)
            self.log_fallback("the GPU's memory is full")
            return None

    def drop(self, buffers: Buffers) -> None:
        """Drop these buffers and the steps that were recorded on them."""
        self.buffers = [x for x in self.buffers if x is not buffers]
        for key in [key for key in self.steps if key[0] is buffers]:
            del self.steps[key]

    def step_on(self, buffers: Buffers, W: int, b: int) -> CudaGraphStep:
        """Return the step of b tokens in W rows a sentence on these buffers."""
        key = (buffers, W, b)
        step = self.steps.pop(key, None)
        if step is None or step.is_stale:
            step = CudaGraphStep(self.weights, buffers, W, b)
        self.steps[key] = step
        if len(self.steps) > self.max_steps:
            self.steps.popitem(last=False)
        return step

    def log_fallback(self, reason: str) -> None:
        """Log once why a step has no CUDA graph."""
        if reason not in self.logged_reasons:
            self.logged_reasons.add(reason)
            logger.info(
                "a decoder step runs operation by operation and not as a CUDA graph: %s", reason
            )


class MakeGraphs(Protocol):
    def __call__(self, weights: list[Weights], *, patience: int = PATIENCE) -> CudaGraphCache:
        """Return an empty cache of recorded steps for these weights."""


def cuda_graphs() -> MakeGraphs:
    """Return a maker of caches of CUDA graphs on the current GPU. They share one memory pool, and
    their buffers may take SHARE of the GPU's memory."""
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return functools.partial(CudaGraphCache, capture=GraphPool(), limit=int(SHARE * total))
