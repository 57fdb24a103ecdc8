"""Allowed outputs for the compiled search (`allowed.hpp`). Definition:
search/phrases/token_automaton.py.

Shapes: M states, E arcs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_ext.kernels.library import address, new


class CompiledAutomata:
    """Automata as the library reads them: first (M + 1,) int64; token and target (E,), shortest
    (M,) int32, contiguous; longest (M,) int32 is null until `set_longest_`."""

    def __init__(self, first: Tensor, token: Tensor, target: Tensor, shortest: Tensor):
        self.arrays = first, token, target, shortest  # the structure points to them
        self.struct = new(
            "Automata",
            first=address(first, torch.int64),
            token=address(token, torch.int32),
            target=address(target, torch.int32),
            shortest=address(shortest, torch.int32),
        )
        self.longest: Tensor | None = None

    def set_longest_(self, longest: Tensor) -> None:
        """Set the most tokens to an end of each state, for the bound of --stop optimal."""
        self.longest = longest
        self.struct.longest = address(longest, torch.int32)
