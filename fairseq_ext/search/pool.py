"""The sentences of one call of the search.

Shapes: N sentences in the pool, S live sentences, P tokens of a prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Pool:
    """The sentences of one call, whether started or not."""

    net_input: dict[str, Tensor]  # the model's encoder input, a row a sentence
    length: Tensor  # (N,) source tokens of each sentence, EOS included, padding excluded
    max_len: list[int]  # most target tokens before EOS, per sentence
    ids: Tensor  # (N,) the data set's sentence numbers
    bos: int  # first target token
    prefix: Tensor | None = None  # (N, P) target tokens that are forced first, padded behind
    min_len_beside_prefix: bool = False  # minimum length holds for sentences whose prefix is shorter (fairseq: for none)
    aux: dict = field(default_factory=dict)  # what strategies know of each sentence
    pad: int = 1
    wanted: list[int] | None = None  # the sentences to decode, in the order in which they start; None: all
    first_column: int = 0  # columns of padding that `inputs` has cut off in front of the last sentences it was asked for

    def __len__(self) -> int:
        return len(self.max_len)

    def limit(self) -> Tensor:
        """(N,) most target tokens before EOS, in double precision."""
        if "limit" not in self.aux:
            self.aux["limit"] = torch.tensor(self.max_len, dtype=torch.float64, device=self.length.device)
        return self.aux["limit"]

    def queue(self, started: int) -> Sequence[int]:
        """The sentences that have not started yet."""
        return range(started, len(self)) if self.wanted is None else self.wanted[started:]

    def inputs(self, sentences: list[int]) -> dict[str, Tensor]:
        """The encoder's input for these sentences, no wider than the longest of them (an LSTM insists on it)."""
        self.first_column = 0
        inputs = {name: value for name, value in self.net_input.items() if name != "prev_output_tokens"}
        if len(sentences) == len(self) and sentences == list(range(len(self))):
            return inputs
        index = torch.tensor(sentences, device=self.length.device)
        inputs = {name: value[index] if isinstance(value, Tensor) else value for name, value in inputs.items()}
        used = inputs["src_tokens"].ne(self.pad).any(0).nonzero()[:, 0].tolist()
        self.first_column = used[0]
        inputs["src_tokens"] = inputs["src_tokens"][:, used[0] : used[-1] + 1]
        return inputs
