"""A pretended GPU: tensors that say they are on `cuda:0` and hold their values on the CPU.

As on a GPU, an operation on tensors of host and device raises, and so do numpy and compiled code
for the CPU on a device's tensor. Counted (`counting`) are waits of the host, each with the place in
fairseq_ext that waits, and launches. A recorded CUDA graph is one launch; a wait while it is
recorded raises. An upload of a Python list waits too, as torch.tensor(..., device="cuda") does:
torch synchronises after every copy from ordinary memory that is not `non_blocking`.

Not shown: speed, memory, kernels that torch has for the CPU only, and what runs at the same time.
"""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

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


COUNTS = []  # those that count now
RECORDING = []  # the graph that is being recorded, if any


@contextlib.contextmanager
def counting():
    counts = Counts()
    COUNTS.append(counts)
    try:
        yield counts
    finally:
        COUNTS.remove(counts)


def wait(what):
    """The host waits for the device."""
    if RECORDING:
        raise RuntimeError(f"operation not permitted when stream is capturing: {what}")
    if COUNTS:
        frame = sys._getframe()
        while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        place = (
            ""
            if frame is None
            else f" in {frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno}"
        )
        for counts in COUNTS:
            counts.waits[what + place] += 1


class Pretended(Tensor):
    """A tensor of the device; `inner` holds its values."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
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

    def __deepcopy__(self, memo):
        made = Pretended(self.inner.clone())
        return (
            torch.nn.Parameter(made, self.requires_grad)
            if isinstance(self, torch.nn.Parameter)
            else made
        )

    def data_ptr(self):
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


def with_tensors(index):
    """An index whose lists are tensors of the host, as torch takes them."""
    if isinstance(index, tuple):
        return tuple(map(with_tensors, index))
    return torch.tensor(index) if isinstance(index, list) else index


class Everywhere(TorchDispatchMode):
    """Sees the operations that take no tensor of the device and make one."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return operate(func, args, kwargs or {})


def tensors_of(values):
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
    check(func, name, args, given, there)
    if what := awaited(name, args, kwargs, given, there, torch.device(device)):
        wait(what)
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
    if RECORDING:
        RECORDING[-1].add(func, *values, out)
    elif not func.is_view and name not in FREE.split():
        for counts in COUNTS:
            counts.launches[name] += 1
    if to_host:
        return out
    # an operation in place returns the tensor that it was given
    known = {id(x.inner): x for x in there}
    return wrapped(out, known)


def wrapped(out, known):
    if isinstance(out, Tensor):
        before = known.get(id(out))
        assert before is None or before.shape == out.shape, (
            "an operation in place has changed a tensor's shape"
        )
        return Pretended(out) if before is None else before
    return type(out)(wrapped(x, known) for x in out) if type(out) in (list, tuple) else out


def check(func, name, args, given, there):
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
    for x in given if there and name not in ("copy_", "_to_copy") else ():
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


def awaited(name, args, kwargs, given, there, device):
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


def compute(func, name, args, kwargs):
    """The operation on the CPU, which lacks two that GPUs have."""
    if name == "mm" and len(args) == 3:  # of half precision, summed and returned in float32
        return args[0].to(args[2]) @ args[1].to(args[2])
    if name in ("_softmax", "_log_softmax") and args[2]:  # from half precision to float32
        return func(args[0].float(), args[1], False)
    return func(*args, **kwargs)


# ---- CUDA graphs


class Graph:
    """Stands for torch.cuda.CUDAGraph: the same operations again, at the addresses and with the
    host's numbers of the first time."""

    def __init__(self):
        self.calls = []
        self.pool = [self]

    def add(self, func, args, kwargs, out):
        self.calls.append((func, args, kwargs, out))

    @staticmethod
    def is_new(func):
        """Whether the results of an operation lie in the pool."""
        is_view = func.is_view or "_unsafe_view" in str(func)
        return not is_view and not func._schema.is_mutable

    def spoil(self):
        """Recording computes nothing, and whatever else uses the pool writes over the results."""
        for func, _, _, out in self.calls:
            for tensor in tensors_of([out]) if self.is_new(func) else ():
                tensor.fill_(7)

    def replay(self):
        for graph in self.pool:
            graph.spoil()
        for func, args, kwargs, out in self.calls:
            fresh = func(*args, **kwargs)
            if self.is_new(func):
                for here, value in zip(tensors_of([out]), tensors_of([fresh]), strict=True):
                    here.copy_(value)
        for counts in COUNTS:
            counts.launches["graph"] += 1


@contextlib.contextmanager
def recorded(graph, pool, capture_error_mode):
    RECORDING.append(graph)
    try:
        yield
    finally:
        RECORDING.clear()
    pool.append(graph)
    graph.pool = pool
    graph.spoil()


class Stream:
    """There is one stream."""

    def wait_stream(self, other):
        pass


# ---- the device comes and goes


@contextlib.contextmanager
def pretended_device(folder, patch):
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
    on_host, moved = {name: getattr(torch, name) for name in ("tensor", "as_tensor")}, Tensor.to

    def placed(name):
        def make(data, dtype=None, device=None, **named):
            there = device is not None and torch.device(device).type == "cuda"
            made = on_host[name](data, dtype=dtype, device=None if there else device, **named)
            return made.to(device) if there else made

        return make

    def to(self, *args, **named):
        if isinstance(named.get("device"), int):
            named["device"] = torch.device("cuda", named["device"])
        return moved(self, *args, **named)

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
        current_stream=lambda *_: Stream(),
        Stream=Stream,
        stream=contextlib.nullcontext,
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
    patch.setattr(Tensor, "to", to)
    with Everywhere():
        yield DEVICE
