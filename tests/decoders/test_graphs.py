"""Recorded decoder steps give the features of fairseq's teacher forcing, whatever happens to their rows.

On a CPU `Recorded` stands for a CUDA graph: operations are taken down once and repeated at the same addresses, so that every number
of the host's that slips into a recording is noticed. With a GPU the same tests record CUDA graphs (--device cuda)."""

from __future__ import annotations

import functools
import logging

import pytest
import torch
from decoders.decoder_rows import EOS, MODELS, TOLERANCE, Rows, model_of
from models import batch, build, generators, run, same
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairseq_ext.decoders import factory, linear
from fairseq_ext.decoders.factory import make_decoder
from fairseq_ext.decoders.self_check import disagreement
from fairseq_ext.decoders.transformer import cuda_graph_cache as graphs
from fairseq_ext.decoders.transformer.cuda_graph_cache import CudaGraphCache, bucket, cuda_graphs
from fairseq_ext.decoders.transformer.cuda_graph_step import Buffers
from fairseq_ext.decoders.transformer.decoder import TransformerBackend

WAITS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "item", "masked_select", "unique", "_unique2", "repeat_interleave")


class NoWaiting(TorchDispatchMode):
    """Refuses what would make the host wait for a GPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        assert name not in WAITS, f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


class Recorded(NoWaiting):
    """What a CUDA graph does, on a CPU: the same operations again, with the numbers and at the addresses of the first time."""

    def __init__(self, compute):
        super().__init__()
        self.calls = []
        self.replays = 0
        compute()
        with self:
            self.out = compute()
        for func, _, _, out in self.calls:  # recording computes nothing
            if self.is_new(func):
                for tensor in tree_leaves(out):
                    tensor.fill_(7)

    @staticmethod
    def is_new(func) -> bool:
        return not func.is_view and not func._schema.is_mutable and "unsafe_view" not in func._schema.name

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def __call__(self):
        self.replays += 1
        for func, args, kwargs, out in self.calls:
            fresh = func(*args, **kwargs)
            if self.is_new(func):
                for here, value in zip(tree_leaves(out), tree_leaves(fresh), strict=True):
                    here.copy_(value)
        return self.out


class Frozen:
    """A graph that does not read its inputs again."""

    def __init__(self, compute):
        self.out = compute()

    def __call__(self):
        return self.out


def fails(compute):
    raise RuntimeError("no such thing")


@pytest.fixture(autouse=True)
def plain_linears(monkeypatch):
    """As on a GPU: no compiled step, no packed weights; and caches that begin small, so that they are outgrown."""
    monkeypatch.setattr(linear, "library", lambda: None)
    monkeypatch.setattr(linear.Linear, "packs", False)
    monkeypatch.setattr(graphs, "FIRST_POSITIONS", 1)


def recording(device, **settings):
    """What makes graphs for a backend on this device."""
    if device.type == "cuda":
        return functools.partial(cuda_graphs(), **({"patience": 0} | settings))
    return functools.partial(CudaGraphCache, **({"capture": Recorded, "limit": 1 << 30, "patience": 0} | settings))


class Graphed(Rows):
    """Rows whose decoder records its steps."""

    def __init__(self, models, lengths, seed=0, **settings):
        super().__init__(models, lengths, seed)
        self.decoder = TransformerBackend(models, make_graphs=recording(self.device, **settings))

    @property
    def graphs(self) -> CudaGraphCache:
        return self.decoder.graphs

    def replays(self) -> int:
        assert not self.graphs.said and not self.graphs.broken
        return sum(step.run.replays for step in self.graphs.steps.values() if isinstance(step.run, Recorded))


# ---- the storm of decoder_rows.py, recorded


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("widths", ["uniform", "ragged", "mixed"])
@pytest.mark.parametrize("name", MODELS)
def test_recorded_steps_equal_teacher_forcing_in_a_reordering_storm(name, widths, dtype, device):
    seed = sorted(MODELS).index(name)
    rows = Graphed([model_of(seed, dtype, device, **MODELS[name])], [3, 1, 7, 0, 5], seed)
    for _ in rows.storm(widths):
        assert len(rows.graphs.steps)
    assert device.type == "cuda" or rows.replays() == 8


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("patience", [0, 2])
def test_recorded_and_eager_steps_give_the_same_features(dtype, patience, device):
    models = [model_of(1, dtype, device), model_of(2, dtype, device, **MODELS["pre-norm"])]
    pair = [Graphed(models, [3, 1, 7], patience=patience), Rows(models, [3, 1, 7])]
    for rows in pair:
        rows.start([0, 1, 2])
    for step in range(8):
        got, expected = (rows.decoder.step(torch.tensor([r for each in rows.rows.values() for r in each], device=device)) for rows in pair)
        for ours, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE[dtype])
        for rows in pair:
            rows.select(uniform=step % 3 > 0, may_drop=step > 3)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sentences", [1, 20])
@pytest.mark.parametrize("width", [1, 5])
def test_long_rows_outgrow_their_buffers_in_mid_sentence(sentences, width, dtype, device):
    rows = Graphed([model_of(3, dtype, device, decoder_layers=1)], [i % 6 for i in range(sentences)], 1)
    shapes = set()
    for _ in rows.long_rows(45, width):
        shapes |= {buffers.shape for buffers in rows.graphs.buffers}
    assert len({positions for _, positions, _ in shapes}) > 1
    assert sentences == 1 or len({S for S, _, _ in shapes}) > 1
    assert device.type == "cuda" or rows.replays() == 45


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


# ---- blocks


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("sentences", [1, 3])
@pytest.mark.parametrize("name", ["pre-norm", "learned positions, all tied", "no positions"])
def test_recorded_blocks_equal_teacher_forcing_though_drafts_are_taken_in_part(name, sentences, width, dtype, device):
    rows = Graphed([model_of(4, dtype, device, **MODELS[name])], [i % 6 for i in range(sentences)], 2)
    rows.read_blocks(8, width)
    assert device.type == "cuda" or rows.replays() >= 8


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("uniform", [True, False])
def test_rows_at_different_lengths_can_be_reordered(uniform, dtype, device):
    Graphed([model_of(5, dtype, device, **MODELS["pre-norm"])], [3, 1, 7, 2], 3).cut_and_reorder(4, uniform)


# ---- groups of rows


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("seed", range(4))
def test_groups_that_take_turns_and_merge_keep_their_histories(seed, dtype, device):
    """Sentences refilled behind others: groups of different source widths, at different lengths, uniform and ragged."""
    rows = Graphed([model_of(6, dtype, device), model_of(7, dtype, device, **MODELS["pre-norm"])], [9, 7, 2, 1, 0], seed)
    groups = rows.groups(seed % 2 == 0, ([3, 4], 3), ([0, 2], seed), ([1], 0))
    for _ in range(3):
        for i, (group, tokens) in enumerate(groups):
            rows.decoder.resume(group)
            rows.rows = tokens
            rows.step()
            rows.select(uniform=seed < 2, may_drop=False)
            groups[i] = (rows.decoder.set_aside(), rows.rows)
    rows.merge(groups, uniform=seed < 2, may_drop=seed == 3)


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


def test_what_an_earlier_group_left_in_the_buffers_harms_nobody(device):
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
    take = Buffers.take_
    monkeypatch.setattr(Buffers, "take_", lambda self, cache, positions: (moved.append(self), take(self, cache, positions)))
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


# ---- positions


def test_learned_positions_work_up_to_the_models_limit_and_not_beyond(device):
    Graphed([model_of(device=device, decoder_learned_pos=True, max_target_positions=7)], [3, 1]).go_beyond(7)


def test_sinusoidal_positions_go_on_beyond_the_table(device):
    Graphed([model_of(device=device, max_target_positions=5)], [3]).go_on(16)


# ---- bounds, and what has no graph


def test_sizes_are_rounded_up_by_less_than_half():
    assert [bucket(n) for n in range(1, 14)] == [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16]
    assert all(n <= bucket(n) < 1.5 * n and bucket(bucket(n)) == bucket(n) for n in range(1, 5000))
    assert bucket(5, 16) == 16


def test_what_was_used_longest_ago_is_dropped(device):
    rows = Graphed([model_of(device=device)], [3, 5], most_steps=2)
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
    assert size == sum(tensor.nbytes for tensor in (rows.graphs.buffers[0].models[0].target, rows.graphs.buffers[0].models[0].source))
    rows = Graphed([model], [3, 5, 2, 6], limit=size)
    for sentences in ([0, 1, 2, 3], [0, 2, 3], [0, 1], [0, 1, 2, 3]):
        rows.decoder.group = None
        rows.start(sentences)
        rows.step()
        assert len(rows.graphs.buffers) == 1 and len(rows.graphs.steps) == 1 and not rows.graphs.said
    # buffers that another group is in are not free
    group, tokens = rows.decoder.set_aside(), rows.rows
    rows.start([0, 1])
    rows.step()
    assert len(rows.graphs.said) == 1
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
    rows.decoder.select(torch.tensor([1, 3, 4], device=device), torch.tensor([1, 3, 4], device=device), 1, torch.arange(3, device=device))
    assert rows.decoder.group.cache.slot is not None
    wide = graphs.MOST_NEW + 1
    rows.rows = {s: [[*rows.rows[s][0], *[rows.token() for _ in range(wide)]]] for s in (1, 3, 4)}
    rows.step(new=wide)
    assert len(rows.graphs.said) == 1
    for _ in range(3):
        rows.rows = {s: [[*each[0], rows.token()]] for s, each in rows.rows.items()}
        rows.step()


def test_a_recording_that_fails_is_told_and_steps_go_on(device, caplog):
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
        row, owner = torch.arange(9, device=device).flip(0), torch.arange(3, device=device).repeat_interleave(3)
        with NoWaiting():
            rows.decoder.step(tokens)
            rows.decoder.select(row, None, 3, owner)
    with NoWaiting(), pytest.raises(AssertionError, match="waits for the device"):
        tokens.max().item()


def test_attention_is_read_from_eager_steps():
    assert TransformerBackend([model_of()], need_attention=True, make_graphs=recording(torch.device("cpu"))).graphs is None


# ---- what the search sees


@pytest.mark.parametrize("strategy", [{}, {"schedule": "stream", "stream_width": 7}, {"prune_threshold": 3.0}])
def test_beam_search_over_it_equals_the_eager_one_and_fairseqs(strategy, device):
    models = [build("transformer-pre-norm", 2).to(device)]
    pair = generators(models, strategy=strategy, beam=5, max_len_b=12)
    sample = batch([6, 3, 0, 9, 4, 2])
    sample["net_input"] = {name: value.to(device) for name, value in sample["net_input"].items()}
    expected = run(pair.ours, sample) if strategy else run(pair.stock, sample)
    pair.ours.engine.decoder = TransformerBackend(models, make_graphs=recording(device))
    same(expected, run(pair.ours, sample))
    assert pair.ours.decoder.graphs.steps


@pytest.mark.parametrize("method", ["jacobi", "window"])
def test_parallel_decoding_over_it_equals_fairseqs_greedy_decoding(method, device):
    models = [build("transformer", 2).to(device)]
    flags = {"decoding": method, "draft": "repeat"} | ({"draft_cost": 0.0, "block_size": 4} if method == "window" else {})
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
    good, bad = (CudaGraphCache([weights], capture, 1 << 30, patience=0) for capture in (Recorded, Frozen))
    assert disagreement(model, weights, graphs=good) is None
    assert "differ from fairseq's" in disagreement(model, weights, graphs=bad)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """make_decoder behaves as on a GPU whose graphs are what is put into this dictionary."""
    settings = {"capture": Recorded, "limit": 1 << 30}
    monkeypatch.setattr(factory, "on_this_gpu", lambda weights: True)
    monkeypatch.setattr(factory, "cuda_graphs", lambda: functools.partial(CudaGraphCache, **settings))
    return settings


def test_steps_are_recorded_unless_the_flag_says_off_or_attention_is_asked_for(as_on_a_gpu):
    models = [build("transformer")]
    assert generators(models).ours.decoder.graphs is not None
    assert generators(models, {"cuda_graphs": "off"}).ours.decoder.graphs is None
    assert generators(models, print_alignment="hard").ours.decoder.graphs is None


@pytest.mark.parametrize(("capture", "reason"), [(Frozen, "differ from fairseq's"), (fails, "no such thing")])
def test_graphs_that_fail_at_start_up_are_left_out_with_a_warning(capture, reason, as_on_a_gpu, caplog):
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
