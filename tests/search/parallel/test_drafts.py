"""Drafters: earlier outputs, and the compiled twin of their drafter."""

import numpy as np
import pytest
import torch
from models import dictionary

from fairseq_ext.kernels.library import library, new, pointer
from fairseq_ext.kernels.parallel import CompiledDrafter
from fairseq_ext.search.parallel.blocks import NONE, Rows
from fairseq_ext.search.parallel.drafts import NoDrafter, Previous, Trajectory
from fairseq_ext.search.pool import Pool

D = dictionary()
EOS, PAD = D.eos(), D.pad()
A, B, C, X, Y = range(4, 9)
needs_compiler = pytest.mark.skipif(library() is None, reason="no compiler")


def pool(*lines: list[int]) -> Pool:
    """Left-padded source lines, EOS added."""
    width = max(map(len, lines)) + 1
    tokens = torch.tensor([[PAD] * (width - 1 - len(line)) + line + [EOS] for line in lines])
    length = torch.tensor([len(line) + 1 for line in lines])
    return Pool({"src_tokens": tokens}, length, [20] * len(lines), torch.arange(len(lines)), EOS)


def rows(*verified: list[int]) -> Rows:
    """Live rows with these verified tokens."""
    out = Rows.start(pool(*[[A]] * len(verified)), list(range(len(verified))))
    for r, line in enumerate(verified):
        out.tokens[r, 1 : len(line) + 1] = line
    out.length = np.array([len(line) for line in verified])
    return out


def alone(drafter: CompiledDrafter):
    """(verified tokens, most) -> the compiled draft of a row that has these tokens,
    and how sure each is."""

    def query(verified: list[int], most: int) -> tuple[list[int], list[float]]:
        text, length = np.array([EOS, *verified]), np.array([len(verified)])
        row = new("Row", tokens=pointer(text), length=pointer(length))
        token, sure = np.zeros(most, np.int64), np.zeros(most)
        propose, state = drafter.fields  # which live as long as the drafter
        m = propose(state, row, most, pointer(token), pointer(sure))
        return token[:m].tolist(), sure[:m].tolist()

    return query


def previous(*old: list[int]) -> Previous:
    source = Previous([[*line, EOS] for line in old], NoDrafter())
    source.start(pool(*[[A]] * len(old)))
    return source


def test_sentences_beyond_the_old_outputs_are_reported_once(caplog):
    source = previous([A, B])
    for ids in ([0], [1, 2], [3]):
        later = pool(*[[A]] * len(ids))
        later.ids = torch.tensor(ids)
        source.start(later)
    [reported] = caplog.messages
    assert "--draft-file has 1 line, and the input a sentence number 3" in reported


def test_an_earlier_output_is_offered_whole_and_followed():
    source = previous([A, B, C, X])
    assert source.propose(rows([]), 9)[0][0, :5].tolist() == [A, B, C, X, EOS]
    assert source.propose(rows([A, B]), 9)[0][0, :3].tolist() == [C, X, EOS]
    assert source.propose(rows([A, B, C, X]), 9)[0][0, 0] == EOS


@pytest.mark.parametrize(
    "verified, draft",
    [
        ([A, B, X], [C, A, X]),  # one more token than before: b x is new, x last stood before c
        ([A, C], [A, X, EOS]),  # b left out
        ([A, Y], [X, C, A]),  # another word in b's place
    ],
)
def test_behind_an_edit_the_old_output_is_found_again(verified, draft):
    source = previous([A, B, X, C, A, X])
    source.propose(rows([A]), 9)
    assert source.propose(rows(verified), 9)[0][0, : len(draft)].tolist() == draft


@needs_compiler
def test_the_compiled_row_follows_its_earlier_output_as_the_definition_does():
    """Random outputs and random edits of them, a few tokens verified at a time."""
    draw = np.random.default_rng(5)
    differ = 0
    for _ in range(60):
        old = draw.integers(4, 9, draw.integers(0, 12)).tolist()
        new = [
            int(draw.integers(4, 9)) if draw.random() < 0.25 else t
            for t in old
            if draw.random() > 0.15
        ] + [A, B]
        source = previous(old)
        twin, length = alone(source.compiled(0)), 0
        while length <= len(new):
            tokens, sure = source.propose(rows(new[:length]), 5)
            drafted, certain = twin(new[:length], 5)
            assert drafted == tokens[0].tolist() and NONE not in drafted
            np.testing.assert_allclose(certain, sure[0])
            differ += drafted[:1] != new[length : length + 1]
            length += int(draw.integers(1, 4))
    assert differ > 30, "the outputs part"


def test_sentences_without_an_earlier_output_request_the_other_source():
    source = Previous([[X, Y, EOS]], Trajectory(PAD))
    both = pool([A], [A])
    source.start(both)
    tokens, _ = source.propose(rows([], []), 3)
    assert tokens.tolist() == [[X, Y, EOS], [PAD, PAD, PAD]]
