"""The data of a decoding step: top-k in blocks, log-probabilities of a vocabulary or a
shortlist, finished lists."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from fairseq_ext.search.finished import Finished, FinishedStep
from fairseq_ext.search.log_probs import LogProbs, blockwise_topk

INF = torch.inf
SHORTLIST = torch.tensor([2, 3, 5, 9])  # of a vocabulary of 12


@settings(max_examples=examples(150), deadline=None)
@given(
    rows=st.integers(1, 4),
    columns=st.integers(1, 1200),
    k=st.integers(1, 12),
    levels=st.sampled_from([2, 10, 10**6]),
    seed=st.integers(0, 9999),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_blockwise_topk_equals_topk(rows, columns, k, levels, seed, dtype):
    """The same values, from columns that hold them, each used once; few levels make many ties, the
    lowest is -inf. In float64 it is torch's operations that find them."""
    k = min(k, columns)
    value = torch.randint(
        levels, (rows, columns), generator=torch.Generator().manual_seed(seed)
    ).to(dtype)
    value[value == 0] = -INF
    score, column = blockwise_topk(value, k)
    assert torch.equal(score, value.topk(k, dim=1).values)
    assert torch.equal(value.gather(1, column), score)
    assert all(len(set(row)) == k for row in column.tolist())


def both(seed: int = 0) -> tuple[LogProbs, LogProbs]:
    """Log-probabilities of 12 words in 3 rows: of all, and of the shortlist."""
    value = torch.randn(3, 12, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)
    return LogProbs(value.clone()), LogProbs(value[:, SHORTLIST].clone(), SHORTLIST, 12)


def test_topk_gives_words_not_columns():
    dense, short = both()
    for word in {*range(12)} - {*SHORTLIST.tolist()}:
        dense.ban_(word)
    assert torch.equal(short.dense(), dense.dense())
    for ours, expected in zip(short.topk(3), dense.topk(3), strict=True):
        assert torch.equal(ours, expected)


def test_at_is_minus_infinity_off_the_shortlist():
    for log_probs in both():
        words = torch.tensor([[0, 2, 5], [9, 11, 3], [4, 4, 2]])
        assert torch.equal(log_probs.scores_at(words), log_probs.dense().gather(1, words))
    assert both()[1].scores_at(torch.tensor([[0], [11], [4]])).eq(-INF).all()


@pytest.mark.parametrize("word", [0, 2, 9, 11])
@pytest.mark.parametrize("rows", [None, torch.tensor([True, False, True])])
def test_ban_makes_one_word_impossible(word, rows):
    for log_probs in both():
        expected = log_probs.dense().clone()
        expected[slice(None) if rows is None else rows, word] = -INF
        log_probs.ban_(word, rows)
        assert torch.equal(log_probs.dense(), expected)


def test_only_leaves_one_word_to_a_row_at_its_own_probability():
    rows = torch.tensor([True, False, True])
    words = torch.tensor([5, 5, 4])  # 4 is not on the shortlist: nothing is left to the last row
    for log_probs in both():
        before = log_probs.dense().clone()
        log_probs.only_(words[:, None], rows)
        expected = torch.full_like(before, -INF)
        for i in range(3):
            if rows[i]:
                expected[i, words[i]] = before[i, words[i]]
            else:
                expected[i] = before[i]
        assert torch.equal(log_probs.dense(), expected)


# ---- finished lists


def test_finished_lists_are_sorted_by_score_and_equal_scores_keep_their_order():
    finished = Finished.empty(2, 3, torch.device("cpu"))
    cumulative = torch.tensor([[-1.0, -3.0], [-1.0, -2.0], [-0.5, -3.0]])
    ended = FinishedStep(
        torch.tensor([[5, 2], [6, 2], [7, 2]]),
        cumulative,
        torch.tensor([-1.5, -1.0, -1.5]),
        None,
        None,
    )
    finished.add_([0, 1, 0], ended)
    finished.add_(
        [0],
        FinishedStep(
            torch.tensor([[5, 8, 2]]),
            torch.tensor([[-1.0, -1.5, -2.1]]),
            torch.tensor([-0.7]),
            None,
            None,
        ),
    )
    first, second = finished.take(0), finished.take(1)
    assert [h.tokens.tolist() for h in first] == [[5, 8, 2], [5, 2], [7, 2]]
    assert [h.tokens.tolist() for h in second] == [[6, 2]]
    torch.testing.assert_close(first[0].positional_scores, torch.tensor([-1.0, -0.5, -0.6]))
