"""The letter case of a term in a sentence.

Term bases write terms as labels: "Customer", "Sales order". In a sentence such a term takes the
case of the words that it replaces: lower case in running text, a capital at the start of a
sentence, title case where a label stands. A word with a case of its own keeps it: one with a
capital inside, a digit, or capitals only (FastTab, B2B, API).
"""

from __future__ import annotations

import regex

from fairseq_ext.core.words import has_own_case

PART = regex.compile(r"[^\s\-\u2010\u2011/]+")  # a word, or a part of one with a hyphen
# what may stand between the end of a sentence and the first word of the next one
SENTENCE_START = regex.compile(r"(?:^|[.!?…]\p{Pe}*\s+)[\p{P}\p{S}\d\s]*$")
SMALL = frozenset(
    "a an and as at but by for from in into of on onto or per the to via with".split()
)
NOUNS_HAVE_CAPITALS = ("de", "lb")  # languages that write nouns with a capital


def capitalised(text: str) -> str:
    """Return a text with a capital at its start, if its first character has a single one."""
    initial = text[:1].upper()
    return (initial if len(initial) == 1 else text[:1]) + text[1:]


def keeps_case(term: str) -> bool:
    """Return whether each word of a term keeps its case."""
    return all(keeps_place(term, found) for found in PART.finditer(term))


def keeps_place(term: str, part: regex.Match) -> bool:
    """Return whether a part of a term keeps its case: one with a case of its own, or a capital
    letter that is a word (X-ray, vitamin C; not "E-mail", "A user")."""
    if len(part.group()) == 1 and part.group().isupper():
        is_prefix = term[part.end() : part.end() + 1] in ("-", "\u2010", "\u2011")
        return part.group() != ("E" if is_prefix else "A")
    return has_own_case(part.group())


def lowered(term: str) -> str:
    """Return a term as running text has it."""
    return PART.sub(
        lambda part: part.group() if keeps_place(term, part) else part.group().lower(), term
    )


def titled(term: str) -> str:
    """Return a term as an English title has it: a capital for each word but the small ones."""
    return PART.sub(
        lambda part: (
            part.group()
            if keeps_place(term, part) or (part.start() and part.group().lower() in SMALL)
            else capitalised(part.group())
        ),
        term,
    )


def starts_sentence(text: str, start: int) -> bool:
    """Return whether the word at a place of a text is the first one of a sentence."""
    return SENTENCE_START.search(text[:start]) is not None


def fitted(term: str, text: str, span: tuple[int, int], language: str = "en") -> str:
    """Return a term in the case that it has in the place of a span of a text.

    span: [start, end) in characters, empty where the term is inserted; language: of the text.
    """
    displaced = [
        part.group() for part in PART.finditer(text[slice(*span)]) if part.group()[0].isalpha()
    ]
    if text.isupper() and len(text.split()) > 1:
        return term.upper()
    if displaced and starts_sentence(text, span[0]):
        first, *others = displaced
        begun = term if has_own_case(term.split()[0]) else capitalised(term)
        if language in NOUNS_HAVE_CAPITALS:
            return begun if first[0].isupper() else term
        if any(word[0].isupper() for word in others):
            return as_label(term, displaced, language)
        return begun[:1] + lowered(begun)[1:] if first[0].isupper() else lowered(term)
    if language in NOUNS_HAVE_CAPITALS:
        return term
    is_label = any(word[0].isupper() for word in displaced)
    return as_label(term, displaced, language) if is_label else lowered(term)


def as_label(term: str, displaced: list[str], language: str) -> str:
    """Return a term in the place of words with capitals: "Sales Order" for "Purchase Order",
    "Sales order" for "Purchase order", and as it is written for one word."""
    if not language.startswith("en"):
        return term if any(character.isupper() for character in term) else capitalised(term)
    words = [word for word in displaced if word.lower() not in SMALL] or displaced
    if len(words) > 1 and words[0][0].isupper() and not words[-1][0].isupper():
        low = lowered(term)
        return low if has_own_case(term.split()[0]) else capitalised(low)
    is_written_so = len(words) == 1 and any(character.isupper() for character in term)
    return term if is_written_so else titled(term)
