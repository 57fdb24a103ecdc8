"""One clause of the demo corpus: chosen once, then written as main, verb-final, infinitive
or question clause."""

from __future__ import annotations

from dataclasses import dataclass, field

import english
import german
from phrases import NounPhrase, Phrases, contracted, date_text
from vocabulary import Verb

# German modal: (present 3rd singular, preterite), (English present), (English past),
# (English present negated)
MODALS = {
    "müssen": (("muss", "musste"), ("must", "have to"), ("have to",), ("have to", "need to")),
    "können": (
        ("kann", "konnte"),
        ("can", "be able to"),
        ("could", "be able to"),
        ("can", "be able to"),
    ),
    "sollen": (
        ("soll", "sollte"),
        ("should", "be supposed to"),
        ("be supposed to", "should"),
        ("should",),
    ),
    "wollen": (("will", "wollte"), ("want to",), ("want to",), ("want to",)),
    "dürfen": (
        ("darf", "durfte"),
        ("may", "be allowed to"),
        ("be allowed to",),
        ("must", "be allowed to"),
    ),
    "möchten": (("möchte", "möchte"), ("would like to",), ("would like to",), ("would like to",)),
}
MIDDLE = ("often", "frequently", "sometimes", "always", "immediately", "soon")
SUBJECT_PRONOUNS = ("ich", "er", "sie", "wir", "sie-p", "er", "sie", "Sie", "man")
STATIVE = (
    "know",
    "understand",
    "need",
    "require",
    "believe",
    "trust",
    "say",
    "think",
    "assume",
    "suspect",
    "hope",
)
PURE_MODALS = ("must", "can", "could", "should", "may", "will", "would")


@dataclass
class Clause:
    """The parts of a clause, as chosen; `final`, `main` and so on put them in order."""

    subject: NounPhrase
    finite: str
    right: list[str]
    prefix: str
    verb: german.GermanVerb
    pronouns: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    time: str = ""
    place: str = ""
    particle: str = ""
    negative: bool = False
    english_verb: str = ""
    english_tense: str = "pres"
    english_objects: str = ""
    english_tail: list[str] = field(default_factory=list)
    english_time: str = ""
    english_front: str = ""
    english_middle: str = ""
    contract: bool = False
    subject_gap: bool = False

    def _middle_field(self, *, without: str = "", subject: bool = True) -> list[str]:
        words = [self.subject.german("n")] if subject and not self.subject_gap else []
        words += self.pronouns
        words += [
            self.time if without != "time" else "",
            self.particle if without != "particle" else "",
        ]
        words += [
            *self.early,
            "nicht" if self.negative else "",
            *self.late,
            self.place if without != "place" else "",
        ]
        return words

    def main(self, front: str = "subject") -> str:
        """Verb-second order; `front` is subject, time, place, particle, or "" when something
        else stands first."""
        lead = {
            "subject": self.subject.german("n"),
            "time": self.time,
            "place": self.place,
            "particle": self.particle,
        }
        middle = self._middle_field(without=front, subject=front != "subject")
        return joined([lead.get(front, ""), self.finite, *middle, *self.right, self.prefix])

    def final(self) -> str:
        """Verb-final order, without the word that opens the clause."""
        end = [*self.right, self.prefix + self.finite]
        return joined([*self._middle_field(), *end])

    def zu(self) -> str:
        """Infinitive with zu, without subject."""
        infinitive = self.verb.zu_infinitive()
        return joined([*self._middle_field(subject=False), infinitive])

    def english(self, *, inverted: bool = False, front: bool = True) -> str:
        """The English clause; `inverted` writes the order of a question, `front` allows
        adverbs before the subject."""
        person, number = self.subject.agreement()
        split = english.with_auxiliary if inverted or self.negative else english.verb_group
        auxiliary, main = split(self.english_verb, self.english_tense, person, number)
        if self.negative and inverted:
            main = "not " + main
        elif self.negative:
            auxiliary = english.negated(auxiliary, self.contract)
        subject = "" if self.subject_gap else self.subject.english
        core = [auxiliary, subject] if inverted else [subject, auxiliary]
        lead = [self.english_front] if front and self.english_front and not inverted else []
        time = self.english_time
        if front and self.english_front == time + ",":
            time = ""
        middle = self.english_middle
        if time in MIDDLE:
            middle, time = joined([middle, time]), ""
        return joined(
            [*lead, *core, middle, attach(main, self.english_objects), *self.english_tail, time]
        )

    def english_infinitive(self) -> str:
        """The English infinitive with to, without subject."""
        time = "" if self.english_time in MIDDLE else self.english_time
        return joined(
            ["to", attach(self.english_verb, self.english_objects), *self.english_tail, time]
        )


def joined(words: list[str]) -> str:
    """The words that are there, with single spaces."""
    return " ".join(word for word in words if word)


def attach(verb: str, objects: str) -> str:
    """Verb and object, with a movable particle behind short pronoun objects."""
    head, tilde, particle = verb.partition("~")
    if tilde and objects in ("me", "him", "her", "us", "them", "you", "it", ""):
        return joined([head, objects, particle])
    return joined([head, particle, objects])


class Clauses:
    """Draws clauses for one sentence."""

    def __init__(self, phrases: Phrases):
        self.phrases = phrases
        self.words, self.translator, self.rng = (
            phrases.words,
            phrases.translator,
            phrases.translator.rng,
        )
        self.depth = 0

    def subject(self, kinds: str, rich: float) -> NounPhrase:
        """A subject; persons are often pronouns or names."""
        choice = self.rng.random()
        if kinds == "p" and choice < 0.3:
            return self.phrases.pronoun(self.rng.choice(SUBJECT_PRONOUNS))
        if kinds == "p" and choice < 0.52:
            return self.phrases.name()
        return self.phrases.noun_phrase(kinds, rich, definite=choice < 0.8, depth=self.depth)

    def clause(
        self,
        rich: float,
        *,
        subject: NounPhrase | None = None,
        kinds: str = "p",
        tense: str = "",
        negatable: bool = True,
        plain: bool = False,
    ) -> Clause:
        """A clause. `tense` is pres, past or "" for any; `plain` leaves the finite verb
        out, for an infinitive."""
        rng = self.rng
        if subject is None and kinds == "p" and rng.random() < 0.18:
            kinds = rng.choice("dte")
        verb = self.words.verb(kinds, self.translator)
        if verb is None:
            kinds = "p"
            verb = self.words.verb(kinds, self.translator)
        assert verb is not None
        if subject is None and not plain and verb.passive and rng.random() < 0.14:
            return self._passive(verb, rich, tense)
        subject = subject or self.subject(kinds, rich)
        negative = negatable and rng.random() < 0.11
        clause = self.head(
            verb.german, subject, tense, negative, self.translator.pick(verb.english), plain
        )
        self._objects(clause, verb, rich)
        self.adjuncts(clause, rich)
        return clause

    def statement(
        self, verb: german.GermanVerb, words: list[str], tense: str, rich: float
    ) -> Clause:
        """A clause without object, for verbs that a clause or an infinitive follows."""
        clause = self.head(
            verb, self.subject("p", rich / 2), tense, False, self.translator.pick(words), False
        )
        if self.rng.random() < 0.2:
            self._time(clause)
        return clause

    def head(
        self,
        verb: german.GermanVerb,
        subject: NounPhrase,
        tense: str,
        negative: bool,
        word: str,
        plain: bool,
    ) -> Clause:
        """A clause without objects yet: subject, tense or modal in both languages."""
        rng = self.rng
        choice = rng.random()
        person, number = subject.person, subject.number
        clause = Clause(subject, "", [], "", verb, english_verb=word, negative=negative)
        clause.contract = self.translator.yes(self.translator.contract)
        if verb.reflexive:
            clause.pronouns.append(german.PRONOUNS[subject.pronoun or "er"][3])
        if plain:
            return clause
        past = tense == "past" or (tense != "pres" and choice < 0.45)
        moving = word.split()[0] not in STATIVE
        if moving and rng.random() < 0.24:
            self._modal(clause, verb.prefix + verb.infinitive, past)
        elif past and rng.random() < 0.55:
            helper = german.parse_verb(
                "sein ist war gewesen" if verb.sein else "haben hat hatte gehabt"
            )
            clause.finite = auxiliary_form(helper, person, number)
            clause.right = [verb.participle]
            clause.english_tense = "perfect" if self.translator.yes(0.18) else "past"
        elif past:
            clause.finite, clause.prefix = verb.finite("pret", person, number), verb.prefix
            clause.english_tense = "past"
        elif tense != "pres" and rng.random() < 0.2:
            clause.finite = "werden" if number == "p" else "werde" if person == 1 else "wird"
            clause.right = [verb.prefix + verb.infinitive]
            self._semi(clause, self.translator.pick(("will", "be going to")), "pres")
        else:
            clause.finite, clause.prefix = verb.finite("pres", person, number), verb.prefix
            clause.english_tense = "progressive" if moving and self.translator.yes(0.12) else "pres"
        return clause

    def _modal(self, clause: Clause, infinitive: str, past: bool) -> None:
        name = self.rng.choice(
            list(MODALS) if clause.subject.kind == "p" else ("müssen", "können", "sollen")
        )
        forms, present_en, past_en, negated_en = MODALS[name]
        form = forms[past]
        if clause.subject.number == "p":
            form = form + "n" if past or name == "möchten" else name
        clause.finite, clause.right = form, [infinitive]
        options = past_en if past else negated_en if clause.negative else present_en
        self._semi(clause, self.translator.pick(options), "past" if past else "pres")

    @staticmethod
    def _semi(clause: Clause, modal: str, tense: str) -> None:
        """Set the English tense to a modal, or write a semi-modal such as `have to`
        before the verb."""
        first, _, rest = modal.partition(" ")
        if first in PURE_MODALS:
            clause.english_tense = first
            clause.english_verb = joined([rest, clause.english_verb])
        else:
            clause.english_tense = tense
            clause.english_verb = f"{modal} {clause.english_verb}"

    def _objects(self, clause: Clause, verb: Verb, rich: float) -> None:
        """Objects in both languages.

        With a negation they are definite, or the negation is in the object.
        """
        english_objects = []
        for preposition, case, kinds in verb.objects:
            rng = self.rng
            only = len(verb.objects) == 1
            if "p" in kinds and rng.random() < 0.25:
                name = rng.choice(("er", "sie", "sie-p", "wir", "ich", "Sie"))
                if name == clause.subject.pronoun or (
                    name == "ich" and clause.subject.pronoun == "wir"
                ):
                    name = "er"
                phrase = self.phrases.pronoun(name)
            elif "p" in kinds and rng.random() < 0.25:
                phrase = self.phrases.name()
            else:
                no = (
                    clause.negative
                    and only
                    and not preposition
                    and case == "a"
                    and rng.random() < 0.5
                )
                clause.negative = clause.negative and not no
                phrase = self.phrases.noun_phrase(
                    kinds,
                    rich,
                    definite=clause.negative,
                    owner=clause.subject,
                    negative=no,
                    depth=self.depth,
                )
                if clause.negative and not phrase.definite:
                    clause.negative = False
            text = phrase.german(case)
            if preposition:
                clause.late.append(contracted(f"{preposition} {text}"))
            else:
                (clause.pronouns if phrase.pronoun else clause.early).append(text)
            english_objects.append(phrase.english_object)
        self._order_objects(clause, verb, english_objects)

    def _order_objects(self, clause: Clause, verb: Verb, words: list[str]) -> None:
        if len(words) < 2:
            clause.english_objects = joined(words)
            return
        dative, accusative = words
        mark, preposition = verb.dative[0], verb.dative[1:]
        short = len(dative.split()) <= len(accusative.split())
        if mark == "^" and short and self.translator.yes(self.translator.first):
            clause.english_objects = f"{dative} {accusative}"
        else:
            clause.english_objects = f"{accusative} {preposition} {dative}"

    def _time(self, clause: Clause) -> None:
        if clause.english_tense == "perfect":
            clause.english_tense = "past"
        fits = ("any", "past") if clause.english_tense == "past" else ("any", "future")
        if self.rng.random() < 0.35:
            clause.time, clause.english_time = date_text(self.rng, self.translator)
        else:
            time, _, words = self.rng.choice([row for row in self.words.times if row[1] in fits])
            clause.time, clause.english_time = time, self.translator.pick(words.split("/"))
        if clause.english_time in MIDDLE and clause.english_tense == "progressive":
            clause.english_tense = "pres"
        if clause.english_time in MIDDLE and clause.negative:
            clause.time = clause.english_time = ""
        elif clause.english_time not in MIDDLE and self.translator.yes(self.translator.front):
            clause.english_front = clause.english_time + ","

    def adjuncts(self, clause: Clause, rich: float) -> None:
        """Add time, particle, prepositional phrase, manner and place, each by chance."""
        rng, translator = self.rng, self.translator
        if rng.random() < 0.15 + rich * 0.3:
            self._time(clause)
        if rng.random() < rich * 0.25:
            self._particle(clause)
        if rng.random() < rich * 0.3:
            rows = [row for row in self.words.prepositions if "o" not in row[2]]
            preposition, case, kinds, words = rng.choice(rows)
            phrase = self.phrases.noun_phrase(
                kinds, rich / 2, definite=rng.random() < 0.7, depth=self.depth + 1
            )
            clause.late.append(f"{preposition} {phrase.german(case)}")
            clause.english_tail.append(f"{translator.pick(words.split('/'))} {phrase.english}")
        if rng.random() < rich * 0.25 and not clause.english_tense == "progressive":
            manner, words = rng.choice(self.words.manners)
            clause.late.append(manner)
            clause.english_tail.insert(0, translator.pick(words.split("/")))
        if rng.random() < rich * 0.3:
            clause.place, place = self.phrases.place()
            clause.english_tail.append(place)

    def _particle(self, clause: Clause) -> None:
        german_word, words = self.rng.choice(self.words.particles)
        word = self.translator.pick(words.split("/"))
        clause.particle = german_word
        if word == "-":
            return
        if " " in word or (not clause.english_front and self.translator.yes(self.translator.front)):
            clause.english_front = joined([clause.english_front, word + ","])
        else:
            clause.english_middle = word

    def _passive(self, verb: Verb, rich: float, tense: str) -> Clause:
        subject = self.phrases.noun_phrase(
            verb.objects[0][2], rich, definite=self.rng.random() < 0.6, depth=self.depth
        )
        past = tense == "past" or (tense != "pres" and self.rng.random() < 0.5)
        word = "be " + english.inflect(self.translator.pick(verb.english), "part").replace("~", " ")
        clause = Clause(subject, "", [verb.german.participle], "", verb.german, english_verb=word)
        clause.contract = self.translator.yes(self.translator.contract)
        clause.negative = subject.definite and self.rng.random() < 0.12
        if self.rng.random() < 0.25:
            self._modal(clause, verb.german.participle + " werden", past)
        else:
            singular, plural = ("wurde", "wurden") if past else ("wird", "werden")
            clause.finite = plural if subject.number == "p" else singular
            clause.english_tense = "past" if past else "pres"
        if self.rng.random() < 0.35:
            agent = (
                self.phrases.name()
                if self.rng.random() < 0.4
                else self.phrases.noun_phrase("p", rich / 2, depth=1)
            )
            clause.late.append(contracted("von " + agent.german("d")))
            clause.english_tail.append("by " + agent.english_object)
        self.adjuncts(clause, rich / 2)
        return clause


def auxiliary_form(helper: german.GermanVerb, person: int, number: str) -> str:
    """Present of haben or sein."""
    if helper.infinitive == "sein":
        return "sind" if number == "p" else "bin" if person == 1 else "ist"
    return helper.finite("pres", person, number)
