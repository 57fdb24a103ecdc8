"""Minimum Bayes risk: the hypothesis that is best on average, should any of the others be right (`--mbr`).

    S. Kumar and W. Byrne. Minimum Bayes-Risk Decoding for Statistical Machine Translation. NAACL 2004.
    B. Eikema and W. Aziz. Sampling-Based Approximations to Minimum Bayes Risk Decoding for NMT. EMNLP 2022.
    J. Cheng and A. Vlachos. Faster Minimum Bayes Risk Decoding with Confidence-based Pruning. EMNLP 2023. (--mbr-prune)

Shapes: C candidates, R references of one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.utilities import utility_of

FIRST_REFERENCES, RESAMPLES = 8, 500  # of --mbr-prune: what candidates are compared with first, and how often that is drawn again


class BayesRisk:
    """Puts the hypothesis of the highest expected utility in front. text: a hypothesis' tokens as text."""

    def __init__(self, flags: Any, text: Callable[[Any], str]):
        self.text, self.utility = text, utility_of(flags)
        self.candidates, self.references, self.confidence = flags.mbr_candidates, flags.mbr_references, flags.mbr_prune
        self.by_probability = str(flags.mbr_weights) == "prob"

    def __call__(self, found: list[Hypothesis], source: str) -> list[Hypothesis]:
        """A sentence's hypotheses, those first that may be the answer, by their expected utility. found: by score; of hypotheses that
        lack constraints only those may be that lack the fewest."""
        fewest = min(len(h.unmet) for h in found)
        able = [h for h in found if len(h.unmet) == fewest and h.score > -np.inf]
        if not able:
            return found
        texts = [self.text(h.tokens) for h in able]
        candidates = list(dict.fromkeys(texts))[: self.candidates or None]
        expected = dict(zip(candidates, self.expected(candidates, *self.compared(able, texts), source), strict=True))
        known = {text: value for text, value in expected.items() if value > -np.inf}
        judged = {id(h): replace(h, utility=float(known[text])) for h, text in zip(able, texts, strict=True) if text in known}
        best = sorted(judged.values(), key=lambda h: -h.utility)  # type: ignore[operator]
        return best + [h for h in found if id(h) not in judged]

    def compared(self, able: Sequence[Hypothesis], texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
        """The different texts that candidates are compared with, and their weights (R,), of sum 1."""
        n = self.references or len(able)
        if self.by_probability:  # of different hypotheses
            distinct = list({tuple(h.tokens.tolist()): i for i, h in reversed(list(enumerate(able)))}.values())
            total = np.array([float(able[i].positional_scores.double().sum()) for i in distinct])
            taken = [distinct[i] for i in np.argsort(-total, kind="stable")[:n]]
            weights = np.exp(np.sort(total)[::-1][:n] - total.max())
        else:  # evenly spread over the list, as the best ones alone are no fair sample
            taken = sorted({len(able) * i // n for i in range(n)})
            weights = np.ones(len(taken))
        of_text: dict[str, float] = {}
        for i, weight in zip(taken, weights / weights.sum(), strict=True):
            of_text[texts[i]] = of_text.get(texts[i], 0.0) + weight
        return list(of_text), np.array(list(of_text.values()))

    def expected(self, candidates: list[str], references: list[str], weights: np.ndarray, source: str) -> np.ndarray:
        """(C,) the expected utility of each candidate; -inf of those that were dropped on the way."""
        if not self.confidence:
            utilities = np.asarray(self.utility(candidates, references, source), dtype=float)
            return utilities[:, 0] if utilities.shape[1] < len(references) else utilities @ weights
        chance, seen = np.random.default_rng(0), 0
        order = chance.permutation(len(references))
        out, left, known = np.full(len(candidates), -np.inf), np.arange(len(candidates)), np.zeros((len(candidates), 0))
        while seen < len(order):
            new = order[seen : max(FIRST_REFERENCES, 2 * seen)]
            utilities = self.utility([candidates[i] for i in left], [references[i] for i in new], source)
            known, seen = np.hstack([known, np.asarray(utilities, dtype=float)]), seen + len(new)
            part = weights[order[:seen]]
            if seen < len(order):
                drawn = chance.multinomial(seen, part / part.sum(), RESAMPLES)  # (draws, references): how often each is drawn
                means = known @ drawn.T
                as_good = (means >= means[np.argmax(known @ part)]).mean(1)
                kept = as_good > 1 - self.confidence
                left, known = left[kept], known[kept]
        out[left] = known @ (weights[order] / weights.sum())
        return out
