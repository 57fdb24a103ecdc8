"""Sources of 1,024 tokens, as BART's models read them, next to short ones."""

import pytest
import torch
from models import ARCHITECTURES, batch, build, generators, run, same
from sizes import covering

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
    monkeypatch.setitem(ARCHITECTURES, "long", ARCHITECTURES["transformer"] | long)
    ours = {name: value for name, value in flags.items() if name != "beam"}
    pair = generators([build("long", dtype=dtype)], ours, beam=flags["beam"], max_len_b=6)
    sample = batch(LONG)
    assert sample["net_input"]["src_tokens"].shape == (4, 1024)
    same(run(pair.stock, sample), run(pair.ours, sample), 1e-9 if dtype == torch.float64 else 1e-4)
