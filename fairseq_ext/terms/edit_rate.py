"""1 - TERm: the translation edit rate with edits of terms counted twice.

Alam et al. 2021, section 3 (https://arxiv.org/abs/2106.11891), on Snover et al. 2006, "A Study of Translation Edit Rate with Targeted
Human Annotation", https://aclanthology.org/2006.amta-papers.25. The words of the translation are shifted as TER shifts them (the search
of sacrebleu, after Tercom); then

    TERm = (shifts + sum of the weights of insertions, deletions and substitutions) / words of the reference

with weight w = 2 for a word of the reference that belongs to a term and is missing or replaced, and 1 for every other edit. The score is
the mean of 1 - TERm over all sentences; it may be negative. Words and punctuation are compared with their case. With w = 1 it is TER.
"""

from __future__ import annotations

from collections.abc import Sequence

from sacrebleu.metrics import lib_ter

from fairseq_ext.terms.cases import Case, reference_spans

WEIGHT = 2


def one_minus_term(cases: Sequence[Case], weight: int = WEIGHT) -> float | None:
    """The score; None where there are no sentences with a reference."""
    rates = []
    for case in cases:
        words = case.reference.words
        if words:
            weights = [1] * len(words)
            for start, end in reference_spans(case):
                weights[start:end] = [weight] * (end - start)
            rates.append(cost(case.hypothesis.words, words, weights) / len(words))
    return 1 - sum(rates) / len(rates) if rates else None


def cost(hypothesis: list[str], reference: list[str], weights: list[int]) -> int:
    """Shifts and weighted edits from hypothesis to reference; weights: of the reference's words."""
    shifts, shifted = shift(hypothesis, reference)
    row = [0]
    for weight in weights:
        row.append(row[-1] + weight)  # all missing
    for word in shifted:
        above, row = row, [row[0] + 1]
        for i, (expected, weight) in enumerate(zip(reference, weights, strict=True)):
            replaced = above[i] + (0 if word == expected else weight)
            row.append(min(replaced, above[i + 1] + 1, row[i] + weight))
    return shifts + row[-1]


def shift(hypothesis: list[str], reference: list[str]) -> tuple[int, list[str]]:
    """The number of shifts that TER makes, and the words in their new order."""
    distance, shifts, tried = lib_ter.BeamEditDistance(reference), 0, 0
    while True:
        gain, moved, tried = lib_ter._shift(hypothesis, reference, distance, tried)
        if tried >= lib_ter._MAX_SHIFT_CANDIDATES or gain <= 0:
            return shifts, hypothesis
        shifts, hypothesis = shifts + 1, moved
