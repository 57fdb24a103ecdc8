"""Whether a term stands where its translation would have stood: references with terms, and what
is counted against them.

A table of displaced words has a line for each term, tab-separated: the source term, its target
forms (a|b), and the words that a model or a reference would use instead (a|b). The reference with
terms is the plain one in which as many displaced words of each term are the term as the source has
mentions of it, from the left. "a" and "an" before a term follow its first letter, and it has a
capital where the displaced word had one at the start of the text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import sacrebleu

sys.path.append(str(Path(__file__).resolve().parents[1]))

from intervals import counts_of, interval, resampled  # noqa: E402


@dataclass(frozen=True)
class Entry:
    """A line of the table."""

    source: str
    forms: tuple[str, ...]
    displaced: tuple[str, ...] = ()
    mentions: int = 1  # in the source

    def form_for(self, word: str) -> str:
        """The form that takes a displaced word's place: the last of several for a plural."""
        return self.forms[-1] if len(self.forms) > 1 and word.endswith("s") else self.forms[0]

    def is_in(self, text: str) -> bool:
        """Whether a text has a form."""
        return any(as_word(form).search(text) for form in self.forms)


@cache
def as_word(text: str, case: bool = False) -> re.Pattern[str]:
    """Matches a phrase between other words."""
    return re.compile(rf"(?<!\w){re.escape(text)}(?!\w)", 0 if case else re.IGNORECASE)


def entries_of(source: str, table: Sequence[Entry], case: bool = True) -> list[Entry]:
    """The entries whose source term a sentence has, with its mentions; one inside of a longer term
    does not count. case: whether letter case counts."""
    found = [(m.span(), e) for e in table for m in as_word(e.source, case).finditer(source)]
    outer = [
        entry
        for (start, end), entry in found
        if not any(a <= start and end <= b and b - a > end - start for (a, b), _ in found)
    ]
    return [replace(entry, mentions=outer.count(entry)) for entry in dict.fromkeys(outer)]


def by_hand(text: str, entries: Sequence[Entry]) -> str:
    """The text with a displaced word of each entry replaced for each of its mentions, by someone
    who knows which words those are."""
    for entry in entries:
        start = 0
        for _ in range(entry.mentions):
            found = [m for word in entry.displaced if (m := as_word(word).search(text, start))]
            if not found:
                break
            first = min(found, key=lambda match: (match.start(), -match.end()))
            text, start = in_place(text, first.span(), entry.form_for(first[0]))
    return text


def in_place(text: str, span: tuple[int, int], form: str) -> tuple[str, int]:
    """The text with a form in the place of a span, its article and its capital adjusted, and where
    the form ends."""
    before, after = text[: span[0]], text[span[1] :]
    if re.search(r"\w", before) is None and text[span[0]].isupper():
        form = form[0].upper() + form[1:]
    vowel = "n" if form[0].lower() in "aeiou" else ""
    before = re.sub(r"(?i)\b(a)n?( +)$", rf"\g<1>{vowel}\g<2>", before)
    return before + form + after, len(before) + len(form)


@dataclass
class Scores:
    """Of one way to place terms."""

    bleu: float
    chrf: float
    ter: float
    terms: int
    met: int  # a form stands in the output
    left: int  # a displaced word stands in the output and not in the reference with terms
    appended: int  # of those met: the last words of the output, and not of the reference
    # BLEU less that of the way that it is compared with, and the 95 % interval
    over: tuple[float, float, float] | None = None

    as_dict = asdict


def measured(
    outputs: Sequence[str], references: Sequence[str], entries: Sequence[Sequence[Entry]]
) -> Scores:
    """Scores of the outputs; references: those with terms; entries: of each source."""
    met = left = appended = 0
    for output, reference, of_line in zip(outputs, references, entries, strict=True):
        for entry in of_line:
            ends = [match.end() for form in entry.forms for match in as_word(form).finditer(output)]
            met += bool(ends)
            left += any(
                as_word(word).search(output) and not as_word(word).search(reference)
                for word in entry.displaced
            )
            appended += (
                bool(ends)
                and is_last(output, max(ends))
                and not any(ends_with(reference, form) for form in entry.forms)
            )
    return Scores(*three(outputs, references), sum(map(len, entries)), met, left, appended)


def three(outputs: Sequence[str], references: Sequence[str]) -> tuple[float, float, float]:
    """sacrebleu's BLEU, chrF and TER."""
    scores = (
        score(outputs, [references]).score
        for score in (sacrebleu.corpus_bleu, sacrebleu.corpus_chrf, sacrebleu.corpus_ter)
    )
    bleu, chrf, ter = scores
    return bleu, chrf, ter


def is_last(text: str, end: int) -> bool:
    """Whether no word follows this place."""
    return re.search(r"\w", text[end:]) is None


def ends_with(text: str, phrase: str) -> bool:
    """Whether the phrase is a text's last words."""
    return any(is_last(text, match.end()) for match in as_word(phrase).finditer(text))


def bleu_over(
    outputs: Sequence[str], others: Sequence[str], references: Sequence[str]
) -> tuple[float, float, float]:
    """BLEU less that of other outputs, with the 95 % interval of the difference on
    the same resamples."""
    ours, theirs = (resampled(counts_of(texts, references)) for texts in (outputs, others))
    bleu = [sacrebleu.corpus_bleu(texts, [references]).score for texts in (outputs, others)]
    return (bleu[0] - bleu[1], *interval(ours - theirs))
