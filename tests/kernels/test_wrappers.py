"""What Python passes to the compiled library: arrays of the right type and layout, or an error
(also under `python -O`, which leaves asserts out); and memory: an error where there is none left,
little that stays, and weights in large pages, which have the same numbers and go back with the last
of them; where there are none the weights stay where they are."""

import ctypes
import mmap
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_ext.kernels import lsh, lsh_torch, parallel, shortlist, transformer
from fairseq_ext.kernels.library import (
    address,
    c_library,
    declarations,
    library,
    loaded,
    new,
    pointer,
)
from fairseq_ext.kernels.log_probs import (
    SamplingCut,
    best_of_sentences,
    block_ngrams_,
    draw_compiled,
    log_softmax_,
    topk,
)
from fairseq_ext.kernels.lsh import CompiledLookup
from fairseq_ext.kernels.transformer import (
    CHUNK,
    LINE,
    PAGE,
    Chunks,
    CompiledNorm,
    LayerStack,
    PackedLinear,
    cache_fields,
)
from fairseq_ext.search.phrases.phrase_table import build_table

pytestmark = [
    pytest.mark.skipif(library() is None, reason="there is no compiled library"),
    pytest.mark.usefixtures("on_the_cpu"),
]
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
LONGS = torch.arange(6)
NO = torch.zeros(0)
phrases = build_table([()], False, torch.device("cpu"))


# ---- types and layouts


@pytest.mark.parametrize("array", [X, X.numpy()], ids=["tensor", "numpy"])
def test_an_address_is_given_of_dense_arrays_of_the_type_and_shape(array):
    where = array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data
    for found in (address(array, array.dtype), address(array, array.dtype, None, 8)):
        assert int(declarations().cast("intptr_t", found)) == where
    for wrong in (array.T, array[:, ::2], array[:, :4]):
        with pytest.raises(TypeError, match="dense"):
            address(wrong, array.dtype)
    with pytest.raises(TypeError, match="float64 on a CPU, not .*float32"):
        address(array, torch.float64 if isinstance(array, torch.Tensor) else np.dtype("float64"))
    for shape in ((6,), (6, 7), (None, 8, 1)):
        with pytest.raises(ValueError, match="takes the shape"):
            address(array, array.dtype, *shape)


def index_of() -> Any:
    weight = torch.randn(50, 8, generator=torch.Generator().manual_seed(2))
    return lsh_torch.build_index(weight, 4, 2, 6, 1)


def norm_of(weight: torch.Tensor) -> Any:
    return SimpleNamespace(arguments=((8,), weight, torch.zeros(8), 1e-5))


def stack() -> LayerStack:
    return LayerStack.from_layers([], 8, 1, True, None)


def found(x: torch.Tensor, always: torch.Tensor | None = None, **wrong: Any) -> torch.Tensor:
    finder = CompiledLookup(index_of(), wrong.get("never", torch.zeros(50, dtype=torch.bool)), 0)
    return finder(x, wrong.get("t", 1), always, 1)


def row(**wrong: Any) -> parallel.CompiledRow:
    method = parallel.CompiledMethod("blocks", new("Blocks"), parallel.CompiledDrafter("nothing"))
    right = dict(
        tokens=np.zeros((1, 9), np.int64), score=np.zeros((1, 9)), length=np.zeros(1, np.int64)
    )
    return parallel.CompiledRow(**{**right, **wrong}, width=9, method=method)


WRONG: dict[str, Callable[[], object]] = {
    "log_softmax_: type": lambda: log_softmax_(X.double()),
    "log_softmax_: layout": lambda: log_softmax_(X.t()),
    "topk: layout": lambda: topk(X[:, ::2], 2),
    "topk: number": lambda: topk(X, 9),
    "best_of_sentences: type": lambda: best_of_sentences(
        X, X[:, 0].contiguous(), torch.tensor([0, 6], dtype=torch.int32), 2
    ),
    "best_of_sentences: layout": lambda: best_of_sentences(X, X[:, 0], torch.tensor([0, 6]), 2),
    "best_of_sentences: shape": lambda: best_of_sentences(X, X[0], torch.tensor([0, 6]), 2),
    "block_ngrams_: type": lambda: block_ngrams_(X, torch.zeros(6, 3).int(), 2, None),
    "block_ngrams_: ids": lambda: block_ngrams_(X, LONGS[:, None], 1, torch.arange(8).int()),
    "draw: type": lambda: draw_compiled(X, LONGS, torch.zeros(6), SamplingCut()),
    "draw: shape": lambda: draw_compiled(
        X, LONGS, torch.zeros(5, dtype=torch.double), SamplingCut()
    ),
    "linear: type": lambda: PackedLinear(X, None)(X.double()),
    "linear: shape": lambda: PackedLinear(X, None)(X[:, :4]),
    "linear: weight": lambda: PackedLinear(X.double(), None),
    "linear: bias": lambda: PackedLinear(X, torch.zeros(6, dtype=torch.double)),
    "norm: type": lambda: CompiledNorm(norm_of(torch.ones(8)))(X.double()),
    "norm: shape": lambda: CompiledNorm(norm_of(torch.ones(8)))(X[:, :4]),
    "norm: weight": lambda: CompiledNorm(norm_of(torch.ones(8, dtype=torch.double))),
    "encode_: type": lambda: stack().encode_(X, LONGS[:2].int()),
    "encode_: layout": lambda: stack().encode_(torch.zeros(8, 6).t(), LONGS[:2]),
    "cache: layout": lambda: cache_fields(torch.zeros(1, 2, 1, 1, 4, 3).transpose(4, 5)),
    "cache: type": lambda: cache_fields(torch.zeros(1, 2, 1, 1, 4, 3, dtype=torch.double)),
    "phrases: type": lambda: replace(phrases, value=phrases.value.int()).struct(),
    "wta_hash: type": lambda: lsh.wta_hash(X, torch.zeros(2, 3, dtype=torch.int32), 1),
    "finder: type": lambda: found(X.double()),
    "finder: always": lambda: found(X, torch.zeros(50)),
    "finder: never": lambda: found(X, never=torch.zeros(49, dtype=torch.bool)),
    "finder: hits": lambda: found(X, t=0),
    "shortlist: found": lambda: shortlist.ShortlistLinear(
        PackedLinear(X[:2], None), LONGS[:2], X, None, 1.0
    )(X, LONGS[3:].int(), 1),
    "shortlist: base": lambda: shortlist.ShortlistLinear(
        PackedLinear(X[:2], None), LONGS[:3], X, None, 1.0
    ),
    "row: tokens": lambda: row(tokens=np.zeros((1, 9), np.int32)),
    "row: score": lambda: row(score=np.zeros((1, 8))),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_compiled_code_cannot_read_is_refused_also_without_asserts(what):
    """An AssertionError would be neither of the two, and asserts are left out by `python -O`."""
    with pytest.raises((TypeError, ValueError)):
        WRONG[what]()


def test_a_mask_that_is_not_dense_is_read_as_a_dense_one_is():
    mask = torch.rand(50, 3, generator=torch.Generator().manual_seed(3)) < 0.5
    for column in mask.unbind(1):
        assert not column.is_contiguous()
        assert found(X, column).equal(found(X, column.clone()))


# ---- memory

HUGE = 1 << 58  # of what scratch memory has several of 4 bytes or more


NULL = pointer(None)


def linear() -> object:
    return loaded().linear(new("Linear", **{"in": 4}, out=1, kind=1), NULL, HUGE, NULL, 0)


def screen() -> object:
    packed = new("Linear")
    screened = new("Screen", packed=packed, m=4 * HUGE, temperature=1.0)
    return loaded().screen(screened, NULL, 1, NULL, NULL, NULL, NULL)


@pytest.mark.parametrize("call", [linear, screen])
def test_too_little_memory_is_an_error_and_does_not_end_the_process(call):
    """Each needs far too much scratch memory, before it reads anything."""
    said = f"^{call.__name__} of the compiled library needs more memory$"
    with pytest.raises(MemoryError, match=said):
        call()


def test_large_scratch_memory_does_not_stay():
    """17 MB of bytes and 8 MB of scales, of which the scales may stay."""

    def used() -> int:
        info = c_library().mallinfo2
        info.restype = type(
            "Info", (ctypes.Structure,), {"_fields_": [(c, ctypes.c_size_t) for c in "abcdefghij"]}
        )
        return info().h  # uordblks

    if not hasattr(c_library(), "mallinfo2"):
        pytest.skip("this is not glibc 2.33 or later")
    packed = PackedLinear(torch.ones(1, 8), None, bits=8)
    packed(torch.ones(1, 8))
    before = used()
    assert packed(torch.ones(17 << 17, 8)).eq(8).all()
    assert used() - before < 16 << 20


ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
has_pages = pytest.mark.skipif(
    not hasattr(mmap, "MADV_HUGEPAGE"), reason="Python knows no large pages of this system"
)


@has_pages
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


@has_pages
def test_a_chunk_lives_as_long_as_its_tensors():
    chunks = Chunks()
    first, second = chunks.copy(torch.ones(9)), chunks.copy(torch.ones(9))
    del first
    assert chunks.last() is not None and second.sum() == 9
    del second
    assert chunks.last() is None
    assert chunks.copy(torch.ones(3)).sum() == 3  # a new one


@has_pages
def test_without_large_pages_a_tensor_stays_where_it_is(monkeypatch):
    def refuse(*arguments):
        raise OSError("no large pages")

    monkeypatch.setattr(transformer.mmap, "mmap", refuse)
    tensor, empty = torch.ones(9), torch.ones(0)
    assert Chunks().copy(tensor) is tensor and Chunks().copy(empty) is empty


@has_pages
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
