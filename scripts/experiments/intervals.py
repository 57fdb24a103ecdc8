"""Confidence intervals of corpus BLEU by bootstrap over sentences (Koehn 2004, https://aclanthology.org/W04-3250).

Every resample draws as many sentences as the text has, with replacement, and takes corpus BLEU of them. The interval is that of the middle
95 per cent. Two searches over one text are compared by their BLEU on the same resamples.
"""

from __future__ import annotations

import numpy as np

RESAMPLES = 1000
SEED = 12345
Counts = np.ndarray  # (N, 10): sacrebleu's of each sentence: matching n-grams, n-grams, n = 1..4; length of output and reference


def bleu(counts: Counts) -> np.ndarray:
    """Corpus BLEU of summed counts (..., 10), without smoothing: 0 where no n-gram of some order matches."""
    matched, total, output, reference = counts[..., :4], counts[..., 4:8], counts[..., 8], counts[..., 9]
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(total > 0, matched / total, 0.0)
        brevity = np.minimum(0.0, 1.0 - reference / output)
        return np.nan_to_num(100 * np.exp(np.log(precision).mean(-1) + brevity))


def resampled(counts: Counts, resamples: int = RESAMPLES, seed: int = SEED) -> np.ndarray:
    """BLEU (resamples,) of resamples of the sentences, the same ones for every search over a text of so many."""
    sentences = len(counts)
    draw = np.random.default_rng(seed)
    times = draw.multinomial(sentences, np.full(sentences, 1 / sentences), size=resamples)
    return bleu(times @ np.asarray(counts, dtype=float))


def interval(values: np.ndarray) -> tuple[float, float]:
    """The middle 95 per cent of the values."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
