"""All scores of a system's translations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from fairseq_ext.core import lemmas
from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.terms.cases import Case, Sentence, cases_of
from fairseq_ext.terms.metrics import (
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
    of_source: lemmas.Lemmatizer | None
    of_target: lemmas.Lemmatizer | None
    description: str  # for the signature: format, terms and languages

    def cases(self, hypotheses: Sequence[str]) -> list[Case]:
        """Return the lines of a system (raises UsageError for another number of lines than the test
        set's)."""
        if len(hypotheses) != len(self.sentences):
            raise UsageError(
                f"--hypotheses has {counted(len(hypotheses), 'translation')} and --references has "
                f"{counted(len(self.sentences), 'line')}: name files of the same test set"
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


def score(test_set: EvaluationSet, hypotheses: Sequence[str]) -> dict[str, object]:
    """Return every score by its name. BLEU and chrF2++ are percentages, the others shares; None for
    a score with nothing to count.

    Formulas: metrics.py.
    """
    cases = test_set.cases(hypotheses)
    metrics = translation_metrics()
    values = {
        name: metric.corpus_score(list(hypotheses), [test_set.references]).score
        for name, metric in metrics.items()
    }
    tools = "|".join(f"{name}[{metric.get_signature()}]" for name, metric in metrics.items())
    lemma_tool = "none" if test_set.of_target is None else lemmas.version()
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
    rows: dict[str, float | None] = {}
    for name, value in scores.items():
        if name == "window_overlap":
            rows |= {f"{name} {n}": overlap for n, overlap in value.items()}
        elif name != "signature":
            rows[name] = value
    width = max(map(len, rows))
    lines = [f"{name:<{width}}  {shown(value)}" for name, value in rows.items()]
    return "\n".join([*lines, "", scores["signature"]])


def shown(value: float | None) -> str:
    """Return a value as text: numbers with four decimal digits, a bar if there is nothing to
    count."""
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
