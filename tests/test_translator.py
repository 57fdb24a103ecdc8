"""Translations from Python: their tokens, alignments and errors. Those of the stock command are
rows of tests/contract."""

import pytest
import torch

from fairseq_ext import UsageError
from fairseq_ext.plugin.loading.settings import as_arguments
from fairseq_ext.translator import Translator

LINES = ["de1 de2 de3", "", "de4 unheard-of de5 de6", "   ", "de7"]
SETTINGS = {"source_lang": "de", "target_lang": "en", "cpu": True, "max_len_b": 20}


@pytest.fixture(scope="module")
def translator(tiny):
    return Translator(str(tiny / "model.pt"), str(tiny / "data"), beam=4, nbest=2, **SETTINGS)


@pytest.mark.parametrize(
    "line",
    [
        "de1 de2",
        "  de1\tde2 \u2003 de9\x1cunheard-of\u00a0de3 ",
        "<pad> </s> <unk> <s> de1",
        "de4\u200bde5",
    ],
)
def test_tokens_are_those_of_fairseqs_dictionary_and_so_is_their_text(translator, line):
    dictionary, text = translator.task.source_dictionary, translator.generator.target_text
    tokens = translator.tokens(line, dictionary, translator.bpe)
    assert (
        tokens.tolist() == dictionary.encode_line(line, add_if_not_exist=False).tolist()
        and tokens.dtype == torch.long
    )
    for numbers in (tokens, [*range(8), 10**6], []):
        expected = text.segmenter().dictionary.string(
            numbers, extra_symbols_to_ignore=text.left_out
        )
        assert text.pieces(numbers) == expected


def test_a_hypothesis_explains_itself(translator):
    (best, *_), *_ = translator.translate(LINES)
    assert best.tokens == best.text.split()
    assert len(best.positional_scores) == len(best.tokens) + 1  # EOS
    assert best.score == pytest.approx(
        sum(best.positional_scores) / len(best.positional_scores), abs=1e-5
    )
    assert best.alignment is None


def test_nbest_can_be_chosen_per_call_and_nothing_is_nothing(translator):
    assert [len(nbest) for nbest in translator.translate(LINES[::2], nbest=3)] == [3, 3, 3]
    assert (
        translator.translate([]) == []
        and list(translator.translate_iter([])) == []
        and translator.score([], []) == []
    )


def test_hard_alignments_are_pairs(tiny):
    aligned = Translator(
        str(tiny / "model.pt"), str(tiny / "data"), beam=2, print_alignment="hard", **SETTINGS
    )
    best = aligned.translate(["de1 de2 de3"])[0][0]
    assert len(best.alignment) <= len(best.tokens)
    assert all(
        0 <= source < 3 and 0 <= target < len(best.tokens) for source, target in best.alignment
    )


def test_a_line_that_is_too_long_is_named(translator):
    with pytest.raises(UsageError, match="line 2 has 51 tokens and the model takes 40"):
        translator.translate(["de1", "de2 " * 50])


def test_a_wrong_checkpoint_is_an_error_not_an_exit(tiny, tmp_path):
    (tmp_path / "text.pt").write_text("this is no checkpoint\n")
    with pytest.raises(OSError, match="is not a checkpoint"):
        Translator(str(tmp_path / "text.pt"), str(tiny / "data"), **SETTINGS)


@pytest.mark.parametrize(
    "flags, arguments",
    [
        ({"beam": 5, "lenpen": 0.6}, ["--beam", "5", "--lenpen", "0.6"]),
        ({"unnormalized": True, "sampling": False, "lm_path": None}, ["--unnormalized"]),
        ({"user_paths": ["a", "b"], "seed": 0}, ["--user-paths", "a", "b", "--seed", "0"]),
    ],
)
def test_keywords_are_the_commands_flags(flags, arguments):
    assert as_arguments(flags) == arguments
