"""Dynamic beam allocation, the baselines with fixed slots, and a bonus for each phrase, on small
tables: what every hypothesis must keep. test_random_flags.py has brute force over all sequences.

Phrases are written as letters: "ab" is the phrase of a and b, "ab|c" a constraint that
either phrase meets.
"""

import math
import random
from functools import partial

import pytest
import torch
from required_phrases import prefix_of, required_phrases
from search.phrases.test_phrases import plain
from search.phrases.test_segmentations import BOUNDARIES_12, SEARCHED, places, read, required, usual
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
    LEFT_OUT,
    SentenceGoal,
    count_constraints,
    report_constraints,
)
from fairseq_ext.search.finished import Scoring
from fairseq_ext.search.phrases.sentence import SentenceConstraints, met
from fairseq_ext.search.strategies.select.bonus import Bonus
from fairseq_ext.search.strategies.select.cbs import ConstrainedBeam
from fairseq_ext.search.strategies.select.dba import DBA
from fairseq_ext.search.strategies.select.gbs import GridBeam
from fairseq_ext.search.strategies.select.topk import TopK

VOCABULARY = 12  # of the tables
END = {"$": 1.0}


def phrase(letters: str) -> tuple[int, ...]:
    return tuple(number(x) for x in letters)


def wanted(
    *constraints: str, banned: tuple[str, ...] = (), prefix: str = ""
) -> SentenceConstraints:
    any_of = tuple(tuple(map(phrase, c.split("|"))) for c in constraints)
    return SentenceConstraints(
        required_phrases(any_of, constraints),
        banned={phrase(each): each for each in banned},
        prefix=prefix_of(phrase(prefix), prefix),
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
        width = max(len(c.beginning) for c in constraints)
        more["prefix"] = torch.tensor(
            [[*c.beginning, *[PAD] * (width - len(c.beginning))] for c in constraints]
        )
    return search(tables, k, stop, max_len, select=select(k, EOS, VOCABULARY), **more)


def text(tokens) -> str:
    return words(tokens).replace(" ", "")


def outputs(found: Found) -> list[list[tuple[str, float]]]:
    return [[(text(h.tokens), round(h.score, 9)) for h in nbest] for nbest in found.lists]


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


SELECTS = {"dba": DBA, "gbs": GridBeam, "cbs": ConstrainedBeam}


# ---- what holds for every search


@drawn(18)
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("select", SELECTS)
@pytest.mark.parametrize("seed", range(25))
def test_random_batches(seed, select, ordered):
    """Every hypothesis meets all constraints, also where they fill the sentence to its last token;
    sentences without any equal plain beam search; a sentence does not depend on those next to it,
    and on the order of its constraints only if requested."""
    draw = random.Random(seed)
    size, k, more = draw.randint(2, 6), draw.randint(1, 8), {"select": SELECTS[select]}
    tables = [random_table(100 * seed + i, ending=draw.choice([0, 0.3, 1])) for i in range(size)]
    limits = [draw.randint(1, 9) for _ in range(size)]
    constraints = [
        random_constraints(draw, min(limit, 5 if select == "cbs" else 9))
        if draw.random() < 0.8
        else wanted()
        for limit in limits
    ]
    found = decode(tables, constraints, k, limits, ordered, **more)
    for nbest, c in zip(found.lists, constraints, strict=True):
        assert nbest and all(all_met(h, c, ordered) for h in nbest)
    plain = outputs(search(tables, k, stop_plug("count", k), limits, select=TopK(k)))
    got = outputs(found)
    for i, c in enumerate(constraints):
        assert c.any_of or got[i] == plain[i]
        alone = decode(tables[i : i + 1], [c], k, limits[i : i + 1], ordered, **more)
        assert outputs(alone) == [got[i]]
    if not ordered and select == "dba":
        shuffled = [wanted(*draw.sample(c.text, len(c.text))) for c in constraints]
        assert outputs(decode(tables, shuffled, k, limits)) == got


def reported(constraints: SentenceConstraints, found: list, max_len: int, soft: bool = False):
    """The hypotheses that the report keeps, and its counts."""
    stats = Stats()
    kept = report_constraints(SentenceGoal(constraints, max_len), found, soft=soft)
    count_constraints(0, constraints, kept[0], stats, placed=False)
    return kept, stats.as_dict()["constraints"]


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
    count = len(constraints.any_of) + 1
    for seed in range(4):
        (found,) = decode([random_table(seed)], [constraints], 4, max_len).lists
        kept, counts = reported(constraints, found, max_len)
        assert counts == {"given": count, "met": count, "unmet": []}
        assert kept and all(all_met(h, constraints) for h in kept)


def test_a_prefix_that_does_not_fit_is_reported_with_what_it_leaves_out():
    constraints = wanted("b", "d", prefix="abc")
    (found,) = decode([random_table(1)], [constraints], 4, 2).lists
    kept, counts = reported(constraints, found, 2)
    reason = "the constraints take 4 tokens and the sentence may have 2"
    assert counts == {"given": 3, "met": 1, "unmet": [[0, "d", reason], [0, "abc", reason]]}
    assert words(kept[0].tokens) == "a b"


def test_any_alternative_will_do_and_the_likeliest_is_taken():
    arcs = {"": {"a": 0.5, "b": 0.3, "c": 0.2}, "a": {"a": 0.9, "$": 0.1}, "b": END, "c": END}
    constraints = wanted("ba|b|c")
    (found,) = decode([lattice(arcs)], [constraints], 8).lists
    # nothing but EOS may follow "aa": a dead end, which the report drops because there
    # are complete hypotheses
    assert [words(h.tokens) for h in found] == ["a a", "b", "c"]
    kept, counts = reported(constraints, found, 8)
    assert [words(h.tokens) for h in kept] == ["b", "c"]
    assert counts == {"given": 1, "met": 1, "unmet": []}


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
    given = dict(nbest=1, scoring=means, stop=stop_plug("early", 1, means))
    none, one = (
        outputs(
            decode([lattice(arcs)], [wanted("b")], 1, select=partial(DBA, competing=n), **given)
        )
        for n in (0, 1)
    )
    assert none[0][0][0] == "b" and one[0][0] == ("aaab", round(3 * math.log(0.999) / 5, 9))


def test_grid_beam_has_b_rows_for_each_of_its_banks():
    """Four words that are all possible: from the third step on, each of the three banks is full."""
    found = decode(
        [random_table(1, possible=8, ending=0)], [wanted("a", "b")], 2, 12, select=GridBeam
    )
    assert max(found.rows) <= 12 * 6 and found.rows[0] >= 6 * (found.step[0] - 3)


# ---- rows behind a banned word that only its end completes: few of them, and none that the
#      model does not want


A = SentenceConstraints(banned={usual("a"): "a"})
SPLIT = (*usual("a"), FIRST_WORD + 1)  # "ab" as " a b"


def banned_search(tables, constraints, k: int, max_len: int, select=DBA, nbest: int = 1, **more):
    more |= {"constraints": constraints, "boundaries": BOUNDARIES_12["word"], "nbest": nbest}
    lists = search(
        tables, k, stop_plug("count", k), max_len, select=select(k, EOS, 12), **more
    ).lists
    return [[tuple(h.tokens.tolist()[:-1]) for h in each] for each in lists]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_bad_continuations_do_not_drive_out_other_words(k):
    """The three likeliest words are banned, and the model would rather write "b" than go
    on with one of them."""
    banned = SentenceConstraints(banned={usual(each): each for each in ("a", "A", "ab")})
    goes_on = {"$": 0.999, "d": 0.001}
    arcs = {"": {"c": 0.5, "e": 0.3, "a": 0.1, "b": 0.06, "f": 0.04}, "b": END, "f": END}
    after = {word: goes_on for word in "cea"} | {f"{word} d": END for word in "cea"}
    assert read(banned_search([lattice(arcs | after)], [banned], k, 4)[0][0]) == "b"


@pytest.mark.parametrize(
    "k, p, through", [(1, 0.2, False), (4, 0.2, True), (8, 0.2, True), (4, 0.05, False)]
)
def test_a_banned_word_is_continued_where_the_model_would_and_there_is_room(k, p, through):
    """ "ab" as " a b" is the likeliest allowed text in every line: the model gives "b" behind
    " a" the probability p."""
    arcs = {"": {"c": 0.9, "b": 0.05, "f": 0.05}, "c": {"$": 1 - p, "b": p}, "c b": END}
    arcs |= {after: {word: 1 / 7 for word in "abcdef$"} for after in "bf"}
    assert (banned_search([lattice(arcs)], [A], k, 4)[0][0] == SPLIT) == through


@pytest.mark.parametrize("k", range(1, 10))
def test_a_quarter_of_the_rows_may_be_pending(k):
    seen = [0]

    class Counting(DBA):
        def __call__(self, beam, log_probs, pool):
            pending = self.tables(pool).banned.automata.pending[beam.aux["banned"]]
            pending &= beam.last_score() > -torch.inf  # others are placeholders
            for s in range(len(beam.live)):
                seen.append(int(pending[beam.sentence_of_row() == s].sum()))
            return super().__call__(beam, log_probs, pool)

    banned_search([random_table(seed, possible=6) for seed in range(12)], [A] * 12, k, 6, Counting)
    assert max(seen) == k // 4


def test_a_prefix_may_go_through_a_banned_word():
    for seed in range(5):
        given = [random_table(seed, possible=6)], [A], 1, 6
        ((best,),) = banned_search(*given, prefix=torch.tensor([SPLIT]))
        assert best[:2] == SPLIT


def test_a_required_word_ends_though_the_model_would_rather_continue_it():
    """Behind " a" the three likeliest pieces go on with the word; the best text that has the word
    "a" is "a.", the other ". a"."""
    arcs = {"": {"f": 0.9, "e": 0.0999, "c": 1e-4}, "f": {"f": 0.6, "e": 0.2, "a": 0.2, "c": 1e-7}}
    arcs["c"] = {"b": 0.45, "d": 0.3, "h": 0.2, "f": 0.05}
    assert read(banned_search([lattice(arcs)], [required("a", "exact")], 2, 4)[0][0]) == "a."


# ---- --constraint-bonus: beam search over scores that hold the bonus


def with_bonus(tables, constraints, k: int, bonus: float, max_len=7, **more) -> Found:
    more |= {"select": Bonus(bonus, k, EOS, VOCABULARY), "constraints": constraints, "nbest": k}
    return search(tables, k, stop_plug("count", k), max_len, **more)


def oracle(
    table, constraints: SentenceConstraints, k: int, bonus: float, max_len: int, ordered: bool
) -> list[tuple[str, float]]:
    """Beam search as lists; a row's score is its log-probability and b for each token that
    `plain` counts of its phrases."""

    def counted(tokens: tuple[int, ...], ended: bool) -> float:
        read = (*tokens, EOS) if ended else tokens  # what is begun is broken off
        return bonus * plain(constraints.any_of, read, ordered)[1]

    rows, done = [(0.0, 0.0, ())], []  # rows: with the bonus, without, tokens
    for step in range(max_len + 1):
        candidates = []
        for _, score, tokens in rows:
            values = table(tokens)
            for token in [EOS, *range(FIRST_WORD, FIRST_WORD + 4)] if step < max_len else [EOS]:
                ends, total = token == EOS, score + values[token]
                after = tokens if ends else (*tokens, token)
                if after:
                    candidates.append((total + counted(after, ends), total, after, ends))
        candidates.sort(key=lambda c: -c[0])
        candidates = candidates[: 2 * k]
        ended = [(text(tokens), round(key, 9)) for key, _, tokens, ends in candidates[:k] if ends]
        done += ended[: k - len(done)]
        rows = [(key, score, tokens) for key, score, tokens, ends in candidates if not ends][:k]
        if len(done) == k or not rows:
            break
    return sorted(done, key=lambda d: -d[1])


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_a_bonus_equals_an_oracle_that_reads_each_hypothesis(seed, ordered):
    draw = random.Random(seed)
    tables = [random_table(10 * seed + i) for i in range(2)]
    constraints = [random_constraints(draw, 4, "abc") for _ in tables]
    k, bonus = draw.randint(1, 5), draw.choice([0.0, 0.3, 1.0, 4.0])
    got = outputs(with_bonus(tables, constraints, k, bonus, ordered=ordered))
    for table, each, nbest in zip(tables, constraints, got, strict=True):
        expected = oracle(table, each, k, bonus, 7, ordered)
        assert nbest == [(text, pytest.approx(score)) for text, score in expected]


@pytest.mark.parametrize("mode", ["word", "prefix"])
@pytest.mark.parametrize("seed", range(8))
def test_pieces_that_continue_the_word_lose_the_bonus_again(seed, mode):
    """What a hypothesis has for its words: its score less its log-probability."""
    draw, table = random.Random(f"{seed} {mode}"), random_table(seed, possible=SEARCHED)
    word = draw.choice(["a", "ab", "aa", "ab ab"])
    given = dict(max_len=5, boundaries=BOUNDARIES_12[mode])
    for h in with_bonus([table], [required(word)], 5, 2.0, **given).lists[0]:
        tokens = h.tokens.tolist()
        log_prob = sum(table(tuple(tokens[:i]))[token] for i, token in enumerate(tokens))
        is_met = bool(places(read(tokens[:-1]), word, mode, "exact"))
        assert h.score - log_prob == pytest.approx(2.0 * len(usual(word)) * is_met)


def test_banned_phrases_stay_banned_and_a_large_bonus_meets_what_is_allowed():
    given = [random_table(3)], [wanted("ab", "c", banned=("ca",))]
    best, *others = (text for text, _ in outputs(with_bonus(*given, 6, 30.0))[0])
    assert "ab" in best and "c" in best and not any("ca" in text for text in (best, *others))


def test_the_report_names_what_was_left_out_and_keeps_the_order():
    constraints = wanted("d", "ab")
    (nbest,) = with_bonus([random_table(2)], [constraints], 5, 0.5).lists
    kept, counts = reported(constraints, nbest, 7, soft=True)
    assert [h.score for h in kept] == [h.score for h in nbest]
    for h in kept:
        assert h.unmet == tuple((p, LEFT_OUT) for p in ("d", "ab") if p not in text(h.tokens))
    assert (counts["given"], counts["met"]) == (2, 2 - len(kept[0].unmet))
