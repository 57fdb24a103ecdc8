"""Keeps a search to sequences of tree_actions.py that are a tree: the next actions that are legal,
for fairseq's generator and for ours.

A search over m rows whose sentences have w words: after an even number of actions the next one is
structural, `sh` while words are left, `comb` while two spans are there; after an odd number it is a
label action, and the last one cannot be `nolabel`. After 4w - 2 actions only EOS is left. Every row
has a legal next action at every step, so all hypotheses of a sentence have the same length.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.search import BeamSearch
from torch import Tensor
from tree_actions import COMBINE, LABEL, NO_LABEL, SHIFT

from fairseq_ext.search.beam import Beam
from fairseq_ext.search.interpreted import LoopSearch
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.processors import LogitsProcessors
from fairseq_ext.search.scheduler import BeamSearch as OurBeamSearch


class LegalActions:
    """The legal next words of a dictionary of actions."""

    def __init__(self, dictionary: Dictionary):
        self.eos = dictionary.eos()
        self.shift, self.combine, self.no_label = (
            dictionary.index(action) for action in (SHIFT, COMBINE, NO_LABEL)
        )
        labels = [symbol == NO_LABEL or symbol.startswith(LABEL) for symbol in dictionary.symbols]
        self.labels = torch.tensor(labels)  # (V,)

    def __call__(self, history: Tensor, words: Tensor) -> Tensor:
        """(m, V) whether an action may come next, given the actions before (m, T), negative where
        a row has none yet, and words (m,)."""
        done = (history >= 0).sum(1)  # (m,)
        shifts, combined = ((history == action).sum(1) for action in (self.shift, self.combine))
        all_actions = 4 * words - 2
        structural = done % 2 == 0
        legal = self.labels & ~structural[:, None]  # (V,) x (m,) -> (m, V)
        legal[:, self.no_label] &= done < all_actions - 1
        legal[:, self.shift] = structural & (shifts < words)
        legal[:, self.combine] = structural & (shifts - combined > 1)
        legal[:, self.eos] = done >= all_actions
        return legal


class StockSearch(BeamSearch):
    """fairseq's beam search over legal actions."""

    def __init__(self, dictionary: Dictionary, legal: LegalActions):
        super().__init__(dictionary)
        self.legal = legal

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Any,
        prev_output_tokens: Any = None,
        original_batch_idxs: Any = None,
    ):  # type: ignore[override]
        """As fairseq's; lprobs (S, k, V), prev_output_tokens (S x k, step + 1) with EOS first."""
        words = self.src_lengths[: lprobs.size(0)].repeat_interleave(lprobs.size(1))
        legal = self.legal(prev_output_tokens[:, 1:], words).view_as(lprobs)
        return super().step(
            step,
            lprobs.masked_fill(~legal, -torch.inf),
            scores,
            prev_output_tokens,
            original_batch_idxs,
        )


@dataclasses.dataclass
class LegalProcessors(LogitsProcessors):
    """Our logits processors, then legal actions only."""

    legal: LegalActions | None = None

    @property
    def is_plain(self) -> bool:
        return False

    def __call__(
        self, log_probs: LogProbs, beam: Beam, pool: Pool, at_limit: Tensor | None
    ) -> LogProbs:
        assert self.legal is not None and log_probs.is_dense
        log_probs = super().__call__(log_probs, beam, pool, at_limit)
        words = pool.length[beam.live_index()[beam.sentence_of_row()]] - 1  # less EOS
        legal = self.legal(beam.generated_tokens(), words)
        log_probs.add_dense_(
            torch.zeros(legal.shape, device=legal.device).masked_fill_(~legal, -torch.inf)
        )
        return log_probs


def keep_legal(generator: Any, dictionary: Dictionary) -> None:
    """Let a generator, fairseq's or ours, search over legal actions only."""
    legal = LegalActions(dictionary)
    if hasattr(generator, "setup"):
        fields = {
            field.name: getattr(generator.setup.processors, field.name)
            for field in dataclasses.fields(LogitsProcessors)
        }
        legal_only = LegalProcessors(**fields, legal=legal)
        object.__setattr__(generator.setup, "processors", legal_only)  # a setup is frozen
        # no compiled search: it was chosen for the processors that a generator is built with
        generator.driver = OurBeamSearch(generator.setup, [], LoopSearch)
        return
    generator.search = StockSearch(dictionary, legal)
    # fairseq's count of words, EOS left out, of the sentences that are live
    generator.should_set_src_lengths = True
