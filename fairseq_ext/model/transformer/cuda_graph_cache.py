"""The cache of decoder steps that are recorded as CUDA graphs (`--cuda-graphs`): which are recorded, on which buffers, in how much memory.

A recorded step is cuda_graph_step.py.

A group of rows gets buffers whose sizes are rounded up to a few numbers (`bucket`). Its KV cache moves there once, and stays until it
outgrows them or half of its sentences have left. Later groups use the buffers and the recorded steps again. The first steps of a new
shape run operation by operation on the same buffers, since recording costs as much as several of them. What was used longest ago is
dropped at the bounds: MOST_STEPS recorded steps, and `limit` bytes of buffers. Intermediate results lie in one pool, which has the size
of the largest step.

A step outside these bounds runs operation by operation (layers.py), and one line in the log says why.

Shapes: as in cuda_graph_step.py.
"""

from __future__ import annotations

import functools
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from fairseq_ext.model.transformer.cuda_graph_step import Buffers, CudaGraphStep, GraphPool, Run
from fairseq_ext.model.transformer.kv_cache import KVCache
from fairseq_ext.model.transformer.rows import Step
from fairseq_ext.model.transformer.weights import Weights

logger = logging.getLogger("fairseq_ext")

Capture = Callable[[Run], Run]  # records a function of static tensors

PATIENCE = 4  # steps of a new shape before it is recorded: about what recording costs, by estimate
MOST_STEPS = 96  # recorded ones
MOST_ROWS = 4096  # new tokens of a step, padding included; larger steps keep a GPU busy without help
MOST_NEW = 16  # new tokens a row
FIRST_POSITIONS = 2048  # of new buffers, of all sentences together; to grow means to move
SHARE = 0.25  # of the GPU's memory, for buffers


def bucket(n: int, least: int = 1) -> int:
    """Return the smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... that is below neither n nor least."""
    n = max(n, least)
    power = 1 << (n - 1).bit_length()
    return power * 3 // 4 if power > 2 and n <= power * 3 // 4 else power


class CudaGraphCache:
    """The recorded steps of one model or ensemble."""

    def __init__(self, weights: list[Weights], capture: Capture, limit: int, patience: int = PATIENCE, most_steps: int = MOST_STEPS):
        self.weights, self.capture, self.limit = weights, capture, limit
        self.patience, self.most_steps = patience, most_steps
        self.buffers: list[Buffers] = []  # used last at the end
        self.steps: OrderedDict[tuple[Buffers, int, int], CudaGraphStep] = OrderedDict()  # by buffers, W and b; used last at the end
        self.said: set[str] = set()
        self.broken = False  # recording has failed

    def read(self, cache: KVCache, step: Step, tokens: Tensor) -> list[Tensor] | None:
        """Return each model's features (n x b, features) of tokens (n, b); None where the step has no graph."""
        buffers = self.find(cache, step)
        if buffers is None:
            return None
        if not all(buffers.has(cache)):
            buffers.take_(cache, step.before)
        buffers.refresh_(cache)
        recorded = self.step_on(buffers, step.width, step.b)
        recorded.fill_(step, tokens)
        if recorded.calls == self.patience:
            try:
                recorded.run = self.capture(recorded.compute)
            except RuntimeError as error:
                self.broken = True
                logger.warning("decoder steps run operation by operation, because recording one as a CUDA graph failed: %s", error)
        recorded.calls += 1
        return recorded.read(step)

    def find(self, cache: KVCache, step: Step) -> Buffers | None:
        """Return buffers for this cache: those it lies in, if they are still large enough, else free ones. They become the last used."""
        sentences = bucket(cache.slots)
        positions = bucket(cache.capacity, min(256, max(32, FIRST_POSITIONS // sentences)))
        shape = (sentences, positions, bucket(cache.models[0].source.size(4), 16))
        if self.broken:
            return None
        if step.b > MOST_NEW or sentences * step.width * step.b > MOST_ROWS:
            self.refuse(f"it has more than {MOST_NEW} tokens a row, or {MOST_ROWS} in all")
            return None
        same = [x for x in self.buffers if x.shape == shape]
        found = next((x for x in same if all(x.has(cache))), None) or next((x for x in reversed(same) if x.is_free), None)
        found = found or self.make(cache, shape)
        if found is not None:
            self.buffers = [x for x in self.buffers if x is not found] + [found]
        return found

    def make(self, cache: KVCache, shape: tuple[int, int, int]) -> Buffers | None:
        """Return new buffers, in place of the oldest free ones where they would take too many bytes; None where there is no room."""
        needed = Buffers.count_bytes(cache.models, *shape)
        for old in self.buffers if needed <= self.limit else ():
            if sum(x.bytes for x in self.buffers) + needed > self.limit and old.is_free:
                self.drop(old)
        if sum(x.bytes for x in self.buffers) + needed > self.limit:
            self.refuse(f"its KV cache would take more than {self.limit >> 20} MiB")
            return None
        try:
            return Buffers(cache.models, *shape)
        except torch.cuda.OutOfMemoryError:
            for old in self.buffers:
                if old.is_free:
                    self.drop(old)
            self.refuse("the GPU's memory is full")
            return None

    def drop(self, buffers: Buffers) -> None:
        """Forget these buffers and the steps that were recorded on them."""
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
        if len(self.steps) > self.most_steps:
            self.steps.popitem(last=False)
        return step

    def refuse(self, reason: str) -> None:
        """Log once why a step has no CUDA graph."""
        if reason not in self.said:
            self.said.add(reason)
            logger.info("a decoder step runs operation by operation and not as a CUDA graph: %s", reason)


class MakeGraphs(Protocol):
    def __call__(self, weights: list[Weights], *, patience: int = PATIENCE) -> CudaGraphCache:
        """Return an empty cache of recorded steps for these weights."""


def cuda_graphs() -> MakeGraphs:
    """Return what makes a cache of CUDA graphs on the present GPU: all in one pool of memory, their buffers within SHARE of it."""
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return functools.partial(CudaGraphCache, capture=GraphPool(), limit=int(SHARE * total))
