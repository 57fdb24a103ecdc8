"""--softmax lsh on models: what it must equal, how its lists grow and shrink, and what it
refuses."""

import logging
from types import SimpleNamespace

import pytest
import torch
from models import batch, build, generators, requests_of, run
from required_phrases import required_phrases
from sizes import covering, drawn

from fairseq_ext import UsageError
from fairseq_ext.core.stats import Stats
from fairseq_ext.kernels import lsh_torch
from fairseq_ext.kernels import shortlist as gathered
from fairseq_ext.kernels.library import library
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.sentence import SentenceConstraints, met
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.shortlists import ShortlistMeter
from fairseq_ext.search.strategies.softmax.lsh import LSH

WORDS = 600
LENGTHS = [6, 4, 3, 1, 0]


def on_model(max_len: int = 12, **flags):
    """A generator whose lists have no words but candidates, unless flags say so."""
    flags = {"softmax": "lsh", "lsh_k": 4, "lsh_u": 2, "lsh_top": 0} | flags
    model = build("transformer", words=WORDS)
    return generators([model], flags, words=WORDS, beam=4, max_len_b=max_len).ours


def plug(
    t: int,
    T: int = 0,
    share: str = "batch",
    W: int = 30,
    bias: bool = False,
) -> LSH:
    """The softmax over random weights (400, 16), words in order of frequency."""
    V, generator = 400, torch.Generator().manual_seed(1)
    layer = (
        torch.randn(V, 16, generator=generator),
        torch.randn(V, generator=generator) if bias else None,
    )
    base = torch.cat([torch.arange(min(T, V)), torch.tensor([2, 3])])
    return LSH(
        4,
        2,
        W,
        t,
        layers=[layer],
        base=base,
        temperature=1.0,
        share=share,
        meter=ShortlistMeter(Stats(), 5, 0),
    )


@pytest.fixture(params=["compiled", "torch"])
def way(request, monkeypatch) -> str:
    """The compiled library, or as without it."""
    if request.param == "torch":
        monkeypatch.setattr(gathered, "is_supported", lambda weight: False)
    elif library() is None:
        pytest.skip("no compiler")
    return request.param


def decoder(softmax: LSH) -> SimpleNamespace:
    """The full softmax over the same weights."""
    weight, bias = softmax.layers[0]
    return SimpleNamespace(
        log_probs=lambda features, temperature: torch.nn.functional.linear(
            features[0], weight, bias
        ).log_softmax(-1)
    )


def states(n: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(n, 16, generator=torch.Generator().manual_seed(seed))


def scored(softmax: LSH, x: torch.Tensor) -> LogProbs:
    """Log-probabilities of states x (n, 16), each of a sentence of its own."""
    n = x.size(0)
    pool = Pool({}, torch.ones(n), [9] * n, torch.arange(n), 2)
    return softmax(decoder(softmax), [x], Beam.start(list(range(n)), 2, x.device, x.dtype), pool)


def listed(softmax: LSH, x: torch.Tensor) -> list[set[int]]:
    """The words on the list of each row."""
    return [set(row.nonzero()[:, 0].tolist()) for row in scored(softmax, x).dense() > -torch.inf]


# ---- what is on a list


@drawn(10)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("share", ["batch", "sentence"])
@pytest.mark.parametrize("t", [1, 3, 6])
def test_lists_are_those_of_equations_3_9_and_10(way, share, t, bias):
    softmax, x = plug(t, 20, share, bias=bias), states(5)
    assert (softmax.compiled is not None) == (way == "compiled")
    weight, shift = softmax.layers[0]
    words, rows = (
        (weight, x)
        if shift is None
        else (torch.cat([weight, shift[:, None]], 1), torch.cat([x, torch.ones(5, 1)], 1))
    )
    codes = [lsh_torch.wta_hash(each, softmax.index.dimensions, 2) for each in (words, rows)]
    hits = (codes[1][:, None] == codes[0]).sum(-1)  # brute force
    each = [{j for j in range(400) if hits[i, j] >= t} | set(range(20)) for i in range(5)]
    assert listed(softmax, x) == (each if share == "sentence" else [set().union(*each)] * 5)


def test_an_empty_candidate_list_leaves_eos_and_unk(way):
    log_probs = scored(plug(31), states(2))
    dense = log_probs.dense()
    assert (dense > -torch.inf).nonzero().tolist() == [
        [row, word] for row in (0, 1) for word in (2, 3)
    ]
    assert dense.exp().sum(1).tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("share", ["batch", "sentence"])
def test_probabilities_are_the_full_ones_over_the_lists_sum(way, share):
    softmax, x = plug(3, 10, share), states(4)
    full, log_probs = decoder(softmax).log_probs([x], 1.0), scored(softmax, x)
    for i, words in enumerate(listed(softmax, x)):
        ids = torch.tensor(sorted(words))
        expected = full[i, ids].log_softmax(-1)
        torch.testing.assert_close(log_probs.scores_at(ids.expand(4, -1))[i], expected)
        # what fills a row up counts for nothing
        assert log_probs.dense()[i].exp().sum().item() == pytest.approx(1.0)


def test_same_seed_same_index():
    weight = states(200)
    first, second, other = (lsh_torch.build_index(weight, 4, 2, 30, seed) for seed in (1, 1, 2))
    assert torch.equal(first.words, second.words) and torch.equal(first.offsets, second.offsets)
    assert not torch.equal(first.words, other.words)


# ---- on models


@covering(1)
@pytest.mark.parametrize("share", ["batch", "sentence"])
@pytest.mark.parametrize("select", ["dba", "gbs", "cbs"])
def test_constraints_and_prefixes_are_on_the_list(way, select, share):
    ours = on_model(8, lsh_bands=10, lsh_hits=11, lsh_share=share, select=select)
    phrase = (300, 301)
    given = [
        SentenceConstraints(required_phrases(((phrase,),), ("x",))),
        *[SentenceConstraints() for _ in LENGTHS[1:]],
    ]
    found = run(ours, {**batch(LENGTHS, words=WORDS), "requests": requests_of(given)})
    assert all(met(h["tokens"].tolist(), given[0], ordered=False) == [True] for h in found[0])
    prefix = torch.tensor([[400, 401]] * len(LENGTHS))
    for nbest in run(ours, batch(LENGTHS, words=WORDS), prefix_tokens=prefix):
        assert all(h["tokens"][:2].tolist() == [400, 401] for h in nbest)


def test_statistics_and_recall(way):
    ours = on_model(lsh_bands=20, lsh_hits=4, lsh_top=20, shortlist_recall_every=1)
    run(ours, batch(LENGTHS, words=WORDS))
    section = ours.stats.as_dict()["softmax"]
    assert set(section["seconds"]) == {"hash", "lookup", "compact", "gather", "matmul", "normalise"}
    assert all(value > 0 for value in section["seconds"].values())
    assert (
        22 <= section["vocab_mean"] < WORDS
        and 0 < section["recall_at_k"] < 1
        and 0 < section["recall_at_1"] <= 1
    )
    assert section["probe"]["full"] > 0


def test_recall_counts_what_the_lists_hold():
    softmax = plug(4, 10)
    softmax.meter.every = 1
    x = states(7)
    full = decoder(softmax).log_probs([x], 1.0).topk(5).indices.tolist()
    lists = listed(softmax, x)
    expected = [len(set(best) & words) / 5 for best, words in zip(full, lists, strict=True)]
    assert softmax.meter.counts.recall_at_k.value() == pytest.approx(sum(expected) / 7)


def test_a_warning_where_the_full_softmax_is_faster(caplog):
    with caplog.at_level(logging.WARNING):
        run(on_model(lsh_k=8, lsh_bands=400, lsh_hits=4, lsh_top=20), batch(LENGTHS, words=WORDS))
    assert "is slower here than --softmax full" in caplog.text


def test_a_model_without_an_output_layer_that_it_reads_is_refused():
    with pytest.raises(UsageError, match="no plain Transformer or LSTM decoder"):
        generators([build("fconv")], {"softmax": "lsh"}, beam=2)
