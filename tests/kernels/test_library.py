"""The compiled library is run only if this user built it; abi.h says the same to cffi and to the
compiler."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from conftest import ran
from forked import in_fork
from sizes import drawn

from fairseq_ext.core import command_line
from fairseq_ext.core.files import untrusted_reason
from fairseq_ext.kernels import library as building
from fairseq_ext.kernels.compiling import ABI, FLAGS, FOLDER

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
