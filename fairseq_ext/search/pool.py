"""The sentences of one call of the search.

Shapes: N sentences in the pool, S live sentences, P tokens of a prefix, T source columns, F
features of a speech frame.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fairseq_ext.search.beam import Beam
    from fairseq_ext.search.log_probs import LogProbs
    from fairseq_ext.search.phrases.pieces import Boundaries
    from fairseq_ext.search.phrases.sentence import SentenceConstraints
    from fairseq_ext.search.phrases.sentence_ends import SentenceEnds

T = TypeVar("T")


@dataclass(eq=False)
class Pool:
    """The sentences of one call, whether started or not."""

    net_input: dict[str, Tensor]  # the model's encoder input, a row a sentence
    # (N,) source tokens of each sentence, EOS included, or frames of speech; padding excluded
    length: Tensor
    max_len: list[int]  # target tokens before EOS, at most, by sentence
    ids: Tensor  # (N,) the data set's sentence numbers
    bos: int  # first target token
    prefix: Tensor | None = None  # (N, P) target tokens that are forced first, padded on the right
    # number of those that the command forces (a language, a prompt), before the constraints' own;
    # None: 0
    lead: list[int] | None = None
    # the minimum length applies to a sentence as soon as its own prefix has ended (fairseq: to all
    # sentences when all prefixes have ended)
    min_len_after_own_prefix: bool = False
    pad: int = 1
    # of each sentence; None: no sentence has any
    constraints: list[SentenceConstraints] | None = None
    boundaries: Boundaries | None = None  # between the target's words, where phrases count as words
    # whether banned phrases are compared without case, if there are boundaries
    banned_in_any_case: bool = False
    # sentence ends that are allowed (--constraint-end)
    ends: SentenceEnds | None = None
    ordered: bool = False  # required phrases must appear in the given order
    # those that the caller set, for reports, where `constraints` has products of automata instead
    original_constraints: list[SentenceConstraints] | None = None
    rule: RowRule | None = None  # forbids tokens by a state of each row
    # ids that each sentence's shortlist must contain, from `Select.required_ids`
    required: Sequence[Collection[int]] | None = None
    # seed of each sentence's samples; empty: no sampling
    seeds: list[int] = field(default_factory=list)
    numbered: bool = True  # ids come from the data set, not from the place in the batch
    # the sentences to decode, in the order in which they start; None: all
    to_decode: list[int] | None = None
    # a sentence is encoded only with others of its length: padding would change
    # its encoder's output
    encodes_separately: bool = False
    version: int = 0  # counts the changes of a pool whose sentences come and go (interpreted.py)
    _limit: Tensor | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.max_len)

    def limit(self) -> Tensor:
        """Return (N,) the largest number of target tokens before EOS, in float64."""
        if self._limit is None or len(self._limit) < len(self):
            self._limit = torch.tensor(self.max_len, dtype=torch.float64, device=self.length.device)
        return self._limit

    def forced(self, sentence: int) -> tuple[int, ...]:
        """Return the target tokens that a sentence starts with."""
        return (
            ()
            if self.prefix is None
            else tuple(token for token in self.prefix[sentence].tolist() if token != self.pad)
        )

    def lead_of(self, sentence: int) -> int:
        """Return the number of tokens that the command forces at the start of a sentence."""
        return 0 if self.lead is None else self.lead[sentence]

    def extend_prefix_(self, phrases: Sequence[Sequence[int]]) -> None:
        """Add forced tokens of each sentence after those that are forced already."""
        rows = [[*self.forced(i), *phrase] for i, phrase in enumerate(phrases)]
        width = max(map(len, rows))
        self.prefix = torch.tensor(
            [row + [self.pad] * (width - len(row)) for row in rows], device=self.length.device
        )

    def sentences_to_decode(self) -> Sequence[int]:
        """Return the sentences to decode, in the order in which they start."""
        return range(len(self)) if self.to_decode is None else self.to_decode

    def inputs(self, sentences: list[int]) -> dict[str, Tensor]:
        """Return the model's input for these sentences, no wider than the longest of them, as an
        LSTM requires."""
        inputs = {
            name: value for name, value in self.net_input.items() if name != "prev_output_tokens"
        }
        if self.are_all(sentences):
            return inputs
        index = torch.tensor(sentences, device=self.length.device)
        inputs = {
            name: value[index] if isinstance(value, Tensor) else value
            for name, value in inputs.items()
        }
        first, end = self.used_columns(sentences)
        inputs["src_tokens"] = inputs["src_tokens"][:, first:end]
        return inputs

    def are_all(self, sentences: list[int]) -> bool:
        """Return whether these are all sentences, in their order."""
        return (
            not self.encodes_separately
            and len(sentences) == len(self)
            and sentences == list(range(len(self)))
        )

    def used_columns(self, sentences: list[int]) -> tuple[int, int]:
        """Return the first source column that these sentences need, and the one after the last."""
        tokens = self.net_input["src_tokens"]
        if tokens.dim() == 3:  # speech (N, T, F), padded on the right
            return 0, int(self.length[sentences].max())
        used = tokens[sentences].ne(self.pad).any(0).nonzero()[:, 0].tolist()
        return used[0], used[-1] + 1

    def encoder_batches(self, sentences: list[int]) -> list[list[int]]:
        """Return these sentences in parts that may be encoded in one call."""
        if not self.encodes_separately:
            return [sentences]
        parts: dict[int, list[int]] = {}
        for sentence, length in zip(sentences, self.length[sentences].tolist(), strict=True):
            parts.setdefault(length, []).append(sentence)
        return list(parts.values())

    def source(self, sentence: int) -> Tensor:
        """Return a sentence's source without padding: tokens (L,), or frames of speech (L, F)."""
        source = self.net_input["src_tokens"][sentence]
        return (
            source[: int(self.length[sentence])]
            if source.dim() == 2
            else source[source != self.pad]
        )


# ---- What is kept for a pool


STATE = "rule"  # the key of its state in `Beam.aux`


class RowRule(ABC):
    """Forbids tokens in the rows of a beam by a state of each row, with every strategy; a pool has
    it in `rule`. It may not forbid all tokens of a row that can meet it."""

    @abstractmethod
    def start(self, beam: Beam, pool: Pool) -> None:
        """Add the state to rows of sentences that start now."""

    @abstractmethod
    def required_ids(self, pool: Pool) -> list[Collection[int]]:
        """Return the tokens that it may allow for each of the N sentences."""

    @abstractmethod
    def compiled(
        self, pool: Pool, sentence: int, bounded: bool
    ) -> tuple[object, int, object] | None:
        """Return the rule of a sentence as the compiled search reads it: the struct of its
        automata, the start of its own and what has the struct's arrays; None: it has none.
        bounded: whether the search needs `most_left`."""

    @abstractmethod
    def most_left(self, row: Tensor, token: Tensor, beam: Beam, pool: Pool) -> Tensor:
        """Return (S, c) float64 the most tokens before EOS that may follow these tokens (S, c) of
        rows (S, c), infinity where the rule has no limit; after `__call__` of the same step."""

    @abstractmethod
    def __call__(self, log_probs: LogProbs, beam: Beam, pool: Pool) -> None:
        """Forbid tokens, in place, and store the rows' states."""


class PerPoolCache(Generic[T]):
    """A value for each pool: cached as long as the pool lives, made again when its sentences have
    changed.

    subtle: the state of a pool's live rows refers to the value, so it must survive calls with other
    pools.
    """

    def __init__(self, make: Callable[[Pool], T]):
        self.make = make
        # (length, version), value
        self.cache: weakref.WeakKeyDictionary[Pool, tuple[tuple[int, int], T]] = (
            weakref.WeakKeyDictionary()
        )

    def __call__(self, pool: Pool) -> T:
        state = (len(pool), pool.version)
        kept = self.cache.get(pool)
        if kept is None or kept[0] != state:
            kept = None
            self.cache.pop(pool, None)  # first, so that memory never has both
            kept = self.cache[pool] = (state, self.make(pool))
        return kept[1]
