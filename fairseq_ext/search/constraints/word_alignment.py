"""Which word a source term has become: attention, forced decoding, and a term put in its place.

Attention: the word whose prediction attends to the term, by the cross-attention of all layers and
heads on average: no layer is to be chosen. A step that predicts an article or an adjective looks
ahead to the noun: of neighbours that attend about as much, it is the last. Where that is not sure,
or the model has none, prediction difference:

    X. Li, G. Li, L. Liu, M. Meng and S. Shi. On the Word Alignment from Neural Machine Translation.
    ACL 2019. https://aclanthology.org/P19-1124/
    Section 4.2, without their sampling: the source word is left out.

The word whose log-probability falls most without the term in the source is its translation. A drop
below `DROP` says that the translation has no word for the term, or one that the other words give
away.

A weak model attends to the term in several steps. A word that is nearly the term itself ("priority"
for "priorities") counts twice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from os.path import commonprefix

from torch import Tensor

from fairseq_ext.core.words import is_word, starts_of, words_of
from fairseq_ext.search.phrases.pieces import folded
from fairseq_ext.search.phrases.places import Span, overlapping

ATTENDED = 0.25  # least attention to a term's tokens, of 1
AHEAD = 0.5  # of the most attention: with so much of it, a word behind that one is the term's
DROP = 0.5  # nats
WITH_UNKNOWN = re.compile(r"\w*(?:<unk>\w*)+")  # a word with unknown pieces


class WordAlignment:
    """The words of a translation that stand for mentions of source terms, no word for two.

    text: in NFKC; spans: characters of each token; forms: the target forms of each mention's term.
    """

    def __init__(self, text: str, spans: Sequence[Span], forms: Sequence[Sequence[str]]):
        self.text, self.words = text, word_spans(text)
        self.tokens = [overlapping(spans, *word) for word in self.words]
        self.found: list[Span | None] = [None] * len(forms)
        own = [{word for form in each for word in words_of(folded(form))} for each in forms]
        self.weights = [
            [1.0 + is_akin(folded(text[slice(*word)]), each) for word in self.words] for each in own
        ]

    @property
    def unsure(self) -> list[int]:
        """The mentions that have no word."""
        return [mention for mention, word in enumerate(self.found) if word is None]

    def attend_(self, attention: Sequence[Tensor]) -> None:
        """Find words by the attention (L,) to each mention's tokens."""
        scores = {
            m: [float(weights[of].mean()) if of else 0.0 for of in self.tokens]
            for m, weights in enumerate(attention)
        }
        self.take_(scores, ATTENDED, AHEAD)

    def differ_(self, drops: dict[int, Tensor]) -> None:
        """Find words by how far each token's log-probability falls without a mention (L,)."""
        self.take_(
            {
                m: [float(drop[of].sum()) if of else 0.0 for of in self.tokens]
                for m, drop in drops.items()
            },
            DROP,
        )

    def take_(self, scores: dict[int, list[float]], least: float, ahead: float = 2.0) -> None:
        """Give these mentions the free words that score best for them, if that is enough;
        the next one where it has this share of the score (above 1: never). The surest
        mention chooses first."""
        scores = {
            m: [score * weight for score, weight in zip(each, self.weights[m], strict=True)]
            for m, each in scores.items()
        }
        for mention in sorted(scores, key=lambda mention: -max(scores[mention], default=0.0)):
            free = [word for word, span in enumerate(self.words) if span not in self.found]
            best = max(free, key=scores[mention].__getitem__, default=None)
            if best is not None and (most := scores[mention][best]) >= least:
                while (
                    best + 1 in free
                    and scores[mention][best + 1] >= ahead * most
                    and self.leads_on(best, self.weights[mention])
                ):
                    best += 1
                self.found[mention] = self.words[best]

    def leads_on(self, word: int, weights: Sequence[float]) -> bool:
        """Whether a word may look ahead to the next: only space is between them ("cars, while" is
        no article and its noun), and the next counts as much."""
        return (
            weights[word + 1] >= weights[word]
            and self.text[self.words[word][1] : self.words[word + 1][0]].isspace()
        )


def word_spans(text: str) -> list[Span]:
    """Where the words of a text in NFKC stand, punctuation left out; an unknown piece is a part of
    its word (1<unk>2)."""
    unknown = [found.span() for found in WITH_UNKNOWN.finditer(text)]
    words = words_of(text)
    known = [
        (start, start + len(word))
        for start, word in zip(starts_of(text, words), words, strict=True)
        if is_word(word) and not any(first <= start < end for first, end in unknown)
    ]
    return sorted(known + unknown)


def is_akin(word: str, others: Collection[str]) -> bool:
    """Whether a word and one of others, all in lower case, begin alike and differ in three
    letters at the end at most."""
    return any(
        len(commonprefix([word, other])) >= max(5, len(word) - 3, len(other) - 3)
        for other in others
    )


def without(source: Sequence[int], places: Sequence[int]) -> list[int]:
    """A source without the tokens at these places."""
    left_out = set(places)
    return [token for place, token in enumerate(source) if place not in left_out]


def widened(text: str, span: Span, term: str, taken: list[Span]) -> Span:
    """The span with the neighbouring words that the term itself contains ("electric guitar" for the
    term "six-string guitar"). An empty span, where a term is inserted, takes none in."""
    if span[0] == span[1]:
        return span
    words, own = words_of(text), {folded(word) for word in words_of(term)}
    spans = [
        (start, start + len(word))
        for start, word in zip(starts_of(text, words), words, strict=True)
    ]
    start, end = span
    for first, behind in [
        *reversed([each for each in spans if each[1] <= start]),
        *[each for each in spans if each[0] >= end],
    ]:
        is_free = all(behind <= other[0] or first >= other[1] for other in taken if other != span)
        is_near = text[behind:start].isspace() if behind <= start else text[end:first].isspace()
        if is_near and is_free and folded(text[first:behind]) in own:
            start, end = min(start, first), max(end, behind)
    return start, end
