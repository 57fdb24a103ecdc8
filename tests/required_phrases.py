"""Required constraints of tests."""

from collections.abc import Iterable, Sequence
from itertools import repeat

from fairseq_ext.search.phrases.sentence import EXACT, Cased, Constraint, Phrase


def required_phrases(
    any_of: Iterable[Sequence[Phrase]], text: Iterable[str] = (), cased: Iterable[Cased] = ()
) -> tuple[Constraint, ...]:
    """A constraint for each sequence of alternative phrases."""
    any_of = list(any_of)
    each = zip(any_of, list(text) or repeat(""), list(cased) or repeat(EXACT), strict=False)
    return tuple(Constraint(written, tuple(phrases), case) for phrases, written, case in each)


def prefix_of(phrase: Phrase, text: str = "") -> tuple[Constraint, ...]:
    """A sentence's prefix; none for an empty phrase."""
    return (Constraint(text or str(phrase), (phrase,)),) if phrase else ()
