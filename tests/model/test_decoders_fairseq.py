"""A step of the decoder gives what teacher forcing gives, however rows have been selected,
dropped and repeated before."""

from __future__ import annotations

import models
import pytest
import torch
from model.decoder_rows import EOS, Rows, model_of
from models import (
    ARCHITECTURES,
    TRANSFORMER,
    Recipe,
    alone,
    batch,
    build,
    forced,
    generators,
    run,
    same,
)
from sizes import covering

from fairseq_ext.core.stats import Stats
from fairseq_ext.kernels.library import library
from fairseq_ext.model.choose import make_decoder
from fairseq_ext.model.stock import FairseqBackend
from fairseq_ext.model.transformer.decoder import TransformerBackend
from fairseq_ext.search.constraints import forced_decoding
from fairseq_ext.search.constraints.forced_decoding import ForcedDecoding

# fairseq's attention of these masks in float32, and their scores are large
LOOSE = {"lstm": 1e-4, "fconv": 1e-4}


def tensor(values: list) -> torch.Tensor:
    return torch.tensor(values, device=models.DEVICE)


class Storm(Rows):
    """Selects rows at random for some steps and compares every step with teacher forcing,
    one sentence at a time."""

    backend = FairseqBackend

    def compare(self, tolerance: float) -> None:
        got = self.decoder.log_probs(self.decoder.step(self.tensor(self.all_rows())), 1.0)
        single = [(alone(self.sample, s), rows) for s, rows in self.rows.items()]
        each = [torch.cat([forced(m, *one)[:, -1] for one in single]) for m in self.models]
        expected = torch.stack(each).exp().mean(0).log()
        torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)


@covering(2)
@pytest.mark.parametrize(
    "lengths",
    [[3, 1, 7, 0, 5], [4, 4, 4, 4], [6, 2]],
    ids=["mixed lengths", "equal lengths", "two sentences"],
)
@pytest.mark.parametrize("widths", ["uniform", "ragged", "mixed"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_steps_equal_teacher_forcing_in_a_reordering_storm(architecture, widths, lengths):
    storm = Storm([build(architecture)], lengths, len(lengths))
    storm.start(list(range(len(storm.pool))))
    exact = architecture == "fconv" and lengths == [4, 4, 4, 4]  # nothing to mask
    for step in range(7):
        storm.compare(1e-9 if exact else LOOSE.get(architecture, 1e-9))
        ragged = widths == "ragged" or (widths == "mixed" and storm.random.random() < 0.3)
        storm.select(uniform=not ragged, may_drop=step > 2)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_two_sentences_with_equal_row_counts_are_not_mixed_up(architecture):
    """The trap: 1 + 3 rows become 3 + 1, so that the row count fits and fairseq would leave the
    cross-attention cache as it is."""
    storm = Storm([build(architecture)], [6, 2], 0)
    storm.start([0, 1])
    storm.compare(LOOSE.get(architecture, 1e-9))
    storm.decoder.select(tensor([0, 1, 1, 1]), None, 0, tensor([0, 1, 1, 1]))
    storm.rows = {0: [[EOS, 5]], 1: [[EOS, 6], [EOS, 7], [EOS, 8]]}
    storm.compare(LOOSE.get(architecture, 1e-9))
    storm.decoder.select(tensor([0, 0, 0, 2]), None, 0, tensor([0, 0, 0, 1]))
    storm.rows = {0: [[EOS, 5, t] for t in (9, 10, 11)], 1: [[EOS, 7, 12]]}
    storm.compare(LOOSE.get(architecture, 1e-9))


# ---- A call that reads targets of any lengths finds what blocks of rows find


needs_compiler = pytest.mark.skipif(library() is None, reason="there is no C++ compiler")


@needs_compiler
@pytest.mark.usefixtures("on_the_cpu")
@covering(1)
@pytest.mark.parametrize("h", [12, 16, 64])  # scalar, one vector of AVX-512, several
@pytest.mark.parametrize("left_pad", [True, False])
def test_lines_equal_blocks_of_rows(h, left_pad, monkeypatch):
    """Scores, attention, best tokens and scores of some tokens, of an ensemble, in calls of few
    tokens; targets begin as drafts that were read."""
    monkeypatch.setattr(forced_decoding, "TOKENS", 12)
    width = {f"{side}_embed_dim": 2 * h for side in ("encoder", "decoder")}
    built = [model_of(seed, torch.float32, **width) for seed in (1, 2)]
    dictionary = models.dictionary()
    eos = dictionary.eos()
    sources = [
        row[row != dictionary.pad()].tolist()
        for row in models.batch([3, 7, 5])["net_input"]["src_tokens"]
    ]
    drafts = [(1, [5, 6, 7, 8, eos]), (0, [7, 9, eos]), (1, [8, 9, 10, 11, eos])]
    changed = [(1, [5, 9, 8, eos]), (1, [5, 6, 7, 9, 9, eos]), (0, [7, 8, eos]), drafts[2]]
    tokens = [drafts[0][1], drafts[0][1], drafts[1][1], drafts[2][1]]
    known = [torch.arange(n) * -1.0 for n in (1, 3, 0, 5)]

    def found() -> list[torch.Tensor]:
        scorer = ForcedDecoding(
            make_decoder(built)[0].attending_copy(), True, dictionary, left_pad, Stats()
        )
        encoded = scorer.encode(sources, torch.device("cpu"))
        assert (encoded.lines is None) == is_padded
        fresh = scorer.log_probs(encoded, changed, eos)
        return [
            *fresh,
            *scorer.attention(encoded, drafts, eos),
            *scorer.log_probs(encoded, changed, eos, known, tokens),
            *scorer.next_tokens(encoded, changed, eos, 3),
            *scorer.of_tokens(encoded, drafts, eos, [eos, 6, 9]),
        ]

    is_padded = False
    lines = found()
    is_padded = True
    monkeypatch.setattr(TransformerBackend, "line_reader", lambda self: None)
    for one, other in zip(lines, found(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


# ---- Sources of 1,024 tokens, as BART's models read them, next to short ones


LONG = [1023, 3, 700, 0]  # words


@covering(1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    "flags",
    [
        {"beam": 1},
        {"beam": 5},
        {"beam": 5, "schedule": "stream", "stream_width": 2},
        {"beam": 1, "decoding": "window"},
    ],
    ids=str,
)
def test_sources_of_1024_tokens_equal_stock(flags, dtype, monkeypatch):
    long = {"max_source_positions": 1026, "encoder_learned_pos": True, "layernorm_embedding": True}
    monkeypatch.setitem(ARCHITECTURES, "long", Recipe("transformer", TRANSFORMER | long))
    ours = {name: value for name, value in flags.items() if name != "beam"}
    pair = generators([build("long", dtype=dtype)], ours, beam=flags["beam"], max_len_b=6)
    sample = batch(LONG)
    assert sample["net_input"]["src_tokens"].shape == (4, 1024)
    same(run(pair.stock, sample), run(pair.ours, sample), 1e-9 if dtype == torch.float64 else 1e-4)
