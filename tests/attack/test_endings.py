"""How commands end: at Ctrl-C, when no one reads their output any more, when it takes no more.

Quietly, with the status of a shell.
"""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing import util
from pathlib import Path

import pytest
import ray
from conftest import BIN
from corpus_jobs import DEMO, Echo, OneProcess, write_text
from fairseq_cli.generate import cli_main as generate_main
from fairseq_cli.interactive import cli_main as interactive_main
from forked import Child
from sizes import drawn

from fairseq_ext import translate
from fairseq_ext.core import exit
from fairseq_ext.corpus import run
from fairseq_ext.corpus.__main__ import main as corpus_main
from fairseq_ext.plugin import compat
from fairseq_ext.terms.__main__ import main as terms_main

START_UP = Path(compat.__file__).with_name("fairseq_ext_start.py")
EXT = ["--task", "translation_ext", "--cpu", "--beam", "2", "--max-len-b", "8"]
CORPUS = ["fairseq_ext.corpus", "translate", "--path", "m", "--data", "d", "--cpu"]
FLAGS = ["--data", "demo", "--cpu"]
GLOSSARY = ["fairseq_ext.terms", "expand", "--lang", "en"]


def corpus() -> int:
    """The corpus command in one process, without Ray."""
    run.Run, OneProcess.worker = OneProcess, Echo()
    return corpus_main()


@pytest.fixture
def commands(tiny, tmp_path):
    """name -> (main function, arguments, what it reads).

    What they print is more than a pipe or a page holds.
    """
    model = [str(tiny / "data"), "--path", str(tiny / "model.pt"), *EXT]
    glossary, text = tmp_path / "g.tsv", tmp_path / "t.txt"
    glossary.write_text("".join(f"Wort{i}\tword{i}\n" for i in range(20_000)))
    text.write_text("words\n")
    return {
        "generate": (generate_main, ["fairseq-generate", *model], b""),
        "interactive": (
            interactive_main,
            ["fairseq-interactive", *model, "-s", "de", "-t", "en"],
            b"de1 de2\n" * 300,
        ),
        "corpus": (corpus, [*CORPUS, "--input", str(text), "--output", str(tmp_path / "out")], b""),
        "translate": (
            lambda: translate.main(FLAGS),
            ["fairseq_ext.translate"],
            b"Guten Tag.\n",
        ),
        "terms": (terms_main, [*GLOSSARY, "--glossary", str(glossary), "--text", str(text)], b""),
    }


@drawn(2)
@pytest.mark.parametrize("name", ["generate", "interactive", "corpus", "terms"])
def test_a_closed_pipe_ends_a_command_quietly(commands, name):
    main, argv, stdin = commands[name]
    reads, writes = os.pipe()
    os.close(reads)  # before anything is written
    done = Child(main, argv, stdin, stdout=writes).wait()
    os.close(writes)
    assert done.status == 141, done.stderr
    assert (
        "Traceback" not in done.stderr
        and "Exception ignored" not in done.stderr
        and "error: " not in done.stderr
    )


@pytest.mark.parametrize("name", ["generate", "interactive", "corpus", "terms"])
def test_an_output_that_takes_no_more_is_one_sentence(commands, name):
    main, argv, stdin = commands[name]
    full = os.open("/dev/full", os.O_WRONLY)
    done = Child(main, argv, stdin, stdout=full).wait()
    os.close(full)
    assert done.status == 1, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert said == [
        (
            "error: standard output cannot be written (No space left on device): free "
            "disk space and run again"
        )
    ]
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def without(stream: str, main):
    """A command whose shell has closed a stream: Python then has None there."""

    def run():
        os.close(getattr(sys, stream).fileno())
        setattr(sys, stream, None)
        exit.watch_output()
        return main()

    return run


@pytest.mark.parametrize("name", ["generate", "interactive", "corpus", "terms", "translate"])
def test_a_closed_output_is_one_sentence_and_no_success(commands, name):
    main, argv, stdin = commands[name]
    done = Child(without("stdout", main), argv, stdin).wait()
    assert done.status == 1 and "Traceback" not in done.stderr, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == [
        "error: standard output is closed: send it to a file"
    ]


@pytest.mark.parametrize("name", ["interactive", "terms"])
def test_a_mistake_shows_its_traceback_where_it_is_requested(commands, name, tmp_path):
    main, argv, _ = commands[name]
    argv = [str(tmp_path / "absent") if word.endswith((".pt", ".tsv")) else word for word in argv]
    quiet, loud = Child(main, argv).wait(), Child(main, [*argv, "--verbose"]).wait()
    said = [line for line in quiet.stderr.splitlines() if line.startswith("error: ")]
    assert (quiet.status, loud.status, len(said)) == (1, 1, 1) and "Traceback" not in quiet.stderr
    assert "Traceback (most recent call last):\n" in loud.stderr and loud.stderr.endswith(
        f"{said[0]}\n"
    )


def test_a_closed_input_is_one_sentence_unless_another_is_named(commands, tmp_path):
    main, argv, _ = commands["interactive"]
    done = Child(without("stdin", main), argv).wait()
    assert done.status == 1 and "Traceback" not in done.stderr
    assert (
        "error: standard input is closed: give lines there, or name a file by --input\n"
        in done.stderr
    )
    (tmp_path / "in").write_text("de1\n")
    done = Child(without("stdin", main), [*argv, "--input", str(tmp_path / "in")]).wait()
    assert done.status == 0 and "H-0" in done.stdout
    done = Child(without("stdin", main), [*argv, "--input", ""]).wait()
    assert (
        done.status == 1
        and "error: a file is given without a name: name one, or leave its flag out\n"
        in done.stderr
    )


def test_where_standard_error_is_closed_nothing_of_it_is_printed_among_the_translations(commands):
    main, argv, _ = commands["interactive"]
    done = Child(without("stderr", main), argv, b"de1\n\xff\nde2\n").wait()
    names = [line.partition("-")[0] for line in done.stdout.splitlines()]
    assert (
        done.status == 3
        and names.count("H") == 3
        and "E" not in names
        and "WARNING" not in done.stdout
    )


def test_a_ray_that_does_not_start_is_one_sentence(tmp_path):
    def main() -> int:
        def fails(**settings):
            raise Exception(
                "The current node timed out during startup. This could happen because "
                "of many things."
            )

        ray.init = fails
        return corpus_main()

    path = write_text(tmp_path / "a.txt", ["Haus"])
    argv = [
        "fairseq_ext.corpus",
        "translate",
        "--path",
        str(DEMO / "checkpoint.pt"),
        "--data",
        str(DEMO),
        "--input",
        str(path),
    ]
    done = Child(main, [*argv, "--output", str(tmp_path / "out"), "--cpu"]).wait()
    assert done.status == 1 and "Traceback" not in done.stderr
    assert (
        "error: Ray could not be started (The current node timed out during startup): free memory"
        in done.stderr
    )


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_ctrl_c_ends_an_interactive_session_quietly(commands, tmp_path, again):
    main, argv, _ = commands["interactive"]
    reads, writes = os.pipe()  # stays open: the session waits for a line
    child = Child(main, [*argv, "--stats-file", str(tmp_path / "stats.json")], reads)
    assert child.said("Type the input sentence")
    os.kill(child.pid, signal.SIGINT)
    if again:
        os.kill(child.pid, signal.SIGINT)
    done = child.wait()
    os.close(reads), os.close(writes)
    assert done.status in (130, -signal.SIGINT) if again else done.status == 130
    assert (
        "Traceback" not in done.stderr
        and "error: " not in done.stderr
        and (tmp_path / "stats.json").exists()
    )


@pytest.mark.parametrize("moment", ["loading model(s)", "fairseq_ext:0.1"])
def test_ctrl_c_ends_generate_quietly(commands, moment):
    main, argv, _ = commands["generate"]
    child = Child(main, [*argv, "--min-len", "3", "--beam", "20"])
    assert child.said(moment)
    os.kill(child.pid, signal.SIGINT)
    done = child.wait()
    assert (
        done.status in (0, 130) and "Traceback" not in done.stderr and "error: " not in done.stderr
    )


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_while_a_finished_command_ends_is_quiet(commands, tmp_path, times):
    """The moment is when Python ends the process that reads batches."""
    main, argv, _ = commands["generate"]

    def run() -> int:
        def interrupt() -> None:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

        util.Finalize(None, interrupt, exitpriority=1)
        return main()

    done = Child(run, [*argv, "--stats-file", str(tmp_path / "stats.json")]).wait()
    assert done.status == (130 if times == 1 else -signal.SIGINT)
    assert "Traceback" not in done.stderr and (tmp_path / "stats.json").exists()
    assert times == 2 or done.stdout.count("H-") == 11


def test_a_process_that_is_started_while_a_command_ends_does_not_outlive_it(commands, tmp_path):
    """As by the thread that reads batches ahead, after Python has ended those it knew."""
    main, argv, _ = commands["generate"]

    def run() -> int:
        def start() -> None:
            late = multiprocessing.get_context("fork").Process(target=time.sleep, args=[60])
            late.start()
            (tmp_path / "pid").write_text(str(late.pid))

        atexit.unregister(util._exit_function)  # before: it would end, or wait for, what is late
        atexit.register(start)
        return main()

    Child(run, argv).wait()
    pid, seconds = int((tmp_path / "pid").read_text()), time.monotonic()
    while Path(f"/proc/{pid}").exists() and time.monotonic() < seconds + 20:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_ctrl_c_ends_the_corpus_command_quietly(tmp_path):
    """Before Ray has started; test_corpus_ray.py has what happens then."""
    path = write_text(tmp_path / "a.txt.gz", ["Haus"] * 300_000)
    argv = [
        "fairseq_ext.corpus",
        "translate",
        "--path",
        str(DEMO / "checkpoint.pt"),
        "--data",
        str(DEMO),
        "--input",
        str(path),
    ]

    def main() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return corpus_main()

    done = Child(main, [*argv, "--output", str(tmp_path / "out"), "--cpu"]).wait()
    assert done.status == 130 and "Traceback" not in done.stderr


STARTS = [
    (["-m", "fairseq_ext.corpus"], "fairseq_ext.core.files"),
    (["-m", "fairseq_ext.terms"], "fairseq_ext.core.files"),
    ([str(BIN / "fairseq-generate"), "--task", "translation_ext"], "numpy"),  # in the first second
    ([str(BIN / "fairseq-generate"), "--task=translation_ext"], "sacrebleu"),
]


@drawn(1)
@pytest.mark.parametrize(
    "argv, moment", STARTS, ids=["corpus", "terms", "generate, at first", "generate"]
)
def test_ctrl_c_is_quiet_while_python_still_imports(argv, moment):
    """The moment is the import of a module; what the interpreter does at its
    start is done first."""
    module = argv[0] == "-m"
    script = f"""
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
sys.orig_argv = ["python", *{argv!r}]
sys.argv = {argv[:1] + argv[2:] if module else argv!r}
class Interrupt:
    def find_spec(self, name, *more):
        if name == {moment!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
run = runpy.{"run_module" if module else "run_path"}
run({argv[1 if module else 0]!r}, run_name="__main__", **{dict(alter_sys=True) if module else {}})
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 130 and "Traceback" not in done.stderr, done.stderr


def test_ctrl_c_raises_once_the_package_is_there(tmp_path):
    """A command of ours that has started writes its statistics and says how it goes on: it is not
    ended at once any more."""
    words = [
        "-m",
        "fairseq_ext.terms",
        "expand",
        "--glossary",
        "opened.tsv",
        "--lang",
        "en",
        "--text",
        "t",
    ]
    # ignored where the tests run in the background
    lines = [
        "import os, signal, sys",
        "signal.signal(signal.SIGINT, signal.SIG_DFL)",
        f"os.execv(sys.executable, [sys.executable, *{words!r}])",
    ]
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, signal, sys\n"
        "atexit.register(print, 'at the end')\n"
        "sys.addaudithook(lambda event, args: event == 'open' and str(args[0]) == 'opened.tsv' and "
        "signal.raise_signal(signal.SIGINT))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
    )
    assert (done.returncode, done.stdout) == (130, "at the end\n"), done.stderr


OTHERS = {
    "stock's task": [str(BIN / "fairseq-generate"), "--task", "translation"],
    "another program": ["translate.py", "--task", "translation_ext"],
    "no arguments": [],
}


@pytest.mark.parametrize("name", OTHERS)
def test_ctrl_c_is_left_alone_in_other_programs(name):
    words = OTHERS[name]
    script = (
        f"import sys, signal; sys.argv = {words!r} or ['']; sys.orig_argv = "
        f"{['python', *words] if words else []!r}; "
    )
    # a shell's background ignores it
    script += "before = signal.getsignal(signal.SIGINT); "
    script += f"exec({START_UP.read_text()!r}); print(signal.getsignal(signal.SIGINT) is before)"
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=100
        ).stdout
        == "True\n"
    )


def test_commands_run_with_every_warning_an_error(tiny, tmp_path):
    """python -W error: what hydra and torch say of fairseq's way to call them
    is no reason to stop."""
    (tmp_path / "c.tsv").write_text("en1\n" * 11)
    words = [
        str(tiny / "data"),
        "--path",
        str(tiny / "model.pt"),
        *EXT,
        "--constraints-file",
        str(tmp_path / "c.tsv"),
    ]
    words += [
        "--stats-file",
        str(tmp_path / "stats.json"),
        "--results-file",
        str(tmp_path / "results.jsonl"),
    ]
    start = [sys.executable, "-W", "error", "-m", "fairseq_cli.generate"]
    done = subprocess.run([*start, *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and done.stdout.count("H-") == 11, done.stderr
