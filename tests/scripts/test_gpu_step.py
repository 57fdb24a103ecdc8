"""The GPU benchmark's parts that do not need one: what it times is what fairseq computes,
and its floor counts bytes."""

import functools
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "bench"))

import gpu_step  # noqa: E402

from fairseq_ext.model.transformer import weights as linear  # noqa: E402
from fairseq_ext.model.transformer.cuda_graph import CudaGraphCache  # noqa: E402

SIZES = dict(embed_dim=16, ffn_embed_dim=24, attention_heads=2)
SMALL = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in SIZES.items()}


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(linear, "library", lambda: None)
    return gpu_step.random_model(50, 2, torch.float32, "cpu", **SMALL)


@pytest.mark.parametrize("beam", [1, 3])
def test_all_contenders_are_timed_and_give_what_fairseq_gives(model, beam):
    made = functools.partial(CudaGraphCache, capture=lambda compute: compute, limit=1 << 30)
    ways = gpu_step.contenders(model, made)
    ms = gpu_step.measure(ways, gpu_step.source_of(4, 5, 50, "cpu"), beam, 50, 6, 2, 1, 1e-4)
    assert set(ms) == {"stock", "eager", "graphs"} and all(value > 0 for value in ms.values())
    ways["graphs"] = lambda inputs, beam: Wrong()
    with pytest.raises(SystemExit, match="graphs gives other log-probabilities"):
        gpu_step.measure(ways, gpu_step.source_of(4, 5, 50, "cpu"), beam, 50, 6, 2, 1, 1e-4)


class Wrong:
    def step(self, tokens, order):
        return torch.zeros(tokens.size(0), 50)


def test_the_floor_counts_what_a_step_reads(model):
    d, f, V, layers = 16, 24, 50, 2
    # query, key, value; output; query and output to the source
    weights_of_a_layer = 3 * d * d + d * d + d * d + d * d + 2 * d * f
    biases = 3 * d + d + d + d + f + d
    norms = 3 * 2 * d
    weights = layers * (weights_of_a_layer + biases + norms) + V * d
    keys_and_values = layers * 2 * d * (7 * 5 + 7 * 3 * 11)  # 7 sentences of 5 tokens; 3 rows of 11
    assert gpu_step.bytes_of_a_step(model, 7, 3, 5, 11) == 4 * (weights + keys_and_values)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_sentence():
    with pytest.raises(SystemExit, match="there is no GPU here"):
        gpu_step.main([])
