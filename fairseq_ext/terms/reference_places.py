"""Where the reference has its terms: as the test set marks them, else where their words first occur."""

from __future__ import annotations

from fairseq_ext.terms.cases import Case, claim

Span = tuple[int, int]  # [start, end) in words


def reference_spans(case: Case) -> list[Span]:
    """The places of the line's terms in its reference, case-sensitive; terms that it does not have are left out.

    Each place serves one term.
    """
    marked = [asked.term.place for asked in case.asked if asked.term.place is not None]
    others = [asked for asked in case.asked if asked.term.place is None]
    found = claim(others, case.reference, cased=True, lemmas=False, whole=True)
    return marked + [(place, place + len(target.words)) for target, (place, _) in filter(None, found)]
