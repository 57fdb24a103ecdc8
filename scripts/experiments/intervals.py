"""Confidence intervals of corpus BLEU by bootstrap over sentences (Koehn 2004,
https://aclanthology.org/W04-3250).

Every resample draws as many sentences as the text has, with replacement, and takes corpus BLEU
of them. The interval is that of the middle 95 per cent. Two searches over one text are compared by
their BLEU on the same resamples.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from sacrebleu.metrics import BLEU

RESAMPLES = 1000
SEED = 12345
DEFAULT_TOKENS = "13a"  # sacrebleu's
# (N, 10): sacrebleu's of each sentence: matching n-grams, n-grams, n = 1..4; length
# of output and reference
Counts = np.ndarray


@lru_cache
def metric(tokenize: str) -> BLEU:
    """sacrebleu's BLEU of sentences; effective_order silences a warning, and leaves
    the counts as they are."""
    return BLEU(effective_order=True, tokenize=tokenize)


@lru_cache(maxsize=1 << 18)
def matches(text: str, reference: str, tokenize: str) -> tuple[int, ...]:
    """sacrebleu's counts of one sentence: n-grams that match, n-grams, length of
    text and reference."""
    found = metric(tokenize).sentence_score(text, [reference])
    return (*found.counts, *found.totals, found.sys_len, found.ref_len)


def counts_of(
    texts: Iterable[str], references: Iterable[str], tokenize: str = DEFAULT_TOKENS
) -> Counts:
    """sacrebleu's counts of each line (N, 10); tokenize: the name of its tokenizer, `none`
    for lines of words."""
    return np.array(
        [
            matches(text, reference, tokenize)
            for text, reference in zip(texts, references, strict=True)
        ]
    )


def bleu(counts: Counts) -> np.ndarray:
    """Corpus BLEU of summed counts (..., 10), without smoothing: 0 where no n-gram
    of some order matches."""
    matched, total, output, reference = (
        counts[..., :4],
        counts[..., 4:8],
        counts[..., 8],
        counts[..., 9],
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(total > 0, matched / total, 0.0)
        brevity = np.minimum(0.0, 1.0 - reference / output)
        return np.nan_to_num(100 * np.exp(np.log(precision).mean(-1) + brevity))


def resampled(counts: Counts, resamples: int = RESAMPLES, seed: int = SEED) -> np.ndarray:
    """BLEU (resamples,) of resamples of the sentences, the same ones for every search
    over a text of this length."""
    sentences = len(counts)
    draw = np.random.default_rng(seed)
    times = draw.multinomial(sentences, np.full(sentences, 1 / sentences), size=resamples)
    return bleu(times @ np.asarray(counts, dtype=float))


def interval(values: np.ndarray) -> tuple[float, float]:
    """The middle 95 per cent of the values."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def half(low: float, high: float) -> str:
    """Half the width of an interval, as it stands behind the value."""
    return f"±{(high - low) / 2:.2f}"
