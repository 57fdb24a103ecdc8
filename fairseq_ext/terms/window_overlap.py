"""Window overlap: whether a term stands among the words among which the reference has it.

Alam et al. 2021, section 3 (https://arxiv.org/abs/2106.11891). For a term of the reference that the translation has in the same
words, R is the multiset of up to n words on either side of it in the reference, H in the translation, punctuation passed over:

    overlap = |R ∩ H| / |R|

Where a term occurs several times in either, occurrences are paired by falling overlap. A sentence's value is the mean over its pairs,
0 where there is none; the score is the mean over the sentences whose reference has a term. (The task's script divides by all
sentences, those without terms too.)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from fairseq_ext.core.words import is_word
from fairseq_ext.terms.cases import Case, Span, reference_spans
from fairseq_ext.terms.text import places


def window_overlap(cases: Sequence[Case], n: int) -> float | None:
    """The score for windows of n words, 0 to 1; None where no reference has a term."""
    values = [of_sentence(case, spans, n) for case in cases if (spans := reference_spans(case))]
    return sum(values) / len(values) if values else None


def of_sentence(case: Case, spans: list[Span], n: int) -> float:
    """A sentence's value."""
    reference, hypothesis = case.reference.words, case.hypothesis.words
    by_wording: defaultdict[tuple[str, ...], list[Span]] = defaultdict(list)
    for start, end in spans:
        by_wording[tuple(reference[start:end])].append((start, end))
    overlaps = []
    for wording, of_reference in by_wording.items():
        of_hypothesis = [(start, start + len(wording)) for start, _ in places(list(wording), hypothesis, whole=True)]
        windows = [window(hypothesis, span, n) for span in of_hypothesis]
        pairs = [(overlap(window(reference, span, n), w), i, j) for i, span in enumerate(of_reference) for j, w in enumerate(windows)]
        used: tuple[set[int], set[int]] = (set(), set())
        for value, i, j in sorted(pairs, key=lambda pair: -pair[0]):
            if i not in used[0] and j not in used[1]:
                used[0].add(i)
                used[1].add(j)
                overlaps.append(value)
    return sum(overlaps) / len(overlaps) if overlaps else 0.0


def window(words: list[str], span: Span, n: int) -> Counter[str]:
    """The n words before a span and the n words behind it."""
    before = [word for word in reversed(words[: span[0]]) if is_word(word)][:n]
    behind = [word for word in words[span[1] :] if is_word(word)][:n]
    return Counter(before + behind)


def overlap(of_reference: Counter[str], of_hypothesis: Counter[str]) -> float:
    """The share of the reference's window that the translation's has; 0 where the term is the whole sentence."""
    return (of_reference & of_hypothesis).total() / of_reference.total() if of_reference else 0.0
