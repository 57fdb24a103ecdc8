"""Inflected forms of a glossary's target terms.

A term base has dictionary forms, and a sentence may need another one: "Verband" is "Verbands" or
"Verbänden". Forms come from simplemma's table of lemmas, turned round. For a word that it lacks
they are those of its last part ("Schwefelmolekül" has those of "Molekül"); for one without a known
part, the commonest edits of words with the same ending. Forms of the table come first.

Left out are forms that are no inflection: comparatives, linking letters ("Rechnungs"), words with
another stem, and forms that are out of use ("dem Verbande").
"""

from __future__ import annotations

import itertools
import os.path
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache

from fairseq_ext.core.language_codes import two_letters
from fairseq_ext.core.lemmas import WordForms, has_lemmas, word_forms
from fairseq_ext.core.words import has_own_case
from fairseq_ext.search.phrases.function_words import function_words

MAX_FORMS = 24  # of a term, itself included
MIN_PART = 4  # letters of the last part of a compound
MIN_FIRST_PART = 3  # letters before it
ENDINGS = (5, 4, 3, 2)  # letters in which similar words agree
MIN_SIMILAR, MAX_SIMILAR = 8, 100  # words with the same ending
MIN_SHARE = 0.3  # of similar words that have an edit
UMLAUTS = str.maketrans("äöüß", "aous")
ADJECTIVE_ENDINGS = ("e", "en", "er", "es", "em")
PARTICIPLES = ("iert", "end", "bar", "los", "isch", "lich", "ig")
# nouns with a plural in -en, and in the table a dative in -e that is out of use
MIXED = re.compile(
    "(?:[akou]tor|[ns]sor|[Bb]ett|[Ee]lektron|[Hh]emd|[Ii]nsekt|[Nn]erv|[Oo]hr|[Ss]chmerz|[Ss]taat"
    "|[Ss]trahl)$"
)
FEMININE = re.compile(r"(?:ung|heit|keit|schaft|[ts]ion|tät|enz|anz)$")
NEGATION = re.compile(r"^(?:ne|nej)")  # Czech: negation and superlative
LANGUAGES_WITHOUT_FORMS = ("en",)  # languages whose few forms the user names

Forms = Callable[[str], tuple[str, ...]]  # a term -> its forms, itself first


@lru_cache(maxsize=4)
def forms_of_language(language: str) -> Forms | None:
    """Return a function from a term to its forms; None for a language without forms. The first
    form that is ever needed writes the table (core/lemmas.py)."""
    code = two_letters(language)
    has_forms = code not in LANGUAGES_WITHOUT_FORMS and has_lemmas(code)
    return TermForms(code) if has_forms else None


class TermForms:
    """The forms of terms. language: two letters; table: of its word forms, None for simplemma's."""

    def __init__(self, language: str, table: WordForms | None = None):
        self.language, self.own_table = language, table
        self.functions = function_words(language)
        self.of_word = lru_cache(maxsize=1 << 14)(self.forms_of_word)

    @cached_property
    def table(self) -> WordForms:
        """The table of word forms."""
        return word_forms(self.language) if self.own_table is None else self.own_table

    def __call__(self, term: str) -> tuple[str, ...]:
        """Return the forms of a term, the term first, then those that the table has."""
        words = term.split()
        if len(words) == 1:
            found: Sequence[str] = self.of_word(term)
        elif self.language == "de":
            found = self.german_phrases(words)
        else:
            parts = [self.of_word(w) if w not in self.functions else (w,) for w in words]
            found = [" ".join(each) for each in itertools.product(*(p[:4] for p in parts))]
        return tuple(dict.fromkeys((term, *found)))[:MAX_FORMS]

    def german_phrases(self, words: Sequence[str]) -> list[str]:
        """Return the forms of a German noun phrase: of its head, which is the last noun before a
        preposition or an article, with the adjectives before it."""
        behind = next((i for i, w in enumerate(words) if i and w in self.functions), len(words))
        head, rest = behind - 1, list(words[behind:])
        first = head
        while first and is_adjective(words[first - 1]) and words[head][:1].isupper():
            first -= 1
        fixed = list(words[:first])
        stems = [split_adjective(word)[0] for word in words[first:head]]
        if stems and first == 0 and not has_own_case(words[0]):
            stems[0] = stems[0][:1].lower() + stems[0][1:]
        noun = words[head]
        is_fixed = noun in self.functions or has_own_case(noun)
        nouns = (noun, *([] if is_fixed else self.table_forms(noun) or self.compound(noun)))
        endings = ADJECTIVE_ENDINGS if stems else ("",)
        own = split_adjective(words[0])[1]
        ordered = sorted(endings, key=lambda ending: ending != own)
        return [
            " ".join([*fixed, *(stem + ending for stem in stems), noun, *rest])
            for noun in nouns
            for ending in ordered
        ]

    def forms_of_word(self, word: str) -> tuple[str, ...]:
        """Return the forms of a word: of the table, of its last part, else by its ending."""
        if has_own_case(word.split("-")[-1]) or not word[-1:].isalpha():
            return (word,)
        found: list[str] = []
        for spelling in self.spellings(word):
            found += (
                self.table_forms(spelling)
                or self.compound(spelling)
                or self.forms_by_ending(spelling)
            )
        return tuple(dict.fromkeys((word, *found)))

    def spellings(self, word: str) -> list[str]:
        """Return a word as written, in small letters where the table knows no such noun, or both: a
        term base may give any word a capital."""
        low = word[:1].lower() + word[1:]
        if low == word:
            return [word]
        table = self.table
        is_noun = (table.lemma(word) or low)[:1].isupper()
        if self.language == "de":
            is_adjective = self.has(low + "em")
            is_named = bool(table.forms(low)) and word in table.forms(word)
            is_verb = is_named and self.is_infinitive(word)
            has_other = is_adjective or is_verb or (not is_noun and self.has(low))
            return [word] * (is_noun or not has_other) + [low] * has_other
        return [word, low] if self.has(low) else [word]

    def is_infinitive(self, noun: str) -> bool:
        """Return whether a German noun is an infinitive ("das Verwenden")."""
        return noun.endswith("n") and {noun, noun + "s"} >= set(self.table.forms(noun))

    def has(self, word: str) -> bool:
        """Return whether the table has a word."""
        return self.table.lemma(word) is not None

    def table_forms(self, word: str) -> list[str]:
        """Return the forms that the table has. Of a word that is itself an inflected form (a
        plural, a participle, a comparative), those that continue it."""
        table = self.table
        if forms := table.forms(word):
            found = self.inflections(word, forms)
            return found if len(found) > 1 else []
        lemma = table.lemma(word)
        if lemma is None:
            return []
        if self.language == "de" and word[:1].islower():
            is_inflected = word.startswith(lemma) and word[len(lemma) :] in ADJECTIVE_ENDINGS
            if is_inflected and self.has(lemma + "em"):
                return self.inflections(lemma, table.forms(lemma) or (lemma,))
            return with_all_endings(word, [])
        others = self.inflections(lemma, table.forms(lemma))
        return list(dict.fromkeys([word, *others]))

    def inflections(self, lemma: str, forms: Sequence[str]) -> list[str]:
        """Forms of a lemma without those that are no inflection of it."""
        if self.language != "de":
            first = lemma[:1].lower()
            return [
                form
                for form in forms
                if form[:1].lower() == first
                and not (self.language == "cs" and NEGATION.match(form) and form[:2] != lemma[:2])
            ]
        if lemma[:1].isupper():
            return german_noun(lemma, forms)
        if any(form.endswith("em") for form in forms):
            return with_all_endings(lemma, [form for form in forms if is_positive(form, lemma)])
        known = set(forms)
        return [
            form
            for form in forms
            if form == lemma
            or not (
                # imperative ("setz"); participles end in t ("gesetzt")
                (form + "e" in known and (not form.endswith("t") or form + "en" == lemma))
                or form.endswith(("st", "tet"))  # second person
                or (form.endswith("et") and form[:-2] + "t" in known)
            )
        ]

    def compound(self, word: str) -> list[str]:
        """Return the forms of a word by those of its last part, the longest one that the table
        has."""
        if self.language not in ("de", "nl", "da", "sv", "nb", "fi", "hu") and "-" not in word:
            return []
        is_noun = word[:1].isupper()
        for start in range(MIN_FIRST_PART, len(word) - MIN_PART + 1):
            part, is_behind_hyphen = word[start:], word[start - 1] == "-"
            spelled = part if not is_noun or is_behind_hyphen else part[:1].upper() + part[1:]
            known = self.table_forms(spelled) if part[0].isalpha() else []
            if known:
                return [
                    word[:start] + (form if is_behind_hyphen else form[:1].lower() + form[1:])
                    for form in known
                ]
        return []

    def forms_by_ending(self, word: str) -> list[str]:
        """Return the forms of an unknown word: the commonest edits of words with its ending."""
        if self.language == "de" and word.endswith(PARTICIPLES) and word[:1].islower():
            return with_all_endings(word, [])
        if self.language == "de" and word[:1].isupper() and word.endswith("s"):
            return []  # a foreign word: "Bias", "Spikes"
        of_ending = self.table.similar(word)
        alike: list[str] = []
        for length in ENDINGS:
            same = (
                lemma
                for lemma in of_ending
                if lemma.endswith(word[-length:]) and lemma[:1].isupper() == word[:1].isupper()
            )
            alike = list(itertools.islice(same, MAX_SIMILAR))
            if len(alike) >= MIN_SIMILAR:
                break
        edits: Counter[tuple[int, str]] = Counter()
        for lemma in alike:
            for form in self.inflections(lemma, self.table.forms(lemma)):
                shared = len(os.path.commonprefix([lemma, form]))
                edits[len(lemma) - shared, form[shared:]] += 1
        return [
            word[: len(word) - cut] + added
            for (cut, added), number in edits.most_common(len(ADJECTIVE_ENDINGS) + 1)
            if number >= MIN_SHARE * len(alike)
        ]


def is_adjective(word: str) -> bool:
    """Return whether a German word before a noun looks like an inflected adjective."""
    return bool(split_adjective(word)[1]) and not word.isupper()


def split_adjective(word: str) -> tuple[str, str]:
    """Return the stem and the ending of a German adjective; no ending for a word without one."""
    found = re.fullmatch(r"(\w[\w-]*?\w)(e[nrsm]?)", word)
    return (found[1], found[2]) if found else (word, "")


def with_all_endings(adjective: str, known: Sequence[str]) -> list[str]:
    """Return the forms of a German adjective or participle: those that are known, with missing
    ones. Where the stem changes ("dunkle"), all are known."""
    if any(len(form) <= len(adjective) and form != adjective for form in known):
        return list(known)
    is_inflected = adjective.endswith("e") and not known
    endings = tuple(e[1:] for e in ADJECTIVE_ENDINGS) if is_inflected else ("", *ADJECTIVE_ENDINGS)
    return list(dict.fromkeys([*known, *(adjective + ending for ending in endings)]))


def is_positive(form: str, lemma: str) -> bool:
    """Return whether a form of a German adjective is neither comparative nor superlative."""
    return (
        form[:1].islower()
        and len(form) <= len(lemma) + 2
        and form.startswith(lemma[: max(1, len(lemma) - 2)])
        and (form == lemma or form.endswith(ADJECTIVE_ENDINGS))
        and len(re.findall("[äöü]", form)) <= len(re.findall("[äöü]", lemma))
        and (lemma.endswith("er") or not form.endswith(("ere", "erer", "eres")))
    )


def german_noun(lemma: str, forms: Sequence[str]) -> list[str]:
    """Return the forms of a German noun, without those of other words, linking letters, and datives
    in -e that are out of use."""
    stem = lemma.lower().translate(UMLAUTS)[: max(3, len(lemma) - 3)]
    kept = [
        form
        for form in forms
        if form[:1].isupper()
        and len(form) <= len(lemma) + 4
        and form.lower().translate(UMLAUTS).startswith(stem)
        and not (form == lemma + "s" and FEMININE.search(lemma))
    ]
    has_umlaut = any(
        form[: len(lemma)] != lemma
        and form.translate(UMLAUTS)[: len(lemma)] == lemma.translate(UMLAUTS)
        for form in kept
    )
    if MIXED.search(lemma):
        return [form for form in kept if form != lemma + "e"]
    dative = (lemma + "e", lemma + "en") if has_umlaut or lemma + "er" in kept else ()
    return [form for form in kept if form not in dative]
