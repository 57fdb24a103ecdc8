"""Optimal ending against brute force: the paper's theorems on random table models, in double
precision.

What a stopping criterion must answer, and when it must stop, is read off a whole run to the length
limit, by plain Python lists: `expansion` gives its steps, `ranked` the answers, `certificate_step`
the stop. This shares no code with the loop.
"""

import itertools
import math
from dataclasses import dataclass

import pytest
from models import batch, build, generators, run
from sizes import covering, drawn, part_of
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
    """For every n up to the beam, all sentences in one batch, each with its own length limit."""
    for n in range(1, k + 1):
        found = optimal(k, rule, paper, nbest=n)
        for i, (steps, longest, wanted) in enumerate(sentences(k, paper)):
            agree(ranked(steps, rule, wanted)[:n], found.lists[i][:n])
            assert found.step[i] == certificate_step(steps, rule, longest, wanted, n)


@drawn(6)
@each_rule
@each_expansion
def test_prune_bound_changes_no_answer_and_saves_rows(rule, paper):
    saved = 0
    for k, n in [(1, 1), (2, 1), (3, 2), (5, 1), (5, 5)]:
        plain, pruned = (optimal(k, rule, paper, prune, nbest=n) for prune in (False, True))
        for theirs, ours in zip(plain.lists, pruned.lists, strict=True):
            agree([(tuple(h.tokens.tolist()), h.score) for h in theirs[:n]], ours[:n])
        assert pruned.step == plain.step and all(
            a <= b for a, b in zip(pruned.rows, plain.rows, strict=True)
        )
        saved += sum(plain.rows) - sum(pruned.rows)
    assert saved > 0


def test_one_search_with_the_largest_reward_and_length_holds_the_answers_of_all_smaller_ones():
    """Beams depend on neither and the stop step grows with both: scripts/tune_length_reward.py
    relies on this."""
    everything = optimal(4, reward(1.5, 1.3 * RATIO)).lists
    for r, ratio in itertools.product((0.0, 0.2, 0.7, 1.5), (RATIO, 1.1 * RATIO, 1.3 * RATIO)):
        for of_largest, found, source in zip(
            everything, optimal(4, reward(r, ratio)).lists, SOURCE, strict=True
        ):
            scores = [
                float(h.positional_scores.sum()) + r * min(ratio * source, len(h.tokens))
                for h in of_largest
            ]
            assert max(scores) == pytest.approx(found[0].score, abs=1e-9)


def test_ties_stop():
    """ "a" is finished at .25 when "b c" stands at .25: nothing can be better, so the
    search does not wait."""
    table = lattice(
        {
            "": {"a": 0.5, "b": 0.5},
            "a": {"$": 0.5, "c": 0.5},
            "b": {"c": 0.5, "d": 0.5},
            "bc": {"$": 1.0},
        }
    )
    for prune in (False, True):
        found = optimal(3, RULES["reward 0.0"], prune=prune, tables=[table], max_len=10)
        assert found.step == [2] and words(found.lists[0][0].tokens) == "a"


def test_ties_are_pruned():
    """In step 2 "a" is finished at .125, and of the live "a d", "b c", "b d" (.25) and "a c" (.125)
    the last has no chance left."""
    table = lattice(
        {"": {"a": 0.5, "b": 0.5}, "a": {"d": 0.5, "c": 0.25, "$": 0.25}, "b": {"c": 0.5, "d": 0.5}}
    )
    rows = [
        optimal(5, RULES["reward 0.0"], True, prune, tables=[table], max_len=10).rows[0]
        for prune in (False, True)
    ]
    assert rows == [1 + 2 + 4, 1 + 2 + 3]


# ---- certificates


@covering(1)
@each_rule
@each_beam
def test_certificates_are_counted_as_proved_or_open_with_their_gap(rule, k):
    """Open: the limit came first, and the best row of the last step, had its EOS cost nothing,
    would have entered the list."""
    for n in (1, k):
        proved, gaps = 0, []
        for steps, longest, wanted in sentences(k):
            i = certificate_step(steps, rule, longest, wanted, n)
            reach, worst = (
                rule.bound(steps[i - 1].before, i - 1, longest, wanted),
                nth(steps[:i], rule, wanted, n),
            )
            if i < longest or reach <= worst:
                proved += 1
            else:
                gaps.append(reach - worst if worst > -math.inf else 0.0)
        reported = optimal(k, rule, nbest=n).stats.as_dict()["certificates"]
        assert (reported["proved"], reported["open"]) == (proved, len(gaps)) and proved + len(
            gaps
        ) == len(TABLES)
        assert reported["gap_mean"] == pytest.approx(
            sum(gaps) / len(gaps) if gaps else 0.0, abs=1e-6
        )


@each_expansion
@pytest.mark.parametrize("prune", [False, True])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_what_is_saved_is_the_run_to_the_limit_less_the_work_done(k, prune, paper):
    """Exact where the whole run has k rows at every step but the first; where it may have
    fewer, an upper bound."""
    rich = [random_table(seed, possible=8, ending=0.1 * (seed % 5)) for seed in range(30)]
    for tables, exact in ((rich, not paper), (TABLES[:30], False)):
        runs = [
            expansion(table, k, limit, paper)
            for table, limit in zip(tables, LIMITS[:30], strict=True)
        ]
        found = optimal(
            k,
            RULES["reward 0.3"],
            paper,
            prune,
            tables=tables,
            max_len=LIMITS[:30],
            source=SOURCE[:30],
        )
        steps = sum(map(len, runs)) - sum(found.step)
        rows = sum(1 + sum(len(step.live) for step in run) for run in runs) - sum(found.rows)
        saved = found.stats.as_dict()["saved"]
        assert (
            (saved["steps"], saved["rows"]) == (steps, rows)
            if exact
            else (saved["steps"] >= steps and saved["rows"] >= rows)
        )
        if exact:
            whole = search(
                tables, k, stop_plug("count", k, patience=1000), LIMITS[:30], SOURCE[:30]
            )
            of_whole, ours = (x.stats.as_dict()["expansions"] for x in (whole, found))
            assert saved["expansions"] == of_whole - ours and saved["steps"] > 0


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
        at, (tokens, total) = next(
            (j, step.top) for j, step in enumerate(steps, 1) if step.top[0][-1] == EOS
        )
        agree([(tokens, total)], found.lists[i])
        assert found.step[i] == at


@each_beam
@pytest.mark.parametrize("patience", [1, 2, 3])
def test_count_waits_for_patience_times_beam_hypotheses(patience, k):
    found = search(
        TABLES,
        k,
        stop_plug("count", k, patience=patience),
        LIMITS,
        SOURCE,
        scoring=Scoring(True, 1.0),
    )
    for i, (table, limit) in enumerate(zip(TABLES, LIMITS, strict=True)):
        steps = expansion(table, k, limit, after=lambda finished: finished >= patience * k)
        everything = [(h, total / len(h)) for step in steps for h, total in step.finished][
            : patience * k
        ]
        agree(sorted(everything, key=lambda pair: -pair[1]), found.lists[i])
        assert found.step[i] == len(steps)


# ---- The flags of optimal ending:  they reach the search, and wrong ones are refused


def test_flags_reach_the_search():
    flags = dict(
        stop="optimal",
        length_reward=0.5,
        length_ratio=1.3,
        length_offset=0.7,
        stop_expansion="paper",
        prune_bound=True,
    )
    ours = generators(
        [build("transformer")], strategy=flags, beam=4, nbest=2, unnormalized=True, max_len_b=8
    ).ours
    assert ours.setup.scoring == Scoring(False, 1.0, 0.5, 1.3, 0.7, True) and ours.setup.nbest == 2
    assert ours.strategies.stop.paper and ours.strategies.stop.prune
    assert (
        "stop:optimal,length_reward=0.5,length_ratio=1.3,length_offset=0.7,"
        "stop_expansion=paper,prune_bound=True,certificate=reward"
    ) in ours.stats.signature
    hypotheses = run(ours, batch([3, 1, 5]))
    for nbest, source in zip(hypotheses, [5, 3, 1], strict=True):
        for h in nbest:
            total, length = float(h["positional_scores"].sum()), len(h["tokens"])
            assert float(h["score"]) == pytest.approx(total + 0.5 * min(1.3 * source + 0.7, length))
    assert sum(ours.stats.as_dict()["certificates"][key] for key in ("proved", "open")) == 3


@pytest.mark.parametrize(
    "generation, reported",
    [({}, "normalised"), ({"lenpen": 0.0}, "raw"), ({"unnormalized": True}, "raw")],
    ids=str,
)
def test_the_signature_says_which_certificate_it_is(generation, reported):
    for flags, there in (({"stop": "optimal"}, True), ({}, False)):
        ours = generators([build("transformer")], flags, beam=4, **generation).ours
        assert (f",certificate={reported}" in ours.stats.signature) == there


def test_a_positive_unk_penalty_and_a_language_model_without_a_certificate_pass():
    validate(Settings({"stop": "optimal", "unkpen": 1.0}))
    validate(Settings({"stop": "shrink", "unkpen": -1.0, "lm_path": "lm.pt"}))
