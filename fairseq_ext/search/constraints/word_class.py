"""Whether a glossary term has the word class that its sentence wants: such a term may take a word's
place, others are left."""

from __future__ import annotations

import re
from collections.abc import Collection

from fairseq_ext.core.words import is_word, words_of
from fairseq_ext.search.phrases.agreement import has_noun, noun_after
from fairseq_ext.search.phrases.forms import FEMININE
from fairseq_ext.search.phrases.german_nouns import ALL, lexicon
from fairseq_ext.search.phrases.letter_case import capitalised, starts_sentence
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


def is_verb_of_noun(term: SourceTerm, word: str) -> bool:
    """Return whether a mention of a German noun is a verb: Speichern of Speicher, where the draft's
    word is no plural."""
    is_longer = term.mention == term.source + "n" and term.mention.endswith(("ern", "eln"))
    return is_longer and not PLURAL.search(word)


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
    if is_verb_mention(term) and not verb_of(term):
        return True
    if not verb_forms(term, text, span):
        return True
    if re.match(r" Sie\b", text[span[1] :]):
        return not verb_of(term)
    if any(folded(word) in folded(term.mention) for word in words):
        return False
    if all(map(has_noun, term.targets)):
        is_own = is_own or noun_after(text, span[1], "de") is not None
        return is_own and all(word.islower() and known.has(word) for word in words)
    is_copy = term.text == term.source  # not to be translated
    if is_copy or any(map(has_noun, term.targets)) or starts_sentence(text, span[0]) or not is_own:
        return False
    return all(
        word[:1].isupper() and known.cells(word) != ALL and not known.is_infinitive(word)
        for word in words
    )


# ---- German verbs

CLAUSE_END = r"(?=\s*(?:[,.;:!?)]|$)|\s(?:und|oder)\s)"
DETERMINERS = frozenset("a an the this that these those your its all each every any".split())
BEFORE_VERBS = frozenset("to you we they can must may will should cannot please".split())


def is_verb_mention(term: SourceTerm) -> bool:
    """Return whether a mention of an English term is a verb: "Displays the", "to store the"."""
    before, behind = term.around
    is_first = not is_word(before) and " " not in term.mention
    return behind in DETERMINERS and (is_first or before.lower() in BEFORE_VERBS)


def verb_of(term: SourceTerm) -> str:
    """Return the infinitive of a term that is a German verb, "" for another one."""
    known, first = lexicon(), next(iter(term.targets), "")
    low = first[:1].lower() + first[1:]
    is_verb = known.is_verb(low) and not known.is_stem(low)
    return low if is_verb and low in term.targets else ""


def separates(verb: str) -> bool:
    """Return whether a German verb has a particle that it separates: auszuwählen."""
    forms = lexicon().table.forms(verb)
    return any(f != verb and f[:1] + f[1:].replace("zu", "", 1) == verb for f in forms)


def verb_at(text: str, span: Span) -> tuple[str, str]:
    """Return the infinitive of the German verb in a place, without and with the particle behind
    it: wählen, auswählen in "Wählen Sie ... aus"."""
    known, word = lexicon(), folded(text[slice(*span)])
    verb = word if known.is_verb(word) else known.lemma(word)
    clause = re.split(r"[.:;!?]", text[span[1] :])[0]
    particles = re.findall(rf"\b([^\W\dA-Z]+){CLAUSE_END}", clause)
    return verb, next((p + verb for p in particles if known.is_verb(p + verb)), verb)


def has_verb(term: SourceTerm, text: str, span: Span) -> bool:
    """Return whether the German words of a place are another form of a verb."""
    is_there = text[slice(*span)].lower() in term.targets
    return not is_there and verb_of(term) == verb_at(text, span)[1]


def verb_forms(term: SourceTerm, text: str, span: Span) -> tuple[str, ...]:
    """Return the forms of a German term that may stand in a place: of a verb the infinitive before
    "Sie" and behind "zu", unless it separates its particle, none where another particle stays."""
    verb, known = verb_of(term), lexicon()
    if not verb:
        return term.targets
    word = text[slice(*span)]
    base, whole = verb_at(text, span)
    if base != whole:
        return ()
    if re.search(r"\bzu $", text[: span[0]]) or re.match(r" Sie\b", text[span[1] :]):
        return () if separates(verb) else (verb,)
    if word[:1].isupper() and not starts_sentence(text, span[0]) and known.is_infinitive(word):
        return (capitalised(verb),)
    is_finite = word.islower() and base != word
    if is_finite and separates(verb) and not re.match(CLAUSE_END, text[span[1] :]):
        return ()
    return term.targets
