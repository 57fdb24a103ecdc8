"""A call that reads targets of any lengths finds what blocks of rows find."""

from __future__ import annotations

import models
import pytest
import torch
from model.decoder_rows import model_of
from sizes import covering

from fairseq_ext.core.stats import Stats
from fairseq_ext.kernels.library import library
from fairseq_ext.model.choose import make_decoder
from fairseq_ext.model.transformer.decoder import TransformerBackend
from fairseq_ext.search.constraints import forced_decoding
from fairseq_ext.search.constraints.forced_decoding import ForcedDecoding

pytestmark = [
    pytest.mark.usefixtures("on_the_cpu"),
    pytest.mark.skipif(library() is None, reason="there is no C++ compiler"),
]


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
