"""Recorded decoder steps give the features of fairseq's teacher forcing, whatever
happens to their rows: here what recording alone can get wrong. test_decoders_transformer.py has
the storms, blocks and groups, recorded too.

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
