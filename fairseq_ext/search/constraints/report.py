"""Counts of the constraints that the best hypotheses meet, and the report of the glossary.

They are counted in finished hypotheses, independently of the search.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import IO
from unicodedata import normalize

from fairseq_ext.core.errors import UsageError, counted, report
from fairseq_ext.core.files import is_stream
from fairseq_ext.core.stats import Items, Section, Stats
from fairseq_ext.core.words import starts_of, words_of
from fairseq_ext.search.constraints.drafts import FORM_REASON
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.phrases.pieces import folded, normal
from fairseq_ext.search.phrases.places import PhraseToFind, Span, Text, match_phrases
from fairseq_ext.search.phrases.sentence import (
    Meets,
    Placed,
    Placement,
    SentenceConstraints,
    SourceTerm,
    met,
    met_with_prefix,
)
from fairseq_ext.search.report import ConstraintReport, Outcome, named

LEFT_OUT = "left out, as it costs more than --constraint-bonus gives"


@dataclass
class ConstraintCounts(Section):
    """The `constraints` section of the statistics."""

    key = "constraints"
    counts_answers = True
    given: int = 0
    met: int = 0
    unmet: Items = field(default_factory=Items)  # [sentence id, phrase, reason]


@dataclass
class GlossaryCounts(Section):
    """The `glossary` section of the statistics: terms in sources."""

    key = "glossary"
    counts_answers = True
    terms: int = 0
    sentences: int = 0  # with terms
    # in the place of the words that translate the source term (--glossary-placement align)
    in_place: int | None = None
    elsewhere: int | None = None  # in no word's place, or where the search put them
    met: int | None = None  # anywhere (--glossary-placement free)
    unmet: int = 0
    doubtful: int | None = None  # terms whose place, or whose absence, a person should look at


@dataclass(frozen=True)
class SentenceGoal:
    """The constraints and limits of one sentence."""

    constraints: SentenceConstraints
    limit: int  # most target tokens
    lead: int = 0  # tokens that the command forces before a prefix


def report_constraints(
    goal: SentenceGoal,
    found: list[Hypothesis],
    ordered: bool = False,
    meets: Meets = met,
    soft: bool = False,
) -> list[Hypothesis]:
    """Return the hypotheses of a sentence that meet all of its constraints; if there is none, all,
    the one that meets most first, each with its unmet constraints. meets: counts in tokens (met) or
    in text (search/phrases/places.py); soft: constraints were preferred, not forced, and hypotheses
    keep their order."""
    constraints, lead = goal.constraints, goal.lead
    if not (constraints.required or constraints.prefix):
        return [replace(h, unmet=constraints.unmet) for h in found] if constraints.unmet else found
    texts = [each.text for each in (*constraints.required, *constraints.prefix)]
    reason = LEFT_OUT if soft else unmet_reason(constraints, goal.limit - lead)
    unmet: list[tuple[tuple[str, str], ...]] = []
    complete = []
    for i, h in enumerate(found):
        is_met = met_with_prefix(h.tokens.tolist(), constraints, ordered, meets, lead)
        each = zip(texts, as_placed(is_met, texts, h), strict=True)
        left = [pair for pair in h.left_terms if pair[1] != FORM_REASON]
        unmet.append(tuple((text, dict(left).get(text, reason)) for text, ok in each if not ok))
        # subtle: a search that ran into a dead end ends a row as it is, also where complete
        # hypotheses were found before
        # a term that placement has left costs its hypothesis no place
        if not Counter(text for text, _ in unmet[i]) - Counter(text for text, _ in left):
            complete.append(i)
    every = range(len(found))
    kept = every if soft else complete or sorted(every, key=lambda i: len(unmet[i]))
    return [replace(found[i], unmet=constraints.unmet + unmet[i]) for i in kept]


def as_placed(which: list[bool], texts: Sequence[str], best: Hypothesis) -> list[bool]:
    """Return which constraints are met, with terms that are there in another form, and without
    those that are left, though the words of another one may be theirs too."""
    reasons = {text: [why for of, why in best.left_terms if of == text] for text in texts}
    absent = Counter(text for text, ok in zip(texts, which, strict=True) if not ok)
    for text, of in reasons.items():
        forms = of.count(FORM_REASON)
        absent[text] = max(len(of) - forms, absent[text] - forms)
    found = []
    for text in reversed(texts):  # of equal terms the last ones
        found.append(absent[text] <= 0)
        absent[text] -= 1
    return found[::-1]


def count_constraints(
    number: int, constraints: SentenceConstraints, best: Outcome, stats: Stats, placed: bool
) -> None:
    """Add the constraints and the glossary terms of a sentence to the statistics.

    placed: by --glossary-placement align.
    """
    given = len(constraints.required) + len(constraints.unmet) + bool(constraints.prefix)
    counts, terms = stats.section(ConstraintCounts), constraints.terms
    counts.given, counts.met = counts.given + given, counts.met + given - len(best.unmet)
    counts.unmet += [[number, *each] for each in best.unmet]
    if not terms:
        return
    held = Counter(term.text for term in terms) - Counter(text for text, _ in best.unmet)
    found = GlossaryCounts(len(terms), 1, unmet=len(terms) - held.total())
    if placed:
        found.elsewhere = (held & Counter(best.elsewhere)).total()
        found.in_place = held.total() - found.elsewhere
        found.doubtful = sum(each.doubtful for each in best.placements)
    else:
        found.met = held.total()
    stats.section(GlossaryCounts).add(found)


def constraint_reports(
    constraints: SentenceConstraints, best: Outcome, has_place: Sequence[bool] = ()
) -> list[ConstraintReport]:
    """Return the constraints of a sentence, its prefix first and those last that were dropped.

    has_place: of the prefix and each phrase. Of equal phrases those without a place are unmet
    first, then the last ones.
    """
    texts = [each.text for each in (*constraints.prefix, *constraints.required)]
    left = Counter(map(tuple, best.unmet)) - Counter(constraints.unmet)
    reasons: dict[int, str] = {}
    for i in sorted(range(len(texts)), key=lambda i: (*has_place[i : i + 1], -i)):
        if (unmet := next((each for each in +left if each[0] == texts[i]), None)) is not None:
            left[unmet] -= 1
            reasons[i] = unmet[1]
    pairs = [*((text, reasons.get(i, "")) for i, text in enumerate(texts)), *constraints.unmet]
    return [ConstraintReport(phrase=text, met=not why, reason=why) for text, why in pairs]


def report_skipped_sentence(
    number: int, constraints: SentenceConstraints, stats: Stats, reason: str
) -> list[tuple[str, str]]:
    """Add the constraints of a sentence that is not searched to the statistics. Return them, each
    with the reason.
    """
    given = (*constraints.required, *constraints.prefix)
    lacks = [*constraints.unmet, *((each.text, reason) for each in given)]
    if lacks:
        count_constraints(number, constraints, Outcome(unmet=lacks), stats, placed=False)
    return lacks


def unmet_reason(constraints: SentenceConstraints, limit: int) -> str:
    """Return the reason why a sentence's constraints cannot all be met."""
    prefix = constraints.beginning
    left = [
        alternatives
        for alternatives, done in zip(
            constraints.any_of, met(prefix, constraints, False), strict=True
        )
        if not done
    ]
    begun = max(
        (n for a in left for p in a for n in range(len(p)) if n and prefix[-n:] == p[:n]), default=0
    )
    needed = sum(min(len(p) for p in alternatives) for alternatives in left) + len(prefix) - begun
    if needed > limit:
        return f"the constraints take {counted(needed, 'token')} and the sentence may have {limit}"
    return "what would follow is forbidden (banned phrases, prefix or logits processors)"


# ---- The report (`--glossary-report F`): one JSON line a sentence
#
# `{"id": 3, "source": ..., "translation": ..., "terms": [{"term": "Ader", "line": 12, "targets":
# ["vein", "lode"], "source_at": [[4, 8]], "form": "vein", "at": [6, 10]}]}`: the entries that the
# source has (line of the file, places in the source; forms: the number of its target forms, with
# inflected ones), which of them was used and where it stands in
# the translation; `form` and `at` are null where the translation has none of them, or only such as
# serve another term, by the definition that the search keeps to (--constraint-boundary,
# --constraint-case). Where terms are placed, `placed_by` says how a term got its place (draft;
# compound: a part of a longer word of the draft, which `form` is; aligned, inserted, searched,
# left), `displaced` the words of the draft that it replaces, `weight`
# the score of their alignment, and `doubtful` that a person should look at it. Places are
# characters, [start, end). source and translation are in NFKC, the translation with single spaces,
# which is what the places count in. Lines come in the order in which batches finish. Each line is
# in the file as soon as its batch is decoded, so that a command that is killed leaves those that it
# has printed.


class GlossaryReport:
    """The file. segmented, whole: see `forms_used`. Errors: UsageError for a file that cannot be
    written."""

    def __init__(self, path: str, segmented: bool, whole: bool | None = True):
        self.path, self.segmented, self.whole_words, self.is_stream = (
            path,
            segmented,
            whole,
            is_stream(path),
        )
        try:
            self.file: IO[bytes] = open(path, "ab", buffering=0)
            if not self.is_stream:
                fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.file.truncate(0)
        except OSError as error:
            # errors of the lock
            if error.errno in (errno.EAGAIN, errno.EACCES) and error.filename is None:
                raise UsageError(
                    f"another run is writing to {path}: wait for it, or name another "
                    "--glossary-report"
                ) from None
            raise UsageError(
                f"--glossary-report {path} cannot be written ({error.strerror}): name another file"
            ) from error

    def close(self) -> int:
        """Write the file to disk. Return the status: 1, with a message on standard error, if that
        fails.
        """
        try:
            with self.file:
                if not self.is_stream:
                    os.fsync(self.file.fileno())
        except OSError as error:
            report(UsageError, self.full(error), None)
            return 1
        return 0

    def full(self, error: OSError) -> UsageError:
        """Return the error for a full disk; the earlier lines stay."""
        return UsageError(
            f"--glossary-report {self.path} cannot be written ({error.strerror}): make "
            "room and run again"
        )

    def add(
        self,
        number: int,
        source: str,
        translation: str,
        terms: Sequence[SourceTerm],
        placements: Sequence[Placement] = (),
    ) -> None:
        """Write a sentence's line. placements: of each term; empty where terms are not placed."""
        source, translation = normalize("NFKC", source), normal(normalize("NFKC", translation))
        spans = word_spans(source, words_of(source, self.segmented))
        out: list[dict[str, object]] = []
        placed = list(itertools.zip_longest(terms, placements))
        present = [each for each in placed if each[1] is None or each[1].placed_by != "left"]
        used = forms_used(
            translation,
            [each for each, _ in present],
            self.segmented,
            self.whole_words,
            [how for _, how in present if how is not None],
        )
        for each, how in placed:
            is_left = how is not None and how.placed_by == "left"
            form, at = (None, None) if is_left else used.pop(0)
            source_at = [(spans[start][0], spans[end - 1][1]) for start, end in each.words]
            entry = {
                "term": each.source,
                "line": each.line,
                "targets": list(each.entry),
                "forms": len(each.forms),
                "source_at": source_at,
            }
            found = {} if how is None else named(how, Placed)
            out.append({**entry, "form": form, "at": at, **found})
        record = {"id": number, "source": source, "translation": translation, "terms": out}
        line = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        try:
            while line:
                line = line[self.file.write(line) :]
        except OSError as error:
            raise self.full(error) from error


def word_spans(text: str, words: Sequence[str]) -> list[Span]:
    """Return the places of the words of a text (in NFKC)."""
    return [
        (start, start + len(word))
        for start, word in zip(starts_of(text, words), words, strict=True)
    ]


def forms_used(
    translation: str,
    terms: Sequence[SourceTerm],
    segmented: bool,
    whole: bool | None = True,
    placements: Sequence[Placement] = (),
) -> list[tuple[str | None, Span | None]]:
    """Return for each term the target in the translation (in NFKC) and its place; a place serves
    one term (other arguments: search/phrases/places.py).

    placements: of each, where terms are placed: mentions share no words, and a term may be there in
    another form, or as a part of a longer word, which are returned.
    """
    placed = bool(placements)
    targets = [list(each.forms) for each in terms]
    for of, how in zip(targets, placements, strict=False):
        of += [how.other_form] * bool(how.other_form)
    wanted = [
        PhraseToFind(
            [normal(normalize("NFKC", t)) for t in of],
            each.cased.mode,
            frozenset(word for span in each.words for word in range(*span) if placed),
            placed and each.cased.in_compounds,
        )
        for of, each in zip(targets, terms, strict=True)
    ]
    places = match_phrases(Text(translation, segmented, whole), wanted)
    found: list[tuple[str | None, Span | None]] = []
    for of, each, place in zip(targets, wanted, places, strict=True):
        if place is None:
            found.append((None, None))
            continue
        number, span = place
        own = translation[slice(*span)]
        found.append((of[number] if folded(own) == folded(each.forms[number]) else own, span))
    return found
