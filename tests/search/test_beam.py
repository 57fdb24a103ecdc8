"""The data of a decoding step: top-k in blocks, log-probabilities of a vocabulary or a
shortlist, finished lists."""

import models
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import language_model
from sizes import examples

from fairseq_ext.search.beam import Beam
from fairseq_ext.search.finished import Finished, FinishedStep
from fairseq_ext.search.log_probs import LogProbs, blockwise_topk
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.processors import LogitsProcessors

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


# ---- Each logits processor against a loop over rows and words, for a whole vocabulary and


BOS, PAD, EOS, UNK, V = 0, 1, 2, 3, 25  # fairseq's numbers


LISTED = [0, 1, 2, 3, 5, 6, 9, 14]


# two sentences with two rows each, three tokens chosen so far:   sentence 0: eos 5 6 5 | eos 6 6 6
#                                                                 sentence 1: eos 9 5 9 | eos 5 9 14
TOKENS = [[2, 5, 6, 5], [2, 6, 6, 6], [2, 9, 5, 9], [2, 5, 9, 14]]


def there(x: torch.Tensor | None) -> torch.Tensor | None:
    return x if x is None else x.to(models.DEVICE)


def beam() -> Beam:
    return Beam(
        [0, 1],
        2,
        None,
        there(torch.tensor(TOKENS)),
        there(-torch.rand(4, 3, generator=torch.Generator().manual_seed(1))),
    )


def pool(max_len=(10, 10), prefix=None) -> Pool:
    return Pool({}, there(torch.tensor([4, 4])), list(max_len), torch.arange(2), EOS, there(prefix))


def apply(
    processors: LogitsProcessors, ids: list[int] | None, the_pool: Pool | None = None, at_limit=None
) -> tuple[list[dict], list[dict]]:
    """Each row's word -> log-probability before and after the processors."""
    words = list(range(V)) if ids is None else ids
    value = torch.randn(
        4, len(words), generator=torch.Generator().manual_seed(2), dtype=torch.float64
    ).log_softmax(-1)
    log_probs = LogProbs(there(value).clone(), None if ids is None else there(torch.tensor(ids)), V)
    after = processors(log_probs, beam(), the_pool or pool(), there(at_limit))
    return tuple(
        [dict(zip(words, row, strict=True)) for row in rows.tolist()]
        for rows in (value, after.dense()[:, words])
    )


def processors(**settings) -> LogitsProcessors:
    return LogitsProcessors(PAD, UNK, EOS, **settings)


@pytest.fixture(params=[None, LISTED], ids=["vocabulary", "shortlist"])
def ids(request):
    return request.param


def test_pad_is_never_chosen(ids):
    before, after = apply(processors(), ids)
    assert after == [row | {PAD: -INF} for row in before]


def test_unk_is_made_dearer(ids):
    before, after = apply(processors(unk_penalty=1.5), ids)
    assert after == [row | {PAD: -INF, UNK: row[UNK] - 1.5} for row in before]


def test_a_sentence_at_its_limit_may_only_end_at_the_true_probability(ids):
    before, after = apply(processors(), ids, at_limit=torch.tensor([False, True]))
    for i, row in enumerate(after):
        expected = (
            before[i] | {PAD: -INF}
            if i < 2
            else {w: before[i][w] if w == EOS else -INF for w in row}
        )
        assert row == expected


@pytest.mark.parametrize("min_len, banned", [(3, False), (4, True)])
def test_eos_waits_for_min_len(ids, min_len, banned):
    before, after = apply(processors(min_len=min_len), ids)
    assert after == [row | {PAD: -INF, EOS: -INF if banned else row[EOS]} for row in before]


def test_suppressed_words_are_never_chosen(ids):
    before, after = apply(processors(suppress=torch.tensor([5, 14])), ids)
    assert after == [row | {PAD: -INF, 5: -INF, 14: -INF} for row in before]


def test_a_prefix_leaves_one_word_and_is_exempt_from_min_len(ids):
    prefix = torch.tensor([[5, 6, 5, 9], [9, 5, 9, PAD]])  # reaches this step in sentence 0 only
    before, after = apply(processors(min_len=8), ids, pool(prefix=prefix))
    for i, row in enumerate(after):
        assert row == (
            {w: before[i][w] if w == 9 else -INF for w in row} if i < 2 else before[i] | {PAD: -INF}
        )


@pytest.mark.parametrize(
    "n, banned",
    [
        (1, [{5, 6}, {6}, {9, 5}, {5, 9, 14}]),
        (2, [{6}, {6}, {5}, set()]),
        (3, [set(), {6}, set(), set()]),
    ],
)
def test_no_word_completes_an_ngram_of_its_row(ids, n, banned):
    before, after = apply(processors(no_repeat_ngram=n), ids)
    for row, old, words in zip(after, before, banned, strict=True):
        assert row == old | {PAD: -INF} | {w: -INF for w in words if w in old}


def test_a_language_model_is_added_by_weight(ids):
    lm = language_model()
    with torch.no_grad():
        added = lm.get_normalized_probs(
            lm(there(torch.tensor(TOKENS))), log_probs=True, sample=None
        )[:, -1].tolist()
        before, after = apply(processors(lm=lm, lm_weight=0.3), ids)
    for i, row in enumerate(after):
        assert row == pytest.approx(
            {w: -INF if w == PAD else p + 0.3 * added[i][w] for w, p in before[i].items()}
        )
