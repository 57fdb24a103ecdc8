"""Every strategy gives on a GPU, here a pretended one (pretended_device.py), what it gives on the
CPU; what a step requests is counted."""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path

import pytest
import torch
from forked import interactive_forked
from models import (
    batch,
    build,
    generators,
    on_device,
    requests_of,
    run,
    same,
    separated,
    with_files,
)
from pretended_device import RECORDING, counting
from required_phrases import required_phrases
from search.counted_steps import WAYS, counted, use_kernels
from sizes import drawn
from test_random_flags import NAMED

from fairseq_ext.core.errors import NotANumber
from fairseq_ext.model.transformer import cuda_graph
from fairseq_ext.model.transformer.cuda_graph import Buffers, CudaGraph
from fairseq_ext.plugin.loading.settings import as_arguments
from fairseq_ext.search.phrases.sentence import SentenceConstraints
from fairseq_ext.search.registry import STRATEGIES
from fairseq_ext.translator import Translator

LENGTHS = [7, 5, 3, 1, 0]
pytestmark = pytest.mark.usefixtures("on_the_cpu")  # what goes to the device is sent there


def on_both(flags: dict, device: torch.device, **generation) -> list:
    """n-best lists of the CPU and of the device."""
    sample, found = batch(LENGTHS), []
    if STRATEGIES["select"][flags.get("select", "topk")].constrained:
        sample["requests"] = requests_of(
            [
                SentenceConstraints(required_phrases([(phrase,) for phrase in phrases]))
                for phrases in ([(9, 10)], [], [(8,), (11, 8)], [(12,)], [])
            ]
        )
    for there in ("cpu", device):
        generator = generators(
            [build("transformer", seed=2).to(there)],
            flags,
            **{"beam": 4, "max_len_b": 10} | generation,
        ).ours
        found.append(run(generator, on_device(sample, there)))
    return found


@drawn(2)
@pytest.mark.parametrize("name", NAMED)
def test_a_strategy_gives_on_the_device_what_it_gives_on_the_cpu(name, pretended, tmp_path):
    flags, needed = separated(with_files(NAMED[name], tmp_path))
    same(*on_both(flags, pretended, **needed))


def test_lsh_by_its_cuda_kernels_gives_what_the_cpu_gives(simulated, monkeypatch, tmp_path):
    launched = use_kernels(tmp_path, monkeypatch)
    with counting() as counts:
        same(*on_both(WAYS["LSH"], simulated, max_len_b=4))
    waits = {place.split(":")[0] for place in counts.waits}
    assert "_local_scalar_dense in kernels/lsh_cuda.py" in waits  # the shortlist's length
    assert "a mask as an index in kernels/lsh_cuda.py" not in waits
    assert {"wta_hash", "lookup", "count_hits", "compact_count", "compact_write"} <= set(launched)


# ---- CUDA graphs


def test_steps_are_recorded_while_the_kv_cache_grows(simulated, monkeypatch, caplog):
    monkeypatch.setattr(cuda_graph, "FIRST_POSITIONS", 1)
    monkeypatch.setattr(cuda_graph, "PATIENCE", 0)
    shapes, made = [], Buffers.__init__
    monkeypatch.setattr(
        Buffers,
        "__init__",
        lambda self, like, *shape: (shapes.append(shape), made(self, like, *shape))[1],
    )
    with counting() as counts:
        same(*on_both({}, simulated, max_len_b=40, min_len=40))
    assert counts.launches["graph"] >= 30 and "operation by operation" not in caplog.text
    assert len({positions for _, positions, _ in shapes}) > 1  # it has grown


def test_recording_refuses_to_wait(simulated):
    x = torch.arange(6).to(simulated)
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        CudaGraph(lambda: [x.clone().nonzero()], torch.cuda.graph_pool_handle())
    assert not RECORDING
    CudaGraph(lambda: [x.clone() + 1], torch.cuda.graph_pool_handle())


# ---- half precision


@drawn(1)
@pytest.mark.parametrize(("half", "tolerance"), [({"fp16": True}, 5e-3), ({"bf16": True}, 5e-2)])
def test_lines_in_half_precision_score_as_in_float32(half, tolerance, pretended, tiny):
    flags = {"source_lang": "de", "target_lang": "en", "beam": 4, "max_len_b": 20}
    lines, best = ["de1 de2 de3", "de4 de5", "de6 de7 de8 de9 de1"], []
    for each in ({}, half):
        translator = Translator(str(tiny / "model.pt"), str(tiny / "data"), **flags, **each)
        weight = translator.models[0].decoder.output_projection.weight
        assert weight.is_cuda and (weight.dtype == torch.float32) != bool(each)
        best.append([nbest[0] for nbest in translator.translate(lines)])
    assert [h.score for h in best[0]] != [h.score for h in best[1]]
    assert [h.score for h in best[1]] == pytest.approx([h.score for h in best[0]], abs=tolerance)
    if "fp16" in half:  # fairseq's commands take no notice of --bf16
        arguments = as_arguments(
            {"path": tiny / "model.pt", "task": "translation_ext", "buffer_size": 3} | flags | half
        )
        out = interactive_forked("\n".join(lines) + "\n", tiny / "data", *arguments).stdout
        reported = [line.split("\t")[1:] for line in out.splitlines() if line.startswith("H-")]
        assert [text for _, text in reported] == [h.text for h in best[1]]
        assert [float(score) * math.log(2) for score, _ in reported] == pytest.approx(
            [h.score for h in best[1]], abs=1e-4
        )


def test_sums_of_log_probabilities_beyond_half_precision_stay_finite(pretended):
    """The largest number of float16 is 65,504."""
    model = build("transformer", seed=2, dtype=torch.float16, peak=3e3).to(pretended)
    forced = torch.randint(
        4, 25, (len(LENGTHS), 50), generator=torch.Generator().manual_seed(1)
    ).to(pretended)
    for nbest in run(
        generators([model], beam=1, max_len_b=51).ours,
        on_device(batch(LENGTHS), pretended),
        prefix_tokens=forced,
    ):
        assert -torch.inf < float(nbest[0]["positional_scores"].sum()) < -65504


def test_logits_beyond_half_precision_are_reported(pretended):
    model = build("transformer", seed=2, dtype=torch.float16)
    model.decoder.output_projection.weight.data[4:20] = 6e4 * torch.eye(16)
    model = model.to(pretended)
    with pytest.raises(NotANumber, match="gives NaN"):
        run(generators([model], beam=4, max_len_b=10).ours, on_device(batch(LENGTHS), pretended))


# ---- what a step requests

MOST_WAITS = {"LSH": 3, "LSH, CUDA kernels": 2}  # else 1
PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"


@drawn(1)
@pytest.mark.parametrize("way", WAYS)
def test_a_step_waits_no_more_than_it_must_and_requests_what_the_page_says(
    way, simulated, monkeypatch, tmp_path
):
    if way == "LSH, CUDA kernels":
        use_kernels(tmp_path, monkeypatch)
    step, most = counted(WAYS[way], simulated), MOST_WAITS.get(way, 1)
    waits, launches = re.search(rf"\| {way} \| ([\d.]+) \| (\d+) \|", PAGE.read_text()).groups()
    assert 0 < step.waits.total() < most + 0.5 and float(waits) < most + 0.5, step.waits
    # over a shorter span than the page's, in which a window meets fewer words of its draft
    apart = step.launches.total() / int(launches)
    assert way == "window" or 0.95 < apart < 1.05, step.launches
    if way == "plain":
        assert step.launches["graph"] == 1


# ---- the pretended device itself


def test_what_a_gpu_refuses_is_refused(simulated):
    there, host = torch.arange(6, device=simulated), torch.arange(6)
    for wrong in (
        lambda: there + host,
        lambda: torch.cat([there, host]),
        lambda: host[there],
        lambda: there.gather(0, host),
    ):
        with pytest.raises(RuntimeError, match="same device|cuda"):
            wrong()
    for wrong in (lambda: host[0].add_(there[0]), lambda: host.add_(there)):
        with pytest.raises(RuntimeError, match="same device"):
            wrong()
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    with pytest.raises(RuntimeError, match="not implemented"):
        there.view(2, 3) @ there.view(3, 2)
    # a number of the host may stand anywhere
    assert (there + torch.tensor(1)).tolist() == [1, 2, 3, 4, 5, 6]
    assert copy.deepcopy(there).device == simulated


WAIT = {
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "mask": lambda x: x[x > 1],
    "nonzero": lambda x: x.nonzero(),
    "repeat": lambda x: x.repeat_interleave(x),
    "upload": lambda x: torch.tensor([1, 2], device=x.device),
    "list": lambda x: x[[0, 1]],
    "into": lambda x: x.copy_(torch.arange(6)),
    "synchronize": lambda x: torch.cuda.synchronize(),
}
NO_WAIT = {
    "where": lambda x: torch.where(x > 1, x, 0),
    "fill": lambda x: x.masked_fill(x > 1, 0),
    "sized": lambda x: x.repeat_interleave(x, output_size=15),
    "place": lambda x: x[x],
    "zeros": lambda x: torch.zeros(3, device=x.device),
    "staged": lambda x: torch.arange(3).to(x.device, non_blocking=True),
}


@pytest.mark.parametrize("name", [*WAIT, *NO_WAIT])
def test_waits_are_counted(name, simulated):
    x = torch.arange(6).to(simulated)
    with counting() as counts:
        (WAIT | NO_WAIT)[name](x)
    assert counts.waits.total() == (name in WAIT)
