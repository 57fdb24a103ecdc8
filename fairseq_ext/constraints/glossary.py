"""`--glossary F`: source term, tab, target term (or `a|b`: any one of them), for each sentence whose source holds the term.

How a term is found in a source:
- On word boundaries, in any script: a word is a run of letters, marks, digits and underscores; Han, Hiragana, Thai, Lao, Khmer and
  Myanmar, which leave no space between words, count letter by letter; any other character stands alone. So *Ader* is in
  "Die Ader." and in "Ader-Test", not in "Adern" or "Schlagader". How much space lies between words does not matter.
- Case counts. Only the first word of a sentence is looked up with a small initial too, when the line as written has no term
  there of that length: "Port 80 ..." has the term *port*, but "about us" never has *US*.
- The longest term (in words) wins, the leftmost of equally long ones; what it covers is not matched again by shorter ones.
- A term gives its constraint once, however often it occurs: the second mention may well be a pronoun in the translation. Two
  different terms with the same translation give it twice.
- Unicode forms that look the same are the same (NFKC). Lines of the file with the same source term are alternatives.
- Where the source is known in subword pieces only (no --tokenizer or --bpe given), terms are matched piece by piece.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import regex

from fairseq_ext.constraints.phrase import Phrase
from fairseq_ext.errors import UsageError
from fairseq_ext.files import Lines

UNSPACED = r"\p{Han}\p{Hiragana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
WORD = regex.compile(rf"(?V1)[{UNSPACED}]\p{{M}}*|[[\w\p{{M}}]--[{UNSPACED}]]+|\S")


def words_of(text: str, segmented: bool = False) -> list[str]:
    """Text as the units that terms are made of: words and single other characters, or what spaces part (segmented)."""
    text = unicodedata.normalize("NFKC", text)
    return text.split() if segmented else WORD.findall(text)


@dataclass
class Term:
    """A source term's translation."""

    text: str  # as the user wrote it, a|b
    phrases: tuple[Phrase, ...]  # any one of them


class Glossary:
    """The terms of a file, found by their first word, so that a sentence costs the same with 50 terms and with 50,000.

    words: a source term's text -> its words, in the form that `terms_in` gets a sentence's words.
    phrases: (target text, where) -> its token phrases; raises UsageError for text that cannot be used.
    Errors: UsageError for a line without two columns, an empty term or alternative, and for what `phrases` refuses: the first, and
    how many more there are.
    """

    def __init__(self, path: str, words: Callable[[str], list[str]], phrases: Callable[[str, str], tuple[Phrase, ...]]):
        self.words, self.phrases = words, phrases
        self.terms: dict[tuple[str, ...], Term] = {}
        self.lengths: dict[str, list[int]] = {}  # first word -> lengths of the terms that start with it
        Lines(path, "--glossary").for_each(self.add)

    def add(self, line: str, where: str) -> None:
        """One line of the file."""
        columns = line.split("\t")
        if len(columns) != 2:
            count = f"{len(columns)} column{'s' * (len(columns) > 1)}"
            raise UsageError(f"{where} has {count} and needs 2: write the source term, one tab, the target term")
        source, target = (column.strip() for column in columns)
        words = tuple(self.words(source))
        if not words:
            raise UsageError(f"{where} has no source term: write one before the tab")
        if not target:
            raise UsageError(f"{where} has no target for the term '{source}': write it behind the tab")
        alternatives = [alternative.strip() for alternative in target.split("|")]
        if not all(alternatives):
            raise UsageError(f"{where} has an empty alternative in '{target}': remove the bar")
        forms = tuple(form for alternative in alternatives for form in self.phrases(alternative, where))
        known = self.terms.setdefault(words, Term("", ()))
        known.text = "|".join(dict.fromkeys([*filter(None, known.text.split("|")), *alternatives]))
        known.phrases = tuple(dict.fromkeys(known.phrases + forms))
        lengths = self.lengths.setdefault(words[0], [])
        if len(words) not in lengths:
            lengths.append(len(words))

    def terms_in(self, words: Sequence[str]) -> list[Term]:
        """The terms that apply to a sentence of these words, each once, in the order of their first places."""
        initial = next((i for i, word in enumerate(words) if word[0].isalpha()), -1)
        found = []  # (length, place, term)
        for place, word in enumerate(words):
            found += self.terms_at(words, place, word)
            if place == initial and word[0].isupper():
                found += self.terms_at(words, place, word[0].lower() + word[1:])
        taken: set[int] = set()
        kept = []
        for length, place, term in sorted(found, key=lambda match: (-match[0], match[1])):
            stretch = range(place, place + length)
            if taken.isdisjoint(stretch):
                taken.update(stretch)
                kept.append((place, term))
        return list({id(term): term for _, term in sorted(kept, key=lambda match: match[0])}.values())

    def terms_at(self, words: Sequence[str], place: int, first: str) -> list[tuple[int, int, Term]]:
        """All terms (length, place, term) that start at a place, its word read as `first`."""
        matches = []
        for length in self.lengths.get(first, ()):
            term = self.terms.get((first, *words[place + 1 : place + length]))
            if term is not None and place + length <= len(words):
                matches.append((length, place, term))
        return matches
