"""The compiled library is run only if this user built it; abi.h says the same to cffi and to the
compiler. What Python passes to it: arrays of the right type and layout, or an error (also under
`python -O`, which leaves asserts out); and memory: an error where there is none left, little that
stays, and weights in large pages, which have the same numbers and go back with the last of them;
where there are none the weights stay where they are."""

from __future__ import annotations

import ctypes
import fcntl
import json
import logging
import mmap
import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import warm
from conftest import ran
from forked import in_fork
from sizes import drawn

from fairseq_ext.core import command_line
from fairseq_ext.core.files import untrusted_reason
from fairseq_ext.kernels import library as building
from fairseq_ext.kernels import lsh, lsh_torch, parallel, shortlist, transformer
from fairseq_ext.kernels.compiling import ABI, FLAGS, FOLDER
from fairseq_ext.kernels.library import address, c_library, library, loaded, new, pointer
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

pytestmark = pytest.mark.usefixtures("on_the_cpu")
needs_library = pytest.mark.skipif(library() is None, reason="there is no compiled library")
needs_compiler = pytest.mark.skipif(building.compiler() is None, reason="there is no C++ compiler")
WORKS = '#include "entry.hpp"\nENTRY int64_t works() { return 1; }\n'
LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"


# ---- layouts and signatures


@needs_compiler
def test_structures_are_laid_out_as_the_compiler_lays_them_out(tmp_path):
    ffi, claims = building.declarations(), []
    for name in ffi.list_types()[0]:
        kind = ffi.typeof(name)
        claims.append(f"sizeof({name}) == {ffi.sizeof(kind)}")
        for field, of in kind.fields:
            claims.append(f"offsetof({name}, {field}) == {of.offset}")
            claims.append(f"sizeof({name}::{field}) == {ffi.sizeof(of.type)}")
    assert len(claims) > 300
    checking = tmp_path / "layout.cpp"
    asserts = "".join(f"static_assert({each}, {json.dumps(each)});\n" for each in claims)
    checking.write_text(f'#include <cstddef>\n#include "entry.hpp"\n{asserts}')
    words = [*building.compiler(), *FLAGS, "-w", "-fsyntax-only", f"-I{FOLDER}", checking]
    assert not ran(*words, check=False).stderr


def test_a_field_that_the_structure_does_not_have_is_an_error():
    for name in building.declarations().list_types()[0]:
        with pytest.raises((KeyError, AttributeError)):
            building.new(name, no_such_field=1)
        with pytest.raises(AttributeError):
            building.new(name).no_such_field = 1


@needs_compiler
def test_the_library_exports_the_declared_functions_and_nothing_else():
    named = ran("nm", "-D", "--defined-only", building.build()).stdout
    found = {line.split()[-1] for line in named.splitlines()}
    declared = re.findall(r"^\w+ (\w+)\(", ABI.read_text("utf-8"), re.M)
    assert found == {*declared}
    functions = building.Library(building.build()).functions
    assert all(callable(getattr(functions, name)) for name in found)
    # as a reader of abi.h sees them
    signature = building.declarations().typeof(functions.propose_nothing).cname
    assert signature == "int64_t(*)(void *, struct Row *, int64_t, int64_t *, double *)"


def test_what_is_declared_is_parsed_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = building.declarations.__wrapped__()
    monkeypatch.setattr(building, "parse", None)
    kept = building.declarations.__wrapped__()
    assert kept.sizeof("Sentence") == first.sizeof("Sentence") > 300
    monkeypatch.undo()
    monkeypatch.setattr(building, "private_folder", lambda: Path("/proc/none"))
    assert building.declarations.__wrapped__().sizeof("Step") == first.sizeof("Step")


# ---- what is loaded


@pytest.fixture
def small(monkeypatch, tmp_path) -> Path:
    """Sources that compile at once, and a cache of the test's own: where the library will lie."""
    source = tmp_path / "works.cpp"
    source.write_text(WORKS)
    monkeypatch.setattr(building, "SOURCES", [source])
    monkeypatch.setattr(building, "HEADERS", [])
    # nothing is compiled that queries the processor
    monkeypatch.setenv("FAIRSEQ_EXT_KERNELS", "native")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fairseq_ext"


def load() -> building.Library | None:
    return building.library.__wrapped__()


def planted(folder: Path, mark: Path) -> bytes:
    """A library that leaves a mark when it is loaded."""
    source = folder.parent / "planted.cpp"
    source.write_text(
        "#include <cstdio>\n"
        f'struct Run {{ Run() {{ std::fclose(std::fopen("{mark}", "w")); }} }} run;\n'
        f"{WORKS}"
    )
    made = folder.parent / "planted.so"
    words = [*building.compiler(), "-shared", "-fPIC", f"-I{FOLDER}", "-o", made, source]
    ran(*words)
    ran(sys.executable, "-c", LOAD, made)
    assert mark.exists()  # it does run
    mark.unlink()
    return made.read_bytes()


@needs_compiler
def test_a_built_library_is_private_and_used_again(small, caplog, capsys, monkeypatch):
    monkeypatch.setattr(command_line, "own_command", "fairseq_cli.generate")
    with caplog.at_level(logging.INFO, "fairseq_ext"):
        assert load().works() == 1
        assert (
            capsys.readouterr().err
            == "compiling the decoder step, once on this machine: about 15 s\n"
        )
        first = building.build().stat().st_mtime_ns
        assert load().works() == 1 and building.build().stat().st_mtime_ns == first
    assert not caplog.records and not capsys.readouterr().err
    assert stat.S_IMODE(small.stat().st_mode) == 0o700
    assert sorted(path.suffix for path in small.iterdir()) == [".so"]


@needs_compiler
def test_a_library_is_not_trusted_in_a_folder_that_others_could_write_to(small, tmp_path, caplog):
    library, mark = building.build(), tmp_path / "mark"
    content = library.read_bytes()
    small.chmod(0o777)
    library.write_bytes(planted(small, mark))
    with caplog.at_level(logging.INFO, "fairseq_ext"):
        assert load().works() == 1
    assert not mark.exists() and library.read_bytes() == content
    assert "others could have written it" in caplog.text
    assert stat.S_IMODE(small.stat().st_mode) == 0o700


@needs_compiler
def test_a_cache_below_a_folder_that_others_can_write_to_is_not_used(small, caplog):
    library = building.build()
    small.parent.chmod(0o777)
    with caplog.at_level(logging.INFO, "fairseq_ext"):
        elsewhere = building.build()
    assert elsewhere.parent != library.parent and untrusted_reason(elsewhere) is None
    assert f"{small.parent} is writable by other users" in caplog.text
    shutil.rmtree(elsewhere.parent)


@needs_compiler
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_library_is_not_loaded(small, caplog):
    library = building.build()
    os.chown(library, 12345, 12345)
    with caplog.at_level(logging.INFO, "fairseq_ext"):
        assert building.build() == library
    assert "built again" in caplog.text and library.stat().st_uid == 0
    os.chown(small, 12345, 12345)
    with caplog.at_level(logging.INFO, "fairseq_ext"):
        elsewhere = building.build()
    assert elsewhere.parent != small and f"{small} belongs to another user" in caplog.text
    shutil.rmtree(elsewhere.parent)


@drawn(1)
@needs_compiler
@pytest.mark.parametrize("first", ["library", "torch"])
def test_there_is_one_openmp_runtime(first):
    """The library's functions are torch's, also where it is loaded before torch (two runtimes would
    have two sets of threads)."""
    code = {
        "library": "from fairseq_ext.kernels import library; assert library.library() is not None",
        "torch": "import torch; torch.set_num_threads(2); torch.randn(400, 400) @ torch.ones(400)",
    }
    maps = "for line in open('/proc/self/maps'): print(line.split()[-1])"
    script = "\n".join([code.pop(first), *code.values(), maps])
    done = ran(sys.executable, "-c", script)
    names = ("libgomp", "libomp", "libiomp")
    found = {line for line in done.stdout.split() if Path(line).name.startswith(names)}
    assert len(found) == 1 and "torch" in found.pop(), found


def test_two_processes_build_it_once(small, tmp_path):
    """Both find no library; the second waits for the first."""
    code = (
        "import sys; from pathlib import Path; from fairseq_ext.kernels import library as b; "
        "b.HEADERS = []; b.SOURCES = [Path(sys.argv[1])]; print(b.build().stat().st_mtime_ns)"
    )
    command = [warm.python(), "-c", code, tmp_path / "works.cpp"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    times = [process.communicate(timeout=120)[0] for process in running]
    assert times[0] == times[1] != ""


def test_a_process_that_is_forked_while_a_library_is_built_does_not_keep_others_waiting(tmp_path):
    reads, writes = os.pipe()
    with building.build_lock(tmp_path):
        child = in_fork(lambda: (os.close(writes), os.read(reads, 1)))
    handle = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where it would wait
    finally:
        os.close(handle)
        os.close(writes)
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("CXX", "no-such-compiler", "no C++ compiler"),
        ("CXX", "false", "false could not compile "),
        ("FAIRSEQ_EXT_KERNELS", "off", "FAIRSEQ_EXT_KERNELS=off"),
    ],
)
def test_that_there_is_no_library_is_said_and_is_no_error(
    monkeypatch, caplog, tmp_path, variable, value, said
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(variable, value)
    with caplog.at_level(logging.INFO, "fairseq_ext"):
        assert load() is None
    assert said in caplog.text and not [*tmp_path.glob("fairseq_ext/*")]


@needs_library
def test_the_command_that_builds_it_says_when_it_is_switched_off():
    done = ran(sys.executable, "-m", "fairseq_ext.kernels", FAIRSEQ_EXT_KERNELS="off")
    assert done.stdout.strip().endswith(".so")
    assert "FAIRSEQ_EXT_KERNELS=off" in done.stderr


@pytest.mark.skipif(shutil.which("env") is None, reason="there is no env command")
def test_a_compiler_may_be_named_with_what_is_to_come_before_it_or_behind(monkeypatch):
    monkeypatch.setenv("CXX", "env no-such-compiler -O2")
    assert building.compiler() == [shutil.which("env"), "no-such-compiler", "-O2"]
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    assert building.compiler() is None


X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
LONGS = torch.arange(6)
NO = torch.zeros(0)
phrases = build_table([()], False, torch.device("cpu"))


# ---- what Python passes to it: types and layouts


@pytest.mark.parametrize("array", [X, X.numpy()], ids=["tensor", "numpy"])
def test_an_address_is_given_of_dense_arrays_of_the_type_and_shape(array):
    where = array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data
    for found in (address(array, array.dtype), address(array, array.dtype, None, 8)):
        assert int(building.declarations().cast("intptr_t", found)) == where
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
    right = dict(tokens=np.zeros((1, 9), int), score=np.zeros((1, 9)), length=np.zeros(1, int))
    return parallel.CompiledRow(**{**right, **wrong}, width=9, method=method)


ONES, DRAWN, NEVER = torch.ones(8), torch.zeros(6).double(), torch.zeros(50).bool()
TAKEN = [  # a function of one array, the right one, and how it must not be
    (log_softmax_, X.clone(), "type layout"),
    (lambda x: topk(x, 2), X, "type layout"),
    (lambda x: best_of_sentences(X, x, LONGS[::5].clone(), 2), X[:, 0].clone(), "layout shape"),
    (lambda x: best_of_sentences(X, X[:, 0].clone(), x, 2), LONGS[::5].clone(), "type"),
    (lambda x: block_ngrams_(X.clone(), x, 2, None), LONGS[:, None] + LONGS[:3], "type"),
    (lambda x: block_ngrams_(X.clone(), LONGS[:, None], 1, x), torch.arange(8), "type"),
    (lambda x: draw_compiled(X, LONGS, x, SamplingCut()), DRAWN, "type shape"),
    (lambda x: PackedLinear(X, None)(x), X, "type shape"),
    (lambda x: PackedLinear(x, None), X, "type"),
    (lambda x: PackedLinear(X, x), torch.zeros(6), "type"),
    (lambda x: CompiledNorm(norm_of(ONES))(x), X, "type shape"),
    (lambda x: CompiledNorm(norm_of(x)), ONES, "type"),
    (lambda x: stack().encode_(X.clone(), x), LONGS[:2], "type"),
    (lambda x: stack().encode_(x, LONGS[:2]), X.clone(), "layout"),
    (cache_fields, torch.zeros(1, 2, 1, 1, 4, 3), "type layout"),
    (lambda x: replace(phrases, value=x).struct(), phrases.value, "type"),
    (lambda x: lsh.wta_hash(X, x, 1), torch.zeros(2, 3).long(), "type"),
    (found, X, "type"),
    (lambda x: found(X, x), NEVER, "type"),
    (lambda x: found(X, never=x), NEVER, "shape"),
    (lambda x: shortlisted(LONGS[:2], x), LONGS[3:], "type"),
    (lambda x: shortlisted(x, LONGS[3:]), LONGS[:2], "shape"),
]
SPOILT = {
    "type": lambda x: x.to({torch.int64: torch.int32}.get(x.dtype, torch.float16)),
    "layout": lambda x: torch.stack([x, x], -1)[..., 0],
    "shape": lambda x: x[..., :-1].clone(),
}
WRONG = [
    lambda: topk(X, 9),
    lambda: found(X, t=0),
    lambda: row(tokens=np.zeros((1, 9), np.int32)),
    lambda: row(score=np.zeros((1, 8))),
]


def shortlisted(base: torch.Tensor, found: torch.Tensor) -> tuple:
    return shortlist.ShortlistLinear(PackedLinear(X[:2], None), base, X, None, 1.0)(X, found, 1)


@needs_library
def test_what_compiled_code_cannot_read_is_refused_also_without_asserts():
    """An AssertionError would be neither of the two, and asserts are left out by `python -O`."""
    for number, (call, right, ways) in enumerate(TAKEN):
        call(right)
        for way in ways.split():
            with pytest.raises((TypeError, ValueError)):
                call(SPOILT[way](right))
                pytest.fail(f"row {number}: {way}")
    for call in WRONG:
        with pytest.raises((TypeError, ValueError)):
            call()


@needs_library
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


@needs_library
@pytest.mark.parametrize("call", [linear, screen])
def test_too_little_memory_is_an_error_and_does_not_end_the_process(call):
    """Each needs far too much scratch memory, before it reads anything."""
    said = f"^{call.__name__} of the compiled library needs more memory$"
    with pytest.raises(MemoryError, match=said):
        call()


@needs_library
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
    large = torch.ones(CHUNK // 4 + 1)  # more than a chunk
    wanted = [X, torch.full((3, 7, 2), -4, dtype=torch.int8), X.short(), large, LONGS]
    made = [copy(each) for each in wanted]
    for each, other in zip(made, wanted, strict=True):
        assert each.equal(other) and each.dtype == other.dtype and each.is_contiguous()
        assert each.data_ptr() % LINE == 0 and each.data_ptr() != other.data_ptr()
    assert made[0].data_ptr() % PAGE == made[3].data_ptr() % PAGE == 0
    assert made[2].data_ptr() - made[1].data_ptr() == LINE
    made[1].zero_()
    assert all(made[i].equal(wanted[i]) for i in (0, 2, 3, 4))


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
