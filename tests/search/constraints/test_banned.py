"""The automaton of banned phrases against brute force: a token is banned exactly when it
would finish a phrase."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from fairseq_ext.search.constraints.banned import build_banned
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.phrase_table import Compiler

V = 6
letter = st.integers(1, 4)
phrase = st.lists(letter, min_size=1, max_size=4).map(tuple)
phrases = st.lists(phrase, max_size=5)
CPU = torch.device("cpu")


def banned_now(table, state: torch.Tensor) -> list[set[int]]:
    """Tokens that `ban_` makes impossible in rows of these states."""
    log_probs = LogProbs(torch.zeros(state.numel(), V))
    table.ban_(log_probs, state)
    return [set((row == -torch.inf).nonzero()[:, 0].tolist()) for row in log_probs.dense()]


def completing_tokens(phrases, tokens) -> set[int]:
    """By definition: tokens behind which some banned phrase stands."""
    return {t for t in range(V) if any(tuple([*tokens, t][-len(p) :]) == p for p in phrases)}


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(phrases, min_size=1, max_size=3), st.lists(letter, max_size=14))
def test_banned_is_what_would_finish_a_phrase(sentences, wished):
    table = build_banned(sentences, CPU)
    for s, phrases in enumerate(sentences):
        state, tokens = table.start[s : s + 1], []
        for token in wished:
            banned = banned_now(table, state)[0]
            assert banned == completing_tokens(phrases, tokens)
            if token in banned:
                continue  # the search cannot take it
            tokens.append(token)
            state = table.advance(state, torch.tensor([token]))
        assert not any(
            tuple(tokens[i : i + len(p)]) == p for p in phrases for i in range(len(tokens))
        )


def test_equal_lists_share_an_automaton_and_empty_ones_ban_nothing():
    table = build_banned([[(1, 2), (3,)], [], [(3,), (1, 2)]], CPU)
    assert table.start[0] == table.start[2] != table.start[1]
    assert banned_now(table, table.start) == [{3}, set(), {3}]


def test_states_advance_in_any_shape():
    table = build_banned([[(1, 2)], [(2, 3)]], CPU)
    # (S, c)
    state = table.advance(table.start[:, None].expand(2, 3), torch.tensor([[1, 2, 5]] * 2))
    assert [banned_now(table, row) for row in state] == [[{2}, set(), set()], [set(), {3}, set()]]


def test_a_shortlist_is_banned_by_word_not_by_column():
    table = build_banned([[(4,), (2,)]], CPU)
    log_probs = LogProbs(torch.zeros(1, 3), torch.tensor([1, 4, 5]), V)  # 2 is not on it
    table.ban_(log_probs, table.start)
    assert log_probs.dense()[0, [1, 4, 5]].tolist() == [0.0, -torch.inf, 0.0]


def test_a_table_that_has_all_lists_is_used_again():
    first, second = [(1, 2), (3,)], [(2, 3)]
    compiler = Compiler()
    table = build_banned([first, second, []], CPU, compiler)
    again = build_banned([[], [(3,), (1, 2)], first], CPU, compiler)
    assert again.automata is table.automata and again.start.tolist() == [
        table.start[i] for i in (2, 0, 0)
    ]
    other = build_banned([first, [(1,)]], CPU, compiler)
    assert other.automata is not table.automata and banned_now(other, other.start) == [{3}, {1}]
