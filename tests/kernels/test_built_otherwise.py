"""The random tests on libraries that are built in other ways (built_otherwise.py): with sanitizers,
and with allocations that fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sizes
from sizes import drawn

from fairseq_ext.kernels import library as building

HERE = Path(__file__).parent
sys.path.append(str(HERE))

from sanitizers import environment, sanitized  # noqa: E402

pytestmark = [
    pytest.mark.skipif(building.compiler() is None, reason="there is no C++ compiler"),
    pytest.mark.timeout(3000),
]
RANDOM = [  # of beam, transformer, parallel and lists of words
    "kernels/test_kernels.py",
    "kernels/test_lsh_kernels.py::test_log_probabilities_over_a_list_equal_double_precision",
    "kernels/test_ngrams.py",
    "search/test_compiled.py",
    "search/test_nan.py",
    "search/parallel/test_equals_greedy.py",
]


def passed(built: str, files: list[str], environment: dict[str, str]) -> str:
    """What pytest says of these tests."""
    words = [sys.executable, "-m", "pytest", "-x", "-p", "built_otherwise", *files]
    paths = os.pathsep.join([str(HERE), environment.get("PYTHONPATH", "")])
    others = {name: value for name, value in environment.items() if name != sizes.ALL}
    done = subprocess.run(
        words,
        cwd=HERE.parent,
        env={**others, "PYTHONPATH": paths, "BUILT": built, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return done.stdout


@drawn(0)  # minutes
@pytest.mark.parametrize("file", RANDOM)
def test_the_random_tests_pass_under_sanitizers(file):
    runtime = sanitized()
    if runtime is None:
        pytest.skip("there is no sanitizer")
    assert " passed" in passed("sanitized", [file], environment(runtime))


@drawn(0)  # it compiles the library
def test_searches_of_which_any_allocation_fails_end_by_an_error():
    assert " passed" in passed("starved", ["search/starved_searches.py"], dict(os.environ))
