"""Each logits processor against a loop over rows and words, for a whole vocabulary and
for a shortlist of it."""

import models
import pytest
import torch
from models import language_model

from fairseq_ext.search.beam import Beam
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.processors import LogitsProcessors

BOS, PAD, EOS, UNK, V = 0, 1, 2, 3, 25  # fairseq's numbers
INF = torch.inf
SHORTLIST = [0, 1, 2, 3, 5, 6, 9, 14]

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


@pytest.fixture(params=[None, SHORTLIST], ids=["vocabulary", "shortlist"])
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
