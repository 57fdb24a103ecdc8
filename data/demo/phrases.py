"""Noun phrases, names, numbers and dates of the demo corpus, German and English side by side."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import english
import german
import lexicon
from vocabulary import Noun, Translator, Vocabulary, english_number

SIMPLE_DETERMINERS = {
    "dieser": ("this", "these"),
    "jeder": ("every", "each"),
    "mein": ("my", "my"),
    "unser": ("our", "our"),
    "Ihr": ("your", "your"),
    "sein": ("his", "his"),
}
PLURAL_DETERMINERS = {
    "alle": ("all", "all the"),
    "einige": ("some", "a few"),
    "mehrere": ("several",),
    "viele": ("many", "a lot of"),
}
# pronoun: subject, object, person, number
ENGLISH_PRONOUNS = {
    "ich": ("I", "me", 1, "s"),
    "er": ("he", "him", 3, "s"),
    "sie": ("she", "her", 3, "s"),
    "wir": ("we", "us", 1, "p"),
    "sie-p": ("they", "them", 3, "p"),
    "Sie": ("you", "you", 3, "p"),
    "man": ("you", "you", 3, "s"),
    "es": ("it", "it", 3, "s"),
}
OWNERS = {"ich": "mein", "er": "sein", "sie": "ihr", "wir": "unser", "sie-p": "ihr", "Sie": "Ihr"}


@dataclass
class NounPhrase:
    """A noun phrase: `german` gives its form in a case; `english` and `english_object` its
    subject and object form."""

    german: Callable[[str], str]
    english: str
    english_object: str
    person: int = 3
    number: str = "s"
    gender: str = ""
    pronoun: str = ""
    english_number: str = ""
    definite: bool = True
    kind: str = "p"

    def agreement(self) -> tuple[int, str]:
        """Person and number for the English verb."""
        if self.pronoun in ("Sie", "man"):
            return 2, "p"
        return self.person, self.english_number or self.number


class Phrases:
    """Makes the phrases of one sentence."""

    def __init__(self, vocabulary: Vocabulary, translator: Translator):
        self.words = vocabulary
        self.translator = translator
        self.rng = translator.rng
        self.relative: Callable[[str, str, str], tuple[str, str]] | None = None

    def pronoun(self, name: str) -> NounPhrase:
        """A personal pronoun by its German name; `sie-p` is the plural."""
        forms = german.PRONOUNS[name]
        subject, object_, person, number = ENGLISH_PRONOUNS[name]
        gender = {"er": "m", "sie": "f"}.get(name, "")
        german_number = "p" if name == "Sie" else number
        if name == "man" and self.translator.yes(0.3):
            subject, object_ = "people", "people"
        return NounPhrase(
            lambda case: forms["nad".index(case)],
            subject,
            object_,
            person,
            german_number,
            gender,
            name,
        )

    def name(self) -> NounPhrase:
        """A person's name, with or without first name or title."""
        first = self.rng.choice(lexicon.FIRST_NAMES)
        last = self.surname()
        shape = self.rng.random()
        if shape < 0.3:
            words, gender = [first], ""
        elif shape < 0.6:
            words, gender = [first, last], ""
        else:
            gender = self.rng.choice("mf")
            doctor = self.rng.random() < 0.2
            title = self.translator.pick(("Mr", "Mr.") if gender == "m" else ("Ms", "Mrs"))
            text = "Dr. " + last if doctor else f"{title} {last}"
            plain = ("Dr. " if doctor else "") + last
            return NounPhrase(
                lambda case: (
                    f"{'Frau' if gender == 'f' else 'Herr' if case == 'n' else 'Herrn'} {plain}"
                ),
                text,
                text,
                gender=gender,
            )
        text = " ".join(words)
        genitive = text + ("’" if text[-1] in "sxzß" else "s")
        return NounPhrase(lambda case: genitive if case == "g" else text, text, text, gender=gender)

    def surname(self) -> str:
        """A listed or composed family name."""
        if self.rng.random() < 0.3:
            return self.rng.choice(lexicon.SURNAMES)
        return self.rng.choice(lexicon.SURNAME_STEMS) + self.rng.choice(lexicon.SURNAME_ENDS)

    def city(self) -> tuple[str, str]:
        """A town, German and English; invented ones keep their name."""
        if self.rng.random() < 0.55:
            return self.rng.choice(list(lexicon.CITIES.items()))
        name = self.rng.choice(lexicon.PLACE_STEMS) + self.rng.choice(lexicon.PLACE_ENDS)
        return name, name

    def noun_phrase(
        self,
        kinds: str,
        rich: float,
        *,
        definite: bool = False,
        owner: NounPhrase | None = None,
        negative: bool = False,
        indefinite: bool = False,
        depth: int = 0,
    ) -> NounPhrase:
        """A noun with determiner, adjectives and what may follow it; `rich` in [0, 1]
        says how much there is."""
        noun = self.words.noun(kinds, self.translator)
        number = "p" if noun.german.plural != "-" and self.rng.random() < 0.3 else "s"
        kind, word = self._determiner(number, definite, indefinite, owner, negative)
        adjectives = self._adjectives(noun, rich)
        name_de, name_en = self._designation(noun, number, kind)
        after_de, after_en = self._after(noun, number, rich, kind, depth)
        key = "p" if number == "p" else noun.german.gender
        noun_en = english_number(noun, number, self.translator)
        core = " ".join([*(en for _, en in adjectives), noun_en]) + name_en
        if kind == "ein":
            word = english.article(core)

        def form(case: str) -> str:
            words = [german.determiner(kind, case, key)] if kind else []
            words += [german.adjective(stem, kind, case, key) for stem, _ in adjectives]
            return " ".join([*words, noun.german.form(case, number)]) + name_de + after_de

        text = f"{word} {core}{after_en}".strip()
        known = kind not in ("", "ein", "kein", "einige", "mehrere", "viele")
        return NounPhrase(form, text, text, 3, number, key, definite=known, kind=noun.kind)

    def _determiner(
        self,
        number: str,
        definite: bool,
        indefinite: bool,
        owner: NounPhrase | None,
        negative: bool,
    ) -> tuple[str, str]:
        """German determiner ("" for none) and its English (left open for the
        indefinite article)."""
        rng = self.rng
        if negative:
            return "kein", "no"
        if not indefinite and rng.random() < 0.14:
            return self._possessive(owner)
        if not indefinite and (definite or rng.random() < 0.45):
            kind = "der" if rng.random() < 0.85 else "dieser"
            return kind, "the" if kind == "der" else SIMPLE_DETERMINERS[kind][number == "p"]
        if number == "s":
            kind = "ein" if indefinite or rng.random() < 0.88 else "jeder"
            return kind, "" if kind == "ein" else self.translator.pick(SIMPLE_DETERMINERS[kind])
        choice = rng.random()
        if choice < 0.3:
            return "", ""
        if choice < 0.65:
            kind = rng.choice(list(PLURAL_DETERMINERS))
            return kind, self.translator.pick(PLURAL_DETERMINERS[kind])
        if choice < 0.9:
            return rng.choice(list(lexicon.NUMBER_WORDS.items()))
        de, en = number_text(rng)
        return (
            ("rund " + de, self.translator.pick(("about ", "around ")) + en)
            if rng.random() < 0.4
            else (de, en)
        )

    def _possessive(self, owner: NounPhrase | None) -> tuple[str, str]:
        if owner is None or not (owner.pronoun or owner.gender):
            kind = self.rng.choice(("mein", "unser"))
            return kind, SIMPLE_DETERMINERS[kind][0]
        kind = OWNERS.get(owner.pronoun) or ("ihr" if owner.gender in "fp" else "sein")
        if kind == "ihr":
            return kind, "their" if owner.number == "p" else "her"
        if kind == "sein" and owner.gender == "n":
            return kind, "its"
        return kind, SIMPLE_DETERMINERS[kind][0]

    def _adjectives(self, noun: Noun, rich: float) -> list[tuple[str, str]]:
        """German stems and English words for zero to two adjectives."""
        chosen: list[tuple[str, str]] = []
        while len(chosen) < 2 and self.rng.random() < rich * (0.5 if not chosen else 0.2):
            stem, kinds, words = self.rng.choice(self.words.adjectives)
            if noun.kind in kinds and stem not in [old for old, _ in chosen]:
                chosen.append((stem, self.translator.pick(words.split("/"))))
        return chosen

    def _designation(self, noun: Noun, number: str, kind: str) -> tuple[str, str]:
        """A number or model name behind the noun: `Raum 214`, `Pumpe K-31`."""
        if (
            number == "p"
            or noun.kind not in "dto"
            or kind not in ("der", "dieser")
            or self.rng.random() > 0.07
        ):
            return "", ""
        label = str(self.rng.randint(2, 480))
        if self.rng.random() < 0.5:
            label = self.rng.choice("ABCDFGHKLMPRSTX") + "-" + label
        return " " + label, " " + label

    def _after(
        self, noun: Noun, number: str, rich: float, kind: str, depth: int
    ) -> tuple[str, str]:
        """A genitive, a prepositional phrase or a relative clause behind the noun, or nothing."""
        rng = self.rng
        if depth > 1 or rng.random() > rich * 0.5:
            return "", ""
        choice = rng.random()
        if choice < 0.3 and noun.kind in "dtea" and kind:
            owner = self.noun_phrase("pdoe", 0.0, definite=True, depth=2)
            return " " + owner.german("g"), " of " + owner.english
        if choice < 0.45:
            place_de, place_en = self.place()
            return " " + place_de, " " + place_en
        if choice < 0.55 and noun.kind in "te":
            person = self.noun_phrase("p", 0.0, depth=2) if rng.random() < 0.6 else self.name()
            return " für " + person.german("a"), " for " + person.english_object
        if choice > 0.6 and self.relative:
            key = "p" if number == "p" else noun.german.gender
            return self.relative(key, noun.kind, number)
        return "", ""

    def place(self) -> tuple[str, str]:
        """A place adverbial: in the room, in Hamburg, next to the server."""
        if self.rng.random() < 0.25:
            de, en = self.city()
            return "in " + de, "in " + en
        preposition, case, kinds, words = self.rng.choice(
            [row for row in self.words.prepositions if "o" in row[2]]
        )
        phrase = self.noun_phrase(kinds, 0.15, definite=self.rng.random() < 0.8, depth=2)
        word = self.translator.pick(words.split("/"))
        return contracted(f"{preposition} {phrase.german(case)}"), f"{word} {phrase.english}"


def contracted(text: str) -> str:
    """German preposition and article drawn together: in dem -> im."""
    for long, short in (
        ("in dem ", "im "),
        ("an dem ", "am "),
        ("von dem ", "vom "),
        ("bei dem ", "beim "),
    ):
        text = short + text.removeprefix(long) if text.startswith(long) else text
    return text


def number_text(rng: random.Random) -> tuple[str, str]:
    """A number of two to five digits, written as in German and as in English."""
    value = int(10 ** rng.uniform(1.15, 4.3))
    if value < 2000:
        return str(value), str(value)
    value -= value % 50
    return f"{value:,}".replace(",", "."), f"{value:,}"


def date_text(rng: random.Random, translator: Translator) -> tuple[str, str]:
    """A date, a weekday, a month or a time of day, as an adverbial."""
    choice = rng.random()
    month_de, month_en = rng.choice(list(lexicon.MONTHS.items()))
    day_de, day_en = rng.choice(list(lexicon.WEEKDAYS.items()))
    day = rng.randint(1, 28)
    if choice < 0.3:
        year = f" {rng.randint(1995, 2024)}" if rng.random() < 0.4 else ""
        return f"am {day}. {month_de}{year}", translator.pick(
            (f"on {day} {month_en}{year}", f"on {month_en} {day}" + (f",{year}" if year else ""))
        )
    if choice < 0.5:
        return f"am {day_de}", f"on {day_en}"
    if choice < 0.6:
        return f"im {month_de}", f"in {month_en}"
    hour, minute = rng.randint(6, 22), rng.choice((0, 15, 20, 30, 45, 50))
    half = "am" if hour < 12 else "pm"
    clock = f"{(hour - 1) % 12 + 1}" + (f":{minute:02d}" if minute else "")
    german_clock = f"{hour}:{minute:02d} Uhr" if minute else f"{hour} Uhr"
    prefix = (f"am {day_de} ", f" on {day_en}") if rng.random() < 0.3 else ("", "")
    english_clock = translator.pick((f"at {clock} {half}", f"at {hour}:{minute:02d}"))
    return f"{prefix[0]}um {german_clock}", english_clock + prefix[1]
