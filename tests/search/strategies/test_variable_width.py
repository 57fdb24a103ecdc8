"""Pruning and the finishing rule of streaming variable-width beam search against brute force."""

import math
import random

import pytest
from search.strategies.select.test_dba import all_met, decode, wanted
from sizes import covering, drawn
from table_model import EOS, random_table, search, stop_plug

from fairseq_ext.search.strategies.prune import PruneFinished, PruneThreshold
from fairseq_ext.search.strategies.select.topk import TopK


def brute_force(
    table, k: int, delta: float, M: int, rule: str, max_len: int
) -> list[tuple[tuple[int, ...], float]]:
    """The paper's variable-width search over one table: (tokens, sum of log-probabilities)
    of each answer. rule: ranked, count, or finished: what is worse than the best finished
    hypothesis by more than delta goes."""
    ranked = rule == "ranked"
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
        rivals = [] if rule == "finished" else [score for score, _ in candidates]
        best = max([*rivals, *ended], default=-math.inf)
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


PRUNE = {"count": PruneThreshold, "ranked": PruneThreshold, "finished": PruneFinished}


@drawn(18)
@pytest.mark.parametrize("rule", PRUNE)
@pytest.mark.parametrize("delta", [0.0, 0.5, 1.5, 4.0, 20.0, math.inf])
@pytest.mark.parametrize("k, M", [(1, 1), (2, 1), (3, 2), (4, 3), (5, 5), (8, 3)])
def test_variable_width_equals_brute_force(k, M, delta, rule):
    draw = random.Random(f"{k} {M} {delta} {rule}")
    tables = [
        random_table(draw.randrange(10**6), possible=5, ending=draw.choice([0.1, 0.6]))
        for _ in range(12)
    ]
    limits = [draw.choice([2, 5, 9]) for _ in tables]
    stop = stop_plug("ranked" if rule == "ranked" else "count", k)
    select = TopK(k, M if M < k else None)
    found = search(
        tables, k, stop, limits, nbest=k, select=select, prune=[PRUNE[rule](delta)]
    ).lists
    for table, limit, hypotheses in zip(tables, limits, found, strict=True):
        expected = brute_force(table, k, delta, M if M < k else 99, rule, limit)
        assert [tuple(h.tokens.tolist()) for h in hypotheses] == [tokens for tokens, _ in expected]
        assert [h.score for h in hypotheses] == pytest.approx(
            [score for _, score in expected], abs=1e-5
        )


@covering(1)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("X", [0.0, 3.0])
def test_constraints_stay_met_with_fewer_rows(seed, X):
    tables, constraints = (
        [random_table(seed), random_table(seed + 50)],
        [wanted("ab", "c"), wanted("dd")],
    )
    few = decode(tables, constraints, 4, 9, nbest=4, prune=[PruneFinished(X)])
    for nbest, c in zip(few.lists, constraints, strict=True):
        assert nbest and all(all_met(h, c) for h in nbest)
