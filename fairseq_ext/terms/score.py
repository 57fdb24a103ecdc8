"""All scores of a system's translations, and whether two systems differ."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

from fairseq_ext.core import words
from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.terms.cases import Case, Sentence, cases_of
from fairseq_ext.terms.metrics import (
    Counts,
    after_final_punctuation,
    consistency,
    exact_match,
    one_minus_term,
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
    references = [sentence.reference for sentence in test_set.sentences]
    values = {
        name: metric.corpus_score(list(hypotheses), [references]).score
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
        "exact_match": exact_match(cases, test_set.of_target is not None),
        "window_overlap": {str(n): window_overlap(cases, n) for n in WINDOWS},
        "one_minus_term": one_minus_term(cases),
        "consistency": consistency(cases),
        "after_final_punctuation": after_final_punctuation(cases),
        "signature": f"fairseq_ext.terms:{VERSION}|{test_set.description}|lemmas:{lemma_tool}"
        f"|{tools}",
    }


def table(scores: Mapping[str, Any]) -> str:
    """Return the scores as a table: one a line, its name in the first column; the signature is the
    last line."""
    rows = list(
        flat(
            {
                name: value
                for name, value in scores.items()
                if name not in ("signature", "bootstrap")
            }
        )
    )
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {shown(value)}" for name, value in rows]
    if "bootstrap" in scores:
        lines += [
            "",
            (
                f"{'paired bootstrap':<{width}}  {'score':>9} {'baseline':>9} "
                f"{'difference':>10} {'p':>7}"
            ),
        ]
        for name, of_score in scores["bootstrap"].items():
            numbers = (shown(of_score[key]) for key in ("score", "baseline", "difference", "p"))
            lines.append(f"{name:<{width}}  " + "{:>9} {:>9} {:>10} {:>7}".format(*numbers))
    return "\n".join([*lines, "", scores["signature"]])


def flat(scores: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of all scores, nested names joined by spaces."""
    for key, value in scores.items():
        full = f"{name} {key}".strip()
        if isinstance(value, Mapping):
            yield from flat(value, full)
        else:
            yield full, value


def shown(value: Any) -> str:
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
) -> dict[str, dict[str, Any]]:
    """Return for BLEU, chrF2++ and both term successes: `score`, `baseline`, `difference` (score -
    baseline) and its p-value `p`."""
    references = [sentence.reference for sentence in test_set.sentences]
    named: list[tuple[str, Sequence[str]]] = [
        ("baseline", list(baseline)),
        ("system", list(hypotheses)),
    ]
    metrics = translation_metrics()
    _, results = PairedTest(named, metrics, [references], test_type="bs", n_samples=samples)()
    of_metrics = [cast(list[Result], values) for key, values in results.items() if key != "System"]
    found = {
        name: row(second.score, first.score, second.p_value)
        for name, (first, second) in zip(metrics, of_metrics, strict=True)
    }
    ours = test_set.cases(hypotheses, "--hypotheses")
    theirs = test_set.cases(baseline, "--baseline")
    for name, count in SHARES.items():
        of_system, of_baseline = count(ours), count(theirs)
        found[name] = row(
            share(of_system), share(of_baseline), p_value(of_system, of_baseline, samples)
        )
    return found


def row(score: float | None, baseline: float | None, p: float | None) -> dict[str, Any]:
    """Return one line of the comparison."""
    difference = None if score is None or baseline is None else score - baseline
    return {
        "score": score,
        "baseline": baseline,
        "difference": difference,
        "p": 1.0 if difference == 0 else p,
    }


def p_value(system: Counts, baseline: Counts, samples: int) -> float | None:
    """Return the p-value of the difference between the shares of met terms of two systems, by
    bootstrap resampling of lines; None if no term was required."""
    counts = np.array([system, baseline], dtype=np.int64)  # (2, lines, 2): met, required
    if not counts[..., 1].sum():
        return None
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    lines = np.random.default_rng(None if seed.lower() == "none" else int(seed)).integers(
        len(system), size=(samples, len(system))
    )
    # (samples, 2) each
    met, required = np.moveaxis(np.stack([counts[:, drawn].sum(axis=1) for drawn in lines]), -1, 0)
    shares = met / np.maximum(required, 1)
    differences = np.abs(shares[:, 0] - shares[:, 1])
    observed = abs(np.subtract(*(counts[..., 0].sum(axis=1) / counts[..., 1].sum(axis=1))))
    return float((1 + (differences - differences.mean() > observed).sum()) / (1 + samples))
