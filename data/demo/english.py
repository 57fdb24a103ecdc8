"""English inflection for the demo corpus: plurals, articles, verb forms and verb phrases.

A verb here is a string such as `look after` or `switch~off`: the first word is inflected, `~`
stands before a particle.
"""

from __future__ import annotations

import re

PLURALS = {
    "child": "children",
    "diagnosis": "diagnoses",
    "prosthesis": "prostheses",
    "nucleus": "nuclei",
    "pair of glasses": "pairs of glasses",
    "midwife": "midwives",
    "paralysis": "paralyses",
    "foot": "feet",
    "tooth": "teeth",
    "pelvis": "pelvises",
    "staff": "staff",
}

# base: past, participle
IRREGULAR = {
    "be": ("was", "been"),
    "have": ("had", "had"),
    "do": ("did", "done"),
    "find": ("found", "found"),
    "see": ("saw", "seen"),
    "know": ("knew", "known"),
    "understand": ("understood", "understood"),
    "forget": ("forgot", "forgotten"),
    "shut": ("shut", "shut"),
    "read": ("read", "read"),
    "write": ("wrote", "written"),
    "send": ("sent", "sent"),
    "begin": ("began", "begun"),
    "take": ("took", "taken"),
    "think": ("thought", "thought"),
    "show": ("showed", "shown"),
    "give": ("gave", "given"),
    "bring": ("brought", "brought"),
    "lend": ("lent", "lent"),
    "buy": ("bought", "bought"),
    "pay": ("paid", "paid"),
    "get": ("got", "got"),
    "throw": ("threw", "thrown"),
    "leave": ("left", "left"),
    "come": ("came", "come"),
    "go": ("went", "gone"),
    "stand": ("stood", "stood"),
    "fall": ("fell", "fallen"),
    "sleep": ("slept", "slept"),
    "set": ("set", "set"),
    "put": ("put", "put"),
    "lay": ("laid", "laid"),
    "run": ("ran", "run"),
    "break": ("broke", "broken"),
    "wake": ("woke", "woken"),
    "say": ("said", "said"),
}
DOUBLED = (
    "stop",
    "fit",
    "plan",
    "jam",
    "rub",
    "refer",
    "admit",
    "transfer",
    "program",
    "cancel",
    "control",
)
CONTRACTED = (
    "is",
    "are",
    "was",
    "were",
    "do",
    "does",
    "did",
    "has",
    "have",
    "had",
    "could",
    "should",
)
BE = {
    ("pres", 1, "s"): "am",
    ("pres", 3, "s"): "is",
    ("past", 1, "s"): "was",
    ("past", 3, "s"): "was",
}


def plural(noun: str) -> str:
    """The plural of an English noun phrase: its last word is inflected unless listed."""
    if noun in PLURALS:
        return PLURALS[noun]
    head, _, last = noun.rpartition(" ")
    start = head + " " if head else ""
    if last in PLURALS:
        return start + PLURALS[last]
    if re.search(r"(s|x|z|ch|sh)$", last):
        return start + last + "es"
    if re.search(r"[^aeiou]y$", last):
        return start + last[:-1] + "ies"
    return start + last + "s"


def article(phrase: str) -> str:
    """The indefinite article that fits the start of `phrase`."""
    word = phrase.lower()
    vowel = word[0] in "aeiou" and not word.startswith(("use", "unit", "unif"))
    return "an" if vowel or word.startswith(("x-ray", "8", "11", "18")) else "a"


def inflect(verb: str, form: str) -> str:
    """A form of a verb's first word: `s` (3rd person), past, part, ing or base;
    the rest is kept."""
    match = re.match(r"([A-Za-z-]+)(.*)", verb)
    assert match, f"not a verb: {verb!r}"
    word, rest = match.groups()
    if form == "base":
        return verb
    if form in ("past", "part") and word in IRREGULAR:
        return IRREGULAR[word][form == "part"] + rest
    if form == "s":
        if word in ("have", "be", "do", "go"):
            return {"have": "has", "be": "is", "do": "does", "go": "goes"}[word] + rest
        return plural(word) + rest
    doubled = (
        word + word[-1]
        if word in DOUBLED + ("run", "get", "put", "set", "shut", "forget", "begin")
        else word
    )
    if form == "ing":
        if word == "die":
            return "dying" + rest
        return (
            (doubled[:-1] if doubled.endswith("e") and not doubled.endswith("ee") else doubled)
            + "ing"
            + rest
        )
    if word.endswith("e"):
        return word + "d" + rest
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ied" + rest
    return doubled + "ed" + rest


def finite(verb: str, tense: str, person: int, number: str) -> str:
    """The finite form of a verb; `tense` is pres or past."""
    if verb == "be":
        return BE.get((tense, person, number), "are" if tense == "pres" else "were")
    if tense == "past":
        return inflect(verb, "past")
    return inflect(verb, "s" if (person, number) == (3, "s") else "base")


def negated(auxiliary: str, contract: bool) -> str:
    """An auxiliary with `not`, as one word where `contract` asks for it and English has it."""
    if auxiliary == "can":
        return "can't" if contract else "cannot"
    if contract and auxiliary in CONTRACTED:
        return auxiliary + "n't"
    if contract and auxiliary == "will":
        return "won't"
    return f"{auxiliary} not"


def verb_group(verb: str, tense: str, person: int, number: str) -> tuple[str, str]:
    """Split a finite verb phrase into its auxiliary ("" if it has none) and the rest.

    `tense` is pres, past, perfect, progressive, or a modal such as `must`. A passive or
    semi-modal verb is written out (`be checked`, `be able to check`, `have to check`): its
    first word is inflected.
    """
    if tense == "perfect":
        return finite("have", "pres", person, number), inflect(verb, "part")
    if tense == "progressive":
        return finite("be", "pres", person, number), inflect(verb, "ing")
    if tense not in ("pres", "past"):
        return tense, verb
    if verb.startswith("be "):
        return finite("be", tense, person, number), verb.removeprefix("be ")
    return "", finite(verb, tense, person, number)


def with_auxiliary(verb: str, tense: str, person: int, number: str) -> tuple[str, str]:
    """`verb_group` with `do` where there is no other auxiliary: for questions and negation."""
    auxiliary, main = verb_group(verb, tense, person, number)
    return (auxiliary, main) if auxiliary else (finite("do", tense, person, number), verb)
