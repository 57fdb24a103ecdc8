"""At its neutral settings every strategy gives fairseq's n-best lists: tokens equal, scores within
1e-9 in double precision.

A strategy declares its neutral settings (registry.py); each is run over the whole of GRID. Further
down: what stays with fairseq's own loop, and the places where ours differs from stock on purpose.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from models import (
    MASKED_IN_FLOAT32,
    alone,
    batch,
    build,
    dictionary,
    generators,
    is_search_of_fairseqs,
    language_model,
    plain_beam_search,
    refused,
    requests_of,
    run,
    same,
    same_as_plain,
    separated,
    settings,
    with_files,
)
from sizes import covering, drawn

from fairseq_ext import UsageError
from fairseq_ext.plugin import generator
from fairseq_ext.plugin.generator import AlignedBeamSearchGenerator
from fairseq_ext.search.candidates import Candidates, best_of_sentences
from fairseq_ext.search.phrases.sentence import SentenceConstraints
from fairseq_ext.search.phrases.token_automaton import trimmed
from fairseq_ext.search.protocols import Select
from fairseq_ext.search.registry import STRATEGIES
from fairseq_ext.search.strategies.softmax.screened import Screened

# settings at which nothing may differ from stock: those that the strategies declare, and fairseq's
# modules as the decoder
NEUTRAL = settings("neutral") | {"fairseq's modules": {"decoder_backend": "fairseq"}}
# a softmax of ours reads the features of plain Transformer and LSTM decoders, and but for `top` of
# one model
HAVE_FEATURES = [f"transformer{end}" for end in ("", "-pre-norm", "-tied", "-align")]
HAVE_FEATURES += ["bart", "lstm"]

MIXED = [3, 1, 7, 0, 12, 5]  # words of each source sentence; 0: an empty line
PAD, EOS = dictionary().pad(), dictionary().eos()


# flags of stock (beam 5 and a limit of 20 tokens where they say no other) and what they are run on:
# models, the words of each sentence, prefixes, a language model's weight. Other architectures:
# plugin/loading/test_saved_models.py
GRID = {
    case.pop("name"): {"models": ["transformer"], "lengths": MIXED, **case}
    for case in map(json.loads, Path(__file__).with_name("neutral.jsonl").open())
}
# stock's n-best lists by case and flags, searched for once: the models are the same in every test
STOCK = {}


def prefix(*rows):
    """Target prefixes, padded behind, for --prefix-size."""
    width = max(map(len, rows))
    return {"prefix_tokens": torch.tensor([row + [PAD] * (width - len(row)) for row in rows])}


def arguments_of(case):
    """What generate() gets for a case."""
    found = prefix(*case["prefix"]) if "prefix" in case else {}
    return found | {flag: case[flag] for flag in ("bos_token",) if flag in case}


def is_refused(models, flags, generation):
    """Whether these flags rule each other out, or these models cannot have the softmax."""
    needs = STRATEGIES["softmax"][flags.get("softmax", "full")].needs
    several = "one model" in needs and len(models) > 1
    no_features = "output layer" in needs and not {*models} <= {*HAVE_FEATURES}
    return refused(flags, generation) is not None or several or no_features


@covering(1)
@pytest.mark.parametrize("strategy", NEUTRAL.values(), ids=NEUTRAL.keys())
@pytest.mark.parametrize("name", GRID)
def test_neutral_setting_equals_stock(name, strategy, tmp_path):
    case = GRID[name]
    names, lm = case["models"], case.get("lm_weight")
    models = [build(each, seed=i + 1) for i, each in enumerate(names)]
    flags, needed = separated(with_files(strategy, tmp_path))
    generation, extra = {"beam": 5, "max_len_b": 20} | case["flags"] | needed, {}
    if lm is not None:
        extra = {"lm_model": language_model(), "lm_weight": lm}
        generation["lm_path"] = "lm.pt"
    if is_refused(names, flags, generation):
        with pytest.raises(UsageError):
            generators(models, flags, extra, **generation)
        return
    pair, sample = generators(models, flags, extra, **generation), batch(case["lengths"])
    arguments = arguments_of(case)
    requested = name, *sorted(generation.items())
    if requested not in STOCK:
        STOCK[requested] = run(pair.stock, sample, **arguments)
    # for a prefix that ends its sentence fairseq lists one hypothesis k times; a search whose
    # rows may leave lists it once
    leaves = strategy.get("select") == "cbs" or any("prune" in flag for flag in strategy)
    nbest = 1 if leaves and name == "prefix with EOS" else None
    expected, found = STOCK[requested], run(pair.ours, sample, **arguments)
    tolerance = 1e-5 if {*names} & {*MASKED_IN_FLOAT32} else 1e-9
    same([each[:nbest] for each in expected], [each[:nbest] for each in found], tolerance)


def test_equals_stock_with_a_vocabulary_that_is_sorted_in_blocks():
    """1,500 words: the two-stage top-k of search/log_probs.py is in use."""
    pair = generators(
        [build("transformer", words=1500, peak=2.0)], words=1500, beam=5, max_len_b=15
    )
    sample = batch(MIXED, words=1500)
    same(run(pair.stock, sample), run(pair.ours, sample))


def test_results_are_the_callers_own():
    """fairseq's commands divide positional_scores in place."""
    ours = generators([build("transformer")], beam=5, max_len_b=20).ours
    for h in sum(run(ours, batch(MIXED)), []):
        for part in (h["tokens"], h["positional_scores"]):
            assert part.untyped_storage().nbytes() == part.numel() * part.element_size()


# ---- alignments


STREAM = {"schedule": "stream", "stream_width": 2}


# of an LSTM in a batch stock reads the padded side of a shorter sentence; a stream does not
ALIGNED = [
    (name, strategy)
    for name in ("transformer", "transformer+transformer", "transformer-align", "lstm", "fconv")
    for strategy in ({}, {"prune_finished": math.inf}, STREAM, STREAM | {"stream_order": "fifo"})
    if name != "lstm" or "schedule" not in strategy
]


@drawn(10)
@pytest.mark.parametrize("backend", ["auto", "fairseq"])
@pytest.mark.parametrize("architecture, strategy", ALIGNED, ids=str)
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_print_alignment_equals_stock(kind, architecture, backend, strategy):
    strategy = {"decoder_backend": backend, **strategy}
    models = [build(name, 1 + i) for i, name in enumerate(architecture.split("+"))]
    pair = generators(models, strategy, beam=3, max_len_b=12, print_alignment=kind)
    sample = batch([3, 1, 7, 5])
    expected, got = run(pair.stock, sample), run(pair.ours, sample)
    same(expected, got, 1e-5)
    for a, b in zip(sum(expected, []), sum(got, []), strict=True):
        assert b["attention"].shape == a["attention"].shape
        if architecture != "transformer-align":  # stock's is of the search, not of the pass
            torch.testing.assert_close(b["attention"], a["attention"].double(), rtol=0, atol=1e-5)
        # pairs of positions, or probabilities as text
        for x, y in zip(a["alignment"], b["alignment"], strict=True):
            assert list(map(float, y)) == pytest.approx(list(map(float, x)), abs=2e-6)


@pytest.mark.parametrize("name", ["transformer", "transformer-align"])
def test_the_alignments_of_a_stream_are_read_in_several_passes(name, monkeypatch):
    sizes = []

    def recorded(self, source, lengths, previous):
        sizes.append(len(source) * max(source.size(1), previous.size(1)))
        return AlignedBeamSearchGenerator.attention_of(self, source, lengths, previous)

    pair = generators([build(name)], STREAM, beam=3, max_len_b=12, print_alignment="hard")
    pair.ours.attention_of = recorded.__get__(pair.ours)
    sample = batch([9, 7, 5, 3, 1, 1])
    whole = run(pair.ours, sample)
    monkeypatch.setattr(generator, "ALIGNED_TOKENS", 50)
    parts = run(pair.ours, sample)
    assert len(sizes) > 2 and max(sizes[1:]) <= 50 < sizes[0]
    for a, b in zip(sum(whole, []), sum(parts, []), strict=True):
        torch.testing.assert_close(b["attention"], a["attention"], rtol=0, atol=1e-5)
        assert b["alignment"] == a["alignment"]


# ---- searches that fairseq's own loop runs


@pytest.mark.parametrize("flags", [{"diversity_rate": 0.5}, {"match_source_len": True}], ids=str)
def test_other_stock_searches_equal_stock_with_the_same_seed(flags):
    pair = generators([build("transformer")], beam=4, max_len_b=12, **flags)
    sample = batch([3, 1, 7, 5])
    same(run(pair.stock, sample, seed=3), run(pair.ours, sample, seed=3), 0.0)


# ---- models whose cross-attention shares keys between the rows of a sentence


@pytest.mark.parametrize("name", ["transformer", "bart"])
def test_a_model_with_sharing_switched_on_equals_one_without(name):
    """BARTModel has set_beam_size: stock leaves the sharing switched on in the model."""
    sample, model = batch(MIXED), build(name)
    stock = generators([build(name)], beam=5, max_len_b=20).stock
    model.decoder.set_beam_size(5)
    pair = generators([model], beam=5, max_len_b=20)
    for ours in (pair.ours, pair.ours, pair.stock):
        same(run(stock, sample), run(ours, sample))


# ---- where ours differs from stock, on purpose


@pytest.mark.parametrize("a, b", [(0.5, 2), (1.0, 0), (2.0, 3)])
def test_max_len_a_counts_each_sentences_own_words(a, b):
    """Stock takes the limit from the padded width of the batch; ours equals stock run
    one sentence at a time."""
    pair = generators([build("transformer", seed=2)], beam=4, max_len_a=a, max_len_b=b)
    sample = batch(MIXED)
    together = run(pair.ours, sample)
    for i in range(len(MIXED)):
        same(run(pair.stock, alone(sample, i)), together[i : i + 1])


def repeated(n):
    """The tokens that would complete an n-gram which a row already holds."""

    def ban(row):
        grams = {tuple(row[i : i + n]) for i in range(len(row) - n + 1)}
        return {gram[-1] for gram in grams if gram[:-1] == tuple(row[len(row) - n + 1 :])}

    return ban


@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_repeat_ngram_equals_brute_force(n):
    model = build("transformer", seed=2)
    ours = generators([model], beam=4, max_len_b=12, no_repeat_ngram_size=n).ours
    sample = batch([3, 1, 7])
    for i, nbest in enumerate(run(ours, sample)):
        same_as_plain(plain_beam_search(model, alone(sample, i), 4, 12, ban=repeated(n)), nbest)


def test_a_prefix_of_eos_alone_is_an_empty_translation():
    """Stock finds one hypothesis only, goes on without live ones, and stops in an assertion."""
    pair = generators([build("transformer")], beam=3, max_len_b=8)
    sample = batch([4, 2])
    with pytest.raises(AssertionError):
        run(pair.stock, sample, **prefix([EOS], [7]))
    empty, other = run(pair.ours, sample, **prefix([EOS], [7]))
    assert [h["tokens"].tolist() for h in empty] == [[EOS]]
    same(run(pair.stock, alone(sample, 1), **prefix([7])), [other])


def test_plain_beam_search_equals_stock():
    """The oracle of the tests above, and of those of strategies, is right."""
    for seed in range(4):
        model = build("transformer", seed)
        stock = generators([model], beam=4, max_len_b=12).stock
        for i in range(3):
            sample = alone(batch([3, 1, 7]), i)
            same_as_plain(plain_beam_search(model, sample, 4, 12), run(stock, sample)[0])


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("setting", [{}, {"schedule": "stream", "stream_width": 2}], ids=str)
def test_a_set_of_all_outputs_changes_nothing(setting, beam):
    """Allowed outputs of any tokens, as an automaton of one state."""
    words = np.array([token for token in range(len(dictionary())) if token not in (PAD, EOS)])
    loop = trimmed(np.zeros_like(words), words, np.zeros_like(words), np.array([True]))
    pair = generators([build("transformer", seed=1)], setting, beam=beam, nbest=beam, max_len_b=20)
    sample = batch(MIXED)
    given = [SentenceConstraints(allowed=loop)] * len(MIXED)
    same(run(pair.stock, sample), run(pair.ours, {**sample, "requests": requests_of(given)}))


class OfAllWords(Select):
    """--select topk as a stranger writes it, from `dense`."""

    def __call__(self, beam, log_probs, pool):
        every = log_probs.dense()
        words = torch.arange(every.size(1)).expand_as(every)
        return Candidates(*best_of_sentences(8, beam, every, words), 4)


SOFTMAXES = {"full": {}} | {
    flags["softmax"]: flags
    for flags in reversed(settings("example").values())
    if "softmax" in flags
}
OF_BEAM = {"select", "stop", "constraint_end", "patience"} | {
    f"prune_{name}" for name in ("children", "finished", "threshold")
}


@drawn(2)
@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_a_neutral_setting_next_to_a_softmax_is_that_softmax_alone(softmax, tmp_path, monkeypatch):
    """Columns of shortlists are no words and inexact scores no scores, for any reader.

    In float32, which --softmax screened reads.
    """
    monkeypatch.setattr(Screened, "is_faster", lambda *_: True)
    models, sample = [build("transformer", 2, torch.float32, 300, 2.0)], batch(MIXED, words=300)

    def generator(flags):
        ours = with_files(SOFTMAXES[softmax] | flags, tmp_path)
        return generators(models, ours, words=300, beam=4, nbest=2, max_len_b=8).ours

    expected = run(generator({}), sample)
    neutral = [
        flags
        for flags in settings("neutral").values()
        if {*flags} & OF_BEAM and not is_search_of_fairseqs(flags)
    ]
    allowed = [flags for flags in neutral if refused(SOFTMAXES[softmax] | flags, {}) is None]
    assert len(allowed) >= len(neutral) - 1  # bonus raises what screened has ruled out
    stranger = generator({})
    stranger.strategies.select = OfAllWords()
    for ours in (stranger, *map(generator, allowed)):
        same(expected, run(ours, sample), 1e-4)
