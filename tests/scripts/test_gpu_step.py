"""The GPU benchmarks' parts that do not need one: what is timed is what fairseq computes, its
floor counts bytes, and the results file has every part that ran."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "bench"))

import gpu  # noqa: E402
import gpu_step  # noqa: E402

from fairseq_ext.model.transformer import weights as linear  # noqa: E402


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(linear, "library", lambda: None)
    return gpu_step.random_model(50, 2, torch.float32, "cpu", **gpu_step.SMALL)


@pytest.mark.parametrize("beam", [1, 3])
def test_all_contenders_are_timed_and_give_what_fairseq_gives(model, beam):
    ways = gpu_step.contenders(model, gpu_step.no_graphs())
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
@pytest.mark.parametrize("script", [gpu, gpu_step])
def test_without_a_gpu_it_says_so_in_one_sentence(script):
    with pytest.raises(SystemExit, match="there is no GPU here"):
        script.main([])


def test_the_results_file_has_the_parts_of_several_runs(tmp_path):
    out = tmp_path / "gpu"
    with pytest.raises(SystemExit, match="not finished, or failed: lsh"):
        # no time is left for it
        gpu.main(["--device=cpu", "--quick", f"--out={out}", "--parts", "lsh", "--minutes=0"])
    with pytest.raises(SystemExit) as ended:
        gpu.main(["--device=cpu", "--quick", f"--out={out}", "--parts", "step"])
    page = (tmp_path / "gpu.md").read_text()
    assert ended.value.code == 0 and "No GPU: a try on a CPU" in page
    assert "minutes, cut short" in page and "| float32 | 2x5 |" in page


def test_outcomes_are_counted_from_what_pytest_prints():
    text = """
tests/kernels/test_a.py::test_one PASSED                          [ 20%]
tests/kernels/test_a.py::test_two[x y] SKIPPED (no reason)        [ 30%]
[gw1] [ 40%] FAILED tests/model/test_b.py::test_three[FAILED]
tests/model/test_b.py::test_four
[gw0] [ 50%] PASSED tests/model/test_b.py::test_four
FAILED tests/model/test_b.py::test_three[FAILED] - assert 0
"""
    rows = gpu.tested(text).splitlines()[2:]
    assert rows[:2] == ["| `tests/kernels` | 1 | 0 | 1 |", "| `tests/model` | 1 | 1 | 0 |"]
    assert rows[2:] == ["", "- failed: `tests/model/test_b.py::test_three[FAILED]`"]
