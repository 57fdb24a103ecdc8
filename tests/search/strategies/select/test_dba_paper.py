"""The search of Post and Vilar 2018 (--dba-allocation paper --stop ranked) against Algorithm 2 and
Sections 3.1 to 3.3 and 6.4 written out in Python, on random tables."""

import copy
import importlib.util
import math
import random
import sys
from functools import partial
from pathlib import Path

import pytest
from search.phrases.test_phrases import Plain
from search.strategies.select.test_dba import VOCABULARY, random_constraints, wanted
from sizes import drawn
from table_model import EOS, random_table, search, stop_plug, words

from fairseq_ext.search.strategies.prune import PruneFinished
from fairseq_ext.search.strategies.select.dba import DBA
from fairseq_ext.search.strategies.select.gbs import GridBeam
from fairseq_ext.search.strategies.select.topk import TopK
from fairseq_ext.search.strategies.stop.ranked import Ranked

MAX_LEN = 9
EXPERIMENT = Path(__file__).resolve().parents[4] / "scripts" / "experiments" / "dba" / "paper.py"


def experiment():
    """scripts/experiments/dba/paper.py, as a module."""
    spec = importlib.util.spec_from_file_location("dba_paper", EXPERIMENT)
    assert spec is not None and spec.loader is not None
    # where runs.py finds searches.py
    sys.path.append(str(EXPERIMENT.parents[1] / "optimal_ending"))
    try:
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
    finally:
        sys.path.remove(str(EXPERIMENT.parents[1] / "optimal_ending"))
    return made


PAPER = experiment()


def paper_slots(k: int, have: list[int]) -> list[int]:
    """Section 3.2: equal banks, the rest to the topmost; what a bank cannot fill goes outwards."""
    banks = len(have)
    slots = [k // banks] * banks
    slots[-1] += k - sum(slots)
    for bank in reversed(range(banks)):
        for distance in range(1, banks):
            for other in (bank - distance, bank + distance):
                while (
                    0 <= other < banks and slots[bank] > have[bank] and slots[other] < have[other]
                ):
                    slots[bank] -= 1
                    slots[other] += 1
        slots[bank] = min(slots[bank], have[bank])
    return slots


class Hypothesis:
    """A row of the paper's beam."""

    def __init__(self, state: Plain):
        self.tokens: tuple[int, ...] = ()
        self.score = 0.0
        self.state = state

    def bank(self) -> int:
        return self.state.bank()

    def ended(self) -> bool:
        return self.tokens[-1:] == (EOS,)

    def extended(self, word: int, score: float) -> "Hypothesis":
        new = copy.deepcopy(self)
        new.tokens, new.score = (*self.tokens, word), score
        if word != EOS:
            new.state.read(word)
        return new


def paper_search(
    table, constraints, k: int, worst: float, slots, first: bool = False
) -> dict[str, float]:
    """The finished hypotheses on the beam at the end, with their sums of log-probabilities; first:
    the end is at the first of them, and of several the best counts."""
    beam = [Hypothesis(Plain(constraints.any_of))]
    total, best_finished = beam[0].state.total(), -math.inf
    for step in range(MAX_LEN + 1):
        scores = {}
        for i, row in enumerate(beam):
            if row.ended():
                continue
            for word, value in enumerate(table(row.tokens)):
                may_end = row.bank() == total and step > 0
                if value > -math.inf and (may_end if word == EOS else step < MAX_LEN):
                    scores[i, word] = row.score + value
        chosen = set(sorted(scores, key=lambda at: -scores[at])[:k])
        for i, row in enumerate(beam):
            own = [at for at in scores if at[0] == i]
            chosen |= {(i, word) for word in row.state.wanted() if (i, word) in scores}
            chosen |= set(sorted(own, key=lambda at: -scores[at])[:1])
        new = [beam[i].extended(word, scores[i, word]) for i, word in chosen]
        # a feasible sentence always meets its constraints
        new = [h for h in new if h.ended() or total - h.bank() <= MAX_LEN - step - 1]
        together = [h for h in beam if h.ended()] + new
        together = [h for h in together if h.score >= best_finished - worst]
        banks = [
            sorted((h for h in together if h.bank() == b), key=lambda h: -h.score)
            for b in range(total + 1)
        ]
        share = slots(k, [len(bank) for bank in banks])
        beam = [h for bank, most in zip(banks, share, strict=True) for h in bank[:most]]
        best_finished = max([best_finished, *(h.score for h in beam if h.ended())])
        if all(h.ended() for h in beam) or (first and best_finished > -math.inf):
            break
    if first:
        beam = [max((h for h in beam if h.ended()), key=lambda h: h.score)]
    return {words(h.tokens[:-1]).replace(" ", ""): round(h.score, 9) for h in beam if h.ended()}


def ours(tables, constraints, k: int, worst: float, select) -> list[dict[str, float]]:
    prune = [] if worst == math.inf else [PruneFinished(worst)]
    found = search(
        tables,
        k,
        Ranked(k, EOS, worst),
        MAX_LEN,
        nbest=1000,
        select=select(k, EOS, VOCABULARY),
        prune=prune,
        constraints=constraints,
    )
    return [
        {words(h.tokens).replace(" ", ""): round(h.score, 9) for h in nbest}
        for nbest in found.lists
    ]


@drawn(6)
@pytest.mark.parametrize("worst", [math.inf, 6.0, 2.0])
@pytest.mark.parametrize("seed", range(20))
def test_the_papers_search_is_as_its_algorithm_says(seed, worst):
    """Also with more banks than slots, and next to sentences without constraints."""
    draw = random.Random(f"{seed} {worst}")
    k = draw.randint(1, 7)
    tables = [random_table(100 * seed + i, ending=draw.choice([0.1, 0.5])) for i in range(5)]
    constraints = [random_constraints(draw, MAX_LEN - 1, "abc") for _ in tables[:-1]] + [wanted()]
    got = ours(tables, constraints, k, worst, partial(DBA, even=False))
    for table, c, mine in zip(tables, constraints, got, strict=True):
        if c.any_of:
            expected = paper_search(table, c, k, worst, paper_slots)
            assert mine == pytest.approx(expected) and list(mine) == sorted(
                expected, key=lambda text: -expected[text]
            )
        else:
            plain = search(
                [table], k, stop_plug("ranked", k), MAX_LEN, nbest=1000, select=TopK(k)
            ).lists[0]
            if worst == math.inf:
                assert list(mine.values()) == [round(h.score, 9) for h in plain]


@drawn(3)
@pytest.mark.parametrize("seed", range(20))
def test_the_experiments_early_stopping_ends_at_the_first_complete_hypothesis(seed):
    """Section 6.4, scripts/experiments/dba/paper.py."""
    draw = random.Random(seed)
    k, c = draw.randint(1, 7), random_constraints(draw, MAX_LEN - 1, "abc")
    table = random_table(seed, ending=0.4)
    select = partial(DBA, even=False)(k, EOS, VOCABULARY)
    stop = PAPER.FirstComplete(EOS)
    nbest = search([table], k, stop, MAX_LEN, nbest=9, select=select, constraints=[c]).lists[0]
    expected = paper_search(table, c, k, math.inf, paper_slots, first=True)
    assert {words(h.tokens).replace(" ", ""): round(h.score, 9) for h in nbest} == expected


@drawn(3)
@pytest.mark.parametrize("seed", range(12))
def test_grid_beam_search_stops_with_a_full_highest_bank_that_has_ended(seed):
    """Every answer meets all constraints, and at most b are on the beam."""
    draw = random.Random(seed)
    b, c = draw.randint(1, 4), random_constraints(draw, 4, "abc")
    table = random_table(seed, ending=0.4)
    (got,) = ours([table], [c], b, math.inf, GridBeam)
    assert got and len(got) <= b


@pytest.mark.parametrize("k", [1, 3, 5])
def test_more_banks_than_slots_begin_in_the_highest_bank(k):
    """C >= k: only candidates of the topmost banks that have any are kept."""
    assert paper_slots(k, [9, 9, *[0] * k])[1] == k
    constraints = wanted(*"abcdab"[:6])
    (got,) = ours([random_table(3)], [constraints], k, math.inf, partial(DBA, even=False))
    assert got
