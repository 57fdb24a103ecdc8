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
        each = ([(9, 10)], [], [(8,), (11, 8)], [(12,)], [])
        required = (required_phrases([(phrase,) for phrase in phrases]) for phrases in each)
        sample["requests"] = requests_of(list(map(SentenceConstraints, required)))
    stock = {"beam": 4, "max_len_b": 10} | generation
    for there in ("cpu", device):
        ours = generators([build("transformer", seed=2).to(there)], flags, **stock).ours
        found.append(run(ours, on_device(sample, there)))
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

    def noted(self, like, *shape):
        shapes.append(shape)
        made(self, like, *shape)

    monkeypatch.setattr(Buffers, "__init__", noted)
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
        more = {"path": tiny / "model.pt", "task": "translation_ext", "buffer_size": 3}
        arguments = as_arguments(more | flags | half)
        out = interactive_forked("\n".join(lines) + "\n", tiny / "data", *arguments).stdout
        reported = re.findall(r"^H-\d+\t(.*)\t(.*)$", out, re.MULTILINE)
        assert [(float(score) * math.log(2), text) for score, text in reported] == [
            (pytest.approx(h.score, abs=1e-4), h.text) for h in best[1]
        ]


def test_sums_of_log_probabilities_beyond_half_precision_stay_finite(pretended):
    """The largest number of float16 is 65,504."""
    model = build("transformer", seed=2, dtype=torch.float16, peak=3e3).to(pretended)
    forced = torch.randint(4, 25, (5, 50), generator=torch.Generator().manual_seed(1))
    ours = generators([model], beam=1, max_len_b=51).ours
    for nbest in run(ours, on_device(batch(LENGTHS), pretended), prefix_tokens=forced):
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


REFUSED = {
    "there + host": "same device|cuda",
    "torch.cat([there, host])": "same device|cuda",
    "host[there]": "same device|cuda",
    "there.gather(0, host)": "same device|cuda",
    "host[0].add_(there[0])": "same device",
    "host.add_(there)": "same device",
    "there.numpy()": "numpy",
    "there.view(2, 3) @ there.view(3, 2)": "not implemented",
}
WAIT = (
    "x[0].item()|x.tolist()|x.cpu()|x[x > 1]|x.nonzero()|x.repeat_interleave(x)|x[[0, 1]]"
    "|torch.tensor([1, 2], device=x.device)|x.copy_(torch.arange(6))|torch.cuda.synchronize()"
).split("|")
NO_WAIT = (
    "torch.where(x > 1, x, 0)|x.masked_fill(x > 1, 0)|x.repeat_interleave(x, output_size=15)|x[x]"
    "|torch.zeros(3, device=x.device)|torch.arange(3).to(x.device, non_blocking=True)"
).split("|")


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_gpu_refuses_is_refused(what, simulated):
    names = dict(torch=torch, there=torch.arange(6, device=simulated), host=torch.arange(6))
    with pytest.raises((RuntimeError, TypeError), match=REFUSED[what]):
        eval(what, names)


def test_a_number_of_the_host_may_stand_anywhere(simulated):
    there = torch.arange(6, device=simulated)
    assert (there + torch.tensor(1)).tolist() == [1, 2, 3, 4, 5, 6]
    assert copy.deepcopy(there).device == simulated


@pytest.mark.parametrize("what", WAIT + NO_WAIT)
def test_waits_are_counted(what, simulated):
    x = torch.arange(6).to(simulated)
    with counting() as counts:
        eval(what, dict(torch=torch, x=x))
    assert counts.waits.total() == (what in WAIT)
