"""What phrases cost because they count as whole words, which is the default (part `words`
of constrained.py).

A B A B: DBA as `--constraint-boundary none --constraint-case exact` has it, by default, and in the
case of glossaries. Accepted where the default takes at most 5% longer. "whole already": sentences
whose phrases all stand as words in what the first search finds; "changed": those of them for which
the default finds another translation.
"""

from __future__ import annotations

from collections.abc import Sequence

from counted import Row, searching
from equality import Outputs
from harness import Spread, compare
from text import Text

from fairseq_ext.search.phrases.pieces import normal
from fairseq_ext.search.phrases.places import find_phrase

MOST = 1.05  # times the time
INSIDE = ["--constraint-boundary", "none", "--constraint-case", "exact"]
SEARCHES = {
    "inside words too": INSIDE,
    "default": [],
    "as glossaries": ["--constraint-case", "initial"],
}
HEAD = [
    "set",
    "inside words too: seconds",
    "default: time (min-max)",
    "accepted",
    "as glossaries: time",
    "whole already",
    "changed",
]


def row(
    text: Text,
    name: str,
    given: Sequence[str],
    phrases: Sequence[Sequence[str]],
    repeats: int,
    threads: int,
) -> Row:
    """A set of phrases as a row of the table. given: flags of all searches, with the file that has
    the phrases."""
    counted = [searching(text, [*given, *flags], search) for search, flags in SEARCHES.items()]
    inside, *others = compare(
        [each.contender for each in counted], repeats, threads=threads
    ).results
    times = [
        Spread.of([a / b for a, b in zip(each.seconds, inside.seconds, strict=True)])
        for each in others
    ]
    whole, changed = unchanged(text, phrases, counted[0].outputs, counted[1].outputs)
    default, glossary = times
    reported = f"{default.median:.3f} ({default.low:.3f}-{default.high:.3f})"
    verdict = "yes" if default.median <= MOST else "no"
    shown = [name, f"{Spread.of(inside.seconds).median:.2f}", reported, verdict]
    return [*shown, f"{glossary.median:.3f}", str(whole), str(changed)]


def unchanged(
    text: Text, phrases: Sequence[Sequence[str]], before: Outputs, after: Outputs
) -> tuple[int, int]:
    """How many sentences have their phrases as words before, and how many of these have
    another translation after."""
    pairs = zip(text.lines(before), text.lines(after), phrases, strict=True)
    kept = [
        one == other
        for one, other, wanted in pairs
        if all(stands(phrase, one) for phrase in wanted)
    ]
    return len(kept), kept.count(False)


def stands(phrase: str, line: str) -> bool:
    """Whether a phrase stands as words in a line."""
    return find_phrase(normal(phrase), normal(line), 0, True)[1] >= 0
