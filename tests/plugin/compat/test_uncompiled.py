"""What stands in for fairseq's compiled modules gives what these give."""

import random

import numpy as np
import pytest
import torch
from fairseq.data import data_utils_fast, token_block_utils_fast
from fairseq.scoring import bleu

from fairseq_ext.plugin.compat import uncompiled


def test_batches_are_those_of_the_compiled_function():
    chance = random.Random(1)
    for _ in range(300):
        sizes = np.array([chance.randint(1, 30) for _ in range(chance.randrange(40))], np.int64)
        if chance.random() < 0.5:
            sizes.sort()
        indices = np.array(chance.sample(range(len(sizes)), len(sizes)), np.int64)
        limits = (
            chance.choice([-1, 30, 31, 64, 200]),
            chance.choice([-1, 1, 2, 5, 8]),
            chance.choice([1, 2, 8]),
        )
        for given, function in (
            (sizes, "batch_by_size_vec"),
            (lambda i, sizes=sizes: sizes[i], "batch_by_size_fn"),
        ):
            expected = getattr(data_utils_fast, function)(indices, given, *limits)
            got = getattr(uncompiled, function)(indices, given, *limits)
            assert [list(batch) for batch in got] == [list(batch) for batch in expected], (
                sizes,
                limits,
            )


def test_a_sentence_longer_than_a_batch_is_refused_in_the_same_words():
    for functions in (data_utils_fast, uncompiled):
        with pytest.raises(
            AssertionError, match="Sentences lengths should not exceed max_tokens=8"
        ):
            functions.batch_by_size_vec(np.arange(2), np.array([3, 9]), 8, -1, 1)


@pytest.mark.parametrize("mode", ["none", "eos"])
def test_blocks_of_a_text_are_those_of_the_compiled_functions(mode):
    chance = random.Random(2)
    for _ in range(100):
        sizes = np.array([chance.randint(1, 12) for _ in range(chance.randint(1, 30))], np.int64)
        expected = token_block_utils_fast._get_slice_indices_fast(
            sizes, mode, chance.choice([1, 7, 50]) if mode == "none" else 0, 1
        )
        size = expected[0, 1] if mode == "none" else 0
        got = uncompiled.slices(sizes, mode, int(size), 1)
        assert got.tolist() == expected.tolist()
        theirs = token_block_utils_fast._get_block_to_dataset_index_fast(sizes, expected)
        assert uncompiled.sentences_of(sizes, got).tolist() == theirs.tolist()


def test_bleu_counts_are_libbleus(monkeypatch):
    chance, PAD, EOS, UNK = random.Random(3), 1, 2, 4
    settings = bleu.BleuConfig(pad=PAD, eos=EOS, unk=UNK)
    stock = bleu.Scorer(settings), bleu.Scorer(settings)
    stock[1].reset(one_init=True)
    pairs = [
        # the compiled function takes no empty text
        [torch.IntTensor([*chance.choices(range(1, 8), k=chance.randint(0, 14)), 5]) for _ in "ab"]
        for _ in range(200)
    ]
    for pair in pairs:
        for scorer in stock:
            scorer.add(*pair)
    for name in ("__init__", "reset", "add"):
        monkeypatch.setattr(bleu.Scorer, name, getattr(bleu.Scorer, name))  # taken back afterwards
    uncompiled.replace_compiled(bleu)
    ours = bleu.Scorer(settings), bleu.Scorer(settings)
    ours[1].reset(one_init=True)
    for pair in pairs:
        for scorer in ours:
            scorer.add(*pair)
    for expected, got in zip(stock, ours, strict=True):
        counts = [
            [getattr(each.stat, name) for name, _ in each.stat._fields_] for each in (expected, got)
        ]
        assert counts[0] == counts[1] and expected.result_string() == got.result_string()
