"""Which word of a translation a source term has become, by prediction difference.

    X. Li, G. Li, L. Liu, M. Meng and S. Shi. On the Word Alignment from Neural Machine Translation. ACL 2019.
    https://aclanthology.org/P19-1124/     Section 4.2, without their sampling: the source word is left out.

Without the term in the source, the words that translate it become improbable: the word whose log-probability falls most is its
translation. That needs no attention, no layer to choose and no training, so it serves every model and ensemble. A drop below
`CONFIDENT` nats says that the translation has no word for the term, or one that the other words give away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import normalize

from torch import Tensor

from fairseq_ext.constraints.places import Span
from fairseq_ext.constraints.token_spans import overlapping
from fairseq_ext.terms.words import is_word, starts_of, words_of

CONFIDENT = 0.5  # nats


@dataclass(frozen=True)
class AlignedWord:
    """The word that translates a mention of a source term."""

    span: Span  # characters
    drop: float  # nats

    @property
    def is_confident(self) -> bool:
        """Whether the translation has a word for the term."""
        return self.drop >= CONFIDENT


def word_spans(text: str) -> list[Span]:
    """Where the words of a text in NFKC stand, punctuation left out."""
    words = words_of(text)
    return [(start, start + len(word)) for start, word in zip(starts_of(text, words), words, strict=True) if is_word(word)]


def without(source: Sequence[int], places: Sequence[int]) -> list[int]:
    """A source without the tokens at these places."""
    left_out = set(places)
    return [token for place, token in enumerate(source) if place not in left_out]


def aligned_words(text: str, spans: Sequence[Span], drops: Sequence[Tensor]) -> list[AlignedWord | None]:
    """A word of the text for each mention, no word for two; None where no word is left. The mention that is surest chooses first.

    spans: characters of each token; drops: for each mention, by how much each token's log-probability falls without it (L,).
    """
    words = word_spans(normalize("NFKC", text))
    tokens = [overlapping(spans, *word) for word in words]
    of_word = [[max(0.0, float(drop[of].sum())) if of else 0.0 for of in tokens] for drop in drops]
    found: list[AlignedWord | None] = [None] * len(drops)
    taken: set[int] = set()
    for mention in sorted(range(len(drops)), key=lambda mention: -max(of_word[mention], default=0.0)):
        free = [word for word in range(len(words)) if word not in taken]
        if free:
            best = max(free, key=of_word[mention].__getitem__)
            taken.add(best)
            found[mention] = AlignedWord(words[best], of_word[mention][best])
    return found
