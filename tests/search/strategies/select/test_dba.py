"""Dynamic beam allocation on small tables: brute force over all sequences, and what every
hypothesis must keep.

Phrases are written as letters: "ab" is the phrase of a and b, "ab|c" a constraint that
either phrase meets.
"""

import math
import random
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from required_phrases import required_phrases
from search.phrases.test_phrases import Plain
from sizes import drawn
from table_model import (
    EOS,
    FIRST_WORD,
    PAD,
    Found,
    lattice,
    number,
    random_table,
    search,
    stop_plug,
    words,
)

from fairseq_ext.core.stats import Stats
from fairseq_ext.search.constraints.report import (
    SentenceGoal,
    count_constraints,
    report_constraints,
)
from fairseq_ext.search.finished import Scoring
from fairseq_ext.search.phrases.sentence import SentenceConstraints, met
from fairseq_ext.search.strategies.select.dba import DBA
from fairseq_ext.search.strategies.select.topk import TopK
from fairseq_ext.search.strategies.stop.optimal import OptimalEnding

VOCABULARY = 12  # of the tables


def phrase(letters: str) -> tuple[int, ...]:
    return tuple(number(x) for x in letters)


def wanted(
    *constraints: str, banned: tuple[str, ...] = (), prefix: str = ""
) -> SentenceConstraints:
    any_of = tuple(tuple(map(phrase, c.split("|"))) for c in constraints)
    return SentenceConstraints(
        required_phrases(any_of, constraints),
        banned={phrase(each): each for each in banned},
        prefix=phrase(prefix),
        prefix_text=prefix,
    )


def decode(
    tables,
    constraints: list[SentenceConstraints],
    k: int,
    max_len=8,
    ordered: bool = False,
    select=DBA,
    **more,
) -> Found:
    """Full lists unless `nbest` says otherwise: with fewer, a constrained sentence stops earlier
    (search/strategies/stop/count.py)."""
    more.setdefault("nbest", 1000)
    stop = more.pop("stop", None) or stop_plug("early", k)
    more |= {"constraints": constraints, "ordered": ordered}
    if any(c.prefix for c in constraints):
        width = max(len(c.prefix) for c in constraints)
        more["prefix"] = torch.tensor(
            [[*c.prefix, *[PAD] * (width - len(c.prefix))] for c in constraints]
        )
    return search(tables, k, stop, max_len, select=select(k, EOS, VOCABULARY), **more)


def outputs(found: Found) -> list[list[tuple[str, float]]]:
    return [
        [(words(h.tokens).replace(" ", ""), round(h.score, 9)) for h in nbest]
        for nbest in found.lists
    ]


def all_met(hypothesis, constraints: SentenceConstraints, ordered: bool = False) -> bool:
    return all(met(hypothesis.tokens.tolist(), constraints, ordered))


def random_constraints(
    draw: random.Random, room: int, letters: str = "abcd"
) -> SentenceConstraints:
    """Up to `room` tokens of phrases over few letters, so that copies and overlaps are common."""
    phrases = []
    while room and draw.random() < 0.75:
        n = min(room, draw.randint(1, 3))
        phrases.append("".join(draw.choice(letters) for _ in range(n)))
        room -= n
    return wanted(*phrases)


# ---- brute force


def satisfying(
    table,
    constraints: SentenceConstraints,
    max_len: int,
    ordered: bool,
    possible: int,
    deadline: bool,
) -> dict[str, float]:
    """Every sequence that meets all constraints, with its score.

    deadline: only those whose every prefix leaves time for what its bank still lacks, one phrase
    behind the other; a phrase that overlaps another may need less.
    """
    out = {}
    for n in range(1, max_len + 1):
        for tokens in product(range(FIRST_WORD, FIRST_WORD + possible), repeat=n):
            if not all(met(tokens, constraints, ordered)):
                continue
            state, score, in_time = Plain(constraints.any_of, ordered), 0.0, True
            for i, token in enumerate(tokens):
                score += table(tokens[:i])[token]
                state.read(token)
                in_time &= state.total() - state.bank() <= max_len - i - 1
            if in_time or not deadline:
                out[words(tokens).replace(" ", "")] = round(score + table(tokens)[EOS], 9)
    return out


CASES = {
    "one word": (["c"], False),
    "two words": (["a", "c"], False),
    "two words in order": (["c", "a"], True),
    "a phrase": (["ab"], False),
    "a phrase and a word": (["ab", "c"], False),
    "a phrase behind a word": (["c", "ab"], True),
    "alternatives": (["ab|c"], False),
    "no constraint": ([], False),
    # phrases that overlap themselves or each other
    "twice the same word": (["a", "a"], False),
    "overlapping phrases": (["ab", "ba"], False),
    "a phrase inside another": (["ab", "b"], False),
    "with a border": (["aba"], False),
    "overlapping alternatives": (["aab|abb", "b"], False),
    "overlapping in order": (["ab", "b"], True),
}


@drawn(17)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES)
def test_a_large_beam_finds_all_that_satisfy_best_first(case, seed):
    """Also with rows for the best candidates whatever their bank, and for each word."""
    select = partial(DBA, competing=seed, more=seed % 2)
    constraints, ordered = wanted(*CASES[case][0]), CASES[case][1]
    table = random_table(seed, possible=3)
    expected = satisfying(table, constraints, 4, ordered, 3, deadline=True)
    (got,) = outputs(decode([table], [constraints], 300, 4, ordered, select=select))
    assert dict(got) == pytest.approx(expected) and [s for _, s in got] == sorted(
        expected.values(), reverse=True
    )
    if list(CASES).index(case) < 8:  # nothing overlaps: the deadline takes away nothing
        assert expected == satisfying(table, constraints, 4, ordered, 3, deadline=False)


@drawn(10)
@pytest.mark.parametrize("competing, more", [(0, 0), (1, 0), (1, 2)])
@pytest.mark.parametrize("case", CASES)
def test_optimal_ending_finds_the_best_of_all_that_satisfy(case, competing, more):
    """A beam of all sequences, with rows for the best candidates whatever their bank."""
    constraints, ordered = wanted(*CASES[case][0]), CASES[case][1]
    tables = [random_table(seed, possible=3) for seed in range(4)]
    select = partial(DBA, competing=competing, more=more)
    found = decode(
        tables, [constraints] * 4, 300, 4, ordered, select, nbest=1, stop=stop_plug("optimal", 300)
    )
    for table, got in zip(tables, outputs(found), strict=True):
        expected = satisfying(table, constraints, 4, ordered, 3, deadline=True)
        assert got[0][1] == pytest.approx(max(expected.values()))
        assert got[0][1] == pytest.approx(expected[got[0][0]])


# ---- what holds for every search


class Whole(OptimalEnding):
    """The search to the limit, in which no proof ends a sentence."""

    def __call__(self, candidates, beam, pool, finished, at_limit):
        decision = super().__call__(candidates, beam, pool, finished, at_limit)
        final = ~decision.stays.any(1)
        return replace(decision, final=final if at_limit is None else final | at_limit)


@drawn(6)
@pytest.mark.parametrize("paper", [False, True], ids=["fairseq", "paper"])
@pytest.mark.parametrize("scoring", [Scoring(False), Scoring(True)], ids=["sums", "means"])
@pytest.mark.parametrize("seed", range(30))
def test_optimal_ending_gives_the_n_best_list_of_the_whole_run(seed, scoring, paper):
    """Of a beam that is often too narrow, with rows for the best candidates whatever their bank,
    and for each word."""
    draw = random.Random(seed)
    size, k = draw.randint(2, 5), draw.randint(1, 6)
    tables = [random_table(100 * seed + i, ending=draw.choice([0, 0.3, 1])) for i in range(size)]
    limits = [draw.randint(3, 9) for _ in range(size)]
    constraints = [random_constraints(draw, min(5, limit)) for limit in limits]
    select = partial(DBA, competing=draw.choice([0, 1, 1, 3]), more=draw.choice([0, 0, 2]))
    n, found = draw.randint(1, k), []
    for stop in (OptimalEnding, Whole):
        plug = stop(EOS, scoring, Stats(), paper, False)
        more = {"select": select, "scoring": scoring, "nbest": n, "stop": plug}
        found.append(decode(tables, constraints, k, limits, **more))
    for got, whole in zip(*map(outputs, found), strict=True):
        assert [score for _, score in got[:n]] == pytest.approx([score for _, score in whole[:n]])
    for nbest, c in zip(found[0].lists, constraints, strict=True):
        assert nbest and all(all_met(h, c) for h in nbest)
    assert all(a <= b for a, b in zip(found[0].step, found[1].step, strict=True))


@drawn(10)
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_random_batches(seed, ordered):
    """Every hypothesis meets all constraints, also where they fill the sentence to its last token;
    sentences without any equal plain beam search; the order of sentences does not matter, and that
    of constraints only if requested."""
    draw = random.Random(seed)
    size, k = draw.randint(2, 6), draw.randint(1, 8)
    tables = [random_table(100 * seed + i, ending=draw.choice([0, 0.3, 1])) for i in range(size)]
    limits = [draw.randint(1, 9) for _ in range(size)]
    constraints = [
        random_constraints(draw, limit) if draw.random() < 0.8 else wanted() for limit in limits
    ]
    found = decode(tables, constraints, k, limits, ordered)
    for nbest, c in zip(found.lists, constraints, strict=True):
        assert nbest and all(all_met(h, c, ordered) for h in nbest)
    plain = outputs(search(tables, k, stop_plug("count", k), limits, select=TopK(k)))
    got = outputs(found)
    for theirs, ours, c in zip(plain, got, constraints, strict=True):
        assert c.any_of or ours == theirs
    backwards = outputs(decode(tables[::-1], constraints[::-1], k, limits[::-1], ordered))[::-1]
    assert backwards == got
    if not ordered:
        shuffled = [wanted(*draw.sample(c.text, len(c.text))) for c in constraints]
        assert outputs(decode(tables, shuffled, k, limits)) == got


@pytest.mark.parametrize("seed", range(8))
def test_a_sentence_that_cannot_meet_its_constraints_gives_a_partial_one_and_the_rest_goes_on(seed):
    tables = [random_table(seed * 10 + i) for i in range(3)]
    others = [wanted("ab"), wanted()]
    got = decode(tables, [others[0], wanted("abc", "dd"), others[1]], 5, [8, 3, 8])
    alone = [outputs(decode([tables[i]], [c], 5))[0] for i, c in ((0, others[0]), (2, others[1]))]
    assert [outputs(got)[0], outputs(got)[2]] == alone
    assert got.lists[1] and all(len(h.tokens) == 4 and h.tokens[-1] == EOS for h in got.lists[1])
    assert any(any(met(h.tokens.tolist(), wanted("abc", "dd"), False)) for h in got.lists[1])


def test_a_prefix_comes_first_and_counts_for_the_constraints():
    tables = [random_table(i) for i in range(3)]
    constraints = [wanted("cc", "d", prefix="dcb"), wanted("d", prefix="ab"), wanted("b")]
    found = outputs(decode(tables, constraints, 6, [8, 3, 8]))
    assert all(text.startswith("dcb") and "cc" in text for text, _ in found[0])
    assert {text for text, _ in found[1]} == {"abd"}
    assert all("b" in text for text, _ in found[2])


@pytest.mark.parametrize(
    "constraints, max_len",
    [
        (wanted("d", prefix="ab"), 3),
        (wanted("b", prefix="ab"), 2),
        (wanted("bc", prefix="ab"), 3),
        (wanted("aa", "b", prefix="aab"), 3),
    ],
    ids=str,
)
def test_what_a_prefix_meets_takes_no_more_room(constraints, max_len):
    """Also where a constraint lies in the prefix or begins there; the prefix
    itself counts as one."""
    for seed in range(4):
        found = decode([random_table(seed)], [constraints], 4, max_len).lists
        stats, count = Stats(), len(constraints.any_of) + 1
        kept = report_constraints(SentenceGoal(constraints, max_len), found[0])
        count_constraints(7, constraints, kept[0], stats, placed=False)
        assert stats.as_dict()["constraints"] == {"given": count, "met": count, "unmet": []}
        assert kept and all(all_met(h, constraints) for h in kept)


def test_a_prefix_that_does_not_fit_is_reported_with_what_it_leaves_out():
    constraints = wanted("b", "d", prefix="abc")
    found = decode([random_table(1)], [constraints], 4, 2).lists
    stats = Stats()
    kept = report_constraints(SentenceGoal(constraints, 2), found[0])
    count_constraints(0, constraints, kept[0], stats, placed=False)
    reason = "the constraints take 4 tokens and the sentence may have 2"
    assert stats.as_dict()["constraints"] == {
        "given": 3,
        "met": 1,
        "unmet": [[0, "d", reason], [0, "abc", reason]],
    }
    assert words(kept[0].tokens) == "a b"


def test_any_alternative_will_do_and_the_likeliest_is_taken():
    table = lattice(
        {
            "": {"a": 0.5, "b": 0.3, "c": 0.2},
            "a": {"a": 0.9, "$": 0.1},
            "b": {"$": 1},
            "c": {"$": 1},
        }
    )
    constraints = wanted("ba|b|c")
    found = decode([table], [constraints], 8).lists
    # nothing but EOS may follow "aa": a dead end, which the report drops because there
    # are complete hypotheses
    assert [words(h.tokens) for h in found[0]] == ["a a", "b", "c"]
    stats = Stats()
    kept = report_constraints(SentenceGoal(constraints, 8), found[0])
    count_constraints(7, constraints, kept[0], stats, placed=False)
    assert [words(h.tokens) for h in kept] == ["b", "c"]
    assert stats.as_dict()["constraints"] == {"given": 1, "met": 1, "unmet": []}


def test_a_row_that_has_its_phrase_goes_on_with_its_second_best_word():
    """Behind "b" the likeliest word leads nowhere; "be" is the best sequence with a "b", and
    8 others are likelier at the second step."""
    some = {x: 0.25 for x in "acde"}
    arcs = {
        "": {"a": 0.9, "c": 0.09, "b": 0.01},
        "a": {**some, "b": 1e-4},
        "c": some,
        "b": {"d": 0.6, "e": 0.4},
        "bd": {"a": 1e-9},
    }
    best = outputs(decode([lattice(arcs)], [wanted("b")], 4, 6, nbest=1))[0][0]
    assert best == ("be", round(math.log(0.01 * 0.4), 9))


def test_improbable_hypotheses_that_end_do_not_stop_the_search_before_the_one_that_competes():
    """The model says "b" itself behind "aaa"; before, one hypothesis a step ends with it."""
    arcs = {"a" * n: {"a": 0.999, "b": 0.001} for n in range(3)} | {"aaa": {"b": 1}}
    means = Scoring(True)
    found = [
        decode(
            [lattice(arcs)],
            [wanted("b")],
            1,
            nbest=1,
            scoring=means,
            stop=stop_plug("early", 1, means),
            select=partial(DBA, competing=competing),
        )
        for competing in (0, 1)
    ]
    best = [outputs(each)[0][0] for each in found]
    assert best[0][0] == "b" and best[1] == ("aaab", round(3 * math.log(0.999) / 5, 9))
