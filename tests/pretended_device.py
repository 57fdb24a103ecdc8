"""A pretended GPU: tensors that say they are on `cuda:0` and hold their values on the CPU.

As on a GPU, an operation on tensors of host and device raises, and so do numpy and compiled code
for the CPU on a device's tensor. What a GPU would do is counted (`counting`): waits of the host,
each with the place in fairseq_ext that waits; launches; bytes read and written; recorded CUDA
graphs are one launch, and recording refuses what CUDA refuses. An upload of a Python list waits
too, as torch.tensor(..., device="cuda") does: torch synchronises after every copy from ordinary
memory that is not `non_blocking`.

Not shown: speed, memory, kernels that torch has for the CPU only, and what runs at the same time.
"""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

GUARD = """#include <c10/core/impl/DeviceGuardImplInterface.h>
struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
    c10::Device getDevice() const override { return c10::Device(c10::DeviceType::CUDA, 0); }
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
"""
DEVICE = torch.device("cuda", 0)
ADDRESSES = 1 << 62  # of the device begin here: nothing of the CPU's
WAITS = "_local_scalar_dense equal allclose nonzero masked_select bincount histc"
WAITS += " _unique _unique2 unique_dim unique_consecutive unique_dim_consecutive"
FREE = (
    "empty empty_strided new_empty new_empty_strided empty_like detach lift_fresh "
    "_unsafe_view resize_ set_"
)
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}  # take indices of either side
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}  # not of integers on a GPU
PACKAGE = f"{Path(__file__).resolve().parents[1] / 'fairseq_ext'}/"


@dataclass
class Counts:
    """What the host and the device have done."""

    waits: Counter = field(default_factory=Counter)  # by what waits, and where
    launches: Counter = field(default_factory=Counter)  # by operation
    recorded: int = 0  # operations that were part of a recorded step
    bytes: int = 0  # read and written by operations


COUNTS: list[Counts] = []  # those that count now
# the graph that is being recorded, if any; the thread that could disturb it (None: any)
RECORDING: list[tuple[Graph, int | None]] = []
OF_THREAD = threading.local()  # stream: the present one


@contextlib.contextmanager
def counting() -> Iterator[Counts]:
    counts = Counts()
    COUNTS.append(counts)
    try:
        yield counts
    finally:
        COUNTS.remove(counts)


def wait(what: str) -> None:
    """The host waits for the device."""
    if disturbs():
        raise RuntimeError(f"operation not permitted when stream is capturing: {what}")
    if COUNTS:
        frame: Any = sys._getframe()
        while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        place = (
            ""
            if frame is None
            else f" in {frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno}"
        )
        for counts in COUNTS:
            counts.waits[what + place] += 1


def disturbs() -> bool:
    """Whether a graph is being recorded that what this thread does could disturb."""
    return any(thread in (None, threading.get_ident()) for _, thread in RECORDING)


class Stream:
    """Work goes to the stream that is current in its thread.

    One that waits for a stream that is recorded is recorded too.
    """

    def __init__(self, *_) -> None:
        self.graph: Graph | None = None

    def wait_stream(self, other: Stream) -> None:
        self.graph = other.graph or self.graph

    def synchronize(self) -> None:
        wait("synchronize")


def current_stream(*_) -> Stream:
    if not hasattr(OF_THREAD, "stream"):
        OF_THREAD.stream = Stream()
    return OF_THREAD.stream


@contextlib.contextmanager
def on_stream(stream: Stream) -> Iterator[None]:
    before, OF_THREAD.stream = current_stream(), stream
    try:
        yield
    finally:
        OF_THREAD.stream = before


class Pretended(Tensor):
    """A tensor of the device; `inner` holds its values."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> Pretended:
        layout = dict(
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made = Tensor._make_wrapper_subclass(cls, inner.size(), **layout)  # type: ignore
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return operate(func, args, kwargs or {})

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(parts, meta, size, stride):
        return Pretended(parts["inner"])

    def __repr__(self) -> str:
        wait("repr")
        return f"{self.inner!r} on {DEVICE}"

    def __format__(self, form: str) -> str:
        return format(self.item(), form) if self.dim() == 0 else super().__format__(form)

    def __deepcopy__(self, memo):
        made = Pretended(self.inner.clone())
        return (
            torch.nn.Parameter(made, self.requires_grad)
            if isinstance(self, torch.nn.Parameter)
            else made
        )

    def data_ptr(self) -> int:
        return self.inner.data_ptr() + ADDRESSES

    def tolist(self):
        wait("tolist")
        return self.inner.tolist()

    def numpy(self, *_, **__):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
            "to host memory first."
        )

    def __array__(self, *_, **__):
        self.numpy()

    def __getitem__(self, index):
        return super().__getitem__(with_tensors(index))

    def __setitem__(self, index, value):
        super().__setitem__(with_tensors(index), value)

    def resize_(self, *size):
        self.inner.resize_(*size)
        torch.utils.swap_tensors(self, Pretended(self.inner))
        return self

    def new(self, *size):
        if len(size) == 1 and isinstance(size[0], (list, Tensor)):
            return self.new_tensor(size[0]) if isinstance(size[0], list) else size[0].clone()
        return self.new_empty(*size or (0,))

    def new_tensor(self, data, dtype=None, device=None, **_):
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device)


def with_tensors(index):
    """An index whose lists are tensors of the host, as torch takes them."""
    if isinstance(index, tuple):
        return tuple(map(with_tensors, index))
    return torch.tensor(index) if isinstance(index, list) else index


class Everywhere(TorchDispatchMode):
    """Sees the operations that take no tensor of the device and make one."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return operate(func, args, kwargs or {})


def tensors_of(values) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_of(value)


def inside(value):
    """The same for the CPU."""
    if isinstance(value, Pretended):
        return value.inner
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return type(value)(map(inside, value)) if type(value) in (list, tuple) else value


def operate(func, args, kwargs):
    """Do an operation, as a GPU would where one of its tensors is there or it
    is to make one there."""
    given = [*tensors_of(args), *tensors_of(kwargs.values())]
    there = [x for x in given if isinstance(x, Pretended)]
    device = kwargs.get("device") or (DEVICE if there else None)
    if device is None or not there and torch.device(device).type != "cuda":
        return func(*args, **kwargs)
    name = func._schema.name.removeprefix("aten::")
    if (
        isinstance(drawn := kwargs.get("generator"), torch.Generator)
        and drawn.device.type == "cpu"
        and torch.device(device).type == "cuda"
    ):
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    check(func, name, args, given, there)
    if what := awaited(name, args, kwargs, given, there, torch.device(device)):
        wait(what)
    graph = current_stream().graph
    if graph is None and disturbs() and not (func.is_view or func._schema.is_mutable):
        raise RuntimeError(
            f"operation not permitted when stream is capturing: {name} takes memory outside "
            "of the graph's pool"
        )
    values = (
        [inside(x) for x in args],
        {n: inside(x) for n, x in kwargs.items() if n != "pin_memory"},
    )
    out = compute(func, name, *values)
    to_host = (
        torch.device(device).type == "cpu"
        or isinstance(args[0] if args else None, Tensor)
        and there[:1] != [args[0]]
        and name == "copy_"
    )
    if not func.is_view and name not in FREE.split():
        moved = sum(x.nbytes for x in tensors_of([inside(x) for x in given]))
        moved += sum(x.nbytes for x in tensors_of([out])) if not func._schema.is_mutable else 0
        for counts in COUNTS if moved else ():
            counts.bytes += moved
            counts.recorded += graph is not None
            counts.launches[name] += graph is None
    if graph is not None:
        graph.add(func, values, out, there)
    if to_host:
        return out
    if name == "_pack_padded_sequence":
        return wrapped(out[0], {}), out[1]
    # an operation in place returns the tensor that it was given
    known = {id(x.inner): x for x in there}
    return wrapped(out, known)


def wrapped(out, known: dict[int, Pretended]):
    if isinstance(out, Tensor):
        before = known.get(id(out))
        assert before is None or before.shape == out.shape, (
            "an operation in place has changed a tensor's shape"
        )
        return Pretended(out) if before is None else before
    return type(out)(wrapped(x, known) for x in out) if type(out) in (list, tuple) else out


def check(func, name: str, args, given: list[Tensor], there: list[Tensor]) -> None:
    """Raise what CUDA raises."""
    # may be the host's
    numbers = torch.Tag.pointwise in func.tags or "fill" in name or name in INDEXING
    indices = (
        [id(x) for x in tensors_of([args[1]])]
        if name in INDEXING and isinstance(args[0], Pretended)
        else []
    )
    # a number too is changed where it lies
    changed = args[0] if func._schema.is_mutable and args else None
    # the last has lengths of the host
    for x in given if there and name not in ("copy_", "_to_copy", "_pack_padded_sequence") else ():
        if not (
            isinstance(x, Pretended)
            or id(x) in indices
            or (numbers and x.dim() == 0 and x is not changed)
        ):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"cuda:0 and cpu! ({func})"
            )
    if name in PRODUCTS and not there[0].is_floating_point():
        raise RuntimeError(f'"addmm_cuda" not implemented for {there[0].dtype}')


def awaited(
    name: str, args, kwargs, given: list[Tensor], there: list[Tensor], device: torch.device
) -> str | None:
    """For what the host waits, if it does."""
    blocks = not kwargs.get("non_blocking") and not (name == "copy_" and len(args) > 2 and args[2])
    if name == "_to_copy" and (device.type == "cpu" or not there):
        return ("upload" if not there else "copy to the host") if blocks else None
    if name == "copy_" and len(there) < len(given):
        return ("upload" if args[0] is there[0] else "copy to the host") if blocks else None
    if name in WAITS.split():
        return name
    if (
        name == "repeat_interleave"
        and isinstance(args[-1], Tensor)
        and kwargs.get("output_size") is None
    ):
        return name
    if name in INDEXING:
        indices = list(tensors_of([args[1]]))
        # a number for the places of one mask is a masked_fill
        if any(x.dtype in (torch.bool, torch.uint8) for x in indices):
            filled = (
                name != "index"
                and len(indices) == 1
                and args[2].dim() == 0
                and not isinstance(args[2], Pretended)
            )
            return None if filled else "a mask as an index"
        return "upload" if any(not isinstance(x, Pretended) for x in indices) else None
    return None


def compute(func, name: str, args, kwargs):
    """The operation on the CPU, which lacks three that GPUs have."""
    if name == "mm" and len(args) == 3:  # of half precision, summed and returned in float32
        return args[0].to(args[2]) @ args[1].to(args[2])
    if name in ("_softmax", "_log_softmax") and args[2]:  # from half precision to float32
        return func(args[0].float(), args[1], False)
    if name != "_thnn_fused_lstm_cell":
        return func(*args, **kwargs)
    gates, hidden, cell, *biases = args
    i, f, g, o = (sum(biases, gates + hidden)).chunk(4, 1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell, gates


# ---- CUDA graphs


class Graph:
    """Stands for torch.cuda.CUDAGraph: the same operations again, at the addresses and with the
    host's numbers of the first time."""

    pool: list[Graph]

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.own: set[int] = set()  # what its operations have made or changed
        # what it takes from outside of the pool, which must outlive it
        self.read: list[weakref.ref] = []

    def add(self, func, values, out, there) -> None:
        self.read += [weakref.ref(x) for x in there if id(x.inner) not in self.own]
        self.own |= {id(x) for x in tensors_of([out])}
        self.calls.append((func, *values, out))

    def made(self) -> Iterator[tuple]:
        """The operations whose results lie in the pool."""
        return (
            call
            for call in self.calls
            if not call[0].is_view
            and not call[0]._schema.is_mutable
            and "_unsafe_view" not in str(call[0])
        )

    def spoil(self) -> None:
        """Recording computes nothing, and whatever else uses the pool writes over the results."""
        for *_, out in self.made():
            for tensor in tensors_of([out]):
                tensor.fill_(7)

    def replay(self) -> None:
        if any(x() is None for x in self.read):
            raise RuntimeError(
                "a recorded graph reads memory outside of its pool that has been freed"
            )
        for graph in self.pool:
            graph.spoil()
        made = {id(call) for call in self.made()}
        for call in self.calls:
            func, args, kwargs, out = call
            if func.is_view or "_unsafe_view" in str(func):
                continue
            fresh = func(*args, **kwargs)
            if id(call) in made:
                for here, value in zip(tensors_of([out]), tensors_of([fresh]), strict=True):
                    here.copy_(value)
        for counts in COUNTS:
            counts.launches["graph"] += 1
            counts.bytes += self.bytes


@contextlib.contextmanager
def recorded(graph: Graph, pool: list[Graph], capture_error_mode: str = "global") -> Iterator[None]:
    assert not RECORDING
    RECORDING.append((graph, None if capture_error_mode == "global" else threading.get_ident()))
    stream = Stream()
    stream.graph = graph
    with counting() as counts, on_stream(stream):
        try:
            yield
        finally:
            RECORDING.clear()
    graph.bytes, graph.pool = counts.bytes, pool
    graph.spoil()
    pool.append(graph)


# ---- the device comes and goes


@contextlib.contextmanager
def pretended_device(folder: Path, patch) -> Iterator[torch.device]:
    """As long as the context lasts, torch has a GPU.

    folder: for a small library, once in a process; patch: a pytest.MonkeyPatch.
    """
    library = folder / "guard.so"
    if not library.exists():
        torch_at = Path(torch.__file__).parent
        subprocess.run(
            [
                "g++",
                "-std=c++20",
                "-shared",
                "-fPIC",
                f"-I{torch_at}/include",
                "-xc++",
                "-",
                "-o",
                library,
                f"-L{torch_at}/lib",
                "-lc10",
            ],
            input=GUARD.encode(),
            check=True,
        )
        ctypes.CDLL(str(library))
    on_host, thread, moved = (
        {name: getattr(torch, name) for name in ("tensor", "as_tensor")},
        threading.Thread.run,
        Tensor.to,
    )

    def placed(name: str):
        def make(data, dtype=None, device=None, **named):
            there = device is not None and torch.device(device).type == "cuda"
            made = on_host[name](data, dtype=dtype, device=None if there else device, **named)
            return made.to(device) if there else made

        return make

    def to(self, *args, **named):
        if isinstance(named.get("device"), int):
            named["device"] = torch.device("cuda", named["device"])
        return moved(self, *args, **named)

    def run(self) -> None:
        with Everywhere():
            thread(self)

    there = dict(
        is_available=lambda: True,
        is_initialized=lambda: True,
        _lazy_init=lambda: None,
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_device_name=lambda *_: "a pretended GPU",
        get_device_capability=lambda *_: (9, 0),
        synchronize=lambda *_: wait("synchronize"),
        get_device_properties=lambda *_: SimpleNamespace(total_memory=1 << 34),
        set_device=lambda *_: None,
        empty_cache=lambda: None,
        current_stream=current_stream,
        Stream=Stream,
        stream=on_stream,
        graph_pool_handle=list,
        CUDAGraph=Graph,
        graph=recorded,
        memory_allocated=lambda *_: 0,
        manual_seed=lambda _: None,
        set_rng_state=lambda *_: None,
        get_rng_state=lambda *_: torch.empty(0),
    )
    for name, value in there.items():
        patch.setattr(torch.cuda, name, value)
    for name in on_host:
        patch.setattr(torch, name, placed(name))
    patch.setattr(threading.Thread, "run", run)
    patch.setattr(Tensor, "to", to)
    with Everywhere():
        yield DEVICE
