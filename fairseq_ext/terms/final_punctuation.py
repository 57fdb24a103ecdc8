"""The share of terms behind the sentence's final punctuation, as in "The children are jumping. canine."

A term that stands in the translation is behind where at least as many sentence ends come before it as the reference has, and at least
one. A sentence end is one of . ! ? … 。 ！ ？ with closing quotes and brackets behind it, and then space, or nothing in scripts without
spaces. So a reference of two sentences allows terms in the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import normalize

import regex

from fairseq_ext.terms.cases import Case, claim
from fairseq_ext.terms.success import share

END = regex.compile(r"(?:[.!?…]+[\p{Pe}\p{Pf}\"']*(?=\s|$)|[。！？]+[\p{Pe}\p{Pf}\"']*)")


def after_final_punctuation(cases: Sequence[Case]) -> float | None:
    """The share among the terms that the translations hold as words, 0 to 1; None where they hold none."""
    return share(of_line(case) for case in cases)


def of_line(case: Case) -> tuple[int, int]:
    """Terms behind, and terms found."""
    allowed = max(1, len(END.findall(case.reference.raw)))
    found = [each for each in claim(case.asked, case.hypothesis, cased=False, lemmas=True, whole=True) if each is not None]
    ends = [match.end() for match in END.finditer(normalize("NFKC", case.hypothesis.raw))]
    starts = case.hypothesis.starts
    return sum(sum(end <= starts[place] for end in ends) >= allowed for _, (place, _) in found), len(found)
