"""Which steps are recorded and which are not, what the search sees of it, and how
recording starts and fails."""

from __future__ import annotations

import functools
import logging

import pytest
import torch
from model.decoder_rows import EOS, model_of
from model.recorded_rows import (
    Frozen,
    Graphed,
    NoWaiting,
    Recorded,
    fails,
    plain_linears,  # noqa: F401  the fixture is for every test
    recording,
)
from models import batch, build, generators, run, same

from fairseq_ext.model import choose
from fairseq_ext.model.choose import backend_difference, make_decoder
from fairseq_ext.model.transformer import cuda_graph as graphs
from fairseq_ext.model.transformer.cuda_graph import CudaGraphCache, bucket
from fairseq_ext.model.transformer.decoder import TransformerBackend

# ---- bounds, and what has no graph


def test_sizes_are_rounded_up_by_less_than_half():
    assert [bucket(n) for n in range(1, 14)] == [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16]
    assert all(n <= bucket(n) < 1.5 * n and bucket(bucket(n)) == bucket(n) for n in range(1, 5000))
    assert bucket(5, 16) == 16


def test_what_was_used_longest_ago_is_dropped(device):
    rows = Graphed([model_of(device=device)], [3, 5], max_steps=2)
    rows.start([0, 1])
    kept = []
    for width in (2, 1, 3, 2):
        rows.step()
        rows.select(uniform=True, may_drop=False, width=width)
        kept.append([key[1] for key in rows.graphs.steps])  # in the order of their use
    assert kept == [[1], [1, 2], [2, 1], [1, 3]]


def test_buffers_stay_within_their_bound(device):
    model = model_of(device=device)
    rows = Graphed([model], [3, 5, 2, 6])
    rows.start([0, 1, 2, 3])
    rows.step()
    size = rows.graphs.buffers[0].bytes
    assert size == sum(
        tensor.nbytes
        for tensor in (
            rows.graphs.buffers[0].models[0].target,
            rows.graphs.buffers[0].models[0].source,
        )
    )
    rows = Graphed([model], [3, 5, 2, 6], limit=size)
    for sentences in ([0, 1, 2, 3], [0, 2, 3], [0, 1], [0, 1, 2, 3]):
        rows.decoder.group = None
        rows.start(sentences)
        rows.step()
        assert (
            len(rows.graphs.buffers) == 1
            and len(rows.graphs.steps) == 1
            and not rows.graphs.logged_reasons
        )
    # buffers that another group is in are not free
    group, tokens = rows.decoder.set_aside(), rows.rows
    rows.start([0, 1])
    rows.step()
    assert len(rows.graphs.logged_reasons) == 1
    rows.decoder.resume(group)
    rows.rows = tokens
    rows.select(uniform=True, may_drop=False)


def test_what_has_no_graph_runs_eagerly_and_the_log_says_why_once(device, caplog):
    caplog.set_level(logging.INFO, "fairseq_ext")
    rows = Graphed([model_of(device=device)], [3, 5, 2, 6], limit=1000)
    rows.start([0, 1, 2, 3])
    for step in range(5):
        rows.step()
        rows.select(uniform=True, may_drop=step > 1)
    assert not rows.graphs.buffers
    assert caplog.text.count("operation by operation") == 1


def test_a_step_too_wide_for_a_graph_runs_eagerly_between_recorded_ones(device):
    rows = Graphed([model_of(device=device)], [3, 5, 2, 6, 1])
    rows.start([0, 1, 2, 3, 4])
    rows.step()
    rows.decoder.select(
        torch.tensor([1, 3, 4], device=device),
        torch.tensor([1, 3, 4], device=device),
        1,
        torch.arange(3, device=device),
    )
    assert rows.decoder.group.cache.slot is not None
    wide = graphs.MAX_TOKENS_PER_ROW + 1
    rows.rows = {s: [[*rows.rows[s][0], *[rows.token() for _ in range(wide)]]] for s in (1, 3, 4)}
    rows.step(new=wide)
    assert len(rows.graphs.logged_reasons) == 1
    for _ in range(3):
        rows.rows = {s: [[*each[0], rows.token()]] for s, each in rows.rows.items()}
        rows.step()


def test_a_recording_that_fails_is_reported_and_steps_go_on(device, caplog):
    rows = Graphed([model_of(device=device)], [3, 5, 2], capture=fails, patience=1)
    rows.start([0, 1, 2])
    for step in range(6):
        rows.step()
        rows.select(uniform=True, may_drop=step > 2)
    assert rows.graphs.broken and caplog.text.count("no such thing") == 1


def test_a_step_waits_for_the_device_nowhere(device):
    rows = Graphed([model_of(device=device)], [3, 5, 2])
    rows.start([0, 1, 2])
    rows.step()
    rows.select(uniform=True, may_drop=False, width=3)
    for _ in range(3):
        tokens = torch.tensor([r for each in rows.rows.values() for r in each], device=device)
        row, owner = (
            torch.arange(9, device=device).flip(0),
            torch.arange(3, device=device).repeat_interleave(3),
        )
        with NoWaiting():
            rows.decoder.step(tokens)
            rows.decoder.select(row, None, 3, owner)
    with NoWaiting(), pytest.raises(AssertionError, match="waits for the device"):
        tokens.max().item()


def test_attention_is_read_from_eager_steps():
    assert (
        TransformerBackend(
            [model_of()], need_attention=True, make_graphs=recording(torch.device("cpu"))
        ).graphs
        is None
    )


# ---- what the search sees


@pytest.mark.parametrize(
    "strategy", [{}, {"schedule": "stream", "stream_width": 7}, {"prune_threshold": 3.0}]
)
def test_beam_search_over_it_equals_the_eager_one_and_fairseqs(strategy, device):
    models = [build("transformer-pre-norm", 2).to(device)]
    pair = generators(models, strategy=strategy, beam=5, max_len_b=12)
    sample = batch([6, 3, 0, 9, 4, 2])
    sample["net_input"] = {name: value.to(device) for name, value in sample["net_input"].items()}
    expected = run(pair.ours, sample) if strategy else run(pair.stock, sample)
    pair.ours.setup.decoder = TransformerBackend(models, make_graphs=recording(device))
    same(expected, run(pair.ours, sample))
    assert pair.ours.decoder.graphs.steps


@pytest.mark.parametrize("method", ["jacobi", "window"])
def test_parallel_decoding_over_it_equals_fairseqs_greedy_decoding(method, device):
    models = [build("transformer", 2).to(device)]
    flags = {"decoding": method, "draft": "repeat"} | (
        {"draft_cost": 0.0, "block_size": 4} if method == "window" else {}
    )
    pair = generators(models, flags, beam=1, max_len_b=12)
    sample = batch([6, 3, 0, 9])
    sample["net_input"] = {name: value.to(device) for name, value in sample["net_input"].items()}
    pair.ours.driver.reader.decoder = TransformerBackend(models, make_graphs=recording(device))
    same(run(pair.stock, sample), run(pair.ours, sample))
    assert any(b > 1 for _, _, b in pair.ours.driver.reader.decoder.graphs.steps)


def test_a_model_trained_further_is_read_and_recorded_again(device):
    rows = Graphed([model_of(device=device)], [3, 1])
    rows.start([0, 1])
    rows.step()
    rows.train_further()
    rows.start([0, 1])
    rows.step()


# ---- start-up


def test_there_are_no_graphs_on_a_cpu():
    decoder, _ = make_decoder([model_of()])
    assert isinstance(decoder, TransformerBackend) and decoder.graphs is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_self_check_runs_recorded_steps(dtype):
    model = model_of(dtype=dtype)
    weights = TransformerBackend([model]).weights[0]
    good, bad = (
        CudaGraphCache([weights], capture, 1 << 30, patience=0) for capture in (Recorded, Frozen)
    )
    assert backend_difference(model, weights, graphs=good) is None
    assert "differ from fairseq's" in backend_difference(model, weights, graphs=bad)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """make_decoder behaves as on a GPU whose graphs are what is put into this dictionary."""
    settings = {"capture": Recorded, "limit": 1 << 30}
    monkeypatch.setattr(choose, "are_on_current_gpu", lambda weights: True)
    monkeypatch.setattr(
        choose, "cuda_graphs", lambda: functools.partial(CudaGraphCache, **settings)
    )
    return settings


def test_steps_are_recorded_unless_the_flag_says_off_or_attention_is_requested(as_on_a_gpu):
    models = [build("transformer")]
    assert generators(models).ours.decoder.graphs is not None
    assert generators(models, {"cuda_graphs": "off"}).ours.decoder.graphs is None
    assert generators(models, print_alignment="hard").ours.decoder.graphs is None


@pytest.mark.parametrize(
    ("capture", "reason"), [(Frozen, "differ from fairseq's"), (fails, "no such thing")]
)
def test_graphs_that_fail_at_start_up_are_left_out_with_a_warning(
    capture, reason, as_on_a_gpu, caplog
):
    as_on_a_gpu["capture"] = capture
    decoder, why = make_decoder([model_of(), model_of(2)])
    assert isinstance(decoder, TransformerBackend) and decoder.graphs is None and why is None
    assert reason in caplog.text and "operation by operation" in caplog.text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_on_a_gpu_steps_are_recorded_and_agree_with_fairseq(dtype):
    model = model_of(dtype=dtype, device="cuda")
    decoder, why = make_decoder([model])
    assert why is None and decoder.graphs is not None
    assert make_decoder([model], graphs="off")[0].graphs is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_recorded_step_is_one_launch_and_a_few_copies():
    rows = Graphed([model_of(device="cuda", dtype=torch.float32, decoder_layers=6)], [3, 5])
    rows.start([0, 1])
    tokens = torch.full((2, 1), EOS, device="cuda")
    rows.decoder.step(tokens)
    with torch.profiler.profile() as profile:
        rows.decoder.step(tokens)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts.get("cudaGraphLaunch") == 1
    assert sum(count for key, count in counts.items() if key.startswith("cudaLaunchKernel")) <= 20
