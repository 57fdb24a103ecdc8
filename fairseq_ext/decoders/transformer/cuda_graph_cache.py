"""Which decoder steps run as recorded ones (step_graph.py), on which buffers, and how much memory that may take.

A group of rows gets buffers whose sizes are rounded up to a few numbers (`bucket`), moves its memories there once, and stays until it
outgrows them or half of its sentences have left; buffers and recorded steps are used again by the groups that come after. The first
steps of a new shape run operation by operation on the same buffers, since recording costs as much as several of them. What was used
longest ago is dropped at the bounds: MOST_STEPS recorded steps, and `limit` bytes of buffers. What is computed in between lies in one
pool, which has the size of the largest step.

What does not fit runs operation by operation (layers.py), and one line in the log says why.

Shapes: as in step_graph.py.
"""

from __future__ import annotations

import functools
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from fairseq_ext.decoders.transformer.cuda_graph_step import Buffers, GraphPool, Run, StepGraph
from fairseq_ext.decoders.transformer.layers import make_room
from fairseq_ext.decoders.transformer.rows import State
from fairseq_ext.decoders.transformer.weights import Weights

logger = logging.getLogger("fairseq_ext")

Capture = Callable[[Run], Run]  # records a function of static tensors

PATIENCE = 4  # steps of a new shape before it is recorded: about what recording costs, by estimate
MOST_STEPS = 96  # recorded ones
MOST_ROWS = 4096  # new tokens of a step, padding included; larger steps keep a GPU busy without help
MOST_NEW = 16  # new tokens a row
CELLS = 2048  # that a store has at first, of all sentences together; growing means to move
SHARE = 0.25  # of the GPU's memory, for buffers


def bucket(n: int, least: int = 1) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... that is below neither n nor least."""
    n = max(n, least)
    power = 1 << (n - 1).bit_length()
    return power * 3 // 4 if power > 2 and n <= power * 3 // 4 else power


class Graphs:
    """The recorded steps of one model or ensemble."""

    def __init__(self, weights: list[Weights], capture: Capture, limit: int, patience: int = PATIENCE, most_steps: int = MOST_STEPS):
        self.weights, self.capture, self.limit = weights, capture, limit
        self.patience, self.most_steps = patience, most_steps
        self.buffers: list[Buffers] = []  # used last at the end
        self.steps: OrderedDict[tuple[Buffers, int, int], StepGraph] = OrderedDict()  # by buffers, W and b; used last at the end
        self.said: set[str] = set()
        self.broken = False  # recording has failed

    def step(self, state: State, tokens: Tensor, position: int | Tensor, mask: Tensor | None) -> list[Tensor] | None:
        """Each model's features (n x b, features) of tokens (n, b), for which `State.append_` has given this mask; None if the step is
        not for us. position: tokens that each row had read before."""
        b = tokens.size(1)
        buffers = self.find(state, b)
        if buffers is None:
            return None
        if not all(buffers.has(state)):
            buffers.take_(state, state.cells - state.width * b)
        buffers.refresh_(state)
        for model in self.weights:
            make_room(model, position, b, state.longest)
        step = self.step_on(buffers, state.width, b)
        step.fill_(state, tokens, position, mask)
        if step.calls == self.patience:
            try:
                step.run = self.capture(step.compute)
            except RuntimeError as error:
                self.broken = True
                logger.warning("decoder steps run operation by operation, because recording one as a CUDA graph failed: %s", error)
        step.calls += 1
        return step.read(state)

    def find(self, state: State, b: int) -> Buffers | None:
        """Buffers for this group, the last in the list: those it is in, if they still fit, else free ones."""
        memory = state.memories[0]
        sentences = bucket(memory.source.size(2))
        cells = bucket(memory.own.size(4), min(256, max(32, CELLS // sentences)))
        shape = (sentences, cells, bucket(memory.source.size(4), 16))
        if self.broken:
            return None
        if b > MOST_NEW or sentences * state.width * b > MOST_ROWS:
            self.refuse(f"it has more than {MOST_NEW} tokens a row, or {MOST_ROWS} in all")
            return None
        fitting = [x for x in self.buffers if x.shape == shape]
        found = next((x for x in fitting if all(x.has(state))), None) or next((x for x in reversed(fitting) if x.is_free), None)
        found = found or self.make(state, shape)
        if found is not None:
            self.buffers = [x for x in self.buffers if x is not found] + [found]
        return found

    def make(self, state: State, shape: tuple[int, int, int]) -> Buffers | None:
        """New buffers, in place of the oldest free ones where there are too many bytes of them."""
        needed = Buffers.count_bytes(state.memories, *shape)
        for old in self.buffers if needed <= self.limit else ():
            if sum(x.bytes for x in self.buffers) + needed > self.limit and old.is_free:
                self.drop(old)
        if sum(x.bytes for x in self.buffers) + needed > self.limit:
            self.refuse(f"its stores would take more than {self.limit >> 20} MiB")
            return None
        try:
            return Buffers(state.memories, *shape)
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

    def step_on(self, buffers: Buffers, W: int, b: int) -> StepGraph:
        """The step of b tokens in W rows a sentence."""
        key = (buffers, W, b)
        step = self.steps.pop(key, None)
        if step is None or step.is_stale:
            step = StepGraph(self.weights, buffers, W, b)
        self.steps[key] = step
        if len(self.steps) > self.most_steps:
            self.steps.popitem(last=False)
        return step

    def refuse(self, reason: str) -> None:
        """Say once why a step has no CUDA graph."""
        if reason not in self.said:
            self.said.add(reason)
            logger.info("a decoder step runs operation by operation and not as a CUDA graph: %s", reason)


class MakeGraphs(Protocol):
    def __call__(self, weights: list[Weights], *, patience: int = PATIENCE) -> Graphs:
        """Recorded steps for these weights."""


def cuda_graphs() -> MakeGraphs:
    """Graphs for weights on the present GPU: all in one pool of memory, their buffers within SHARE of it."""
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return functools.partial(Graphs, capture=GraphPool(), limit=int(SHARE * total))
