"""The English words around a term that takes the place of a noun: its number, its article and the
verb behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

import regex

from fairseq_ext.search.phrases.forms import FEMININE
from fairseq_ext.search.phrases.function_words import stem
from fairseq_ext.search.phrases.pieces import folded
from fairseq_ext.search.phrases.places import ARTICLE, PLURAL, Span

PREPOSITIONS = "at|by|for|from|in|into|of|on|to|with"
BEHIND_PREPOSITION = regex.compile(rf"(?i)(?<![\w-])(?:{PREPOSITIONS}) $")
# a noun without a determiner: behind a preposition, or one word at the start
BARE = regex.compile(
    rf"(?i)(?<![\w-])(?:{PREPOSITIONS}|and|or) $"
    r"|^(?!(?:an?|the|one|this|that|each|every|my|your|his|her|its|our|their) )\p{L}+ $"
)
# behind a preposition a noun is no subject ("the list of log is"), and "this" keeps its verb
KEEPS_VERB = regex.compile(
    rf"(?i)(?<![\w-])(?:{PREPOSITIONS}|an?|one|this|that|each|every) (?:\p{{L}}+ ){{0,2}}$"
)
VERB = regex.compile(r" (is|was|has|does)(?![\w'’])")
VERBS = {"is": "are", "was": "were", "has": "have", "does": "do"}


def is_plural(text: str) -> bool:
    """Return whether an English noun, the last word of a text, looks like a plural."""
    return PLURAL.search(text) is not None


def is_plural_in_german(source: str, mention: str) -> bool:
    """Return whether a mention of a German noun can only be its plural: "Störungen"."""
    return mention == source + "en" and FEMININE.search(source) is not None


def lacks_article(form: str, before: str) -> bool:
    """Return whether a singular form stands behind a preposition that it may need an article
    after. before: the text before it."""
    return not is_plural(form) and BEHIND_PREPOSITION.search(before) is not None


def verb_behind(text: str, span: Span, form: str, taken: Sequence[Span]) -> tuple[Span, str]:
    """Return the span of a singular noun with the verb behind it, where a plural takes its place,
    and how the verb agrees with that: "minutes are" for "log is"; else the span and "". taken: the
    spans of other terms."""
    start, end = span
    found = VERB.match(text, end)
    if not found or is_plural(text[start:end]) or not is_plural(form):
        return span, ""
    is_own = stem(folded(text[start:end])) == stem(folded(form))
    is_free = not any(first < found.end() and end < behind for first, behind in taken)
    before = ARTICLE.sub("", text[:start]).replace("  ", " ")  # before a plural it is dropped
    if start == end or is_own or not is_free or KEEPS_VERB.search(before):
        return span, ""
    return (start, found.end()), f" {VERBS[found[1]]}"
