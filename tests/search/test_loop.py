"""Beams of unequal width, top-k in blocks, and logits processors over shortlists."""

import models
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import (
    alone,
    batch,
    build,
    dictionary,
    generators,
    language_model,
    plain_beam_search,
    run,
    same_as_plain,
)
from sizes import drawn, examples

from fairseq_ext.search.beam import Beam
from fairseq_ext.search.log_probs import LogProbs, blockwise_topk
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.processors import LogitsProcessors
from fairseq_ext.search.protocols import Prune

MIXED = [3, 1, 7, 0, 12, 5]
LOOSE = {"lstm": 1e-5, "fconv": 1e-5}  # fairseq's attention of these masks in float32


def ours(architecture: str = "transformer", seed: int = 2, **flags):
    return generators([build(architecture, seed)], **({"beam": 4, "max_len_b": 10} | flags)).ours


# ---- beams of unequal width


def dropped(row: list[int], seed: int) -> bool:
    """A made-up rule by which a continued row is dropped or not; the same rule for the
    plug and for the oracle."""
    return (sum((i + 3) * t for i, t in enumerate(row)) * 7 + seed) % 5 < 3


class DropSome(Prune):
    def __init__(self, seed: int):
        self.seed = seed

    def __call__(self, candidates, beam, pool, finished):
        # (S, c, L)
        continued = torch.cat(
            [beam.tokens[candidates.row, 1:], candidates.token[:, :, None]], dim=2
        )
        return torch.tensor(
            [[not dropped(row, self.seed) for row in rows] for rows in continued.tolist()],
            device=continued.device,
        )


@drawn(5)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("architecture", ["transformer", "bart", "lstm", "fconv", "lightconv"])
def test_pruned_rows_equal_brute_force_one_sentence_at_a_time(architecture, seed):
    """No row reads another sentence's source, whatever rows are dropped: fairseq's
    own reordering fails here when row counts happen to agree (multihead_attention.py,
    reorder_incremental_state)."""
    generator = ours(architecture, seed)
    generator.strategies.prune = [DropSome(seed)]
    sample = batch(MIXED, seed)
    oracle = build(architecture, seed)  # of its own: a generator leaves a BART model changed
    for i, nbest in enumerate(run(generator, sample)):
        expected = plain_beam_search(
            oracle, alone(sample, i), 4, 10, drop=lambda row: dropped(row, seed)
        )
        if expected:
            same_as_plain(expected, nbest, LOOSE.get(architecture, 1e-9))
        else:  # everything was dropped
            assert [h["tokens"].tolist() for h in nbest] == [[dictionary().eos()]] and nbest[0][
                "score"
            ] == -torch.inf


# ---- top-k in blocks


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
    value[value == 0] = -torch.inf
    score, column = blockwise_topk(value, k)
    assert torch.equal(score, value.topk(k, dim=1).values)
    assert torch.equal(value.gather(1, column), score)
    assert all(len(set(row)) == k for row in column.tolist())


# ---- logits processors; those of a whole vocabulary are in test_neutral.py

BOS, PAD, EOS, UNK, V = 0, 1, 2, 3, 25  # fairseq's numbers
LISTED = [0, 1, 2, 3, 5, 6, 9, 14]
# two sentences with two rows each, three tokens chosen so far
TOKENS = [[2, 5, 6, 5], [2, 6, 6, 6], [2, 9, 5, 9], [2, 5, 9, 14]]
PREFIX = torch.tensor([[5, 6, 5, 9], [9, 5, 9, PAD]])  # reaches this step in sentence 0 only


def there(x: torch.Tensor | None) -> torch.Tensor | None:
    return x if x is None else x.to(models.DEVICE)


@pytest.mark.parametrize("prefix", [None, PREFIX], ids=["free", "prefix"])
@pytest.mark.parametrize("at_limit", [None, torch.tensor([False, True])], ids=["", "at limit"])
@pytest.mark.parametrize(
    "settings",
    [
        *({}, {"unk_penalty": 1.5}, {"min_len": 3}, {"min_len": 4}, {"no_repeat_ngram": 1}),
        *({"no_repeat_ngram": 2}, {"suppress": torch.tensor([5, 14])}, {"lm_weight": 0.3}),
    ],
    ids=str,
)
def test_processors_make_of_a_shortlist_what_they_make_of_the_vocabulary(
    settings, at_limit, prefix
):
    lm = {"lm": language_model()} if "lm_weight" in settings else {}
    processors = LogitsProcessors(PAD, UNK, EOS, **settings, **lm)
    value = torch.rand(4, V, generator=torch.Generator().manual_seed(2)).double().log()
    beam = Beam([0, 1], 2, None, there(torch.tensor(TOKENS)), there(-torch.ones(4, 3)))
    pool = Pool({}, there(torch.tensor([4, 4])), [10, 10], torch.arange(2), EOS, there(prefix))
    found = []
    for ids in (None, torch.tensor(LISTED)):
        words = value if ids is None else value[:, ids]
        log_probs = LogProbs(there(words).clone(), there(ids), V)
        with torch.no_grad():
            found.append(processors(log_probs, beam, pool, there(at_limit)).dense()[:, LISTED])
    assert torch.equal(*found) and not torch.equal(found[0].cpu(), value[:, LISTED])
