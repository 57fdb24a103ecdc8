"""Exact match accuracy: the share of terms that the translation has, under every reading of "has".

Alam et al. 2021, "On the Evaluation of Machine Translation for Terminology Consistency", https://arxiv.org/abs/2106.11891:

    accuracy = terms matched / terms asked for, summed over all sentences

- once: an occurrence in the translation serves one term (as in the WMT21 task); overlapping: each term is looked up by itself.
- words: as whole words; substring: inside longer words too.
- cased or uncased; with lemmas: the term's words or, failing them, its lemmas.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairseq_ext.terms.cases import Case, claim
from fairseq_ext.terms.success import share
from fairseq_ext.terms.text import places_of


def exact_match(cases: Sequence[Case], lemmas: bool) -> dict[str, dict[str, dict[str, float | None]]]:
    """{once, overlapping} -> {words, substring} -> {cased, uncased, and with _lemmas} -> accuracy, 0 to 1, None without terms.

    lemmas: whether there are any.
    """
    readings = [("cased", True, False), ("uncased", False, False)]
    readings += [("cased_lemmas", True, True), ("uncased_lemmas", False, True)] if lemmas else []
    return {
        variant: {
            unit: {name: share(counts(cases, variant == "once", unit == "words", cased, lemma)) for name, cased, lemma in readings}
            for unit in ("words", "substring")
        }
        for variant in ("once", "overlapping")
    }


def counts(cases: Sequence[Case], once: bool, whole: bool, cased: bool, lemmas: bool) -> list[tuple[int, int]]:
    """Terms matched and asked for in each line."""
    if once:
        matched = [sum(found is not None for found in claim(case.asked, case.hypothesis, cased, lemmas, whole)) for case in cases]
    else:
        matched = [
            sum(any(places_of(target, case.hypothesis, cased, lemmas, whole) for target in asked.targets) for asked in case.asked)
            for case in cases
        ]
    return [(number, len(case.asked)) for number, case in zip(matched, cases, strict=True)]
