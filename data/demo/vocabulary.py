"""Reads the tables of `lexicon.py` and `domains.py` and draws words from them, compounds included.

`Translator` is the imaginary translator of one sentence: it prefers the first of several English
alternatives, or, in about a third of the sentences, one of the others. Its choices hang together
within a sentence, so a good translation is one of several consistent ones, and a search that looks
ahead has something to find.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import domains
import english
import lexicon
from german import GermanVerb, Inflected, parse_verb

T = TypeVar("T")


class Translator:
    """The taste of one translator: how often each kind of choice falls on the first alternative."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        usual = rng.random() < 0.68
        self.first = 0.95 if usual else 0.22
        self.that = 0.85 if usual else 0.2
        self.front = 0.12 if usual else 0.7
        self.contract = 0.03 if usual else 0.75

    def pick(self, alternatives: Sequence[T]) -> T:
        """One of the alternatives, by taste."""
        if len(alternatives) == 1 or self.rng.random() < self.first:
            return alternatives[0]
        return self.rng.choice(alternatives[1:])

    def yes(self, probability: float) -> bool:
        """A coin with the given probability."""
        return self.rng.random() < probability


def alternatives(text: str, domain: str) -> tuple[str, ...]:
    """The English alternatives of a table column in a domain."""
    text = text.strip()
    for part in text.split(" ; "):
        label, colon, words = part.partition(": ")
        if not colon:
            return tuple(text.split("/"))
        if label.strip() == domain:
            return tuple(words.strip().split("/"))
    raise ValueError(f"no translation for domain {domain!r} in {text!r}")


@dataclass(frozen=True)
class Noun:
    """A noun or a compound in one domain."""

    german: Inflected
    kind: str
    english: tuple[str, ...]
    head: bool = False
    link: str = "-"


@dataclass(frozen=True)
class Verb:
    """A verb and its frame: `objects` are (preposition or "", case, kinds); `dative` is ""
    or such as `^to`, `>for`."""

    german: GermanVerb
    subjects: str
    objects: tuple[tuple[str, str, str], ...]
    english: tuple[str, ...]
    dative: str = ""
    passive: bool = False


def rows(table: str) -> list[list[str]]:
    """The stripped columns of a `|`-separated table.

    The bar inside a verb has no spaces around it.
    """
    return [[column.strip() for column in line.split(" | ")] for line in table.strip().splitlines()]


def read_nouns(table: str, domain: str) -> list[Noun]:
    """Parse a noun table for one domain."""
    nouns = []
    for line in table.strip().splitlines():
        singular, gender, plural, kind, link, text = line.split(" ", 5)
        kind = kind.split("/")[domains.DOMAINS.index(domain) if "/" in kind else 0]
        german = Inflected(singular, gender[0], gender == "mw", plural)
        nouns.append(Noun(german, kind.strip("+"), alternatives(text, domain), "+" in kind, link))
    return nouns


def read_verbs(table: str, domain: str) -> list[Verb]:
    """Parse a verb table for one domain."""
    verbs = []
    for german, subjects, frame, text in rows(
        table.replace("|  |", "| - |").replace("| | ", "| - | ")
    ):
        objects = []
        for item in frame.split():
            if item == "-":
                continue
            case, _, kinds = item.partition(":")
            preposition, _, case = case.rpartition("+")
            objects.append((preposition, case, kinds))
        words, dative = [], ""
        for word in alternatives(text, domain):
            for mark in "^>":
                if mark in word:
                    word, _, preposition = word.partition(mark)
                    dative = mark + preposition
            words.append(word)
        passive = (
            len(objects) == 1
            and objects[0][:2] == ("", "a")
            and not any("!" in word for word in words)
        )
        english_words = tuple(word.strip("!") for word in words)
        verbs.append(
            Verb(parse_verb(german), subjects, tuple(objects), english_words, dative, passive)
        )
    return verbs


def zipf(rng: random.Random, count: int, exponent: float = 0.7) -> list[float]:
    """Weights for `count` words in a random order of rank."""
    weights = [1 / (rank + 4) ** exponent for rank in range(count)]
    rng.shuffle(weights)
    return weights


@dataclass
class Vocabulary:
    """All words of one domain, with fixed weights; the draws take the sentence's
    own random generator."""

    domain: str
    nouns: list[Noun] = field(default_factory=list)
    verbs: list[Verb] = field(default_factory=list)

    def __post_init__(self) -> None:
        tech = self.domain == "tech"
        fixed = random.Random(self.domain)
        own_nouns = domains.TECH_NOUNS if tech else domains.CLINIC_NOUNS
        own_verbs = domains.TECH_VERBS if tech else domains.CLINIC_VERBS
        own_adjectives = domains.TECH_ADJECTIVES if tech else domains.CLINIC_ADJECTIVES
        groups = [(lexicon.NOUNS, 0.5), (domains.TERMS, 1.5), (own_nouns, 1.2)]
        weighted = [
            (noun, weight * factor)
            for table, factor in groups
            for noun, weight in self._weighted(fixed, read_nouns(table, self.domain))
        ]
        self.nouns = [noun for noun, _ in weighted]
        self.noun_weights = [weight for _, weight in weighted]
        self.verbs = read_verbs(lexicon.VERBS, self.domain) + read_verbs(own_verbs, self.domain) * 2
        self.verb_weights = zipf(fixed, len(self.verbs))
        self.adjectives = rows(lexicon.ADJECTIVES) + rows(own_adjectives) * 2
        self.clause_verbs = [
            (parse_verb(de), en.split("/")) for de, en in rows(lexicon.CLAUSE_VERBS)
        ]
        self.zu_verbs = [(parse_verb(de), en.split("/")) for de, en in rows(lexicon.ZU_VERBS)]
        self.times, self.manners = rows(lexicon.TIMES), rows(lexicon.MANNERS)
        self.particles, self.prepositions = rows(lexicon.PARTICLES), rows(lexicon.PREPOSITIONS)
        self.subjunctions, self.coordinations = (
            rows(lexicon.SUBJUNCTIONS),
            rows(lexicon.COORDINATIONS),
        )
        self._pools: dict[str, tuple[list[Noun], list[float]]] = {}
        self._verb_pools: dict[str, tuple[list[Verb], list[float]]] = {}

    @staticmethod
    def _weighted(rng: random.Random, nouns: list[Noun]) -> list[tuple[Noun, float]]:
        return list(zip(nouns, zipf(rng, len(nouns)), strict=True))

    def _pool(self, name: str) -> tuple[list[Noun], list[float]]:
        """Nouns and weights for kinds such as `pd`, or for `link` (first parts of compounds)."""
        if name not in self._pools:
            chosen = [
                (noun, weight)
                for noun, weight in zip(self.nouns, self.noun_weights, strict=True)
                if (noun.link != "-" if name == "link" else noun.kind in name)
            ]
            self._pools[name] = [noun for noun, _ in chosen], [weight for _, weight in chosen]
        return self._pools[name]

    def noun(self, kinds: str, translator: Translator, compounds: float = 0.33) -> Noun:
        """Draw a noun of one of the kinds; where it can head a compound it often does."""
        rng = translator.rng
        head = rng.choices(*self._pool(kinds))[0]
        for _ in range(2):
            if head.head and rng.random() < (compounds / 2 if head.kind == "p" else compounds):
                head = self._compound(head, translator)
                compounds /= 8
        return head

    def _compound(self, head: Noun, translator: Translator) -> Noun:
        modifier = translator.rng.choices(*self._pool("link"))[0]
        stem = modifier.link.lower()
        if stem[:4] in head.german.singular.lower() or (
            head.kind == "p" and modifier.kind in "pai"
        ):
            return head
        words = {word: f"{translator.pick(modifier.english)} {word}" for word in head.english}
        return Noun(head.german.after(modifier.link), head.kind, tuple(words.values()), head.head)

    def verb(self, kind: str, translator: Translator, *, transitive: str = "") -> Verb | None:
        """Draw a verb for a subject of a kind, None if there is none; `transitive`: the
        kind of its only object."""
        key = kind + transitive
        if key not in self._verb_pools:
            chosen = [
                (verb, weight)
                for verb, weight in zip(self.verbs, self.verb_weights, strict=True)
                if kind in verb.subjects
                and (
                    not transitive or (len(verb.objects) == 1 and transitive in verb.objects[0][2])
                )
            ]
            self._verb_pools[key] = [verb for verb, _ in chosen], [weight for _, weight in chosen]
        verbs, weights = self._verb_pools[key]
        return translator.rng.choices(verbs, weights)[0] if verbs else None


def english_number(noun: Noun, number: str, translator: Translator) -> str:
    """The English of a noun in singular or plural, by the translator's taste."""
    word = translator.pick(noun.english)
    return english.plural(word) if number == "p" else word
