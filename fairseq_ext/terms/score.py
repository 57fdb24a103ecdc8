"""All scores of a system's translations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from unicodedata import normalize

import regex
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from fairseq_ext.core import lemmas
from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.words import is_word
from fairseq_ext.terms.cases import (
    Case,
    Sentence,
    Text,
    cased_places,
    cases_of,
    claim,
    found_in,
    lemma_places,
    places,
)

# ---- Term success: the share of terms whose target stands in the translation
#
# Semenov et al. 2025, WMT 2025 terminology task (github.com/wmt-conference/wmt25-terminology,
# metric of track 1):
#
#     success = |{(s, t): s found in the source, t found in the translation}|
#         / |{(s, t): s found in the source}|
#
# over the pairs of all lines. Found: the lower-cased term is a substring of the lower-cased text,
# or the lower-cased lemmas of the term, joined by a mark, are a substring of the text's, joined in
# the same way. A substring may begin and end inside a word. The task takes its lemmas from stanza.
#
# `term_success_words` counts the same pairs and requires whole words: the words of the target,
# or their lemmas, in a row, both in lower case.


Counts = list[tuple[int, int]]  # a line's (met, required)


def counts(cases: Sequence[Case], is_met: Callable[[Text, Text], object]) -> Counts:
    """Return the numbers of terms met and required in each line. is_met: of a target and the
    translation."""
    return [
        (
            sum(any(is_met(target, case.hypothesis) for target in each) for each in case.required),
            len(case.required),
        )
        for case in cases
    ]


success = partial(counts, is_met=found_in)  # matched as substrings
success_words = partial(counts, is_met=lemma_places)  # matched as whole words


def share(counts: Iterable[tuple[int, int]]) -> float | None:
    """Return the share of required terms that are met over all lines, 0 to 1; None if none was
    required."""
    met, required = map(sum, zip((0, 0), *counts, strict=True))
    return met / required if required else None


# ---- Window overlap
#
# Whether a term stands among the words among which the reference has it.
#
# Alam et al. 2021, section 3 (https://arxiv.org/abs/2106.11891). For a term of the reference that
# the translation has in the same words, R is the multiset of up to n words on either side of it in
# the reference, H in the translation, punctuation passed over:
#
#     overlap = |R ∩ H| / |R|
#
# Where a term occurs several times in either, occurrences are paired by falling overlap.
# A sentence's value is the mean over its pairs, 0 where there is none; the score is the mean
# over the sentences whose reference has a term. (The task's script divides by all sentences,
# those without terms too.)


def window_overlap(cases: Sequence[Case], n: int) -> float | None:
    """Return the score for windows of n words, 0 to 1; None if no reference has a term."""
    values = []
    for case in cases:
        if spans := claim(case.required, case.reference, cased_places):
            overlaps = paired_overlaps(case, spans, n)
            values.append(sum(overlaps) / len(overlaps) if overlaps else 0.0)
    return sum(values) / len(values) if values else None


def paired_overlaps(case: Case, spans: list[tuple[int, int]], n: int) -> list[float]:
    """Return the overlap of each pair of occurrences. spans: (start, number of words) of the terms
    in the reference, case-sensitive."""
    reference, hypothesis = case.reference.words, case.hypothesis.words
    by_wording: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for start, length in spans:
        by_wording[tuple(reference[start : start + length])].append(start)
    found = []
    for wording, starts in by_wording.items():
        pairs = []
        for i in starts:
            expected = window(reference, i, len(wording), n)
            for j in places(list(wording), hypothesis):
                common = (expected & window(hypothesis, j, len(wording), n)).total()
                pairs.append((common / (expected.total() or 1), i, j))
        while pairs:
            value, i, j = max(pairs, key=lambda pair: pair[0])
            found.append(value)
            pairs = [pair for pair in pairs if pair[1] != i and pair[2] != j]
    return found


def window(words: list[str], start: int, length: int, n: int) -> Counter[str]:
    """Return the n words before a span and the n words after it."""
    before = [word for word in reversed(words[:start]) if is_word(word)][:n]
    behind = [word for word in words[start + length :] if is_word(word)][:n]
    return Counter(before + behind)


# ---- Final punctuation
#
# The share of terms behind it, as in "The children are jumping. canine."
#
# A term that stands in the translation is behind where at least as many sentence ends come before
# it as the reference has, and at least one. A sentence end is one of . ! ? … 。 ！ ？ with
# closing quotes and brackets behind it, and then space, or nothing in scripts without spaces. So
# a reference of two sentences allows terms in the second.


END = regex.compile(r"(?:[.!?…]+[\p{Pe}\p{Pf}\"']*(?=\s|$)|[。！？]+[\p{Pe}\p{Pf}\"']*)")


def after_final_punctuation(cases: Sequence[Case]) -> float | None:
    """Return the share of terms after final punctuation among the terms that the translations have
    as words, 0 to 1; None if they have none."""
    counts = []
    for case in cases:
        allowed = max(1, len(END.findall(case.reference.raw)))
        ends = [match.end() for match in END.finditer(normalize("NFKC", case.hypothesis.raw))]
        found = claim(case.required, case.hypothesis, lemma_places)
        starts = [case.hypothesis.starts[place] for place, _ in found]
        behind = sum(sum(end <= start for end in ends) >= allowed for start in starts)
        counts.append((behind, len(found)))
    return share(counts)


VERSION = "0.1"
WINDOWS = (2, 3)  # words on either side, as in the WMT21 task


def translation_metrics() -> dict[str, BLEU | CHRF]:
    """Return BLEU (13a, order 4) and chrF2++ (character order 6, word order 2) of sacrebleu, with
    the settings of the WMT25 task."""
    return {
        "bleu": BLEU(tokenize="13a", max_ngram_order=4),
        "chrf2pp": CHRF(char_order=6, word_order=2),
    }


def score(
    sentences: Sequence[Sentence],
    hypotheses: Sequence[str],
    description: str,
    of_source: lemmas.Lemmatizer | None,
    of_target: lemmas.Lemmatizer | None,
) -> dict[str, object]:
    """Return every score of a test set's translations by its name. BLEU and chrF2++ are
    percentages, the others shares; None for a score with nothing to count.

    The lemmatizers are None if there are no lemmas. description: of format, terms and languages,
    for the signature. Formulas: score.py. Errors: UsageError for another number of lines than the
    test set's.
    """
    if len(hypotheses) != len(sentences):
        raise UsageError(
            f"--hypotheses has {counted(len(hypotheses), 'translation')} and --references has "
            f"{counted(len(sentences), 'line')}: name files of the same test set"
        )
    cases = cases_of(sentences, hypotheses, of_source, of_target)
    references = [[sentence.reference for sentence in sentences]]
    metrics = translation_metrics()
    values = {
        name: metric.corpus_score(list(hypotheses), references).score
        for name, metric in metrics.items()
    }
    tools = "|".join(f"{name}[{metric.get_signature()}]" for name, metric in metrics.items())
    lemma_tool = "none" if of_target is None else lemmas.version()
    return {
        **values,
        "term_success": share(success(cases)),
        "term_success_words": share(success_words(cases)),
        "terms": sum(len(case.required) for case in cases),
        "sentences": len(cases),
        "window_overlap": {str(n): window_overlap(cases, n) for n in WINDOWS},
        "after_final_punctuation": after_final_punctuation(cases),
        "signature": f"fairseq_ext.terms:{VERSION}|{description}|lemmas:{lemma_tool}|{tools}",
    }


def table(scores: Mapping[str, Any]) -> str:
    """Return the scores as a table: one a line, its name in the first column; the signature is the
    last line. Numbers have four decimal digits, a bar stands for nothing to count."""
    rows: dict[str, float | None] = {}
    for name, value in scores.items():
        if name == "window_overlap":
            rows |= {f"{name} {n}": overlap for n, overlap in value.items()}
        elif name != "signature":
            rows[name] = value
    texts = {
        name: f"{x:.4f}" if isinstance(x, float) else str("-" if x is None else x)
        for name, x in rows.items()
    }
    width = max(map(len, rows))
    lines = [f"{name:<{width}}  {text}" for name, text in texts.items()]
    return "\n".join([*lines, "", scores["signature"]])
