"""Relative clauses of the demo corpus: with the noun as subject, as object, and with an
adjective behind the verb."""

from __future__ import annotations

import english
import german
from clauses import Clauses, joined
from phrases import NounPhrase

ATTRIBUTIVE = (
    "nächst",
    "letzt",
    "besonder",
    "gemeinsam",
    "fehlend",
    "jährlich",
    "ärztlich",
    "zuständig",
    "ambulant",
)


class Relatives:
    """Draws relative clauses for one sentence, and registers itself with the sentence's phrases."""

    def __init__(self, clauses: Clauses):
        self.clauses = clauses
        self.words, self.translator, self.rng = clauses.words, clauses.translator, clauses.rng
        clauses.phrases.relative = self.relative

    def relative(self, key: str, kind: str, number: str) -> tuple[str, str]:
        """A relative clause for a noun of this gender (or plural) and kind, German
        with its commas."""
        self.clauses.depth += 2
        try:
            if self.rng.random() < 0.55:
                return self._subject_relative(key, kind, number)
            return self._object_relative(key, kind)
        finally:
            self.clauses.depth -= 2

    def _subject_relative(self, key: str, kind: str, number: str) -> tuple[str, str]:
        gap = NounPhrase(lambda case: "", "", "", 3, number, key, kind=kind)
        if self.words.verb(kind, self.translator) is None or (
            kind != "p" and self.rng.random() < 0.5
        ):
            return self._copula_relative(key, kind, number)
        clause = self.clauses.clause(0.3, subject=gap, kinds=kind)
        pronoun = self.translator.pick(("who", "that") if kind == "p" else ("that", "which"))
        clause.subject_gap = True
        opening = german.cell(german.RELATIVE, "n", key)
        return f", {opening} {clause.final()},", f" {pronoun} {clause.english(front=False)}"

    def _copula_relative(self, key: str, kind: str, number: str) -> tuple[str, str]:
        rows = [row for row in self.words.adjectives if kind in row[1] and predicative(row[0])]
        stem, _, words = self.rng.choice(rows)
        past = self.rng.random() < 0.4
        verb = ("war" if past else "ist") if number == "s" else ("waren" if past else "sind")
        be = english.finite("be", "past" if past else "pres", 3, number)
        german_word = stem.replace("(", "").replace(")", "")
        pronoun = self.translator.pick(("who", "that") if kind == "p" else ("that", "which"))
        adverb, adverb_en = self.rng.choice(
            (("", ""), ("sehr ", "very "), ("zu ", "too "), ("nicht ", "not "))
        )
        return (
            f", {german.cell(german.RELATIVE, 'n', key)} {adverb}{german_word} {verb},",
            f" {pronoun} {be} {adverb_en}{self.translator.pick(words.split('/'))}",
        )

    def _object_relative(self, key: str, kind: str) -> tuple[str, str]:
        verb = self.words.verb("p", self.translator, transitive=kind)
        assert verb is not None, f"no verb with an object of kind {kind!r}"
        preposition, case, _ = verb.objects[0]
        subject = self.clauses.subject("p", 0.2)
        clause = self.clauses.head(
            verb.german, subject, "", False, self.translator.pick(verb.english), False
        )
        self.clauses.adjuncts(clause, 0.2)
        pronoun = self.translator.pick(
            ("who", "that", "") if kind == "p" else ("that", "which", "")
        )
        opening = joined([preposition, german.cell(german.RELATIVE, case, key)])
        return (
            f", {opening} {clause.final()},",
            f" {joined([pronoun, clause.english(front=False)])}",
        )


def predicative(stem: str) -> bool:
    """Whether an adjective can stand behind the verb."""
    return stem not in ATTRIBUTIVE
