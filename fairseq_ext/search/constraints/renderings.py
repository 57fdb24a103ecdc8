"""The translations that a model gives to a source term by itself.

The words of a draft that occur in them are the ones that translate the term. A beam search of a few
short hypotheses reads all beginnings again in each step, as they have a few tokens.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from unicodedata import normalize

import torch

from fairseq_ext.core.words import is_word, words_of
from fairseq_ext.search.constraints.forced_decoding import ForcedDecoding
from fairseq_ext.search.phrases.pieces import folded
from fairseq_ext.search.phrases.segmenter import TargetText

BEAM = 5  # hypotheses of a term
EXTRA = 3  # most tokens of a rendering beyond those of its source
MAX_CACHED = 4096  # terms
Term = tuple[tuple[int, ...], tuple[int, ...]]  # source tokens with EOS, and forced target tokens
Hypothesis = tuple[float, list[int]]  # its log-probability and tokens
Phrases = dict[tuple[str, ...], float]  # words of translations (folded), and their shares


class Renderings:
    """The translations of source terms, with their shares by probability."""

    def __init__(self, forced_decoding: ForcedDecoding, text: Callable[[], TargetText], eos: int):
        self.forced_decoding, self.text, self.eos = forced_decoding, text, eos
        self.cache: OrderedDict[Term, Phrases] = OrderedDict()

    def __call__(self, terms: Sequence[Term], device: torch.device, bos: int) -> list[Phrases]:
        """Return the translations of each term."""
        new = [term for term in dict.fromkeys(terms) if term not in self.cache]
        for term, phrases in zip(new, self.searched(new, device, bos), strict=True):
            self.cache[term] = phrases
        found = []
        for term in terms:
            self.cache.move_to_end(term)
            found.append(self.cache[term])
        while len(self.cache) > MAX_CACHED:
            self.cache.popitem(last=False)
        return found

    def searched(self, terms: Sequence[Term], device: torch.device, bos: int) -> list[Phrases]:
        """Return the translations of each term, from a beam search."""
        if not terms:
            return []
        sources = self.forced_decoding.encode([source for source, _ in terms], device)
        limits = [len(source) + EXTRA for source, _ in terms]
        beams: list[list[Hypothesis]] = [[(0.0, [])] for _ in terms]
        for step in range(max(limits)):
            rows = [
                (term, total, tokens)
                for term, beam in enumerate(beams)
                if step < limits[term]
                for total, tokens in beam
                if tokens[-1:] != [self.eos]
            ]
            if not rows:
                break
            pairs = [(term, [*terms[term][1], *tokens, self.eos]) for term, _, tokens in rows]
            best = self.forced_decoding.next_tokens(sources, pairs, bos, BEAM)
            grown: dict[int, list[Hypothesis]] = {}
            for (term, total, tokens), found in zip(rows, best, strict=True):
                grown.setdefault(term, []).extend(
                    (total + log_prob, [*tokens, int(token)])
                    for log_prob, token in found.T.tolist()
                )
            for term, new in grown.items():
                done = self.ended(beams[term])
                new.sort(key=lambda each: -each[0])
                beams[term] = done + new[: BEAM - len(done)]
        # of a term whose hypotheses are all too long, their beginnings
        return [self.phrases(self.ended(beam) or beam) for beam in beams]

    def ended(self, beam: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Return the hypotheses that are complete."""
        return [each for each in beam if each[1][-1:] == [self.eos]]

    def phrases(self, hypotheses: Sequence[Hypothesis]) -> Phrases:
        """Return hypotheses as words and shares."""
        shares = [math.exp(total) for total, _ in hypotheses]
        found: Phrases = {}
        for share, (_, tokens) in zip(shares, hypotheses, strict=True):
            text = normalize("NFKC", self.text().text(tokens))
            words = tuple(folded(word) for word in words_of(text) if is_word(word))
            found[words] = found.get(words, 0.0) + share / sum(shares)
        return found
