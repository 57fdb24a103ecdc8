"""Rows behind a banned word that only its end completes: few of them, and none that the model would
not continue; and behind a required one."""

import pytest
import torch
from search.phrases.test_segmentations import (
    BOUNDARIES_12,
    occurrences,
    read,
    required,
    usual,
    violates,
)
from table_model import EOS, FIRST_WORD, lattice, random_table, search, stop_plug

from fairseq_ext.search.phrases.sentence import SentenceConstraints
from fairseq_ext.search.strategies.select.dba import DBA

A = SentenceConstraints(banned=(usual("a"),), banned_text=("a",))
END = {"$": 1.0}
SPLIT = (*usual("a"), FIRST_WORD + 1)  # "ab" as " a b"


def found(tables, constraints, k: int, max_len: int, select=DBA, nbest: int = 1, **more):
    pool = {
        "constraints": constraints,
        "boundaries": BOUNDARIES_12["word"],
        "banned_in_any_case": False,
        **more,
    }
    lists = search(
        tables, k, stop_plug("count", k), max_len, nbest=nbest, select=select(k, EOS, 12), **pool
    ).lists
    return [[tuple(h.tokens.tolist()[:-1]) for h in each] for each in lists]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_bad_continuations_do_not_drive_out_other_words(k):
    """The three likeliest words are banned, and the model would rather write "b" than go
    on with one of them."""
    banned = SentenceConstraints(
        banned=tuple(map(usual, ["a", "A", "ab"])), banned_text=("a", "A", "ab")
    )
    goes_on = {"$": 0.999, "d": 0.001}
    arcs = {"": {"c": 0.5, "e": 0.3, "a": 0.1, "b": 0.06, "f": 0.04}, "b": END, "f": END}
    after = {word: goes_on for word in "cea"} | {f"{word} d": END for word in "cea"}
    assert read(found([lattice(arcs | after)], [banned], k, 4)[0][0]) == "b"


@pytest.mark.parametrize(
    "k, p, through", [(1, 0.2, False), (4, 0.2, True), (8, 0.2, True), (4, 0.05, False)]
)
def test_a_banned_word_is_continued_where_the_model_would_and_there_is_room(k, p, through):
    """ "ab" as " a b" is the likeliest allowed text in every line: the model gives "b" behind
    " a" the probability p."""
    any_word = {word: 1 / 7 for word in "abcdef$"}
    arcs = {
        "": {"c": 0.9, "b": 0.05, "f": 0.05},
        "c": {"$": 1 - p, "b": p},
        "c b": END,
        "b": any_word,
        "f": any_word,
    }
    assert (found([lattice(arcs)], [A], k, 4)[0][0] == SPLIT) == through


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

    found([random_table(seed, possible=6) for seed in range(12)], [A] * 12, k, 6, Counting)
    assert max(seen) == k // 4


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_required_word_that_begins_with_a_banned_one_is_met(k):
    part = required("aa", "exact")
    wanted = SentenceConstraints(
        part.required,
        banned=A.banned,
        banned_text=A.banned_text,
    )
    for seed in range(5):
        (each,) = found([random_table(seed, possible=6)], [wanted], k, 6)
        assert each
        for best in each:
            assert occurrences(read(best), "aa", "word", "exact") and not violates(
                read(best), ["a"], "word", "exact", True
            )


def test_a_prefix_may_go_through_a_banned_word():
    for seed in range(5):
        ((best,),) = found(
            [random_table(seed, possible=6)], [A], 1, 6, prefix=torch.tensor([SPLIT])
        )
        assert best[:2] == SPLIT


def test_a_required_word_ends_though_the_model_would_rather_continue_it():
    """Behind " a" the three likeliest pieces go on with the word; the best text that has the word
    "a" is "a.", the other ". a"."""
    arcs = {"": {"f": 0.9, "e": 0.0999, "c": 1e-4}, "f": {"f": 0.6, "e": 0.2, "a": 0.2, "c": 1e-7}}
    arcs["c"] = {"b": 0.45, "d": 0.3, "h": 0.2, "f": 0.05}
    assert read(found([lattice(arcs)], [required("a", "exact")], 2, 4)[0][0]) == "a."
