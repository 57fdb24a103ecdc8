"""German declension: the cases of nouns, and of the words that go with them.

A cell is a case (n, a, d, g) and a gender, or the plural (m, f, n, p): "dp" is the dative plural.
Genders and numbers of nouns follow from their forms in simplemma's table: of nouns in the singular,
only those that are not feminine have a genitive in -s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from fairseq_ext.search.phrases.forms import (
    FEMININE,
    MIN_FIRST_PART,
    MIN_PART,
    PARTICIPLES,
    TermForms,
    split_adjective,
)

Cells = frozenset[str]
CASES = "nadg"
ALL: Cells = frozenset(case + kind for case in CASES for kind in "mfnp")
PLURAL_CELLS = frozenset(cell for cell in ALL if cell[1] == "p")
SAME_PLURAL = ("el", "er", "en", "chen", "lein")  # nouns without an ending in the plural
COLLECTIVE = re.compile(r"[Gg]e\w{3,}e$")  # Gewebe, Tumorgewebe
UMLAUT = re.compile("[äöü]")
NEUTER = re.compile(
    r"(?:chen|lein|ment|(?<!a)(?<!Kons)(?<!Reicht)(?<!Irrt)um|(?<!Eur)(?<!Sald)(?<![Ss]kont)o)$"
)
MASCULINE = re.compile(r"(?:ling|[aikou]tor|sor|(?<![aä])(?<!Min)(?<!Pl)(?<!Vir)us)$")
# nouns from these verbs are masculine: Beleg, Auftrag, Vergleich
PREFIXED = re.compile(
    r"(?:be|ver|er|ent|ab|an|auf|aus|ein|vor|um|zu|nach|unter|über)\w{3}", re.IGNORECASE
)
PERSON = re.compile(r"(?:ent|ant|ist|at|loge|soph|mensch|herr)$", re.IGNORECASE)


def paradigm(masculine: str, feminine: str, neuter: str, plural: str) -> dict[str, Cells]:
    """Return the cells of each word or ending. masculine, ...: those of the four cases; "-": no
    ending, "/": none."""
    found: dict[str, set[str]] = {}
    for kind, row in zip("mfnp", (masculine, feminine, neuter, plural), strict=True):
        for case, word in zip(CASES, row.split(), strict=True):
            found.setdefault(word.replace("-", ""), set()).add(case + kind)
    return {word: frozenset(cells) for word, cells in found.items() if word != "/"}


DEFINITE = paradigm("der den dem des", "die die der der", "das das dem des", "die die den der")
STRONG_ENDINGS = paradigm("er en em en", "e e er er", "es es em en", "e e en er")  # of adjectives
WEAK_ENDINGS = paradigm("e en en en", "e e en en", "e e en en", "en en en en")
MIXED_ENDINGS = paradigm("er en en en", "e e en en", "es es en en", "en en en en")
OF_DIES = paradigm("er en em es", "e e er er", "es es em es", "e e en er")
OF_EIN = paradigm("- en em es", "e e er er", "- - em es", "e e en er")
CASES_OF = {  # prepositions
    **dict.fromkeys("mit von bei aus nach seit zu".split(), "d"),
    **dict.fromkeys("für durch gegen ohne um".split(), "a"),
    **dict.fromkeys("in an auf über unter vor hinter neben zwischen".split(), "ad"),
    **dict.fromkeys("wegen während trotz aufgrund anhand innerhalb außerhalb".split(), "dg"),
}


def of_cases(cases: str) -> Cells:
    """Return the cells of some cases."""
    return frozenset(cell for cell in ALL if cell[0] in cases)


def of_adjective(ending: str, *tables: dict[str, Cells]) -> Cells:
    """Return the cells in which an adjective may have an ending."""
    return frozenset[str]().union(*(table.get(ending, frozenset()) for table in tables))


# with the articles that they may contract with
PREPOSITIONS = {
    "in": ("im", "ins", "in der", "in die", "in den"),
    "an": ("am", "ans", "an der", "an die", "an den"),
    "zu": ("zum", "zur", "zu den"),
    "bei": ("beim", "bei der", "bei den"),
    "von": ("vom", "von der", "von den"),
}
CONTRACTED: dict[str, Cells] = {  # by their last letter
    "m": frozenset(("dm", "dn")),
    "r": frozenset(("df",)),
    "s": frozenset(("an",)),
}


class Determiner(NamedTuple):
    """A determiner: its cells, the tables of the endings of adjectives behind it, and what may
    stand in its place."""

    cells: Cells = ALL
    tables: tuple[dict[str, Cells], ...] = (STRONG_ENDINGS,)
    family: tuple[str, ...] = ()


NO_DETERMINER = Determiner()
DETERMINERS = {w: Determiner(c, (WEAK_ENDINGS,), tuple(DEFINITE)) for w, c in DEFINITE.items()}
for _forms in PREPOSITIONS.values():
    for _word in _forms:
        if " " not in _word:
            DETERMINERS[_word] = Determiner(CONTRACTED[_word[-1]], (WEAK_ENDINGS,), _forms)
for _stem in ("ein", "kein", "mein", "dein", "sein", "ihr", "unser", "euer"):
    _words = {_stem + e if _stem != "euer" or not e else "eur" + e: c for e, c in OF_EIN.items()}
    for _word, _cells in _words.items():
        _cells -= PLURAL_CELLS if _stem == "ein" else set()
        DETERMINERS[_word] = Determiner(_cells, (MIXED_ENDINGS,), tuple(_words))
for _stem in ("dies", "jed", "jen", "welch", "solch", "manch", "all", "beid"):
    _tables = (WEAK_ENDINGS, STRONG_ENDINGS)[: 1 + (_stem in ("manch", "solch"))]
    for _ending, _cells in OF_DIES.items():
        _family = tuple(_stem + ending for ending in OF_DIES)
        DETERMINERS[_stem + _ending] = Determiner(_cells, _tables, _family)


class Lexicon(TermForms):
    """Lemmas, genders and inflection of German words."""

    def __init__(self) -> None:
        super().__init__("de")
        self.cells = lru_cache(maxsize=1 << 14)(self.cells_of)

    def is_adjective(self, word: str) -> bool:
        """Return whether an inflected word is an adjective, as far as is known."""
        low = word[:1].lower() + word[1:]
        stem, _ = split_adjective(low)
        return self.has(stem + "em") or stem.endswith(PARTICIPLES) or not self.has(low)

    def is_stem(self, word: str) -> bool:
        """Return whether a word is an adjective without an ending, as adverbs are."""
        return self.has(word + "em")

    def lemma(self, word: str) -> str:
        """Return the lemma of a word, itself if it is not known."""
        return self.table.lemma(word) or word

    def is_verb(self, word: str) -> bool:
        """Return whether a word is the infinitive of a verb."""
        return word.endswith("n") and len(self.table.forms(word)) > 1

    def cells_of(self, noun: str) -> Cells:
        """Return the cells in which a form of a noun may stand."""
        *_, last = noun.split("-")
        starts = range(MIN_FIRST_PART, len(last) - MIN_PART + 1)
        for start in (0, *(starts if not last.isupper() else ())):
            part = last[start : start + 1].upper() + last[start + 1 :]
            found = frozenset[str]()
            for lemma in self.lemmas(part):
                forms = self.inflections(lemma, self.table.forms(lemma))
                forms = [form.replace("ß", "ss") for form in forms]
                lemma = lemma.replace("ß", "ss")
                genders = self.genders(lemma, forms)
                found |= cells_of_form(part.replace("ß", "ss"), lemma, forms, genders)
            if found:
                return found
        return frozenset(f"{case}f" for case in CASES) if FEMININE.search(noun) else ALL

    def same_number(self, noun: str) -> tuple[str, ...]:
        """Return the forms of a noun that may have its number, itself first."""
        numbers = {cell[1] == "p" for cell in self.cells(noun)}
        return tuple(f for f in self(noun) if numbers & {cell[1] == "p" for cell in self.cells(f)})

    def lemmas(self, word: str) -> list[str]:
        """Return the lemmas of a noun in the table."""
        table = self.table
        known = [word] if table.forms(word) else []
        if (lemma := table.lemma(word) or "") and lemma[:1].isupper() and lemma != word:
            known.append(lemma)
        nominal = (each for each in known if not self.is_infinitive(each))
        return list(nominal) or known

    def genders(self, lemma: str, forms: Sequence[str]) -> str:
        """Return the genders that a noun with these forms may have; w: weak masculine (Kunde)."""
        if FEMININE.search(lemma):
            return "f"
        if NEUTER.search(lemma):
            return "n"
        if MASCULINE.search(lemma):
            return "m"
        if not {lemma + "s", lemma + "es", lemma + "ses"}.isdisjoint(forms):
            is_from_verb = PREFIXED.match(lemma) and self.is_verb(lemma.lower() + "en")
            has_woman = lemma.endswith("er") and self.has(lemma + "in")
            is_masculine = has_woman or (is_from_verb and not lemma.endswith("bild"))
            return "m" if is_masculine else "mn"
        if lemma + "ns" in forms:  # Name
            return "w"
        plural = lemma + ("n" if lemma.endswith("e") else "en")
        if self.has(lemma + "m") or len({lemma, *forms}) < 2:
            return "mfn"  # a noun from an adjective (Angestellte); one without forms
        women = lemma.removesuffix("e") + "innen"
        is_person = self.has(women) or PERSON.search(lemma)
        return "w" if plural in forms and is_person else "f"


def cells_of_form(form: str, lemma: str, forms: Sequence[str], genders: str) -> Cells:
    """Return the cells of a form of a noun. forms: all; genders: those of `Lexicon.genders`."""
    found = set[str]()
    genitives = {lemma + "s", lemma + "es", lemma + "ses", lemma + "ns"}
    plurals = set(forms) - genitives - {lemma}
    if form == lemma:
        for gender in genders:
            kept = "n" if gender == "w" else "nad" if genitives & set(forms) else CASES
            found |= {case + gender.replace("w", "m") for case in kept}
    if form in genitives:
        found |= {"gm", "gn"} if "f" not in genders else set()
    if "w" in genders and form in plurals:
        found |= {"am", "dm", "gm"}
    has_umlaut = any(UMLAUT.search(each[1:]) for each in plurals)
    is_collective = COLLECTIVE.search(lemma) is not None and lemma + "s" in forms
    is_same = lemma.endswith(SAME_PLURAL) or is_collective
    if is_same and genders != "f" and not has_umlaut:
        plurals |= {lemma}
    has_other = any(not plural.startswith(lemma) for plural in plurals)  # Diuretika
    has_other = has_other or lemma + "es" in forms or lemma.endswith((*SAME_PLURAL, "or"))
    if not has_other:  # Links
        plurals |= {lemma + "s"}
    if form in plurals:
        is_dative = form.endswith("n") and form[:-1] in plurals
        lacks_dative = not form.endswith(("n", "s"))
        kept = "d" if is_dative else "nag" if lacks_dative else CASES
        found |= {case + "p" for case in kept}
    return frozenset(found)


@lru_cache(maxsize=1)
def lexicon() -> Lexicon:
    """Return what is known about German words."""
    return Lexicon()
