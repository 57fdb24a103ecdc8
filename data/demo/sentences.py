"""Whole sentences of the demo corpus: clauses joined, subordinated, asked and listed up
to the wished length."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import english
from clauses import Clauses
from phrases import NounPhrase, Phrases, number_text
from relatives import Relatives, predicative
from vocabulary import Translator, Vocabulary

# bounds of the length in German words, and how often
LENGTHS = (
    ((3, 6), 0.15),
    ((7, 12), 0.30),
    ((13, 20), 0.26),
    ((21, 32), 0.17),
    ((33, 46), 0.08),
    ((47, 60), 0.04),
)
SHORT, LONGEST = 3, 60
DEGREES = (
    ("", ""),
    ("sehr", "very"),
    ("zu", "too"),
    ("nicht", "not"),
    ("immer noch", "still"),
    ("ziemlich", "quite"),
    ("nicht mehr", "no longer"),
)
LIST_VERBS = (("brauch", ("need", "require")), ("bestell", ("order",)), ("hol", ("fetch", "get")))


@dataclass
class Pair:
    """One sentence pair; `units` are the English parts that a careless translator could
    leave out from behind."""

    german: str
    english: str
    units: list[str]


class Sentences:
    """Makes sentence pairs of one domain."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary

    def pair(self, rng: random.Random) -> Pair:
        """A sentence pair whose lengths fit a length class drawn first."""
        low, high = rng.choices(
            [bounds for bounds, _ in LENGTHS], [weight for _, weight in LENGTHS]
        )[0]
        while True:
            pair = Sentence(self.vocabulary, rng).build(low, high)
            german_length, english_length = len(pair.german.split()), len(pair.english.split())
            if low <= german_length <= high and SHORT <= english_length <= LONGEST:
                return pair


class Sentence:
    """One sentence in the making, by one translator."""

    def __init__(self, vocabulary: Vocabulary, rng: random.Random):
        self.rng = rng
        self.words = vocabulary
        self.translator = Translator(rng)
        self.phrases = Phrases(vocabulary, self.translator)
        self.clauses = Clauses(self.phrases)
        Relatives(self.clauses)
        self.rich = 0.5

    def build(self, low: int, high: int) -> Pair:
        """A sentence of about `low` to `high` German words."""
        self.rich = min(0.9, 0.05 + high / 45)
        goal = self.rng.uniform(low, high)
        if goal < 25 and self.rng.random() < 0.13:
            return self._finish([self._question()], "?")
        if goal < 20 and self.rng.random() < 0.07:
            return self._finish([self._request()], "." if self.rng.random() < 0.7 else "!")
        units = [self._unit(goal)]
        while sum(len(de.split()) for de, _ in units) < goal * 0.75:
            german_word, words = self.rng.choice(self.words.coordinations)
            opening = self.translator.pick(words.split("/"))
            de, en = self._unit(goal)
            units.append(
                (
                    f", {german_word} {de}",
                    f"{opening} {en}" if opening[0] == "," else f", {opening} {en}",
                )
            )
        return self._finish(units, ".")

    def _finish(self, units: list[tuple[str, str]], mark: str) -> Pair:
        german_text = tidy(" ".join(de for de, _ in units) + mark)
        english_units = [en for _, en in units]
        return Pair(german_text, tidy(" ".join(english_units) + mark), english_units)

    def _unit(self, goal: float) -> tuple[str, str]:
        """One independent part of the sentence."""
        kinds = {self._statement: 4.0, self._copula: 1.0, self._existence: 0.4}
        if goal > 6:
            kinds |= {self._subordinate: 2.5, self._report: 1.6, self._purpose: 1.0}
            kinds |= {self._listing: 0.5, self._measure: 0.4}
        return self.rng.choices(list(kinds), list(kinds.values()))[0]()

    def _statement(self) -> tuple[str, str]:
        clause = self.clauses.clause(self.rich)
        fronts = [name for name in ("time", "place", "particle") if getattr(clause, name)]
        front = self.rng.choice(fronts) if fronts and self.rng.random() < 0.5 else "subject"
        return clause.main(front), clause.english()

    def _copula(self) -> tuple[str, str]:
        kind = self.rng.choice("ppdteoai" if self.words.domain == "clinic" else "pdddteoa")
        subject = self.clauses.subject(kind, self.rich * 0.8)
        rows = [row for row in self.words.adjectives if kind in row[1] and predicative(row[0])]
        stem, _, words = self.rng.choice(rows)
        past = self.rng.random() < 0.4
        if subject.pronoun == "ich":
            verb = "war" if past else "bin"
        else:
            verb = (
                ("war" if past else "ist")
                if subject.number == "s"
                else ("waren" if past else "sind")
            )
        adverb, adverb_en = self.rng.choice(DEGREES)
        adjective = stem.replace("(", "").replace(")", "")
        be = english.finite("be", "past" if past else "pres", *subject.agreement())
        return (
            " ".join([subject.german("n"), verb, adverb, adjective]),
            " ".join([subject.english, be, adverb_en, self.translator.pick(words.split("/"))]),
        )

    def _existence(self) -> tuple[str, str]:
        phrase = self.phrases.noun_phrase(
            self.rng.choice("dtoa"), self.rich, indefinite=True, negative=self.rng.random() < 0.25
        )
        place_de, place_en = self.phrases.place() if self.rng.random() < 0.6 else ("", "")
        past = self.rng.random() < 0.3
        be = english.finite("be", "past" if past else "pres", 3, phrase.number)
        verb = "gab" if past else "gibt"
        if place_de and self.rng.random() < 0.5:
            return (
                f"{place_de} {verb} es {phrase.german('a')}",
                f"there {be} {phrase.english} {place_en}",
            )
        return (
            f"es {verb} {place_de} {phrase.german('a')}",
            f"there {be} {phrase.english} {place_en}",
        )

    def _measure(self) -> tuple[str, str]:
        """A number: a price, a share, a count."""
        subject = self.phrases.noun_phrase(self.rng.choice("dte"), self.rich / 2, definite=True)
        de, en = number_text(self.rng)
        if self.rng.random() < 0.5:
            verb = "kostet" if subject.number == "s" else "kosten"
            verb_en = "costs" if subject.number == "s" else "cost"
            price = self.translator.pick((en + " euros", "€" + en))
            return f"{subject.german('n')} {verb} {de} Euro", f"{subject.english} {verb_en} {price}"
        whole, tenth = self.rng.randint(2, 95), self.rng.randint(1, 9)
        cause = self.phrases.noun_phrase("eai", 0.2, definite=True)
        percent = self.translator.pick(("percent", "per cent"))
        direction, words = self.rng.choice(
            (("gestiegen", ("risen", "gone up")), ("gesunken", ("fallen", "gone down")))
        )
        change = f"{self.translator.pick(words)} by {whole}.{tenth} {percent}"
        return (
            (
                f"die Zahl der Fälle ist wegen {cause.german('g')} um {whole},{tenth} "
                f"Prozent {direction}"
            ),
            f"the number of cases has {change} because of {cause.english}",
        )

    def _subordinate(self) -> tuple[str, str]:
        opening, tense, words = self.rng.choice(self.words.subjunctions)
        tense = {"any": ""}.get(tense, tense)
        rich = self.rich * 0.7
        side = self.clauses.clause(rich, tense=tense)
        main = self.clauses.clause(rich, tense="past" if opening in ("als", "nachdem") else tense)
        english_opening = self.translator.pick(words.split("/"))
        first_en = f"{english_opening} {side.english(front=False)}"
        if opening in ("denn", "damit", "bis") or self.rng.random() < 0.6:
            text = f"{main.main()}, {opening} {side.final()},"
        else:
            text = f"{opening} {side.final()}, {main.main('')}"
        fronted = not text.startswith(main.main())
        if english_opening in ("so that", "until", "till"):
            fronted = False
        elif self.translator.yes(0.15):
            fronted = not fronted
        if fronted:
            return text, f"{first_en}, {main.english(front=False)}"
        return text, f"{main.english()} {first_en}"

    def _report(self) -> tuple[str, str]:
        verb, words = self.rng.choice(self.words.clause_verbs)
        tense = self.rng.choice(("pres", "past"))
        head = self.clauses.statement(verb, words, tense, self.rich)
        inner = self.clauses.clause(self.rich * 0.8)
        that = "that " if self.translator.yes(self.translator.that) else ""
        return (
            f"{head.main()}, dass {inner.final()},",
            f"{head.english()} {that}{inner.english(front=False)}",
        )

    def _purpose(self) -> tuple[str, str]:
        """An infinitive: to try to do something, or to do something in order to do something."""
        rng = self.rng
        if rng.random() < 0.5:
            verb, words = rng.choice(self.words.zu_verbs)
            head = self.clauses.statement(verb, words, rng.choice(("pres", "past")), self.rich)
            opening, english_opening = "", ""
        else:
            subject = self.clauses.subject("p", self.rich / 2)
            head = self.clauses.clause(self.rich * 0.6, subject=subject, negatable=False)
            opening, english_opening = (
                "um ",
                "in order " if self.translator.yes(1 - self.translator.first) else "",
            )
        while True:
            inner = self.clauses.clause(
                self.rich * 0.6, subject=head.subject, negatable=False, plain=True
            )
            if not inner.particle and not inner.time:
                break
        infinitive = english_opening + inner.english_infinitive()
        return f"{head.main()}, {opening}{inner.zu()},", f"{head.english()} {infinitive}"

    def _listing(self) -> tuple[str, str]:
        """Several things in one list."""
        count = self.rng.choice((2, 3, 3, 4))
        items: list[NounPhrase] = [
            self.phrases.noun_phrase("dt", self.rich * 0.4, depth=1) for _ in range(count)
        ]
        subject = self.clauses.subject("p", self.rich * 0.4)
        person, number = subject.person, subject.number
        verb, verb_en = self.rng.choice(LIST_VERBS)
        finite = verb + ("en" if number == "p" else "e" if person == 1 else "t")
        comma = "," if count > 2 and self.translator.yes(self.translator.that) else ""
        texts = [item.english for item in items]
        verb_text = english.finite(self.translator.pick(verb_en), "pres", *subject.agreement())
        german_items = [item.german("a") for item in items]
        return (
            f"{subject.german('n')} {finite} {', '.join(german_items[:-1])} und {german_items[-1]}",
            f"{subject.english} {verb_text} {', '.join(texts[:-1])}{comma} and {texts[-1]}",
        )

    def _question(self) -> tuple[str, str]:
        clause = self.clauses.clause(self.rich * 0.7)
        clause.particle, clause.english_middle, clause.english_front = "", "", ""
        word, words = self.rng.choice(
            (
                ("", ("",)),
                ("", ("",)),
                ("warum", ("why", "how come")),
                ("wann", ("when",)),
                ("wo", ("where",)),
                ("wie", ("how",)),
            )
        )
        word_en = self.translator.pick(words)
        if word in ("wann", "wo"):
            clause.time = clause.english_time = ""
        inverted = word_en != "how come"
        text = clause.english(inverted=inverted, front=False)
        return f"{word} {clause.main('')}".strip(), f"{word_en} {text}".strip()

    def _request(self) -> tuple[str, str]:
        subject = self.phrases.pronoun("Sie")
        clause = self.clauses.clause(self.rich * 0.8, subject=subject, negatable=False, plain=True)
        clause.finite, clause.prefix = clause.verb.infinitive, clause.verb.prefix
        clause.particle = ""
        return (
            f"bitte {clause.main('')}",
            f"please {clause.english_infinitive().removeprefix('to ')}",
        )


def tidy(text: str) -> str:
    """Commas in their place, single spaces, a capital at the start."""
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r" ([,.?!])", r"\1", text)
    text = re.sub(r",(,)+", ",", text)
    text = re.sub(r",([.?!])$", r"\1", text)
    text = re.sub(r"([.,])\.$", r"\1", text) if text.endswith("..") else text
    text = re.sub(r", und (?=[^,]*$)", ", und ", text.strip())
    return text[0].upper() + text[1:]
