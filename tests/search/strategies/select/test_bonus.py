"""--constraint-bonus: beam search over scores that hold the bonus, against an oracle that
reads each hypothesis."""

import random

import pytest
import torch
from search.phrases.test_phrases import plain
from search.phrases.test_segmentations import BOUNDARIES_12, SEARCHED, places, read, required, usual
from search.strategies.select.test_dba import VOCABULARY, phrase, random_constraints, wanted
from table_model import EOS, FIRST_WORD, random_table, search, stop_plug, words

from fairseq_ext.core.stats import Stats
from fairseq_ext.search.constraints.report import (
    LEFT_OUT,
    ConstraintCounts,
    SentenceGoal,
    count_constraints,
    report_constraints,
)
from fairseq_ext.search.phrases.sentence import SentenceConstraints
from fairseq_ext.search.strategies.select.bonus import Bonus


def found(tables, constraints, k: int, bonus: float, max_len=7, **more):
    plug = Bonus(bonus, k, EOS, VOCABULARY)
    return search(
        tables,
        k,
        stop_plug("count", k),
        max_len,
        nbest=k,
        select=plug,
        constraints=constraints,
        **more,
    ).lists


def oracle(
    table, constraints: SentenceConstraints, k: int, bonus: float, max_len: int, ordered: bool
) -> list[tuple[str, float]]:
    """Beam search as lists; a row's score is its log-probability and b for each token that
    `plain` counts of its phrases."""

    def counted(tokens: tuple[int, ...], ended: bool) -> float:
        read = (*tokens, EOS) if ended else tokens  # what is begun is broken off
        return bonus * plain(constraints.any_of, read, ordered)[1]

    rows: list[tuple[float, float, tuple[int, ...]]] = [(0.0, 0.0, ())]
    done: list[tuple[str, float]] = []
    for step in range(max_len + 1):
        candidates = []
        for _, score, tokens in rows:
            values = table(tokens)
            for token in [EOS, *range(FIRST_WORD, FIRST_WORD + 4)] if step < max_len else [EOS]:
                if token == EOS and not tokens:
                    continue
                after = tokens if token == EOS else (*tokens, token)
                total = score + values[token]
                candidates.append(
                    (total + counted(after, token == EOS), total, after, token == EOS)
                )
        candidates.sort(key=lambda c: -c[0])
        candidates = candidates[: 2 * k]
        done += [
            (words(tokens).replace(" ", ""), key) for key, _, tokens, ends in candidates[:k] if ends
        ][: k - len(done)]
        rows = [(key, score, tokens) for key, score, tokens, ends in candidates if not ends][:k]
        if len(done) == k or not rows:
            break
    return sorted(done, key=lambda d: -d[1])


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_equals_an_oracle_that_reads_each_hypothesis(seed, ordered):
    draw = random.Random(seed)
    tables = [random_table(10 * seed + i) for i in range(2)]
    constraints = [random_constraints(draw, 4, "abc") for _ in tables]
    k, bonus = draw.randint(1, 5), draw.choice([0.0, 0.3, 1.0, 4.0])
    got = found(tables, constraints, k, bonus, ordered=ordered)
    for table, each, nbest in zip(tables, constraints, got, strict=True):
        expected = oracle(table, each, k, bonus, 7, ordered)
        assert [
            (words(h.tokens).replace(" ", ""), pytest.approx(h.score)) for h in nbest
        ] == expected


@pytest.mark.parametrize("mode", ["word", "prefix"])
@pytest.mark.parametrize("seed", range(8))
def test_pieces_that_continue_the_word_lose_the_bonus_again(seed, mode):
    """What a hypothesis has for its words: its score less its log-probability."""
    draw, table = random.Random(f"{seed} {mode}"), random_table(seed, possible=SEARCHED)
    word = draw.choice(["a", "ab", "aa", "ab ab"])
    (nbest,) = found([table], [required(word)], 5, 2.0, 5, boundaries=BOUNDARIES_12[mode])
    for h in nbest:
        tokens = h.tokens.tolist()
        log_prob = sum(table(tuple(tokens[:i]))[token] for i, token in enumerate(tokens))
        is_met = bool(places(read(tokens[:-1]), word, mode, "exact"))
        assert h.score - log_prob == pytest.approx(2.0 * len(usual(word)) * is_met)


def test_banned_phrases_stay_banned_and_a_large_bonus_meets_what_is_allowed():
    (nbest,) = found([random_table(3)], [wanted("ab", "c", banned=("ca",))], 6, 30.0)
    best = words(nbest[0].tokens).replace(" ", "")
    assert (
        "ab" in best
        and "c" in best
        and all("ca" not in words(h.tokens).replace(" ", "") for h in nbest)
    )


def test_the_report_names_what_was_left_out_and_keeps_the_order():
    stats, constraints = Stats(), wanted("d", "ab")
    (nbest,) = found([random_table(2)], [constraints], 5, 0.5)
    reported = report_constraints(SentenceGoal(constraints, 7), nbest, soft=True)
    count_constraints(0, constraints, reported[0], stats, placed=False)
    assert [h.score for h in reported] == [h.score for h in nbest]
    for h in reported:
        text = words(h.tokens).replace(" ", "")
        assert h.unmet == tuple((p, LEFT_OUT) for p in ("d", "ab") if p not in text)
    counts = stats.section(ConstraintCounts)
    assert (counts.given, counts.met) == (2, 2 - len(reported[0].unmet))
    assert phrase("ab") and torch.is_tensor(nbest[0].tokens)
