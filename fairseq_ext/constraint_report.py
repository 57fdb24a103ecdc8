"""Which constraints the best hypotheses meet: counted on the finished tokens, not taken from the search's word."""

from __future__ import annotations

from fairseq_ext.constraint_io import SentenceConstraints, met
from fairseq_ext.search.beam import Hypothesis, Pool
from fairseq_ext.stats import Stats


def report_constraints(hypotheses: list[list[Hypothesis]], pool: Pool, stats: Stats) -> None:
    """Add the pool's constraints to the statistics. A sentence that cannot meet all of its own gets its list reordered, so that
    the hypothesis that meets most comes first."""
    total = stats.extra.setdefault("constraints", {"given": 0, "met": 0, "unmet": []})
    ordered = pool.aux["ordered"]
    for number, limit, constraints, found in zip(pool.ids.tolist(), pool.max_len, pool.aux["constraints"], hypotheses, strict=True):
        total["given"] += len(constraints.any_of) + len(constraints.unmet)
        total["unmet"] += [[number, text, reason] for text, reason in constraints.unmet]
        if not constraints.any_of:
            continue
        which = [met(h.tokens.tolist(), constraints, ordered) for h in found[:1]] or [[False] * len(constraints.any_of)]
        if not all(which[0]):
            which = [met(h.tokens.tolist(), constraints, ordered) for h in found] or which
            best = sorted(range(len(found)), key=lambda i: -sum(which[i]))
            found[:], which = [found[i] for i in best], [which[i] for i in best] or which
        total["met"] += sum(which[0])
        reason = why(constraints, limit)
        total["unmet"] += [[number, text, reason] for text, is_met in zip(constraints.text, which[0], strict=True) if not is_met]


def why(constraints: SentenceConstraints, limit: int) -> str:
    """The reason why a sentence's constraints cannot all be met."""
    needed = sum(min(len(p) for p in alternatives) for alternatives in constraints.any_of) + len(constraints.prefix)
    if needed > limit:
        return f"the constraints take {needed} tokens and the sentence may have {limit}"
    return "what would follow is forbidden (avoided phrases, prefix or other rules)"
