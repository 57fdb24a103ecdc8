"""The Python API translates as fairseq-interactive does."""

import math

import pytest
import torch
from conftest import command

from fairseq_ext import UsageError
from fairseq_ext.plugin.loading.settings import as_arguments
from fairseq_ext.translator import Translator

LINES = ["de1 de2 de3", "", "de4 unheard-of de5 de6", "   ", "de7"]
SETTINGS = {"source_lang": "de", "target_lang": "en", "cpu": True, "max_len_b": 20}


@pytest.fixture(scope="module")
def translator(tiny):
    return Translator(str(tiny / "model.pt"), str(tiny / "data"), beam=4, nbest=2, **SETTINGS)


def test_translations_equal_those_of_the_stock_command(tiny, translator):
    flags = as_arguments({"beam": 4, "nbest": 2, "path": tiny / "model.pt", **SETTINGS})
    done = command("fairseq-interactive", tiny / "data", *flags, stdin="\n".join(LINES) + "\n")
    expected: list[list[tuple]] = [[] for _ in LINES]
    for line in done.stdout.splitlines():
        if line.startswith("H-"):
            number, score, text = line[2:].split("\t")
            # the command prints base 2
            expected[int(number)].append((text, float(score) * math.log(2)))
    got = translator.translate(LINES)
    # nothing to translate: the one difference to the command, which makes something up
    for place in (1, 3):
        assert [h.text for h in got[place]] == [""] and all(text for text, _ in expected[place])
        got[place] = expected[place] = []
    assert [[h.text for h in nbest] for nbest in got] == [
        [text for text, _ in nbest] for nbest in expected
    ]
    for ours, theirs in zip(got, expected, strict=True):
        assert [h.score for h in ours] == pytest.approx([score for _, score in theirs], abs=1e-4)


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


def test_batching_and_order_do_not_matter(translator):
    together = translator.translate(LINES)
    assert [translator.translate([line])[0][0].text for line in LINES] == [
        nbest[0].text for nbest in together
    ]
    assert [nbest[0].text for nbest in translator.translate(LINES[::-1])][::-1] == [
        nbest[0].text for nbest in together
    ]


@pytest.mark.parametrize("order", ["shortest", "fifo"])
def test_a_stream_gives_the_same_in_the_lines_order(tiny, translator, order):
    lines = LINES * 5
    flags = {"schedule": "stream", "stream_width": 3, "stream_order": order}
    streaming = Translator(
        str(tiny / "model.pt"), str(tiny / "data"), beam=4, nbest=2, **flags, **SETTINGS
    )
    for ours, theirs in zip(streaming.translate(lines), translator.translate(lines), strict=True):
        assert [h.text for h in ours] == [h.text for h in theirs]
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-5)
    assert streaming.stats.sentences == len(lines) and streaming.stats.refills > 2


def test_nbest_can_be_chosen_per_call_and_nothing_is_nothing(translator):
    assert [len(nbest) for nbest in translator.translate(LINES[::2], nbest=3)] == [3, 3, 3]
    assert (
        translator.translate([]) == []
        and list(translator.translate_iter([])) == []
        and translator.score([], []) == []
    )


def test_signature_and_stats_are_at_hand(translator):
    before = translator.stats.sentences
    translator.translate(LINES)
    assert translator.stats.sentences == before + len(LINES)
    assert translator.signature.startswith("fairseq_ext:")


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
