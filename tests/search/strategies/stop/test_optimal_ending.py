"""Optimal ending against brute force: the paper's theorems on random table models, in double
precision.

What a stopping criterion must answer, and when it must stop, is read off a whole run to the length
limit, by plain Python lists: `expansion` gives its steps, `ranked` the answers, `certificate_step`
the stop. This shares no code with the loop.
"""

import math
from dataclasses import dataclass

import pytest
from models import build, generators
from sizes import covering, part_of
from table_model import EOS, Found, lattice, random_table, search, stop_plug, words

from fairseq_ext.core.stats import Stats
from fairseq_ext.search.checks import validate
from fairseq_ext.search.finished import Scoring
from fairseq_ext.search.settings import Settings

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
    width=None,
    after=lambda finished: False,
) -> list[Step]:
    """Beam search to the limit.

    fairseq: EOS counts among the k best candidates and takes no slot; paper: it takes one. width,
    after: the beam, and whether the search ends, once this many are finished (for the baselines).
    """
    width, live, out, count = width or (lambda finished: k), [((), 0.0)], [], 0
    for i in range(max_len + 1):
        allowed = [EOS] if i == max_len else [w for w in range(4, 12)] + [EOS] * (i > 0)
        grown = [
            ((*tokens, w), total + table(tokens)[w])
            for tokens, total in live
            for w in allowed
            if table(tokens)[w] > -math.inf
        ]
        grown.sort(key=lambda h: -h[1])
        done = [h for h in grown[: width(count)] if h[0][-1] == EOS]
        others = [h for h in (grown[:k] if paper else grown) if h[0][-1] != EOS]
        count += len(done)
        before, live = live[0][1], others[: width(count)]
        out.append(Step(before, done, grown[0] if grown else None, live))
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
    flags = dict(stop_expansion="paper" if paper else "fairseq", prune_bound=prune)
    plug = stop_plug("optimal", k, rule.scoring, stats, nbest, **flags)
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


each_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


each_expansion = pytest.mark.parametrize("paper", [False, True], ids=["fairseq", "paper"])


each_beam = pytest.mark.parametrize("k", [1, 2, 3, 5])


# ---- Theorems 1 and 3: the answer is that of the run to the limit, and it comes as soon
#      as the certificate holds


@covering(1)
@each_rule
@each_expansion
@each_beam
def test_answer_and_n_best_list_equal_the_whole_run(rule, paper, k):
    """For every n up to the beam, all sentences in one batch, each with its own length limit.

    --prune-bound changes no answer. Certificates are counted as proved, or as open with their gap:
    the limit came first, and the best row of the last step, had its EOS cost nothing, would have
    entered the list.
    """
    for n in range(1, k + 1):
        found, pruned = (optimal(k, rule, paper, prune, n) for prune in (False, True))
        assert pruned.step == found.step
        assert all(a <= b for a, b in zip(pruned.rows, found.rows, strict=True))
        gaps = []
        for i, (steps, longest, wanted) in enumerate(sentences(k, paper)):
            for lists in (found.lists, pruned.lists):
                agree(ranked(steps, rule, wanted)[:n], lists[i][:n])
            last = certificate_step(steps, rule, longest, wanted, n)
            assert found.step[i] == last
            reach = rule.bound(steps[last - 1].before, last - 1, longest, wanted)
            worst = nth(steps[:last], rule, wanted, n)
            if last == longest and reach > worst:
                gaps.append(reach - worst if worst > -math.inf else 0.0)
        reported = found.stats.as_dict()["certificates"]
        assert (reported["proved"], reported["open"]) == (len(TABLES) - len(gaps), len(gaps))
        mean = sum(gaps) / max(len(gaps), 1)
        assert paper or reported["gap_mean"] == pytest.approx(mean, abs=1e-6)


def test_ties_stop():
    """ "a" is finished at .25 when "b c" stands at .25: nothing can be better, so the
    search does not wait."""
    arcs = {"": {"a": 0.5, "b": 0.5}, "a": {"$": 0.5, "c": 0.5}, "b": {"c": 0.5, "d": 0.5}}
    table = lattice(arcs | {"bc": {"$": 1.0}})
    for prune in (False, True):
        found = optimal(3, RULES["reward 0.0"], prune=prune, tables=[table], max_len=10)
        assert found.step == [2] and words(found.lists[0][0].tokens) == "a"


def test_ties_are_pruned():
    """In step 2 "a" is finished at .125, and of the live "a d", "b c", "b d" (.25) and "a c" (.125)
    the last has no chance left."""
    of_a = {"d": 0.5, "c": 0.25, "$": 0.25}
    table = lattice({"": {"a": 0.5, "b": 0.5}, "a": of_a, "b": {"c": 0.5, "d": 0.5}})
    given = dict(tables=[table], max_len=10)
    rows = [optimal(5, RULES["reward 0.0"], True, each, **given).rows[0] for each in (False, True)]
    assert rows == [1 + 2 + 4, 1 + 2 + 3]


# ---- certificates


@each_expansion
@pytest.mark.parametrize("prune", [False, True])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_what_is_saved_is_the_run_to_the_limit_less_the_work_done(k, prune, paper):
    """Exact where the whole run has k rows at every step but the first; where it may have
    fewer, an upper bound."""
    rich = [random_table(seed, possible=8, ending=0.1 * (seed % 5)) for seed in range(30)]
    limits, source = LIMITS[:30], SOURCE[:30]
    for tables, exact in ((rich, not paper), (TABLES[:30], False)):
        runs = [
            expansion(table, k, limit, paper) for table, limit in zip(tables, limits, strict=True)
        ]
        given = dict(tables=tables, max_len=limits, source=source)
        found = optimal(k, RULES["reward 0.3"], paper, prune, **given)
        steps = sum(map(len, runs)) - sum(found.step)
        rows = sum(1 + sum(len(step.live) for step in run) for run in runs) - sum(found.rows)
        saved = found.stats.as_dict()["saved"]
        assert saved["steps"] >= steps and saved["rows"] >= rows
        if exact:
            assert (saved["steps"], saved["rows"]) == (steps, rows) and steps > 0
            whole = search(tables, k, stop_plug("count", k, patience=1000), limits, source)
            of_whole, ours = (x.stats.as_dict()["expansions"] for x in (whole, found))
            assert saved["expansions"] == of_whole - ours


# ---- the baselines, against their descriptions


@each_beam
@pytest.mark.parametrize("rule", [normalised(1.0), unbounded(1.3)], ids=["normalised", "reward"])
def test_shrink_narrows_the_beam_with_every_finished_hypothesis(rule, k):
    """RNNsearch: the beam is k less the finished ones; the best of all finished
    ones is the answer."""
    found = search(TABLES, k, stop_plug("shrink", k), LIMITS, SOURCE, nbest=k, scoring=rule.scoring)
    for i, (table, limit, source) in enumerate(zip(TABLES, LIMITS, SOURCE, strict=True)):
        steps = expansion(table, k, limit, width=lambda finished: k - finished)
        agree(ranked(steps, rule, RATIO * source), found.lists[i])
        assert found.step[i] == len(steps) and len(found.lists[i]) <= k


@each_beam
def test_first_returns_the_first_top_candidate_that_is_complete(k):
    found = search(TABLES, k, stop_plug("first", k), LIMITS, SOURCE)
    for i, (steps, *_) in enumerate(sentences(k)):
        at = next(j for j, step in enumerate(steps) if step.top[0][-1] == EOS)
        agree([steps[at].top], found.lists[i])
        assert found.step[i] == at + 1


@each_beam
@pytest.mark.parametrize("patience", [1, 2, 3])
def test_count_waits_for_patience_times_beam_hypotheses(patience, k):
    stop, rule = stop_plug("count", k, patience=patience), normalised(1.0)
    found = search(TABLES, k, stop, LIMITS, SOURCE, scoring=rule.scoring)
    for i, (table, limit) in enumerate(zip(TABLES, LIMITS, strict=True)):
        steps = expansion(table, k, limit, after=lambda finished: finished >= patience * k)
        every = [(h, total / len(h)) for step in steps for h, total in step.finished]
        agree(sorted(every[: patience * k], key=lambda pair: -pair[1]), found.lists[i])
        assert found.step[i] == len(steps)


# ---- the flags; that each reaches the search: contract/


@pytest.mark.parametrize(
    "generation, flags, reported",
    [
        ({}, {}, "normalised"),
        ({"lenpen": 0.0}, {}, "raw"),
        ({"unnormalized": True}, {}, "raw"),
        ({"unnormalized": True}, {"length_reward": 0.5}, "reward"),
    ],
    ids=str,
)
def test_the_signature_says_which_certificate_it_is(generation, flags, reported):
    for stop, there in (({"stop": "optimal"}, True), ({}, False)):
        ours = generators([build("transformer")], flags | stop, beam=4, **generation).ours
        assert (f",certificate={reported}" in ours.stats.signature) == there


def test_a_positive_unk_penalty_and_a_language_model_without_a_certificate_pass():
    validate(Settings({"stop": "optimal", "unkpen": 1.0}))
    validate(Settings({"stop": "shrink", "unkpen": -1.0, "lm_path": "lm.pt"}))
