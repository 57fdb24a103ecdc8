"""Counts of the constraints that the best hypotheses meet, and their reports.

They are counted in finished hypotheses, independently of the search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from unicodedata import normalize

from fairseq_ext.core.errors import counted
from fairseq_ext.core.stats import Items, Section, Stats
from fairseq_ext.core.words import starts_of, words_of
from fairseq_ext.search.constraints.drafts import FORM_REASON
from fairseq_ext.search.constraints.source_text import SourceText
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.phrases.pieces import folded, normal
from fairseq_ext.search.phrases.places import (
    PhraseToFind,
    Text,
    match_phrases,
    match_phrases_in_order,
)
from fairseq_ext.search.phrases.segmenter import TargetText
from fairseq_ext.search.phrases.sentence import (
    Constraint,
    Meets,
    Phrase,
    Placed,
    SentenceConstraints,
    SourceTerm,
    met,
    met_with_prefix,
)
from fairseq_ext.search.report import ConstraintReport, Outcome, Span, named
from fairseq_ext.search.request import Request

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


@dataclass(frozen=True)
class Reporter:
    """Reports the constraints of each sentence of a run.

    target, source: how tokens of both sides become text; ordered: phrases must appear in the order
    in which they were given.
    """

    target: TargetText
    source: SourceText
    ordered: bool

    def __call__(
        self, request: Request, best: Outcome, text: str, source: str
    ) -> list[tuple[Constraint, ConstraintReport]]:
        """Return the constraints of a request, in the order in which they were given, and those
        last that were dropped, each with its report. A place serves one phrase. text: of the best
        hypothesis; source: the request's."""
        wanted, tokens = request.all_constraints, request.tokens
        boundaries, segmented = self.target.boundaries, self.target.segmenter().takes_pieces
        whole = None if boundaries is None else boundaries.whole_words
        places = places_of(
            Text(text, segmented, whole), wanted.required, best, self.target.text, self.ordered
        )
        if wanted.prefix:
            beginning = self.target.text(wanted.beginning).strip()
            places.insert(0, (0, len(beginning)) if text.startswith(beginning) else None)
        requested: list[Constraint] = [*wanted.prefix, *wanted.required]
        left = Counter(map(tuple, best.unmet)) - Counter(wanted.unmet)
        reasons = dict.fromkeys(range(len(requested)), "")
        # of equal phrases those without a place are unmet first, then the last ones
        for i in sorted(reasons, key=lambda i: (places[i] is not None, -i)):
            if (
                unmet := next((each for each in +left if each[0] == requested[i].text), None)
            ) is not None:
                left[unmet] -= 1
                reasons[i] = unmet[1]
        dropped = list(wanted.dropped)
        for phrase, reason in wanted.unmet:
            term = next((each for each in dropped if each.text == phrase), None)
            if term is not None:
                dropped.remove(term)
            reasons[len(requested)] = reason
            requested.append(term or Constraint(phrase))
            places.append(None)
        words = []
        if wanted.terms and tokens is not None:
            words = self.source.words(tokens, wanted.unknown)
        out, how_of = [], {each.term: each for each in best.placements}
        for i, (each, place) in enumerate(zip(requested, places, strict=True)):
            spans = () if place is None or reasons[i] else (place,)
            made = ConstraintReport(
                phrase=each.text, met=not reasons[i], spans=spans, reason=reasons[i]
            )
            if isinstance(each, SourceTerm):
                how = how_of.get(each)
                made = replace(
                    made,
                    term=each.source,
                    source_spans=spans_of(source, words, each.words, segmented),
                    place="" if how is None or reasons[i] else how.place,
                    **named(how or Placed(), Placed),
                )
            out.append((each, made))
        return out


def places_of(
    text: Text,
    wanted: Sequence[Constraint],
    best: Outcome,
    text_of: Callable[[Phrase], str],
    ordered: bool = False,
) -> list[Span | None]:
    """Return the place of each constraint in a translation; None where it has none, or only one
    that serves another.

    Where terms are placed, their mentions share no words, and a term may be there in another form,
    or as a part of a longer word. text_of: returns the text of a phrase.
    """
    how_of = {each.term: each for each in best.placements}
    phrases: dict[int, PhraseToFind] = {}
    for i, each in enumerate(wanted):
        forms: Sequence[str] = [text_of(phrase) for phrase in each.phrases]
        words: frozenset[int] = frozenset()
        how = None
        if isinstance(each, SourceTerm):
            how = how_of.get(each)
            forms = each.targets if each.required else each.forms
            if how is not None:
                forms = (*forms, *filter(None, [how.other_form]))
                words = frozenset(word for span in each.words for word in range(*span))
        if how is None or how.placed_by != "left":
            plain = (normal(of) for form in forms for of in (form, normalize("NFKC", form)))
            in_compounds = how is not None and each.cased.in_compounds
            phrases[i] = PhraseToFind(
                list(dict.fromkeys(plain)), each.cased.mode, words, in_compounds
            )
    match = match_phrases_in_order if ordered else match_phrases
    places = dict(zip(phrases, match(text, list(phrases.values())), strict=True))
    return [None if (place := places.get(i)) is None else place[1] for i in range(len(wanted))]


def spans_of(
    source: str, words: list[str], mentions: Sequence[Span], segmented: bool
) -> tuple[Span, ...]:
    """Return the places of a term's mentions in a source as it was given; none if its words were
    rewritten on their way to tokens."""
    given = words_of(source, segmented)
    more = len(given) - len(words)  # of the language that it begins with
    if normalize("NFKC", source) != source or more < 0 or given[more:] != words:
        return ()
    starts = starts_of(source, given)[more:]
    return tuple((starts[start], starts[end - 1] + len(words[end - 1])) for start, end in mentions)


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


def as_listed(own: str, term: SourceTerm) -> str:
    """Return the words of a translation that are a form of a term as the glossary writes them, as
    they are where it has them in no case."""
    forms = [(normal(normalize("NFKC", form)), form) for form in term.forms]
    exact = [form for plain, form in forms if plain == own]
    others = [form for plain, form in forms if folded(plain) == folded(own)]
    return [*exact, *others, own][0]
