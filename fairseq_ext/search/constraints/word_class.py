"""Whether a glossary term has the word class that its sentence wants: such a term may take a word's
place, others are left."""

from __future__ import annotations

import re
from collections.abc import Collection

from fairseq_ext.core.words import is_word, words_of
from fairseq_ext.search.phrases.agreement import has_noun, noun_after
from fairseq_ext.search.phrases.forms import FEMININE
from fairseq_ext.search.phrases.german_nouns import ALL, lexicon
from fairseq_ext.search.phrases.letter_case import starts_sentence
from fairseq_ext.search.phrases.pieces import folded
from fairseq_ext.search.phrases.places import PLURAL, Span
from fairseq_ext.search.phrases.sentence import SourceTerm


def is_noun(term: SourceTerm) -> bool:
    """Return whether a term is a noun of a language that writes nouns with a capital: it has the
    ending of one ("Anwendung"), or its English forms cannot be verbs ("delete" for "Löschen" can).
    """
    return (
        all(text.split(" ")[-1][:1].isupper() for text in (term.source, term.mention))
        and not any(form.endswith(("ed", "ing")) for form in term.targets)
        and (
            FEMININE.search(term.source) is not None
            or any(" " in form or PLURAL.search(form) for form in term.targets)
        )
    )


def is_imperative(term: SourceTerm) -> bool:
    """Return whether a mention of a German term is an imperative, and its English forms are
    plurals: Questions in "Fragen Sie Ihren Experten"."""
    before, behind = term.around
    begins = term.mention[:1].isupper() and not is_word(before)
    return begins and behind == "Sie" and all(map(PLURAL.search, term.targets))


def is_phrasal(term: SourceTerm) -> bool:
    """Return whether a mention of an English term is a part of a phrasal verb: Set in "Set up"."""
    return term.around[1] in ("up", "down", "out", "off")


def is_function_word(term: SourceTerm, functions: Collection[str]) -> bool:
    """Return whether a term has none but function words of its language: "über"."""
    return set(functions).issuperset(words_of(folded(term.source)))


def is_other_class(term: SourceTerm, text: str, span: Span, is_own: bool = True) -> bool:
    """Return whether the German words of a place have another word class than a term: no noun
    stands for the adjective in "folgende Werte" or the verb in "Geben Sie den Namen ein", no
    adjective for a noun. is_own: whether the model begins a translation of the term alone so."""
    words, known = text[slice(*span)].split(), lexicon()
    if re.match(r" Sie\b", text[span[1] :]):
        return has_noun(term.text)
    if known is None or any(folded(word) in folded(term.mention) for word in words):
        return False
    if all(map(has_noun, term.targets)):
        is_own = is_own or noun_after(text, span[1], "de") is not None
        return is_own and all(word.islower() and known.forms.has(word) for word in words)
    if any(map(has_noun, term.targets)) or starts_sentence(text, span[0]) or not is_own:
        return False
    return all(
        word[:1].isupper() and known.cells(word) != ALL and not known.is_infinitive(word)
        for word in words
    )
