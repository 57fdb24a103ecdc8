"""Weights in large pages: the same numbers, in memory of the system's large pages, which goes back
with the last of them; where there are none the weights stay where they are."""

import mmap
import re
from pathlib import Path

import pytest
import torch

from fairseq_ext.kernels import transformer
from fairseq_ext.kernels.transformer import CHUNK, LINE, PAGE, Chunks

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
pytestmark = pytest.mark.skipif(
    not hasattr(mmap, "MADV_HUGEPAGE"), reason="Python knows no large pages of this system"
)


def test_tensors_lie_side_by_side_and_change_alone():
    copy = Chunks().copy
    wanted = [
        torch.arange(5.0),
        torch.full((3, 7, 2), -4, dtype=torch.int8),
        torch.randn(70, 9, generator=torch.Generator().manual_seed(1)),
        torch.ones(CHUNK // 4 + 1),  # more than a chunk
        torch.arange(6, dtype=torch.int16),
    ]
    made = [copy(each) for each in wanted]
    for each, other in zip(made, wanted, strict=True):
        assert each.equal(other) and each.dtype == other.dtype and each.is_contiguous()
        assert each.data_ptr() % LINE == 0 and each.data_ptr() != other.data_ptr()
    assert made[0].data_ptr() % PAGE == made[3].data_ptr() % PAGE == 0
    assert made[1].data_ptr() == made[0].data_ptr() + LINE
    made[1].zero_()
    for i in (0, 2, 3, 4):
        assert made[i].equal(wanted[i])


def test_a_chunk_lives_as_long_as_its_tensors():
    chunks = Chunks()
    first, second = chunks.copy(torch.ones(9)), chunks.copy(torch.ones(9))
    del first
    assert chunks.last() is not None and second.sum() == 9
    del second
    assert chunks.last() is None
    assert chunks.copy(torch.ones(3)).sum() == 3  # a new one


def test_without_large_pages_a_tensor_stays_where_it_is(monkeypatch):
    def refuse(*arguments):
        raise OSError("no large pages")

    monkeypatch.setattr(transformer.mmap, "mmap", refuse)
    tensor, empty = torch.ones(9), torch.ones(0)
    assert Chunks().copy(tensor) is tensor and Chunks().copy(empty) is empty


@pytest.mark.skipif(
    not ENABLED.exists() or "[never]" in ENABLED.read_text(), reason="large pages are off here"
)
def test_the_system_gives_large_pages():
    made = Chunks().copy(torch.ones(2 * PAGE))  # 16 MiB
    for part in re.split(
        r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M
    ):
        where = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", part)
        if where and int(where[1], 16) <= made.data_ptr() < int(where[2], 16):
            assert int(re.search(r"AnonHugePages: +(\d+) kB", part)[1]) >= 4 * PAGE // 1024
            return
    pytest.fail("the tensor is in no part of this process's memory")
