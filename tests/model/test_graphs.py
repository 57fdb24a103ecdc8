"""Recorded decoder steps give the features of fairseq's teacher forcing, whatever
happens to their rows.

On a CPU `Recorded` stands for a CUDA graph: operations are taken down once and repeated at the same
addresses, so that every number of the host's that slips into a recording is noticed. With a GPU the
same tests record CUDA graphs (--device cuda)."""

from __future__ import annotations

import pytest
import torch
from model.decoder_rows import EOS, MODELS, TOLERANCE, Rows, model_of
from model.recorded_rows import Graphed, plain_linears  # noqa: F401  the fixture is for every test
from sizes import covering

from fairseq_ext.model.transformer.cuda_graph import Buffers

# ---- the storm of decoder_rows.py, recorded


@covering(1)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("widths", ["uniform", "ragged", "mixed"])
@pytest.mark.parametrize("name", MODELS)
def test_recorded_steps_equal_teacher_forcing_in_a_reordering_storm(name, widths, dtype, device):
    seed = sorted(MODELS).index(name)
    rows = Graphed([model_of(seed, dtype, device, **MODELS[name])], [3, 1, 7, 0, 5], seed)
    for _ in rows.storm(widths):
        assert len(rows.graphs.steps)
    assert device.type == "cuda" or rows.replays() == 8


@covering(1)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("patience", [0, 2])
def test_recorded_and_eager_steps_give_the_same_features(dtype, patience, device):
    models = [model_of(1, dtype, device), model_of(2, dtype, device, **MODELS["pre-norm"])]
    pair = [Graphed(models, [3, 1, 7], patience=patience), Rows(models, [3, 1, 7])]
    for rows in pair:
        rows.start([0, 1, 2])
    for step in range(8):
        got, expected = (
            rows.decoder.step(
                torch.tensor([r for each in rows.rows.values() for r in each], device=device)
            )
            for rows in pair
        )
        for ours, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE[dtype])
        for rows in pair:
            rows.select(uniform=step % 3 > 0, may_drop=step > 3)


@covering(1)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sentences", [1, 20])
@pytest.mark.parametrize("width", [1, 5])
def test_long_rows_outgrow_their_buffers_in_mid_sentence(sentences, width, dtype, device):
    rows = Graphed(
        [model_of(3, dtype, device, decoder_layers=1)], [i % 6 for i in range(sentences)], 1
    )
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


@covering(1)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("sentences", [1, 3])
@pytest.mark.parametrize("name", ["pre-norm", "learned positions, all tied", "no positions"])
def test_recorded_blocks_equal_teacher_forcing_though_drafts_are_taken_in_part(
    name, sentences, width, dtype, device
):
    rows = Graphed(
        [model_of(4, dtype, device, **MODELS[name])], [i % 6 for i in range(sentences)], 2
    )
    rows.read_blocks(8, width)
    assert device.type == "cuda" or rows.replays() >= 8


@covering(1)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("uniform", [True, False])
def test_rows_at_different_lengths_can_be_reordered(uniform, dtype, device):
    Graphed([model_of(5, dtype, device, **MODELS["pre-norm"])], [3, 1, 7, 2], 3).cut_and_reorder(
        4, uniform
    )


# ---- groups of rows


@covering(1)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("seed", range(4))
def test_groups_that_take_turns_and_merge_keep_their_histories(seed, dtype, device):
    """Sentences refilled behind others: groups of different source widths, at different
    lengths, uniform and ragged."""
    rows = Graphed(
        [model_of(6, dtype, device), model_of(7, dtype, device, **MODELS["pre-norm"])],
        [9, 7, 2, 1, 0],
        seed,
    )
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


# ---- positions


def test_learned_positions_work_up_to_the_models_limit_and_not_beyond(device):
    Graphed(
        [model_of(device=device, decoder_learned_pos=True, max_target_positions=7)], [3, 1]
    ).go_beyond(7)


def test_sinusoidal_positions_go_on_beyond_the_table(device):
    Graphed([model_of(device=device, max_target_positions=5)], [3]).go_on(16)
