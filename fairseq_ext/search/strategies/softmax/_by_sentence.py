"""Shortlists that do not change during the search of a sentence (`top`, `lexical`).

A sentence's own list is scored by the decoder's output layer, with --int8 in 8 bits too. The words
of all lists of a call are one linear map (kernels/shortlist.py, WordLists), of which each sentence
reads its own. So the compiled search (search/compiled.py) can search such sentences, and the
results do not depend on the batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_ext.kernels.log_probs import log_softmax_
from fairseq_ext.kernels.shortlist import WordLists
from fairseq_ext.model.protocol import Decoder
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import ListSoftmax
from fairseq_ext.search.strategies.softmax._shortlist import Layer, ShortlistSoftmax, mask_with


class FixedShortlist(ShortlistSoftmax, ListSoftmax):
    """A shortlist of the sentence: `base`, and its `translations`."""

    def __init__(self, layers: list[Layer], **arguments: Any):
        super().__init__(layers, **arguments)
        self.is_own = self.by_sentence and not self.lists_all_words and len(layers) == 1

    def translations_of(self, pool: Pool) -> Tensor | None:
        """Return a mask (N, V) of the words that the sentences need in addition to the base; None
        for none."""
        return None

    def words(self, features: list[Tensor], beam: Beam, pool: Pool) -> Tensor | None:
        mask = self.translations_of(pool)
        if mask is None:
            return None
        mask = mask[beam.live_index()]
        return mask if self.by_sentence else mask.any(0, keepdim=True)

    def calls_to_sample(self) -> int:
        return self.meter.calls_to_sample()

    def count_calls(self, calls: int) -> None:
        self.meter.calls += calls

    def count_lists(self, lists: int, words: int) -> None:
        self.meter.count(lists, words)

    def sample_recall(self, full: Tensor, listed: LogProbs) -> None:
        self.meter.sample(full, listed)

    def lists_of(self, pool: Pool, sentences: list[int]) -> list[Tensor]:
        """Return the ascending ids (C,) of each sentence's list."""
        mask, index = self.translations_of(pool), torch.tensor(sentences)
        listed = self.in_base.expand(len(sentences), -1)
        listed = listed if mask is None else listed | mask[index]
        needed = self.required(pool)
        listed = mask_with(listed, needed[index] if needed.size(1) else None)
        return [row.nonzero().view(-1) for row in listed]

    def __call__(
        self,
        decoder: Decoder,
        features: list[Tensor],
        beam: Beam | None = None,
        pool: Pool | None = None,
    ) -> LogProbs:
        output = decoder.compiled_output if self.is_own else None
        if output is None:
            return super().__call__(decoder, features, beam, pool)
        assert beam is not None and pool is not None, "a shortlist needs the rows of a beam"
        live = beam.live
        lists = beam.cached_for_live("lists", lambda: WordLists(output, self.lists_of(pool, live)))
        out = self.own_scores(lists, features[0], beam)
        if self.meter.is_sample_due():
            self.meter.sample(decoder.log_probs(features, self.temperature), out)
        return out

    def own_scores(self, lists: WordLists, x: Tensor, beam: Beam) -> LogProbs:
        """Return the scores of each sentence's list, for x (n, d)."""
        with self.meter.stage("matmul"):
            logits = lists.output(x)
        with self.meter.stage("normalise"):
            C = max(words.numel() for words in lists.words)
            value = logits.new_full((x.size(0), C), -torch.inf)
            ids = torch.empty(x.size(0), C, dtype=torch.long)
            bounds = beam.bounds().tolist()
            for first, end, words, columns in zip(
                bounds[:-1], bounds[1:], lists.words, lists.columns, strict=True
            ):
                own = logits[first:end].index_select(1, columns)
                log_softmax_(own, self.temperature)
                value[first:end, : words.numel()] = own
                ids[first:end, : words.numel()], ids[first:end, words.numel() :] = words, words[-1]
        self.meter.count(len(lists.words), sum(words.numel() for words in lists.words))
        return LogProbs(value, ids, self.V)
