"""Each level of processors (kernels/compiling.py) computes the same, and so do libraries that are
built in other ways (built_otherwise.py): with sanitizers, and with allocations that fail.

With --all, levels of this processor run the kernels' tests, and so do others under qemu (Debian:
qemu-user-static, g++-aarch64-linux-gnu), where it is there.
"""

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sizes
from conftest import BIN, ran
from demo_model import MODEL, OURS, ROOT
from json_counts import close
from sizes import drawn

from fairseq_ext import doctor
from fairseq_ext.core.errors import UsageError
from fairseq_ext.kernels import library as building
from fairseq_ext.kernels.compiling import FLAGS, FOLDER, LEVELS, compile_files

HERE = LEVELS.get(platform.machine(), {})
# as qemu calls them
PROCESSORS = {
    "avx2": "Haswell",
    "neon": "cortex-a72",
    "dotprod": "neoverse-n1",
    "i8mm": "max",
    "nehalem": "Nehalem",
}
TESTS = (
    "kernels/test_kernels.py",
    "kernels/test_levels.py",
    "kernels/test_lsh_kernels.py",
    "search/test_compiled.py",
    "search/parallel/test_equals_greedy.py",
    "search/strategies/softmax/test_screened.py",
)
needs_all = pytest.mark.skipif(not os.environ.get(sizes.ALL), reason="with --all")
needs_compiler = pytest.mark.skipif(
    building.compiler() is None or not HERE, reason="there is no C++ compiler, or no level"
)


@functools.cache
def levels() -> list[str]:
    """Those of this processor."""
    return list(building.supported())


def of_command(name: str) -> list[str]:
    """A command; a test that needs it is skipped where it is not there."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}")
    return [found]


def run(words: list, **environment: str) -> subprocess.CompletedProcess:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(sizes.ALL, raising=False)
        return ran(*words, cwd=ROOT, check=False, timeout=3000, **environment)


def translations(*before: str) -> list[list]:
    """Hypotheses of some lines, and their scores, by the command that a user types."""
    flags = ["--beam", 5, "--nbest", 5, "--buffer-size", 9, "--batch-size", 9]
    words = [*before, sys.executable, BIN / "fairseq-interactive", MODEL, *OURS, *flags]
    text = (ROOT / "data" / "demo" / "test.de").read_text("utf-8").splitlines(keepends=True)
    done = ran(*words, stdin="".join(text[:9]), timeout=3000)
    rows = [line.split("\t") for line in done.stdout.splitlines() if line.startswith("H-")]
    return [[words, float(score)] for _, score, words in rows]


@needs_compiler
@pytest.mark.parametrize("level", ["foo", *HERE])
def test_a_level_that_is_unknown_or_that_the_processor_lacks_is_refused(level, monkeypatch, capsys):
    if level in levels():
        pytest.skip("the processor has it")
    lacks = ": this processor lacks that, so name", levels()
    why, known = (" is unknown: name", HERE) if level == "foo" else lacks
    said = f"{building.VARIABLE}={level}{why} one of {', '.join([*known, 'native', 'off'])}"
    monkeypatch.setenv(building.VARIABLE, level)
    commands = ["-m", "fairseq_ext.kernels"], [BIN / "fairseq-interactive", MODEL, *OURS]
    for words in commands if level == "foo" else ():
        done = run([sys.executable, *words])
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.splitlines()[-1] == f"error: {said}"
    assert not doctor.examine(next(item for item in doctor.ITEMS if item.name == "compiled step"))
    assert capsys.readouterr().out == f"FAIL  compiled step: {said}\n"
    with pytest.raises(UsageError, match=f"^{said}$"):  # as from a program's Translator
        building.library.__wrapped__()


# of x86-64-v3, beyond AVX2: the leaf that describes it, and its bit
PARTS_OF_V3 = {"MOVBE": (1, 22), "F16C": (1, 29), "LZCNT": (0x80000001, 5)}
# in the place of the compiler's own
CPUID = """#include_next <cpuid.h>
static int masked(unsigned leaf, unsigned* a, unsigned* b, unsigned* c, unsigned* d) {
    const int known = __get_cpuid(leaf, a, b, c, d);
    if (leaf == LEAF) *c &= ~(1u << BIT);
    return known;
}
#define __get_cpuid masked
"""


@needs_compiler
@pytest.mark.skipif("avx2" not in HERE, reason="this is another kind of machine")
@pytest.mark.parametrize("part", PARTS_OF_V3)
def test_a_processor_that_lacks_a_part_of_a_level_does_not_have_it(part, tmp_path):
    if "avx2" not in levels():
        pytest.skip("the processor does not have it anyway")
    (tmp_path / "cpuid.h").write_text(CPUID)
    leaf, bit = PARTS_OF_V3[part]
    flags = [*FLAGS, f"-I{tmp_path}", f"-DLEAF={leaf}", f"-DBIT={bit}"]
    compile_files(building.compiler(), flags, [FOLDER / "levels.cpp"], tmp_path / "levels.so")
    supports = ctypes.CDLL(str(tmp_path / "levels.so")).supports
    assert not any(supports(level.encode()) for level in HERE)


@needs_compiler
def test_the_fastest_level_is_chosen_and_a_named_one_is_taken(monkeypatch):
    monkeypatch.delenv(building.VARIABLE, raising=False)
    assert building.level() == levels()[0]
    monkeypatch.setenv(building.VARIABLE, levels()[-1])
    assert building.level() == levels()[-1]


@needs_compiler
def test_a_processor_without_any_level_runs_on_torch(monkeypatch):
    monkeypatch.delenv(building.VARIABLE, raising=False)
    monkeypatch.setattr(building, "LEVELS", {platform.machine(): {"none": ()}})
    with pytest.raises(
        RuntimeError,
        match="^the processor has none of none: FAIRSEQ_EXT_KERNELS=native compiles for it$",
    ):
        building.level()
    assert building.library.__wrapped__() is None


@needs_compiler
def test_products_by_tiles_have_the_bits_of_those_without_them(tmp_path):
    driver, source = tmp_path / "driver", Path(__file__).with_name("tiles.cpp")
    chosen = LEVELS[platform.machine()][levels()[0]] if levels() else ()
    words = [*FLAGS, *chosen, "-O1", "-w", f"-I{FOLDER}", source, "-o", driver]
    ran(*building.compiler(), *words)
    ran(driver, OMP_NUM_THREADS="2")


@needs_all
@needs_compiler
@pytest.mark.parametrize("level", [*HERE, "native"])
def test_the_kernels_tests_pass_at_each_level_of_this_processor(level):
    if level not in (*levels(), "native"):
        pytest.skip("the processor does not have it")
    done = run(
        [sys.executable, "-m", "pytest", "-q", *(ROOT / "tests" / name for name in TESTS)],
        FAIRSEQ_EXT_KERNELS=level,
    )
    assert done.returncode == 0, done.stdout[-3000:]


@needs_all
@pytest.mark.parametrize(
    "machine, level",
    [*((machine, level) for machine in LEVELS for level in LEVELS[machine]), ("x86_64", "nehalem")],
)
def test_kernels_compute_right_on_processors_that_are_not_at_hand(machine, level, tmp_path):
    """Compiled for the level, and run on a processor of it that qemu plays (or on this one).

    One has no level: it may be named `native`.
    """
    compiler = (
        building.compiler()
        if machine == platform.machine()
        else of_command(f"{machine}-linux-gnu-g++")
    )
    if level in PROCESSORS:
        processor = [*of_command(f"qemu-{machine}-static"), "-cpu", PROCESSORS[level]]
    elif level in levels():
        processor = []
    else:
        pytest.skip("neither this processor nor qemu has it")
    driver, source = tmp_path / "driver", Path(__file__).with_name("level_driver.cpp")
    chosen = LEVELS[machine].get(level, [f"-march={level}"])
    ran(*compiler, *FLAGS, *chosen, f"-I{FOLDER}", "-static", "-w", source, "-o", driver)
    ran(*processor, driver, *[level] * (level in LEVELS[machine]), timeout=3000)


@needs_all
@needs_compiler
def test_a_processor_without_avx2_starts_and_finds_the_same_hypotheses_on_torch():
    qemu = of_command("qemu-x86_64-static")
    assert (
        "the processor has none of amx, avx512vnni"
        in run([*qemu, "-cpu", "Nehalem", sys.executable, "-m", "fairseq_ext.kernels"]).stderr
    )
    expected = translations()
    assert len(expected) == 45 and close(translations(*qemu, "-cpu", "Nehalem"), expected, 1e-4)


# ---- libraries that are built in other ways

KERNELS = Path(__file__).parent


def otherwise(test):
    """A test that compiles the library, and runs many tests."""
    has_none = building.compiler() is None
    for mark in (drawn(0), pytest.mark.timeout(3000)):
        test = mark(test)
    return pytest.mark.skipif(has_none, reason="there is no C++ compiler")(test)


RANDOM = [  # of beam, transformer, parallel and lists of words
    "kernels/test_kernels.py",
    "kernels/test_lsh_kernels.py::test_log_probabilities_over_a_list_equal_double_precision",
    "search/test_compiled.py",
    "search/test_nan.py",
    "search/parallel/test_equals_greedy.py",
]


def passed(built: str, files: list[str], **environment: str) -> str:
    """What pytest says of these tests."""
    words = [sys.executable, "-m", "pytest", "-x", "-p", "built_otherwise", *files]
    paths = os.pathsep.join([str(KERNELS), os.environ.get("PYTHONPATH", "")])
    environment |= {"PYTHONPATH": paths, "BUILT": built, "OMP_NUM_THREADS": "2"}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(sizes.ALL, raising=False)
        return ran(*words, cwd=KERNELS.parent, timeout=3000, **environment).stdout


@otherwise
@pytest.mark.parametrize("file", RANDOM)
def test_the_random_tests_pass_under_sanitizers(file):
    words = [*building.compiler(), "-print-file-name=libasan.so"]
    runtime = ran(*words, check=False).stdout.strip()
    if not os.path.isabs(runtime):
        pytest.skip("there is no sanitizer")
    options = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    assert " passed" in passed("sanitized", [file], **options)


@otherwise
def test_searches_of_which_any_allocation_fails_end_by_an_error():
    assert " passed" in passed("starved", ["search/starved_searches.py"])
