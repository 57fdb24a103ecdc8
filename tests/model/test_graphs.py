"""Recorded decoder steps give the features of fairseq's teacher forcing, whatever happens to
their rows: here what recording alone can get wrong, which steps are recorded and which are not,
and how recording starts and fails. test_decoders_transformer.py has the storms, blocks and groups,
recorded too; test_pretended_device.py has searches.

On a CPU `Recorded` stands for a CUDA graph: operations are taken down once and repeated at the same
addresses, so that every number of the host's that slips into a recording is noticed. With a GPU the
same tests record CUDA graphs (--device cuda).
"""

from __future__ import annotations

import functools
import logging

import pytest
import torch
from model.decoder_rows import (
    EOS,
    Frozen,
    Graphed,
    Recorded,
    Rows,
    fails,
    model_of,
    plain_linears,  # noqa: F401  the fixture is for every test
)
from models import build, generators

from fairseq_ext.model import choose
from fairseq_ext.model.choose import backend_difference, make_decoder
from fairseq_ext.model.transformer import cuda_graph as graphs
from fairseq_ext.model.transformer.cuda_graph import Buffers, CudaGraphCache, bucket
from fairseq_ext.model.transformer.decoder import TransformerBackend


def test_sentences_that_leave_stay_in_the_buffers_until_half_have_left(device):
    rows = Graphed([model_of(device=device)], [3, 1, 7, 5])
    rows.start([0, 1, 2, 3])
    for kept in ([0, 1, 2, 3], [0, 2, 3], [2, 3], [3]):
        live = list(rows.rows)
        at = torch.tensor([live.index(s) for s in kept], device=device)
        gone = len(live) - len(kept)
        place = torch.arange(len(kept), device=device)
        rows.step()
        rows.decoder.select(at, at if gone else None, 1, place)
        rows.rows = {s: [[*rows.rows[s][0], rows.token()]] for s in kept}
        rows.step()
        assert rows.graphs.buffers[-1].shape[0] == {4: 4, 3: 4, 2: 4, 1: 1}[len(kept)]
        rows.rows = {s: [[*rows.rows[s][0], rows.token()]] for s in kept}


# ---- groups of rows


def test_a_copied_part_and_the_rows_it_was_taken_from_both_go_on(device):
    rows = Graphed([model_of(device=device)], [3, 5, 2])
    rows.start([0, 1, 2])
    rows.step()
    rows.select(uniform=True, may_drop=False, width=2)
    rows.step()
    row, sentence = torch.tensor([4, 5], device=device), torch.tensor([2], device=device)
    part = rows.decoder.part(row, sentence, 2, torch.zeros(2, dtype=torch.long, device=device))
    whole = rows.rows
    rows.select(uniform=True, may_drop=False, width=2)
    rows.step()
    rows.decoder.resume(part)
    rows.rows = {2: [[*row, rows.token()] for row in whole[2]]}
    rows.step()


def test_what_an_earlier_group_left_in_the_buffers_harms_no_one(device):
    rows = Graphed([model_of(device=device)], [3, 5, 2])
    rows.start([0, 1, 2])
    rows.step()
    buffers = rows.graphs.buffers[0]
    for model in buffers.models:
        for tensor in (model.target, model.source):
            tensor.fill_(torch.nan)
    rows.start([1, 2])  # takes other buffers
    rows.start([0, 1, 2])
    rows.step()
    assert rows.graphs.buffers == [buffers]


def test_groups_are_moved_into_buffers_once(device, monkeypatch):
    moved = []
    take = Buffers.move_in_
    monkeypatch.setattr(
        Buffers,
        "move_in_",
        lambda self, cache, positions: (moved.append(self), take(self, cache, positions)),
    )
    rows = Graphed([model_of(device=device)], [3, 5])
    groups = []
    for _ in range(2):
        rows.start([0, 1])
        rows.step()
        groups.append(rows.decoder.set_aside())
    for i in (0, 1, 1, 0, 1):
        rows.decoder.resume(groups[i])
        rows.decoder.step(torch.full((2, 1), 7, device=device))
    assert len(moved) == len(rows.graphs.buffers) == 2
    del groups[1], rows.decoder.group  # now the buffers used last are free
    rows.decoder.resume(groups[0])
    rows.decoder.step(torch.full((2, 1), 7, device=device))
    assert len(moved) == 2


def test_features_of_a_step_outlive_the_next(device):
    rows = Graphed([model_of(device=device)], [3, 5])
    rows.start([0, 1])
    first = rows.decoder.step(torch.full((2, 1), EOS, device=device))[0]
    kept = first.clone()
    rows.decoder.step(torch.full((2, 1), 7, device=device))
    assert torch.equal(first, kept)


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
    kept = rows.graphs.buffers[0].models[0]
    assert size == kept.target.nbytes + kept.source.nbytes
    rows = Graphed([model], [3, 5, 2, 6], limit=size)
    for sentences in ([0, 1, 2, 3], [0, 2, 3], [0, 1], [0, 1, 2, 3]):
        rows.decoder.group = None
        rows.start(sentences)
        rows.step()
        assert len(rows.graphs.buffers) == len(rows.graphs.steps) == 1
        assert not rows.graphs.logged_reasons
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
    kept = rows.tensor([1, 3, 4])
    rows.decoder.select(kept, kept, 1, torch.arange(3, device=device))
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


@pytest.mark.parametrize("kind", [Graphed, Rows])
def test_a_model_trained_further_is_read_and_recorded_again(device, kind):
    rows = kind([model_of(device=device)], [3, 1])
    rows.start([0, 1])
    rows.step()
    rows.train_further()
    rows.start([0, 1])
    rows.step()


# ---- start-up


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


def test_steps_are_recorded_unless_the_flag_says_off(as_on_a_gpu):
    models = [build("transformer")]
    assert generators(models).ours.decoder.graphs is not None
    assert generators(models, {"cuda_graphs": "off"}).ours.decoder.graphs is None


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
