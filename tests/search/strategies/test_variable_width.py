"""Pruning and the finishing rule of streaming variable-width beam search against brute force."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import build, generators
from search.strategies.select.test_dba import VOCABULARY, all_met, wanted
from sizes import covering, drawn, examples
from table_model import EOS, FIRST_WORD, lattice, random_table, search, stop_plug, words

from fairseq_ext import UsageError
from fairseq_ext.search.strategies.prune import PruneFinished, PruneThreshold
from fairseq_ext.search.strategies.select.dba import DBA
from fairseq_ext.search.strategies.select.topk import TopK
from fairseq_ext.search.strategies.stop.ranked import Ranked


def brute_force(
    table, k: int, delta: float, M: int, ranked: bool, max_len: int
) -> list[tuple[tuple[int, ...], float]]:
    """The paper's variable-width search over one table: (tokens, sum of log-probabilities)
    of each answer."""
    beam: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]  # live and, when ranked, finished
    answers: list[tuple[tuple[int, ...], float]] = []
    ended: list[float] = []
    for step in range(max_len + 1):
        waiting = [(score, row) for score, row in beam if row[-1:] == (EOS,)]
        candidates = []
        for score, row in beam:
            if row[-1:] == (EOS,):
                continue
            values = table(row)
            children = [
                w for w in range(len(values)) if values[w] > -math.inf and (step or w != EOS)
            ]
            if step == max_len:
                children = [w for w in children if w == EOS]
            children.sort(key=lambda w: -values[w])
            candidates += [(score + values[w], (*row, w)) for w in children[:M]]
        candidates.sort(key=lambda c: -c[0])
        if not ranked:
            candidates = candidates[: 2 * k]
        best = max([*(score for score, _ in candidates), *ended], default=-math.inf)
        dropped = [i for i, (score, _) in enumerate(candidates) if score < best - delta]
        if ranked:
            kept = [c for i, c in enumerate(candidates) if i not in dropped]
            beam = sorted(waiting + kept, key=lambda c: -c[0])[: k - len(answers)]
            ended += [
                score for score, row in beam if row[-1] == EOS and (score, row) not in waiting
            ]
            while beam and beam[0][1][-1] == EOS:
                answers.append((beam[0][1], beam[0][0]))
                del beam[0]
            if len(answers) == k or not any(row[-1] != EOS for _, row in beam):
                answers += [(row, score) for score, row in beam if row[-1] == EOS]
                break
        else:
            for i, (score, row) in enumerate(candidates[:k]):
                if row[-1] == EOS and i not in dropped and len(answers) < k:
                    answers.append((row, score))
                    ended.append(score)
            beam = [c for i, c in enumerate(candidates) if i not in dropped and c[1][-1] != EOS][:k]
            if len(answers) == k or not beam:
                break
    return sorted(answers, key=lambda a: -a[1])


@drawn(12)
@pytest.mark.parametrize("ranked", [False, True], ids=["count", "ranked"])
@pytest.mark.parametrize("delta", [0.0, 0.5, 1.5, 4.0, math.inf])
@pytest.mark.parametrize("k, M", [(1, 1), (2, 1), (3, 2), (4, 3), (5, 5), (8, 3)])
def test_variable_width_equals_brute_force(k, M, delta, ranked):
    draw = random.Random(f"{k} {M} {delta} {ranked}")
    tables = [
        random_table(draw.randrange(10**6), possible=5, ending=draw.choice([0.1, 0.6]))
        for _ in range(12)
    ]
    limits = [draw.choice([2, 5, 9]) for _ in tables]
    stop = Ranked(k, EOS) if ranked else stop_plug("count", k)
    select = TopK(k, M if M < k else None)
    found = search(
        tables, k, stop, limits, nbest=k, select=select, prune=[PruneThreshold(delta)]
    ).lists
    for table, limit, hypotheses in zip(tables, limits, found, strict=True):
        expected = brute_force(table, k, delta, M if M < k else 99, ranked, limit)
        assert [tuple(h.tokens.tolist()) for h in hypotheses] == [tokens for tokens, _ in expected]
        assert [h.score for h in hypotheses] == pytest.approx(
            [score for _, score in expected], abs=1e-5
        )


def test_the_finishing_rule_lets_better_ones_push_a_finished_one_off():
    """With k = 2, `b$` (0.22) ends below `a c` (0.48), both of whose children
    (0.24) are then better."""
    table = lattice(
        {
            "": {"a": 0.6, "b": 0.4},
            "b": {"$": 0.55, "c": 0.45},
            "a": {"c": 0.8, "d": 0.2},
            "ac": {"e": 0.5, "f": 0.5},
        }
    )
    ranked = search([table], 2, Ranked(2, EOS), 5, nbest=2).lists[0]
    counted = search([table], 2, stop_plug("count", 2), 5, nbest=2).lists[0]
    assert {words(h.tokens) for h in ranked} == {"a c e", "a c f"}
    assert "b" in {words(h.tokens) for h in counted}


# ---- `--prune-finished X`:  what is worse than the best finished hypothesis by more goes, in


K, MAX_LEN = 4, 9


def plain(table, X: float) -> list[tuple[str, float]]:
    """Beam search in Python whose candidates must not be further than X from the best
    finished score so far."""
    rows, done = [(0.0, ())], []
    for step in range(MAX_LEN + 1):
        best = max((s for s, _ in done), default=float("-inf"))
        candidates = []
        for score, tokens in rows:
            values = table(tokens)
            allowed = (
                [EOS]
                if step == MAX_LEN
                else [*([EOS] if step else []), *range(FIRST_WORD, VOCABULARY)]
            )
            candidates += [
                (score + values[t], (*tokens, t)) for t in allowed if values[t] > float("-inf")
            ]
        candidates = sorted(candidates, key=lambda c: -c[0])[: 2 * K]
        kept = [(i, c) for i, c in enumerate(candidates) if c[0] >= best - X]
        done += [c for i, c in kept if c[1][-1] == EOS and i < K][: K - len(done)]
        rows = [c for _, c in kept if c[1][-1] != EOS][:K]
        if len(done) == K or not rows:
            break
    return sorted(((words(tokens), round(score, 9)) for score, tokens in done), key=lambda h: -h[1])


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.integers(0, 10_000), min_size=1, max_size=3),
    st.sampled_from([0.0, 0.5, 2.0, 5.0, 20.0]),
)
def test_equals_plain_pruning(seeds, X):
    tables = [random_table(seed) for seed in seeds]
    found = search(tables, K, stop_plug("count", K), MAX_LEN, prune=[PruneFinished(X)])
    assert [[(words(h.tokens), round(h.score, 9)) for h in nbest] for nbest in found.lists] == [
        plain(t, X) for t in tables
    ]


@covering(1)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("X", [0.0, 3.0])
def test_constraints_stay_met_with_fewer_rows(seed, X):
    tables, constraints = (
        [random_table(seed), random_table(seed + 50)],
        [wanted("ab", "c"), wanted("dd")],
    )
    full, few = (
        search(
            tables,
            K,
            stop_plug("count", K),
            MAX_LEN,
            nbest=K,
            select=DBA(K, EOS, VOCABULARY),
            prune=prune,
            constraints=constraints,
        )
        for prune in ([], [PruneFinished(X)])
    )
    for nbest, c in zip(few.lists, constraints, strict=True):
        assert nbest and all(all_met(h, c) for h in nbest)
    # a distance may also drop a row that would have finished, so that the list takes longer to
    # fill; at 0 little is left to fill it
    assert X > 0 or sum(few.rows) <= sum(full.rows)


@pytest.mark.parametrize("X", [-1.0, float("nan")])
def test_what_is_no_distance_is_refused(X):
    with pytest.raises(UsageError, match="--prune-finished"):
        generators([build("transformer")], {"prune_finished": X}, beam=2)
