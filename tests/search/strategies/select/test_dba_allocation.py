"""How dynamic beam allocation divides a beam among its banks."""

import copy
import ctypes
import importlib.util
import math
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.search import LexicallyConstrainedBeamSearch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from models import build, dictionary, generators
from search.phrases.test_phrases import Plain
from search.strategies.select.test_dba import VOCABULARY, random_constraints, wanted
from sizes import drawn, examples
from table_model import EOS, random_table, search, stop_plug, words

from fairseq_ext.kernels.compiling import FLAGS, FOLDER, compiler
from fairseq_ext.search.candidates import (
    allocate,
    bank_sizes,
    deal,
    first_of_equals,
    order_by_banks,
)
from fairseq_ext.search.strategies.prune import PruneFinished
from fairseq_ext.search.strategies.select.dba import DBA
from fairseq_ext.search.strategies.select.gbs import GridBeam
from fairseq_ext.search.strategies.select.topk import TopK
from fairseq_ext.search.strategies.stop.ranked import Ranked


@pytest.mark.parametrize(
    "C, k, candidates, slots",
    [
        (0, 5, [5], [5]),
        (1, 5, [5, 0], [5, 0]),
        (1, 5, [5, 1], [4, 1]),
        (1, 5, [10, 10], [2, 3]),
        (1, 5, [1, 10], [1, 4]),
        (2, 5, [5, 0, 0], [5, 0, 0]),
        (2, 10, [5, 0, 7], [5, 0, 5]),
        (2, 10, [5, 1, 7], [5, 1, 4]),
        (3, 2, [1, 0, 1, 1], [0, 0, 1, 1]),
        (3, 2, [1, 0, 1, 0], [1, 0, 1, 0]),
        (3, 2, [4, 2, 2, 3], [0, 0, 0, 2]),
        (2, 10, [1, 20, 1], [1, 8, 1]),
        (4, 5, [4, 4, 0, 0, 0], [1, 4, 0, 0, 0]),  # Figure 3 of the paper: banks 2-4 are empty
    ],
)
def test_known_allocations(C, k, candidates, slots):
    assert allocate(k, torch.tensor([candidates]), torch.tensor([C]))[0].tolist() == slots


COMPILED = """
#include "banks.hpp"
ENTRY void slots(bool even, int64_t k, int64_t banks, const int64_t* have, int64_t* out) {
    std::vector<int64_t> found;
    (even ? deal : allocate)(k, banks - 1, {have, have + banks}, found);
    std::copy(found.begin(), found.end(), out);
}
"""


@pytest.mark.skipif(compiler() is None, reason="no compiler")
def test_the_compiled_ones_give_the_same_slots(tmp_path):
    library, (command, *more) = tmp_path / "slots.so", compiler()
    words = [command, *more, *FLAGS, "-O1", "-w", "-shared", f"-I{FOLDER}", "-xc++", "-"]
    subprocess.run([*words, "-o", library], input=COMPILED.encode(), check=True)
    call, chance = ctypes.CDLL(str(library)).slots, random.Random(1)
    for _ in range(500):
        have = [chance.choice([0, 1, 2, 5, 20]) for _ in range(chance.randint(1, 6))]
        k, top, array = chance.randint(1, 20), torch.tensor([len(have) - 1]), ctypes.c_int64 * 6
        given = torch.tensor([have])
        for even, expected in ((False, allocate(k, given, top)), (True, deal(k, given))):
            out = array()
            call(even, ctypes.c_int64(k), ctypes.c_int64(len(have)), array(*have), out)
            assert list(out)[: len(have)] == expected[0].tolist(), (even, k, have)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.integers(1, 20),
    st.lists(st.lists(st.integers(0, 15), min_size=6, max_size=6), min_size=1, max_size=4),
    st.data(),
)
def test_the_beam_is_filled_as_far_as_there_are_candidates(k, rows, data):
    """Also: no bank gets more slots than it can fill, and sentences of one batch do
    not touch each other."""
    top = [data.draw(st.integers(0, 5)) for _ in rows]
    candidates = torch.tensor(
        [[n if b <= t else 0 for b, n in enumerate(row)] for row, t in zip(rows, top, strict=True)]
    )
    slots = allocate(k, candidates, torch.tensor(top))
    assert slots.sum(1).tolist() == candidates.sum(1).clamp(max=k).tolist()
    assert (slots <= candidates).all() and (slots >= 0).all()
    for i, t in enumerate(top):
        assert torch.equal(
            allocate(k, candidates[i : i + 1, : t + 1], torch.tensor([t]))[0], slots[i, : t + 1]
        )


# ---- even


BANKS = st.lists(st.integers(0, 15), min_size=1, max_size=8)


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(1, 20), st.lists(BANKS, min_size=1, max_size=4))
def test_even_slots_are_dealt_in_turn_from_the_highest_bank_down(k, rows):
    """Against dealing by hand, a batch at a time."""
    width = max(map(len, rows))
    candidates = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    for row, slots in zip(candidates.tolist(), deal(k, candidates).tolist(), strict=True):
        dealt = [0] * width
        while sum(dealt) < min(k, sum(row)):
            for bank in reversed(range(width)):
                if dealt[bank] < row[bank] and sum(dealt) < k:
                    dealt[bank] += 1
        assert slots == dealt


class State(SimpleNamespace):
    """A row of fairseq's search whose next token says into which bank it leads."""

    def next_tokens(self) -> set[int]:
        return set()

    def advance(self, token) -> "State":
        return State(tokens=self.tokens, bank=self.banks[int(token)], banks=self.banks)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.integers(1, 8),
    st.lists(st.integers(0, 5), min_size=2, max_size=16),
    st.randoms(use_true_random=True),
)
def test_even_admits_what_fairseqs_own_search_does(k, banks, draw):
    """LexicallyConstrainedBeamSearch.step_sentence on the same candidates: its first k are those
    that the dealt slots admit. With fewer candidates than banks its rounds run into each other: the
    second of a bank goes before the first of another."""
    n = len(banks)
    assume(max(banks) - min(banks) <= n)
    score = torch.tensor(draw.sample([-0.25 * i for i in range(20)], n))
    stock = LexicallyConstrainedBeamSearch(dictionary(), "unordered")
    stock.vocab_size, stock.num_cands = n, 2 * k
    row = State(tokens=[0] * 5, banks=banks)
    tokens = torch.arange(n)
    _, theirs, _, _ = stock.step_sentence(
        1, 0, torch.zeros(1, n), [row], torch.zeros(n, dtype=torch.long), tokens, score
    )
    bank = torch.tensor([banks])
    order, admitted = order_by_banks(
        deal(k, bank_sizes(bank, score[None], 6)), bank, score[None], torch.tensor([5])
    )
    assert admitted.item() == min(k, n)
    assert set(order[0, :k].tolist()) == set(theirs[:k].tolist())
    # what comes next where one of them ends
    assert order[0, k : 2 * k].tolist() == theirs[k:].tolist()


@pytest.mark.parametrize(
    "flags, even",
    [({}, True), ({"dba_allocation": "even"}, True), ({"dba_allocation": "paper"}, False)],
    ids=str,
)
def test_the_flag_chooses_the_rule(flags, even):
    assert (
        generators(
            [build("transformer", seed=2)], {"select": "dba", **flags}, beam=4
        ).ours.strategies.select.even
        is even
    )


# ---- candidates


@settings(max_examples=examples(200), deadline=None)
@given(
    st.integers(1, 8),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(-5, 0), st.booleans()), min_size=1, max_size=20
    ),
)
def test_each_bank_admits_its_best(k, candidates):
    """Against sorting in Python; scores repeat, and of equals the first comes first."""
    bank = torch.tensor([[b for b, *_ in candidates]])
    score = torch.tensor([[float(s) if ok else -torch.inf for _, s, ok in candidates]])
    slots = allocate(k, bank_sizes(bank, score, 4), torch.tensor([3]))
    order, admitted = order_by_banks(slots, bank, score, torch.tensor([3]))
    ranked = sorted((i for i, c in enumerate(candidates) if c[2]), key=lambda i: -candidates[i][1])
    banks = [[i for i in ranked if candidates[i][0] == b] for b in range(4)]
    first = [i for i in ranked if i in banks[candidates[i][0]][: slots[0, candidates[i][0]]]]
    rest = sorted(
        (i for i in ranked if i not in first),
        key=lambda i: (banks[candidates[i][0]].index(i), -candidates[i][0]),
    )
    assert order[0, : len(ranked)].tolist() == first + rest and admitted.item() == len(first)


def test_a_continuation_that_comes_twice_counts_once():
    assert first_of_equals(torch.tensor([[7, 3, 7, 3, 1]])).tolist() == [
        [True, True, False, False, True]
    ]


def test_a_beam_with_fewer_slots_than_banks_deals_them_out_from_the_highest_bank_down():
    """fairseq's stripes: the best of each bank, highest bank first, then the
    second best of each."""
    bank = torch.tensor([[0, 0, 1, 3, 1, 3]])
    score = torch.tensor([[-0.1, -0.2, -2.0, -9.0, -3.0, -8.0]])
    order, _ = order_by_banks(torch.zeros(1, 4, dtype=torch.long), bank, score, torch.tensor([3]))
    assert order[0].tolist() == [5, 2, 0, 3, 4, 1]


# ---- The search of Post and Vilar 2018 (--dba-allocation paper --stop ranked) against Algorithm


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
