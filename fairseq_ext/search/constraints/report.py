"""Which constraints the best hypotheses meet: counted on what is finished, not taken from the search's word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fairseq_ext.core.errors import counted
from fairseq_ext.core.stats import Items, Section, Stats
from fairseq_ext.search.constraints.prefix import met_with_prefix
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.phrases.sentence import Meets, SentenceConstraints, SourceTerm, met

LEFT_OUT = "left out, as it costs more than --constraint-bonus gives"


@dataclass
class ConstraintCounts(Section):
    """The `constraints` section of the statistics."""

    key = "constraints"
    of_answers = True
    given: int = 0
    met: int = 0
    unmet: Items = field(default_factory=Items)  # [sentence id, phrase, reason]


@dataclass
class GlossaryCounts(Section):
    """The `glossary` section of the statistics: terms that sources hold."""

    key = "glossary"
    of_answers = True
    terms: int = 0
    sentences: int = 0  # that hold any
    in_place: int | None = None  # in the place of the words that translate the source term (--glossary-placement align)
    elsewhere: int | None = None  # where no word had to make place, or where the search put them
    met: int | None = None  # wherever they stand (--glossary-placement free)
    unmet: int = 0


@dataclass(frozen=True)
class Asked:
    """What a sentence asks for."""

    number: int  # its id
    constraints: SentenceConstraints
    limit: int  # most target tokens
    lead: int = 0  # tokens that the command forces before a prefix


def report_constraints(
    asked: Asked, found: list[Hypothesis], stats: Stats, ordered: bool = False, meets: Meets = met, soft: bool = False
) -> list[Hypothesis]:
    """Add a sentence's constraints to the statistics. Returns its hypotheses that meet all of them; where none does, all, the one that
    meets most first, each flagged with what it lacks. meets: counts in tokens (met) or in text (in_text.py); soft: constraints were
    preferred, not forced, and hypotheses keep their order."""
    number, constraints, lead = asked.number, asked.constraints, asked.lead
    total = stats.section(ConstraintCounts)
    total.given += len(constraints.any_of) + len(constraints.unmet) + bool(constraints.prefix)
    total.unmet += [[number, text, reason] for text, reason in constraints.unmet]
    if not (constraints.any_of or constraints.prefix):
        return [replace(h, unmet=constraints.unmet) for h in found] if constraints.unmet else found
    which = [met_with_prefix(h.tokens.tolist(), constraints, ordered, meets, lead) for h in found]
    # subtle: a search that ran into a dead end ends a row as it is, also where complete hypotheses were found before
    complete = [i for i, of_hypothesis in enumerate(which) if all(of_hypothesis)]
    kept = list(range(len(found))) if soft else complete or sorted(range(len(found)), key=lambda i: -sum(which[i]))
    best = which[kept[0]] if kept else met_with_prefix([], constraints, ordered, meets)
    total.met += sum(best)
    reason = LEFT_OUT if soft else why(constraints, asked.limit - lead)
    texts = constraints.text + ((constraints.prefix_text,) if constraints.prefix else ())
    lacks = [tuple((text, reason) for text, is_met in zip(texts, each, strict=True) if not is_met) for each in (best, *which)]
    total.unmet += [[number, text, reason] for text, reason in lacks[0]]
    return [replace(found[i], unmet=constraints.unmet + lacks[1 + i]) for i in kept]


def count_terms(terms: Sequence[SourceTerm], best: Hypothesis, stats: Stats, placed: bool) -> None:
    """Add the glossary terms of a sentence to the statistics. placed: by --glossary-placement align."""
    if not terms:
        return
    total = stats.section(GlossaryCounts)
    held = Counter(term.text for term in terms) - Counter(text for text, _ in best.unmet)
    total.terms, total.sentences, total.unmet = total.terms + len(terms), total.sentences + 1, total.unmet + len(terms) - held.total()
    if placed:
        elsewhere = (held & Counter(best.elsewhere)).total()
        total.in_place, total.elsewhere = (total.in_place or 0) + held.total() - elsewhere, (total.elsewhere or 0) + elsewhere
    else:
        total.met = (total.met or 0) + held.total()


def report_unsearched(number: int, constraints: SentenceConstraints, stats: Stats, reason: str) -> list[tuple[str, str]]:
    """Add the constraints of a sentence that is not searched to the statistics. Returns them, each with the reason."""
    prefix = (constraints.prefix_text,) if constraints.prefix else ()
    lacks = [*constraints.unmet, *((text, reason) for text in (*constraints.text, *prefix))]
    if lacks:
        total = stats.section(ConstraintCounts)
        total.given += len(lacks)
        total.unmet += [[number, text, why] for text, why in lacks]
    return lacks


def why(constraints: SentenceConstraints, limit: int) -> str:
    """The reason why a sentence's constraints cannot all be met."""
    prefix = constraints.prefix
    left = [alternatives for alternatives, done in zip(constraints.any_of, met(prefix, constraints, False), strict=True) if not done]
    begun = max((n for a in left for p in a for n in range(len(p)) if n and prefix[-n:] == p[:n]), default=0)
    needed = sum(min(len(p) for p in alternatives) for alternatives in left) + len(prefix) - begun
    if needed > limit:
        return f"the constraints take {counted(needed, 'token')} and the sentence may have {limit}"
    return "what would follow is forbidden (banned phrases, prefix or logits processors)"
