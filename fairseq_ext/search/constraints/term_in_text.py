"""Writes a term where another word stood: in its case, with the English article that fits it."""

from __future__ import annotations

import regex

from fairseq_ext.core.words import starts_of, words_of
from fairseq_ext.search.phrases.pieces import capitalised, folded
from fairseq_ext.search.phrases.places import Span

ARTICLE = regex.compile(r"(?<!\w)(a|an)(?= $)", regex.IGNORECASE)
DETERMINER = regex.compile(r"(?i)(?:an?|the|one|this|that|my|your|his|her|its|our|their) ")
SOUNDS_AS_VOWEL = regex.compile(r"(?i)[aeio]|u(?!ni|se|su|ti|ro|r[aeio])|h(?:our|onest|onou?r|eir)")
SOUNDS_AS_CONSONANT = regex.compile(r"(?i)eu|ewe|one?(?!\w)|once")
PLURAL = regex.compile(r"(?i)(?:\w*(?:[^ius\W]s|men|children|people|feet|teeth|mice|geese))$")


def widened(text: str, span: Span, term: str, taken: list[Span]) -> Span:
    """The span with the neighbouring words that the term itself contains ("electric guitar" for the term "six-string guitar"). An empty
    span, where a term is inserted, takes none in."""
    if span[0] == span[1]:
        return span
    words, own = words_of(text), {folded(word) for word in words_of(term)}
    spans = [(start, start + len(word)) for start, word in zip(starts_of(text, words), words, strict=True)]
    start, end = span
    for first, behind in [*reversed([each for each in spans if each[1] <= start]), *[each for each in spans if each[0] >= end]]:
        is_free = all(behind <= other[0] or first >= other[1] for other in taken if other != span)
        is_near = text[behind:start].isspace() if behind <= start else text[end:first].isspace()
        if is_near and is_free and folded(text[first:behind]) in own:
            start, end = min(start, first), max(end, behind)
    return start, end


def agreeing(targets: tuple[str, ...], word: str) -> tuple[str, ...]:
    """The English target forms of the number of the word that they displace; all of them where none has it, or no word is displaced."""
    if not word:
        return targets
    is_plural = PLURAL.search(word) is not None
    return tuple(form for form in targets if (PLURAL.search(form) is not None) == is_plural) or targets


def put(text: str, terms: list[tuple[Span, str]], english: bool) -> str:
    """The text with each term in the place of its span, or behind the word that an empty span follows. A term takes the capital of a word
    that starts the text. english: "a" becomes "an" before a vowel, and back, and goes where the term begins with such a word."""
    for (start, end), term in sorted(terms, reverse=True):
        before = text[:start] if start < end else text[:start] + " "
        article = ARTICLE.search(before) if english else None
        if article is not None and not any(first <= article.start() < behind for (first, behind), _ in terms):
            before = before[: article.start()] + ("" if DETERMINER.match(term) else fitting(article[1], term) + " ")
        if not before and text[:1].isupper():
            term = capitalised(term)
        text = before + term + text[end:]
    return text


def fitting(article: str, word: str) -> str:
    """The form of the article, "a" or "an", that stands before a word."""
    is_vowel = SOUNDS_AS_VOWEL.match(word) and not SOUNDS_AS_CONSONANT.match(word)
    return article[0] + ("n" if is_vowel else "")
