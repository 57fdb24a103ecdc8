"""Whether a term stands where its translation would have stood: references with terms, and what
is counted against them.

A table of displaced words has a line for each term, tab-separated: the source term, its target
forms (a|b), and the words that a model or a reference would use instead (a|b). The reference with
terms is the plain one in which the first displaced word of each term of the source is the term.
Nothing else of it changes: "a building" becomes "a edifice". So scores come twice, the second time
with letter case and the articles a and an set aside on both sides.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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

    def form_for(self, word: str) -> str:
        """The form that takes a displaced word's place: the last of several for a plural."""
        return self.forms[-1] if len(self.forms) > 1 and word.endswith("s") else self.forms[0]


@cache
def as_word(text: str, case: bool = False) -> re.Pattern[str]:
    """Matches a phrase between other words."""
    return re.compile(rf"(?<!\w){re.escape(text)}(?!\w)", 0 if case else re.IGNORECASE)


def entries_of(source: str, table: Sequence[Entry]) -> list[Entry]:
    """The entries whose source term a sentence has, as written."""
    return [entry for entry in table if as_word(entry.source, case=True).search(source)]


def by_hand(text: str, entries: Sequence[Entry]) -> str:
    """The text with the first displaced word of each entry replaced, by someone who knows
    which words those are."""
    for entry in entries:
        found = next(filter(None, (as_word(word).search(text) for word in entry.displaced)), None)
        if found is not None:
            text = text[: found.start()] + entry.form_for(found[0]) + text[found.end() :]
    return text


def bare(text: str) -> str:
    """The text without letter case, a and an as one."""
    return re.sub(r"\ban\b", "a", text.lower())


@dataclass
class Scores:
    """Of one way to place terms."""

    bleu: float
    chrf: float
    ter: float
    bare: tuple[float, float, float]  # the same three with articles and case set aside
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
    texts = [*map(bare, outputs)], [*map(bare, references)]
    return Scores(
        *three(outputs, references), three(*texts), sum(map(len, entries)), met, left, appended
    )


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
