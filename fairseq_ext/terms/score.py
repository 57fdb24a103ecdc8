"""All scores of a system's translations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from fairseq_ext.core import words
from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.terms.cases import Case, cases_of
from fairseq_ext.terms.consistency import consistency
from fairseq_ext.terms.edit_rate import one_minus_term
from fairseq_ext.terms.exact_match import exact_match
from fairseq_ext.terms.final_punctuation import after_final_punctuation
from fairseq_ext.terms.success import share, success, success_words
from fairseq_ext.terms.test_set import Sentence
from fairseq_ext.terms.window_overlap import window_overlap

VERSION = "0.1"
WINDOWS = (2, 3)  # words on either side, as in the WMT21 task


@dataclass(frozen=True)
class EvaluationSet:
    """What systems are scored on. The lemmatizers are None where there are no lemmas."""

    sentences: Sequence[Sentence]
    of_source: words.Lemmatizer | None
    of_target: words.Lemmatizer | None
    description: str  # for the signature: format, terms and languages

    def cases(self, hypotheses: Sequence[str], flag: str) -> list[Case]:
        """The lines of a system; UsageError for another number of lines than the test set's."""
        if len(hypotheses) != len(self.sentences):
            found, lines = counted(len(hypotheses), "translation"), counted(len(self.sentences), "line")
            raise UsageError(f"{flag} has {found} and --references has {lines}: name files of the same test set")
        return cases_of(self.sentences, hypotheses, self.of_source, self.of_target)


def translation_metrics() -> dict[str, BLEU | CHRF]:
    """BLEU (13a, order 4) and chrF2++ (character order 6, word order 2) of sacrebleu, as the WMT25 task sets them."""
    return {"bleu": BLEU(tokenize="13a", max_ngram_order=4), "chrf2pp": CHRF(char_order=6, word_order=2)}


def score(test_set: EvaluationSet, hypotheses: Sequence[str], flag: str = "--hypotheses") -> dict[str, Any]:
    """Every score by its name. BLEU and chrF2++ are percentages, the others shares; None where a score has nothing to count.

    Formulas: success.py, exact_match.py, window_overlap.py, edit_rate.py, consistency.py, final_punctuation.py.
    """
    cases = test_set.cases(hypotheses, flag)
    metrics = translation_metrics()
    references = [sentence.reference for sentence in test_set.sentences]
    values = {name: metric.corpus_score(list(hypotheses), [references]).score for name, metric in metrics.items()}
    tools = "|".join(f"{name}[{metric.get_signature()}]" for name, metric in metrics.items())
    lemma_tool = "none" if test_set.of_target is None else words.version()
    return {
        **values,
        "term_success": share(success(cases)),
        "term_success_words": share(success_words(cases)),
        "terms": sum(len(case.asked) for case in cases),
        "sentences": len(cases),
        "exact_match": exact_match(cases, test_set.of_target is not None),
        "window_overlap": {str(n): window_overlap(cases, n) for n in WINDOWS},
        "one_minus_term": one_minus_term(cases),
        "consistency": consistency(cases),
        "after_final_punctuation": after_final_punctuation(cases),
        "signature": f"fairseq_ext.terms:{VERSION}|{test_set.description}|lemmas:{lemma_tool}|{tools}",
    }


def table(scores: Mapping[str, Any]) -> str:
    """The scores as a table: one a line, its name in the first column; the signature is the last line."""
    rows = list(flat({name: value for name, value in scores.items() if name not in ("signature", "bootstrap")}))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {shown(value)}" for name, value in rows]
    if "bootstrap" in scores:
        lines += ["", f"{'paired bootstrap':<{width}}  {'score':>9} {'baseline':>9} {'difference':>10} {'p':>7}"]
        for name, of_score in scores["bootstrap"].items():
            numbers = (shown(of_score[key]) for key in ("score", "baseline", "difference", "p"))
            lines.append(f"{name:<{width}}  " + "{:>9} {:>9} {:>10} {:>7}".format(*numbers))
    return "\n".join([*lines, "", scores["signature"]])


def flat(scores: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, Any]]:
    """(name, value) of all scores, nested names joined by spaces."""
    for key, value in scores.items():
        full = f"{name} {key}".strip()
        if isinstance(value, Mapping):
            yield from flat(value, full)
        else:
            yield full, value


def shown(value: Any) -> str:
    """A value as text: numbers with four digits behind the point, a bar where there is nothing to count."""
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
