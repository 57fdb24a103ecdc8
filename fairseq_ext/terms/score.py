"""All scores of a system's translations, and whether two systems differ."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from fairseq_ext.core import words
from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.terms.cases import Case, Sentence, cases_of
from fairseq_ext.terms.metrics import (
    Counts,
    after_final_punctuation,
    share,
    success,
    success_words,
    window_overlap,
)

VERSION = "0.1"
WINDOWS = (2, 3)  # words on either side, as in the WMT21 task


@dataclass(frozen=True)
class EvaluationSet:
    """The test set that systems are scored on. The lemmatizers are None if there are no lemmas."""

    sentences: Sequence[Sentence]
    of_source: words.Lemmatizer | None
    of_target: words.Lemmatizer | None
    description: str  # for the signature: format, terms and languages

    def cases(self, hypotheses: Sequence[str], flag: str) -> list[Case]:
        """Return the lines of a system (raises UsageError for another number of lines than the test
        set's)."""
        if len(hypotheses) != len(self.sentences):
            found = counted(len(hypotheses), "translation")
            lines = counted(len(self.sentences), "line")
            raise UsageError(
                f"{flag} has {found} and --references has {lines}: name files of the same test set"
            )
        return cases_of(self.sentences, hypotheses, self.of_source, self.of_target)

    @property
    def references(self) -> list[str]:
        return [sentence.reference for sentence in self.sentences]


def translation_metrics() -> dict[str, BLEU | CHRF]:
    """Return BLEU (13a, order 4) and chrF2++ (character order 6, word order 2) of sacrebleu, with
    the settings of the WMT25 task."""
    return {
        "bleu": BLEU(tokenize="13a", max_ngram_order=4),
        "chrf2pp": CHRF(char_order=6, word_order=2),
    }


def score(
    test_set: EvaluationSet, hypotheses: Sequence[str], flag: str = "--hypotheses"
) -> dict[str, Any]:
    """Return every score by its name. BLEU and chrF2++ are percentages, the others shares; None for
    a score with nothing to count.

    Formulas: metrics.py.
    """
    cases = test_set.cases(hypotheses, flag)
    metrics = translation_metrics()
    values = {
        name: metric.corpus_score(list(hypotheses), [test_set.references]).score
        for name, metric in metrics.items()
    }
    tools = "|".join(f"{name}[{metric.get_signature()}]" for name, metric in metrics.items())
    lemma_tool = "none" if test_set.of_target is None else words.version()
    return {
        **values,
        "term_success": share(success(cases)),
        "term_success_words": share(success_words(cases)),
        "terms": sum(len(case.required) for case in cases),
        "sentences": len(cases),
        "window_overlap": {str(n): window_overlap(cases, n) for n in WINDOWS},
        "after_final_punctuation": after_final_punctuation(cases),
        "signature": f"fairseq_ext.terms:{VERSION}|{test_set.description}|lemmas:{lemma_tool}"
        f"|{tools}",
    }


def table(scores: Mapping[str, Any]) -> str:
    """Return the scores as a table: one a line, its name in the first column; the signature is the
    last line."""
    signature, bootstrap = scores["signature"], scores.get("bootstrap", {})
    rows: dict[str, float | None] = {}
    for name, value in scores.items():
        if name == "window_overlap":
            rows |= {f"{name} {n}": overlap for n, overlap in value.items()}
        elif name not in ("signature", "bootstrap"):
            rows[name] = value
    width = max(map(len, rows))
    lines = [f"{name:<{width}}  {shown(value)}" for name, value in rows.items()]
    if bootstrap:
        form = f"{{:<{width}}}  {{:>9}} {{:>9}} {{:>10}} {{:>7}}"
        lines += ["", form.format("paired bootstrap", "score", "baseline", "difference", "p")]
        lines += [form.format(n, *map(shown, row.values())) for n, row in bootstrap.items()]
    return "\n".join([*lines, "", signature])


def shown(value: float | None) -> str:
    """Return a value as text: numbers with four decimal digits, a bar if there is nothing to
    count."""
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


# ---- Paired bootstrap of two systems on one test set
#
# Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation",
# https://aclanthology.org/W04-3250. Lines are drawn with replacement, the same for both systems;
# with d the difference of the scores and d_i that of sample i,
#
#     p = (1 + |{i: |d_i| - mean |d_i| > |d|}|) / (1 + samples)
#
# as sacrebleu computes it, and p = 1 where d is 0. BLEU and chrF2++ go through sacrebleu; shares
# of terms are drawn here in the same way. The seed is SACREBLEU_SEED, 12345 by default.


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
    ours = test_set.cases(hypotheses, "--hypotheses")
    theirs = test_set.cases(baseline, "--baseline")
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
