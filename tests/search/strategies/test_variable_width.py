"""Pruning and the finishing rule of streaming variable-width beam search against brute force."""

import math
import random

import pytest
from sizes import drawn
from table_model import EOS, lattice, random_table, search, stop_plug, words

from fairseq_ext.search.strategies.prune import PruneThreshold
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
