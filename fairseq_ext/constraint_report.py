"""Which constraints the best hypotheses meet: counted on the finished tokens, not taken from the search's word."""

from __future__ import annotations

from fairseq_ext.constraint_io import SentenceConstraints, met
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.stats import Stats


def report_constraints(
    number: int, found: list[Hypothesis], constraints: SentenceConstraints, ordered: bool, limit: int, stats: Stats
) -> list[Hypothesis]:
    """Add a sentence's constraints to the statistics. Returns its hypotheses that meet all of them; where none does, all, the one that
    meets most first. limit: most target tokens."""
    total = stats.extra.setdefault("constraints", {"given": 0, "met": 0, "unmet": []})
    total["given"] += len(constraints.any_of) + len(constraints.unmet)
    total["unmet"] += [[number, text, reason] for text, reason in constraints.unmet]
    if not constraints.any_of:
        return found
    which = [met(h.tokens.tolist(), constraints, ordered) for h in found]
    # subtle: a search that ran into a dead end ends a row as it is, also where complete hypotheses were found before
    complete = [i for i, of_hypothesis in enumerate(which) if all(of_hypothesis)]
    kept = complete or sorted(range(len(found)), key=lambda i: -sum(which[i]))
    best = which[kept[0]] if kept else [False] * len(constraints.any_of)
    total["met"] += sum(best)
    reason = why(constraints, limit)
    total["unmet"] += [[number, text, reason] for text, is_met in zip(constraints.text, best, strict=True) if not is_met]
    return [found[i] for i in kept]


def why(constraints: SentenceConstraints, limit: int) -> str:
    """The reason why a sentence's constraints cannot all be met."""
    needed = sum(min(len(p) for p in alternatives) for alternatives in constraints.any_of) + len(constraints.prefix)
    if needed > limit:
        return f"the constraints take {needed} tokens and the sentence may have {limit}"
    return "what would follow is forbidden (avoided phrases, prefix or other rules)"
