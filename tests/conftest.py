"""What all tests share: the options --device and --all, a fairseq whose softmax keeps double
precision, and a tiny checkpoint."""

import collections
import functools
import gc
import importlib.metadata
import importlib.util
import logging
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import sizes
import torch
import torch.nn.functional as F
from fairseq import utils
from hypothesis import settings

from fairseq_ext.kernels.library import give_back_memory

# a variable of containers: each process would compile the package and the tests again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# a machine for kernels alone may lack the server's packages
pytest_plugins = ["serving"] if importlib.util.find_spec("uvicorn") else []

BIN = Path(sys.executable).parent  # where the fairseq commands are
# strategies from outside the package that these tests are for
OUTSIDE = os.environ.get("FAIRSEQ_EXT_STRATEGIES")
# the environment variable that names a folder of `tiny`, for a pytest that a test starts
TINY = "FAIRSEQ_EXT_TEST_TINY"


def pytest_addoption(parser):
    parser.addoption(
        "--all",
        action="store_true",
        help="all cases of heavy tests, not a part that covers their parameters",
    )
    parser.addoption(
        "--device",
        default="cpu",
        help="device for the tests that take one: cpu (default) or cuda",
    )


def pytest_configure(config):
    gc.disable()  # until all tests are imported
    config.addinivalue_line(
        "markers",
        "covering(n): without --all, cases in which each value of each parameter comes "
        "n times or more",
    )
    config.addinivalue_line("markers", "drawn(n): without --all, n of its cases")
    if config.getoption("--all"):
        os.environ[sizes.ALL] = "1"
    config.option.continue_on_collection_errors = True  # a file that fails to import fails alone
    # the same examples in every run; `HYPOTHESIS_PROFILE=default` looks for others
    settings.register_profile("suite", derandomize=True, max_examples=sizes.examples(100))
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


def pytest_collection_finish():
    """What is there now, stays: else Python's collector takes a third of the time to look
    at it again and again."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)  # of what -k leaves
def pytest_collection_modifyitems(config, items):
    of_test = collections.defaultdict(list)
    for item in items if not os.environ.get(sizes.ALL) else ():
        for name, keep in (("covering", sizes.part), ("drawn", sizes.draw)):
            if mark := item.get_closest_marker(name):
                of_test[item.parent, item.originalname, mark.args[0], keep].append(item)
    left_out = {
        item
        for (*_, count, keep), cases in of_test.items()
        for item in set(cases) - keep(cases, count)
    }
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


# why a test may be skipped with --all, too: what the machine is, not what is missing on it
OF_THE_MACHINE = re.compile(
    "GPU|processor|kind of machine|glibc|only root|Python 3.10|container|does not reach"
    "|few pieces|FBGEMM|nobody is advised"
)


def fail_without_a_tool(report: pytest.TestReport | pytest.CollectReport) -> None:
    """With --all a tool or a package that is missing is a failure, not a skip."""
    if not (os.environ.get(sizes.ALL) and report.skipped) or hasattr(report, "wasxfail"):
        return
    assert isinstance(report.longrepr, tuple)
    reason = report.longrepr[2]
    if not OF_THE_MACHINE.search(reason):
        report.outcome, report.longrepr = "failed", f"{reason} (with --all this is a failure)"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    fail_without_a_tool((yield).get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report():
    fail_without_a_tool((yield).get_result())


@pytest.fixture(scope="session", autouse=True)
def device(request):
    """Where models.py puts what it makes."""
    name = request.config.getoption("--device")
    if name != "cpu":
        import models

        models.DEVICE = torch.device(name)
    return torch.device(name)


@contextmanager
def process_wide_state():
    """Restores what was changed for the whole process: the state of loggers, and strategies from
    outside the package."""
    from fairseq_ext.search.registry import OUTSIDE_MODULE, PRUNERS, STRATEGIES

    loggers = [logging.getLogger(name) for name in (None, "fairseq", "fairseq_ext")]
    states = [(each.level, each.propagate, each.disabled) for each in loggers]
    disabled, tables = logging.root.manager.disable, (PRUNERS, *STRATEGIES.values())
    yield
    logging.disable(disabled)
    for each, (each.level, each.propagate, each.disabled) in zip(loggers, states, strict=True):
        each.manager._clear_cache()
    for table, name in [(each, name) for each in tables for name in each]:
        if not OUTSIDE and (module := table[name].build.__module__).startswith(OUTSIDE_MODULE):
            del table[name]
            sys.modules.pop(module, None)


@pytest.fixture(autouse=True)
def what_is_process_wide():
    """Restores it after each test."""
    with process_wide_state():
        yield


@pytest.fixture(scope="module", autouse=True)
def process_wide_in_a_file():
    """Restores it after each file: its fixtures may change it, too.

    Its memory goes back to the system: a fork takes 60 ms for each GiB that the process holds.
    """
    with process_wide_state():
        yield
    gc.collect()
    gc.freeze()  # so that the next collection looks at one file's objects
    give_back_memory()


@pytest.fixture
def on_the_cpu(device, monkeypatch):
    """For tests of what is compiled for the CPU: what models.py makes is there,
    whatever --device says."""
    import models

    monkeypatch.setattr(models, "DEVICE", torch.device("cpu"))


@pytest.fixture
def pretended(device, tmp_path_factory, monkeypatch):
    """A pretended GPU, for a test that always has one."""
    from pretended_device import pretended_device

    with (
        pretended_device(tmp_path_factory.getbasetemp(), monkeypatch)
        if device.type == "cpu"
        else nullcontext(device) as there
    ):
        yield there


@pytest.fixture
def simulated(device, pretended):
    """For a test of the pretended GPU itself: of what it counts, and of what it says."""
    if device.type != "cpu":
        pytest.skip("the pretended GPU, of which this test is, gives way to a real one")
    return pretended


def at_least_float(x):
    return torch.promote_types(x.dtype, torch.float32)


@pytest.fixture(scope="session", autouse=True)
def double_precision_softmax():
    """fairseq computes every softmax in float32, also for double models.

    Here doubles stay doubles, so that equality can be tested to 1e-9; models in float32
    compute what they always do.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            utils,
            "softmax",
            lambda x, dim, onnx_trace=False: F.softmax(x, dim=dim, dtype=at_least_float(x)),
        )
        patch.setattr(
            utils,
            "log_softmax",
            lambda x, dim, onnx_trace=False: F.log_softmax(x, dim=dim, dtype=at_least_float(x)),
        )
        yield


@pytest.fixture(scope="session")
def hostile(tmp_path_factory) -> Path:
    """A folder with a file for every module of the standard library and of the installed packages:
    it is not to be run, and leaves NAME.run where it is."""
    folder = tmp_path_factory.mktemp("hostile")
    installed = set(importlib.metadata.packages_distributions())
    for name in sys.stdlib_module_names - {*sys.builtin_module_names} | installed - {"fairseq_ext"}:
        if name.isidentifier():
            (folder / f"{name}.py").write_text(
                f"open({str(folder / f'{name}.run')!r}, 'w').close()\n"
                "raise ImportError('hostile')\n"
            )
    return folder


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """A wheel of this clone, which takes minutes to build."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [*"-m pip wheel -q --no-deps --wheel-dir".split(), folder, Path(__file__).parents[1]]
    ran(sys.executable, *words, cwd=folder, timeout=3600)
    return next(folder.glob("fairseq_ext-*.whl"))


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Models of Hugging Face's classes by kind and seed, each made and converted once."""
    from hf_models import make

    return functools.cache(lambda kind, seed=1: make(kind, tmp_path_factory.mktemp("hf"), seed))


@contextmanager
def limited(what: int, soft: int) -> Iterator[None]:
    """A limit of this process, such as resource.RLIMIT_FSIZE, for as long as the context lasts: no
    file grows beyond that number of bytes, as on a full disk."""
    before = resource.getrlimit(what)
    resource.setrlimit(what, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


# ---- tables of commands


def table(file: str, kind: str) -> list[list[str]]:
    """The rows of a kind, their first field, without it. file: below tests/; \\t is a tab."""
    lines = (Path(__file__).parent / file).read_text("utf-8").splitlines()
    rows = (line.split("\t") for line in lines)
    return [[text.replace("\\t", "\t") for text in row] for of, *row in rows if of == kind]


# ---- the commands


def ran(
    *words: object,
    stdin: bytes | str = "",
    check: bool = True,
    cwd: Path | None = None,
    timeout: float = 300,
    **environment: str,
) -> subprocess.CompletedProcess:
    """Run a program, of one thread, in this environment and what is added to it."""
    done = subprocess.run(
        [*map(str, words)],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        timeout=timeout,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    assert not check or done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def command(
    name: str,
    *arguments,
    stdin: bytes | str = b"",
    check: bool = True,
    cwd: Path | None = None,
    cold: bool = False,
    **environment,
) -> subprocess.CompletedProcess:
    """Run a fairseq command; its output as text.

    cold: in a Python that starts for it, not in a child of a warm one (warm.py).
    """
    import warm

    folder = BIN if cold or name not in warm.NAMES else warm.commands()
    words, environment = [folder / name, *arguments], {"PYTHONUTF8": "1", **environment}
    return ran(*words, stdin=stdin, check=check, cwd=cwd, **environment)


@contextmanager
def warm_starts() -> Iterator[None]:
    """What starts Python by `sys.executable`, as an Engine does, starts a warm one (warm.py)."""
    import warm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm.python())
        yield


@pytest.fixture
def warm_processes():
    """Processes of a test start warm."""
    with warm_starts():
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """A binarised corpus of made-up lines (data/) and a Transformer after one update (model.pt),
    its output layer sharpened."""
    if made := os.environ.get(TINY):
        return Path(made)
    import task_models  # here, since few tests need the commands' modules

    root = tmp_path_factory.mktemp("tiny")
    task_models.tiny(root)
    return root
