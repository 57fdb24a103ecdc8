"""Term success: the share of terms whose target stands in the translation.

Semenov et al. 2025, WMT 2025 terminology task (github.com/wmt-conference/wmt25-terminology, metric of track 1):

    success = |{(s, t): s found in the source, t found in the translation}| / |{(s, t): s found in the source}|

over the pairs of all lines. Found: the lower-cased term is a substring of the lower-cased text, or the lower-cased lemmas of the term,
joined by a mark, are a substring of the text's, joined in the same way. A substring may begin and end inside a word. The task takes
its lemmas from stanza.

`term_success_words` counts the same pairs and asks for whole words: the words of the target, or their lemmas, in a row, both in lower
case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairseq_ext.terms.cases import Case
from fairseq_ext.terms.text import found_in, places_of

Counts = list[tuple[int, int]]  # a line's (met, asked)


def success(cases: Sequence[Case]) -> Counts:
    """Terms met and asked for in each line, as substrings."""
    return [(sum(any(found_in(t, case.hypothesis) for t in asked.targets) for asked in case.asked), len(case.asked)) for case in cases]


def success_words(cases: Sequence[Case]) -> Counts:
    """Terms met and asked for in each line, as whole words."""
    return [
        (
            sum(any(places_of(t, case.hypothesis, cased=False, lemmas=True, whole=True) for t in asked.targets) for asked in case.asked),
            len(case.asked),
        )
        for case in cases
    ]


def share(counts: Iterable[tuple[int, int]]) -> float | None:
    """Met of asked over all lines, 0 to 1; None where nothing was asked."""
    met = asked = 0
    for of_line, of_line_asked in counts:
        met, asked = met + of_line, asked + of_line_asked
    return met / asked if asked else None
