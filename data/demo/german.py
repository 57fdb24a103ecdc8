"""German inflection for the demo corpus: determiners, adjective endings, noun cases and verb forms.

Covers what the grammar needs: four cases, three genders and the plural; weak, mixed and strong
adjectives; regular and listed irregular verbs with separable and inseparable prefixes. A `key`
below is a gender letter or `p` for the plural.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CASES = ("n", "a", "d", "g")
INSEPARABLE = ("be", "ver", "er", "ent", "zer", "ge", "über", "unter", "wider", "emp", "miss")

# endings by case, for masculine, feminine, neuter, plural
DER = {
    "n": "der die das die",
    "a": "den die das die",
    "d": "dem der dem den",
    "g": "des der des der",
}
DIESER = {"n": "er e es e", "a": "en e es e", "d": "em er em en", "g": "es er es er"}
EIN = {"n": " e  e", "a": "en e  e", "d": "em er em en", "g": "es er es er"}
WEAK = {"n": "e e e en", "a": "en e e en", "d": "en en en en", "g": "en en en en"}
MIXED = {"n": "er e es en", "a": "en e es en", "d": "en en en en", "g": "en en en en"}
STRONG = {"n": "er e es e", "a": "en e es e", "d": "em er em en", "g": "en er en er"}
RELATIVE = {
    "n": "der die das die",
    "a": "den die das die",
    "d": "dem der dem denen",
    "g": "dessen deren dessen deren",
}

PRONOUNS = {  # nominative, accusative, dative, reflexive
    "ich": ("ich", "mich", "mir", "mich"),
    "er": ("er", "ihn", "ihm", "sich"),
    "sie": ("sie", "sie", "ihr", "sich"),
    "es": ("es", "es", "ihm", "sich"),
    "wir": ("wir", "uns", "uns", "uns"),
    "sie-p": ("sie", "sie", "ihnen", "sich"),
    "Sie": ("Sie", "Sie", "Ihnen", "sich"),
    "man": ("man", "einen", "einem", "sich"),
}


def cell(table: dict[str, str], case: str, key: str) -> str:
    """The entry of an ending table for a case and a gender letter (or `p`)."""
    return table[case].split(" ")["mfnp".index(key)]


def determiner(kind: str, case: str, key: str) -> str:
    """A determiner in its form; `kind` is der, dieser, jeder, ein, kein, a possessive,
    or an invariable word."""
    if kind == "der":
        return cell(DER, case, key)
    if kind in ("dieser", "jeder"):
        return kind[:-2] + cell(DIESER, case, key)
    if kind in ("ein", "kein", "mein", "sein", "ihr", "unser", "Ihr"):
        return kind + cell(EIN, case, key)
    if kind in ("alle", "einige", "mehrere", "viele"):
        return kind[:-1] + cell(DIESER, case, "p")
    return kind


def adjective(stem: str, kind: str, case: str, key: str) -> str:
    """An adjective with the ending that the determiner `kind` asks for."""
    stem = re.sub(r"\(.\)", "", stem)
    if kind in ("der", "dieser", "jeder", "alle"):
        return stem + cell(WEAK, case, key)
    if kind in ("ein", "kein", "mein", "sein", "ihr", "unser", "Ihr"):
        return stem + cell(MIXED, case, key)
    return stem + cell(STRONG, case, key)


@dataclass(frozen=True)
class Inflected:
    """A noun's German side: nominative singular, gender letter, weak or not,
    plural ("-" for none)."""

    singular: str
    gender: str
    weak: bool
    plural: str

    def form(self, case: str, number: str) -> str:
        """The noun in a case; `number` is `s` or `p`."""
        if number == "p":
            return self.plural + ("n" if case == "d" and self.plural[-1] not in "ns" else "")
        if self.weak:
            return self.singular if case == "n" else self.plural
        if case == "g" and self.gender in "mn":
            return self.singular + self._genitive_ending()
        return self.singular

    def _genitive_ending(self) -> str:
        word = self.singular.lower()
        if word.endswith("nis"):
            return "ses"
        if word.endswith(("s", "ß", "x", "z", "sch")):
            return "es"
        if self.plural.endswith("s"):
            return "s"
        syllables = len(re.findall(r"[aeiouyäöü]+", word))
        return "es" if syllables == 1 and word[-1] in "bdgkmnprtf" else "s"

    def after(self, prefix: str) -> Inflected:
        """This noun as the head of a compound that begins with `prefix`."""
        plural = "-" if self.plural == "-" else prefix + self.plural.lower()
        return Inflected(prefix + self.singular.lower(), self.gender, self.weak, plural)


@dataclass(frozen=True)
class GermanVerb:
    """The forms of a German verb; `prefix` is the separable one, the other forms
    stand without it."""

    prefix: str
    infinitive: str
    present: str
    preterite: str
    participle: str
    sein: bool
    reflexive: bool

    def finite(self, tense: str, person: int, number: str) -> str:
        """The finite form without separable prefix; `tense` is pres or pret."""
        if tense == "pret":
            return (
                self.preterite
                if number == "s"
                else self.preterite + ("n" if self.preterite[-1] == "e" else "en")
            )
        if number == "p":
            return self.infinitive
        if person == 3:
            return self.present
        if self.infinitive == "wissen":
            return "weiß"
        stem = self.infinitive[:-2] if self.infinitive.endswith("en") else self.infinitive[:-1]
        return stem + "e"

    def zu_infinitive(self) -> str:
        """The infinitive with zu: `zu prüfen`, `anzurufen`."""
        return f"{self.prefix}zu{self.infinitive}" if self.prefix else f"zu {self.infinitive}"


def parse_verb(text: str) -> GermanVerb:
    """Read the German column of a verb table; see `lexicon.py` for the format."""
    parts = [part for part in text.split() if part != "*"]
    reflexive = parts[0].startswith("sich:")
    prefix, _, infinitive = parts[0].removeprefix("sich:").rpartition("|")
    if len(parts) == 1:
        stem = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
        link = "e" if re.search(r"([td]|[^aeiouäöülrh][mn])$", stem) else ""
        no_ge = infinitive.endswith("ieren") or (not prefix and infinitive.startswith(INSEPARABLE))
        no_ge = no_ge or infinitive.startswith("be")
        present, preterite = stem + link + "t", stem + link + "te"
        participle = ("" if no_ge else "ge") + stem + link + "t"
    else:
        present, preterite, participle = parts[1:]
    return GermanVerb(
        prefix, infinitive, present, preterite, prefix + participle, "*" in text, reflexive
    )
