"""Paired bootstrap of two systems on one test set.

Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation", https://aclanthology.org/W04-3250. Lines are drawn with
replacement, the same for both systems; with d the difference of the scores and d_i that of sample i,

    p = (1 + |{i: |d_i| - mean |d_i| > |d|}|) / (1 + samples)

as sacrebleu computes it, and p = 1 where d is 0. BLEU and chrF2++ go through sacrebleu; shares of terms are drawn here in the same way.
The seed is SACREBLEU_SEED, 12345 by default.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from sacrebleu.significance import PairedTest, Result

from fairseq_ext.terms.score import EvaluationSet, translation_metrics
from fairseq_ext.terms.success import Counts, share, success, success_words

SHARES = {"term_success": success, "term_success_words": success_words}


def compare(test_set: EvaluationSet, hypotheses: Sequence[str], baseline: Sequence[str], samples: int) -> dict[str, dict[str, Any]]:
    """For BLEU, chrF2++ and both term successes: `score`, `baseline`, `difference` (score - baseline) and `p`."""
    references = [sentence.reference for sentence in test_set.sentences]
    named: list[tuple[str, Sequence[str]]] = [("baseline", list(baseline)), ("system", list(hypotheses))]
    metrics = translation_metrics()
    _, results = PairedTest(named, metrics, [references], test_type="bs", n_samples=samples)()
    of_metrics = [cast(list[Result], values) for key, values in results.items() if key != "System"]
    found = {name: row(second.score, first.score, second.p_value) for name, (first, second) in zip(metrics, of_metrics, strict=True)}
    ours, theirs = test_set.cases(hypotheses, "--hypotheses"), test_set.cases(baseline, "--baseline")
    for name, count in SHARES.items():
        of_system, of_baseline = count(ours), count(theirs)
        found[name] = row(share(of_system), share(of_baseline), p_value(of_system, of_baseline, samples))
    return found


def row(score: float | None, baseline: float | None, p: float | None) -> dict[str, Any]:
    """One line of the comparison."""
    difference = None if score is None or baseline is None else score - baseline
    return {"score": score, "baseline": baseline, "difference": difference, "p": 1.0 if difference == 0 else p}


def p_value(system: Counts, baseline: Counts, samples: int) -> float | None:
    """p for the difference of two shares; None where nothing was asked."""
    counts = np.array([system, baseline], dtype=np.int64)  # (2, lines, 2): met, asked
    if not counts[..., 1].sum():
        return None
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    lines = np.random.default_rng(None if seed.lower() == "none" else int(seed)).integers(len(system), size=(samples, len(system)))
    met, asked = np.moveaxis(np.stack([counts[:, drawn].sum(axis=1) for drawn in lines]), -1, 0)  # (samples, 2) each
    shares = met / np.maximum(asked, 1)
    differences = np.abs(shares[:, 0] - shares[:, 1])
    observed = abs(np.subtract(*(counts[..., 0].sum(axis=1) / counts[..., 1].sum(axis=1))))
    return float((1 + (differences - differences.mean() > observed).sum()) / (1 + samples))
