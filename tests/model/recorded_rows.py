"""Rows whose decoder records its steps, on a CPU too, where `Recorded` stands for a CUDA graph."""

from __future__ import annotations

import functools

import pytest
from model.decoder_rows import Rows
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairseq_ext.model.transformer import cuda_graph as graphs
from fairseq_ext.model.transformer import weights
from fairseq_ext.model.transformer.cuda_graph import CudaGraphCache, cuda_graphs
from fairseq_ext.model.transformer.decoder import TransformerBackend

WAITS = (
    "_local_scalar_dense",
    "nonzero",
    "equal",
    "is_nonzero",
    "item",
    "masked_select",
    "unique",
    "_unique2",
    "repeat_interleave",
)


class NoWaiting(TorchDispatchMode):
    """Refuses what would make the host wait for a GPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        assert name not in WAITS, f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


class Recorded(NoWaiting):
    """What a CUDA graph does, on a CPU: the same operations again, with the numbers and at the
    addresses of the first time."""

    def __init__(self, compute):
        super().__init__()
        self.calls = []
        self.replays = 0
        compute()
        with self:
            self.out = compute()
        for func, _, _, out in self.calls:  # recording computes nothing
            if self.is_new(func):
                for tensor in tree_leaves(out):
                    tensor.fill_(7)

    @staticmethod
    def is_new(func) -> bool:
        return (
            not func.is_view
            and not func._schema.is_mutable
            and "unsafe_view" not in func._schema.name
        )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def __call__(self):
        self.replays += 1
        for func, args, kwargs, out in self.calls:
            fresh = func(*args, **kwargs)
            if self.is_new(func):
                for here, value in zip(tree_leaves(out), tree_leaves(fresh), strict=True):
                    here.copy_(value)
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
