"""The word of a translation that corresponds to a source term.

By attention: the word whose prediction attends to the term, by the cross-attention averaged over
all layers and heads. A step that predicts an article or an adjective also attends to the noun: of
neighbours with about the same attention, the last is used. If that is not sure, or the model has no
attention, by prediction difference:

    X. Li, G. Li, L. Liu, M. Meng and S. Shi. On the Word Alignment from Neural Machine Translation.
    ACL 2019. https://aclanthology.org/P19-1124/
    Section 4.2, without their sampling: the source word is left out.

The word whose log-probability falls most without the term in the source is its translation. If it
falls by less than `DROP`, the translation has no word for the term, or one that follows from the
other words.

A weak model attends to the term in several steps. A word similar to the term itself ("priority" for
"priorities") counts twice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from os.path import commonprefix

from torch import Tensor

from fairseq_ext.core.words import is_word, starts_of, words_of
from fairseq_ext.search.phrases.pieces import folded
from fairseq_ext.search.phrases.places import Span, overlapping

ATTENDED = 0.25  # smallest sum of attention to a term's tokens
NEXT_WORD_SHARE = 0.5  # share of the largest attention with which the next word is the term's
DROP = 0.5  # nats
WITH_UNKNOWN = re.compile(r"\w*(?:<unk>\w*)+")  # a word with unknown pieces


class WordAlignment:
    """The words of a translation for mentions of source terms, at most one mention a word.

    text: in NFKC; spans: characters of each token; forms: the target forms of each mention's term.
    """

    def __init__(self, text: str, spans: Sequence[Span], forms: Sequence[Sequence[str]]):
        self.text, self.words = text, word_spans(text)
        self.tokens = [overlapping(spans, *word) for word in self.words]
        self.span_of_mention: list[Span | None] = [None] * len(forms)
        own = [{word for form in each for word in words_of(folded(form))} for each in forms]
        self.weights = [
            [1.0 + share_long_prefix(folded(text[slice(*word)]), each) for word in self.words]
            for each in own
        ]

    @property
    def unsure(self) -> list[int]:
        """The mentions without a word."""
        return [mention for mention, word in enumerate(self.span_of_mention) if word is None]

    def attend_(self, attention: Sequence[Tensor]) -> None:
        """Find words by the attention (L,) to each mention's tokens."""
        scores = {
            m: [float(weights[of].mean()) if of else 0.0 for of in self.tokens]
            for m, weights in enumerate(attention)
        }
        self.take_(scores, ATTENDED, NEXT_WORD_SHARE)

    def differ_(self, drops: dict[int, Tensor]) -> None:
        """Find words by the fall of each token's log-probability without a mention (L,)."""
        self.take_(
            {
                m: [float(drop[of].sum()) if of else 0.0 for of in self.tokens]
                for m, drop in drops.items()
            },
            DROP,
        )

    def take_(self, scores: dict[int, list[float]], least: float, ahead: float = 2.0) -> None:
        """Give these mentions the free words with the best scores for them, if at least `least`;
        the next word if it has the share `ahead` of the score (above 1: never). The mention with
        the best score chooses first."""
        scores = {
            m: [score * weight for score, weight in zip(each, self.weights[m], strict=True)]
            for m, each in scores.items()
        }
        for mention in sorted(scores, key=lambda mention: -max(scores[mention], default=0.0)):
            free = [
                word for word, span in enumerate(self.words) if span not in self.span_of_mention
            ]
            best = max(free, key=scores[mention].__getitem__, default=None)
            if best is not None and (most := scores[mention][best]) >= least:
                while (
                    best + 1 in free
                    and scores[mention][best + 1] >= ahead * most
                    and self.leads_on(best, self.weights[mention])
                ):
                    best += 1
                self.span_of_mention[mention] = self.words[best]

    def leads_on(self, word: int, weights: Sequence[float]) -> bool:
        """Whether a word may belong to the next one: only space is between them ("cars, while" is
        not an article and its noun), and the next counts as much."""
        return (
            weights[word + 1] >= weights[word]
            and self.text[self.words[word][1] : self.words[word + 1][0]].isspace()
        )


def word_spans(text: str) -> list[Span]:
    """Return the places of the words of a text in NFKC, without punctuation; an unknown piece is a
    part of its word (1<unk>2)."""
    unknown = [found.span() for found in WITH_UNKNOWN.finditer(text)]
    words = words_of(text)
    known = [
        (start, start + len(word))
        for start, word in zip(starts_of(text, words), words, strict=True)
        if is_word(word) and not any(first <= start < end for first, end in unknown)
    ]
    return sorted(known + unknown)


def share_long_prefix(word: str, others: Collection[str]) -> bool:
    """Whether a word and one of others, all in lower case, have the same beginning and differ in at
    most three letters at the end."""
    return any(
        len(commonprefix([word, other])) >= max(5, len(word) - 3, len(other) - 3)
        for other in others
    )


def remove_tokens(source: Sequence[int], places: Sequence[int]) -> list[int]:
    """Return a source without the tokens at these places."""
    left_out = set(places)
    return [token for place, token in enumerate(source) if place not in left_out]


def widened(text: str, span: Span, term: str, taken: list[Span]) -> Span:
    """Return the span with neighbouring words that the term itself contains ("electric guitar" for
    the term "six-string guitar"). An empty span, for an insertion, is unchanged."""
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
