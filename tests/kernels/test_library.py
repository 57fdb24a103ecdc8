"""The compiled library is run only if it is what was built, by this user; the signatures are
those of the C++ files."""

from __future__ import annotations

import ctypes
import fcntl
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from forked import in_fork
from sizes import drawn

from fairseq_ext.core import command_line
from fairseq_ext.core.files import untrusted_reason
from fairseq_ext.kernels import banks, beam, lsh, parallel, shortlist, transformer
from fairseq_ext.kernels import library as building
from fairseq_ext.kernels.compiling import FLAGS, FOLDER
from fairseq_ext.kernels.library import signatures

needs_compiler = pytest.mark.skipif(building.compiler() is None, reason="there is no C++ compiler")
WORKS = '#include "entry.hpp"\nENTRY int64_t works() { return 1; }\n'
LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"


# ---- layouts and signatures

LAYOUTS = {
    "banks.cpp": [banks.PhrasesStruct, banks.RowsStruct, banks.SelectionStruct],
    "beam.cpp": [beam.Rules, beam.SentenceStruct, beam.BatchStruct, transformer.ReaderStruct],
    "parallel.cpp": [
        parallel.TrajectoryStruct,
        parallel.PreviousStruct,
        parallel.RowStruct,
        parallel.BlocksStruct,
        parallel.WindowStruct,
        parallel.DrafterStruct,
    ],
    "lsh.cpp": [lsh.IndexStruct],
    "shortlist.cpp": [shortlist.ListStruct, shortlist.ScreenStruct],
    "transformer.cpp": [
        transformer.LinearStruct,
        transformer.NormStruct,
        transformer.LayerStruct,
        transformer.LayerStackStruct,
        transformer.CacheStruct,
        transformer.StepStruct,
    ],
}


def layout(kind: type[ctypes.Structure]) -> str:
    """What holds for a structure of C++ if ctypes lays it out alike."""
    name = kind.__name__.removesuffix("Struct")
    reported = [f"sizeof({name}) == {ctypes.sizeof(kind)}"]
    for field, of in kind._fields_:
        reported += [
            f"offsetof({name}, {field}) == {getattr(kind, field).offset}",
            f"sizeof({name}::{field}) == {ctypes.sizeof(of)}",
        ]
    return "".join(f"static_assert({each}, {json.dumps(each)});\n" for each in reported)


def refused(file: str, kinds: list[type[ctypes.Structure]], folder: Path) -> str:
    """What the compiler says of structures that it lays out in another way."""
    checking = folder / "layout.cpp"
    checking.write_text(f'#include <cstddef>\n#include "{file}"\n' + "".join(map(layout, kinds)))
    checked = [*building.compiler(), *FLAGS, "-w", "-fsyntax-only", f"-I{FOLDER}", checking]
    return subprocess.run(checked, capture_output=True, text=True, check=False).stderr


@needs_compiler
@pytest.mark.parametrize("file", LAYOUTS)
def test_structures_are_laid_out_as_the_compiler_lays_them_out(file, tmp_path):
    assert not refused(file, LAYOUTS[file], tmp_path)


@pytest.mark.parametrize("kind", [kind for kinds in LAYOUTS.values() for kind in kinds])
def test_a_field_that_the_structure_does_not_have_is_an_error(kind):
    """ctypes would keep the value next to the structure, and compiled code would read 0."""
    with pytest.raises(AttributeError):
        kind(no_such_field=1)
    with pytest.raises(AttributeError):
        kind().no_such_field = 1


@needs_compiler
def test_another_layout_is_refused(tmp_path):
    turned = type(
        "SelectionStruct",
        (ctypes.Structure,),
        {"_fields_": [*banks.SelectionStruct._fields_[::-1]]},
    )
    assert "offsetof(Selection, row)" in refused("banks.cpp", [turned], tmp_path)


@needs_compiler
def test_every_function_that_the_library_exports_has_its_signature():
    named = subprocess.run(
        ["nm", "-D", "--defined-only", building.build()], capture_output=True, text=True, check=True
    ).stdout
    found = signatures(building.SOURCES)
    assert {line.split()[-1] for line in named.splitlines()} == set(found)  # and nothing else
    # as a reader of log_probs.cpp and parallel.cpp sees them
    N, P = ctypes.c_int64, ctypes.c_void_p
    assert found["log_softmax"] == (None, [P, N, N, ctypes.c_float])
    assert found["encode"] == (N, [P, P, P, N])
    assert found["propose_nothing"] == (N, [P, P, N, ctypes.c_double, P, P])


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


def load() -> ctypes.CDLL | None:
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
    subprocess.run(words, check=True)
    subprocess.run([sys.executable, "-c", LOAD, made], check=True)
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
    assert sorted(path.suffix for path in small.iterdir()) == [".sha256", ".so"]


@drawn(3)
@needs_compiler
@pytest.mark.parametrize("harm", ["half", "bit", "other", "digest", "no digest", "empty digest"])
def test_anything_else_than_what_was_built_is_built_again(small, tmp_path, caplog, harm):
    library = building.build()
    content, digest, mark = library.read_bytes(), library.with_suffix(".sha256"), tmp_path / "mark"
    if harm == "half":
        library.write_bytes(content[: len(content) // 2])
    elif harm == "bit":
        library.write_bytes(content[:1000] + bytes([content[1000] ^ 4]) + content[1001:])
    elif harm == "other":
        library.write_bytes(planted(small, mark))
    elif harm == "digest":
        digest.write_text("0" * 64)
    elif harm == "no digest":
        digest.unlink()
    else:
        digest.write_text("")
    with caplog.at_level(logging.INFO, "fairseq_ext"):
        assert load().works() == 1
    assert library.read_bytes() == content and not mark.exists()
    assert [line for line in caplog.messages if "compiling" not in line] == [
        f"{library} was changed after it was built: it is built again"
    ]


@needs_compiler
def test_a_library_with_its_digest_is_not_trusted_in_a_folder_that_others_could_write_to(
    small, tmp_path, caplog
):
    library, mark = building.build(), tmp_path / "mark"
    content = library.read_bytes()
    small.chmod(0o777)
    library.write_bytes(planted(small, mark))
    library.with_suffix(".sha256").write_text(
        building.hashlib.sha256(library.read_bytes()).hexdigest()
    )
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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
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
