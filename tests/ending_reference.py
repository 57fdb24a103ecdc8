"""Brute force for the tests of optimal ending: beams by plain Python lists, always run
to the length limit.

What a stopping criterion must answer, and when it must stop, is read off the whole run: `expansion`
gives its steps, `ranked` the answers, `certificate_step` the stop. Shares no code with the loop.
"""

import math
from dataclasses import dataclass

import pytest
from sizes import part_of
from table_model import EOS, Found, random_table, search, stop_plug

from fairseq_ext.core.stats import Stats
from fairseq_ext.search.finished import Scoring

CASES = part_of(120, 60)
TABLES = [random_table(seed, possible=2 + seed % 4, ending=0.1 * (seed % 5)) for seed in CASES]
LIMITS = [1 + seed % 9 for seed in CASES]
SOURCE = [1 + seed % 7 for seed in CASES]
RATIO = 0.8


@dataclass
class Step:
    """One step of the expansion; hypotheses are (tokens, sum of log-probabilities), best first."""

    before: float  # of the best live hypothesis
    finished: list
    top: tuple  # the best candidate
    live: list


def expansion(
    table,
    k: int,
    max_len: int,
    paper: bool = False,
    width=lambda finished: None,
    after=lambda finished: False,
) -> list[Step]:
    """Beam search to the limit.

    fairseq: EOS counts among the k best candidates and takes no slot; paper: it takes one. width,
    after: the beam, and whether the search ends, once this many are finished (for the baselines).
    """
    live, out, count = [((), 0.0)], [], 0
    for i in range(max_len + 1):
        allowed = [EOS] if i == max_len else [w for w in range(4, 12)] + [EOS] * (i > 0)
        grown = [
            ((*tokens, w), total + table(tokens)[w])
            for tokens, total in live
            for w in allowed
            if table(tokens)[w] > -math.inf
        ]
        grown.sort(key=lambda h: -h[1])
        slots = width(count) if width(count) is not None else k
        done = [h for h in grown[:slots] if h[0][-1] == EOS]
        others = [h for h in (grown[:k] if paper else grown) if h[0][-1] != EOS]
        count += len(done)
        room = width(count) if width(count) is not None else k
        out.append(Step(live[0][1], done, grown[0] if grown else None, others[:room]))
        live = others[:room]
        if not live or after(count):
            break
    return out


@dataclass
class Rule:
    """A way to score, reported twice: as the flags say it, and as the paper's formulas."""

    scoring: Scoring
    score: object  # (total, length, wanted)
    bound: object  # (total, tokens so far, longest, wanted)


def reward(r: float, ratio: float = RATIO, offset: float = 0.0) -> Rule:
    """offset: of the wanted length, which is not below 0."""
    return Rule(
        Scoring(False, 1, r, ratio, offset),
        lambda s, n, l: s + r * min(max(0.0, l + offset), n),
        lambda s, i, top, l: s + r * min(max(0.0, l + offset), top),
    )


def unbounded(r: float) -> Rule:
    return Rule(
        Scoring(False, 1, r, RATIO, bounded=False),
        lambda s, n, l: s + r * n,
        lambda s, i, top, l: s + r * top,
    )


def normalised(p: float) -> Rule:
    return Rule(
        Scoring(True, p),
        lambda s, n, l: s / n**p,
        lambda s, i, top, l: s / (top if p > 0 else i + 1) ** p,
    )


RULES = {f"reward {r}": reward(r) for r in (0.0, 0.3, 1.2, 3.0)} | {
    f"unbounded {r}": unbounded(r) for r in (0.4, 1.5)
}
RULES |= {f"offset {offset}": reward(0.9, RATIO, offset) for offset in (-2.5, 1.5)}
RULES |= {f"lenpen {p}": normalised(p) for p in (0.5, 1.0, 2.0, 0.0, -0.5)}


def optimal(
    k: int, rule: Rule, paper: bool = False, prune: bool = False, nbest: int = 1, **more
) -> Found:
    """`--stop optimal` by the loop, over the tables of this file unless others are given."""
    stats = Stats()
    plug = stop_plug(
        "optimal",
        k,
        rule.scoring,
        stats,
        nbest,
        stop_expansion="paper" if paper else "fairseq",
        prune_bound=prune,
    )
    given = {"tables": TABLES, "max_len": LIMITS, "source": SOURCE} | more
    return search(k=k, stop=plug, nbest=nbest, scoring=rule.scoring, stats=stats, **given)


def sentences(k: int, paper: bool = False):
    """The whole run of every table, with its limit and wanted length."""
    for table, limit, source in zip(TABLES, LIMITS, SOURCE, strict=True):
        yield expansion(table, k, limit, paper), limit + 1, RATIO * source


def ranked(steps: list[Step], rule: Rule, wanted: float) -> list[tuple[tuple, float]]:
    """All hypotheses that these steps finish with their scores, best first; the earlier one
    first where they tie."""
    scored = [
        (h, rule.score(total, len(h), wanted)) for step in steps for h, total in step.finished
    ]
    return sorted(scored, key=lambda pair: -pair[1])


def nth(steps: list[Step], rule: Rule, wanted: float, n: int) -> float:
    best = ranked(steps, rule, wanted)
    return best[n - 1][1] if len(best) >= n else -math.inf


def certificate_step(steps: list[Step], rule: Rule, longest: int, wanted: float, n: int = 1) -> int:
    """The first step after which no live hypothesis can reach the n-th best score."""
    for i, step in enumerate(steps, 1):
        reach = [rule.bound(total, i, longest, wanted) for _, total in step.live]
        if all(b <= nth(steps[:i], rule, wanted, n) for b in reach):
            return i
    raise AssertionError("a run ends when nothing is live")


def agree(expected: list[tuple[tuple, float]], found: list) -> None:
    assert [tuple(h.tokens.tolist()) for h in found] == [tokens for tokens, _ in expected]
    assert [h.score for h in found] == pytest.approx([score for _, score in expected], abs=1e-9)
