"""Whether two systems differ on one test set: a paired bootstrap of BLEU, chrF2++ and term success.

Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation",
https://aclanthology.org/W04-3250. Lines are drawn with replacement, the same for both systems;
with d the difference of the scores and d_i that of sample i,

    p = (1 + |{i: |d_i| - mean |d_i| > |d|}|) / (1 + samples)

as sacrebleu computes it, and p = 1 where d is 0. BLEU and chrF2++ go through sacrebleu; shares
of terms are drawn here in the same way. The seed is SACREBLEU_SEED, 12345 by default.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.significance import PairedTest

from fairseq_ext.terms.metrics import Counts, share, success, success_words
from fairseq_ext.terms.score import EvaluationSet, translation_metrics

SHARES = {"term_success": success, "term_success_words": success_words}


def compare(
    test_set: EvaluationSet, hypotheses: Sequence[str], baseline: Sequence[str], samples: int
) -> dict[str, dict[str, float | None]]:
    """Return for BLEU, chrF2++ and both term successes: `score`, `baseline`, `difference` (score -
    baseline) and its p-value `p`."""
    named: list[tuple[str, Sequence[str]]] = [
        ("baseline", list(baseline)),
        ("system", list(hypotheses)),
    ]
    metrics = translation_metrics()
    test = PairedTest(named, metrics, [test_set.references], test_type="bs", n_samples=samples)
    of_metrics: Any = [values for key, values in test()[1].items() if key != "System"]
    found: dict[str, tuple[float | None, float | None, float | None]] = {
        name: (second.score, first.score, second.p_value)
        for name, (first, second) in zip(metrics, of_metrics, strict=True)
    }
    ours = test_set.cases(hypotheses)
    theirs = test_set.cases(baseline)
    for name, count in SHARES.items():
        system, other = count(ours), count(theirs)
        found[name] = share(system), share(other), p_value(system, other, samples)
    rows = {}
    for name, (score, other_score, p) in found.items():
        difference = None if score is None or other_score is None else score - other_score
        p = 1.0 if difference == 0 else p
        rows[name] = {"score": score, "baseline": other_score, "difference": difference, "p": p}
    return rows


def p_value(system: Counts, baseline: Counts, samples: int) -> float | None:
    """Return the p-value of the difference between the shares of met terms of two systems, by
    bootstrap resampling of lines; None if no term was required."""
    counts = np.array([system, baseline], dtype=np.int64)  # (2, lines, 2): met, required
    if not counts[..., 1].sum():
        return None
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    draw = np.random.default_rng(None if seed.lower() == "none" else int(seed))
    lines = draw.integers(len(system), size=(samples, len(system)))

    def difference(of_lines: np.ndarray) -> float:
        """Return the distance of both systems' shares on the lines (2, lines, 2)."""
        met, required = np.moveaxis(of_lines.sum(axis=1), -1, 0)
        return abs(np.subtract(*(met / np.maximum(required, 1))))

    differences = np.array([difference(counts[:, drawn]) for drawn in lines])
    above = (differences - differences.mean() > difference(counts)).sum()
    return float((1 + above) / (1 + samples))
