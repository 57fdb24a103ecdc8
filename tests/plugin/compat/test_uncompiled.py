"""What stands in for fairseq's compiled modules gives what these give."""

import ctypes
import random

import numpy as np
import pytest
from fairseq import libbleu
from fairseq.data import data_utils_fast, token_block_utils_fast
from fairseq.scoring.bleu import BleuStat

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


def test_bleu_counts_are_libbleus():
    library, chance, PAD, EOS = ctypes.cdll.LoadLibrary(libbleu.__file__), random.Random(3), 1, 2
    for init in ("bleu_zero_init", "bleu_one_init"):
        both = BleuStat(), BleuStat()
        for stat, functions in zip(both, (library, uncompiled.Counts), strict=True):
            getattr(functions, init)(ctypes.byref(stat))
        for _ in range(200):
            texts = [
                [chance.choice([PAD, EOS, 4, 5, 6, 7]) for _ in range(chance.randint(1, 15))]
                for _ in range(2)
            ]
            for text in texts:
                text[chance.randrange(len(text))] = 4  # the compiled function takes no empty text
            arrays = [(ctypes.c_int * len(text))(*text) for text in texts]
            given = [
                each
                for array in arrays
                for each in (ctypes.c_size_t(len(array)), ctypes.c_void_p(ctypes.addressof(array)))
            ]
            for stat, functions in zip(both, (library, uncompiled.Counts), strict=True):
                functions.bleu_add(ctypes.byref(stat), *given, ctypes.c_int(PAD), ctypes.c_int(EOS))
            assert [getattr(both[0], name) for name, _ in BleuStat._fields_] == [
                getattr(both[1], name) for name, _ in BleuStat._fields_
            ]
