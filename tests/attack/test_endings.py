"""How commands end: at Ctrl-C, when no one reads their output any more, when it takes no more.

Quietly, with the status of a shell.
"""

import atexit
import itertools
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing import util
from pathlib import Path

import pytest
import ray
from bad_inputs import LANGUAGES, search
from conftest import BIN, ran
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
from fairseq_ext.serve.__main__ import main as serve_main
from fairseq_ext.terms.__main__ import main as terms_main

START_UP = Path(compat.__file__).with_name("fairseq_ext_start.py")
CORPUS = ["fairseq_ext.corpus", "translate", "--path", "m", "--data", "d", "--cpu"]
FLAGS = ["--data", "demo", "--cpu"]
GLOSSARY = ["fairseq_ext.terms", "expand", "--lang", "en"]


def corpus():
    """The corpus command in one process, without Ray."""
    run.Run, OneProcess.worker = OneProcess, Echo()
    return corpus_main()


@pytest.fixture
def commands(tiny, tmp_path):
    """name -> (main function, arguments, what it reads).

    What they print is more than a pipe or a page holds.
    """
    model, text = [*map(str, search(tiny))], str(write_text(tmp_path / "t.txt", ["words"]))
    glossary = write_text(tmp_path / "g.tsv", [f"Wort{i}\tword{i}" for i in range(20_000)])
    lines = b"de1 de2\n" * 300
    return {
        "generate": (generate_main, ["fairseq-generate", *model], b""),
        "interactive": (interactive_main, ["fairseq-interactive", *model, *LANGUAGES], lines),
        "corpus": (corpus, [*CORPUS, "--input", text, "--output", str(tmp_path / "out")], b""),
        "translate": (lambda: translate.main(FLAGS), ["fairseq_ext.translate"], b"Guten Tag.\n"),
        "terms": (terms_main, [*GLOSSARY, "--glossary", str(glossary), "--text", text], b""),
    }


FOUR = ["generate", "interactive", "corpus", "terms"]


def is_quiet(done, *statuses):
    assert done.status in statuses, done.stderr
    for word in ("Traceback", "Exception ignored", "error: "):
        assert word not in done.stderr


def without(stream, main):
    """A command whose shell has closed a stream: Python then has None there."""

    def run():
        os.close(getattr(sys, stream).fileno())
        setattr(sys, stream, None)
        exit.watch_output()
        return main()

    return run


def written_to(output, main, argv, stdin=b""):
    """How a command ends whose output is closed, full, or a pipe that no one reads any more."""
    if output == "closed":
        return Child(without("stdout", main), argv, stdin).wait()
    reads, writes = os.pipe()
    os.close(reads)  # before anything is written
    full = os.open("/dev/full", os.O_WRONLY)
    done = Child(main, argv, stdin, stdout=full if output == "full" else writes).wait()
    os.close(full), os.close(writes)
    return done


@drawn(2)
@pytest.mark.parametrize("name", FOUR)
def test_a_closed_pipe_ends_a_command_quietly(commands, name):
    is_quiet(written_to("pipe", *commands[name]), 141)


OUTPUTS = {
    "full": "error: standard output cannot be written (No space left on device): free disk space "
    "and run again",
    "closed": "error: standard output is closed: send it to a file",
}


@pytest.mark.parametrize(
    ("name", "output"), [*itertools.product(FOUR, OUTPUTS), ("translate", "closed")]
)
def test_an_output_that_takes_no_more_is_one_sentence_and_no_success(commands, name, output):
    done = written_to(output, *commands[name])
    assert "Exception ignored" not in done.stderr and done.error() == OUTPUTS[output]


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize(("main", "name"), [(serve_main, "serve"), (interactive_main, "fairseq")])
def test_a_help_that_cannot_be_printed_is_one_sentence(main, name, output):
    """One that is longer than the buffer of standard output, and one that argparse cannot write."""
    said = written_to(output, main, [name, "--help"]).error()
    assert said.startswith("error: standard output ")


@pytest.mark.parametrize("name", ["interactive", "terms"])
def test_a_mistake_shows_its_traceback_where_it_is_requested(commands, name, tmp_path):
    main, argv, _ = commands[name]
    argv = [str(tmp_path / "absent") if word.endswith((".pt", ".tsv")) else word for word in argv]
    said, loud = Child(main, argv).wait().error(), Child(main, [*argv, "--verbose"]).wait()
    assert loud.status == 1 and "Traceback (most recent call last):\n" in loud.stderr
    assert loud.stderr.endswith(f"{said}\n")


def test_a_closed_input_is_one_sentence_unless_another_is_named(commands, tmp_path):
    main, argv, _ = commands["interactive"]
    (tmp_path / "in").write_text("de1\n")

    def closed(*more):
        return Child(without("stdin", main), [*argv, *more]).wait()

    said = "error: standard input is closed: give lines there, or name a file by --input"
    assert closed().error() == said
    done = closed("--input", str(tmp_path / "in"))
    assert done.status == 0 and "H-0" in done.stdout
    said = "error: a file is given without a name: name one, or leave its flag out"
    assert closed("--input", "").error() == said


def test_where_standard_error_is_closed_nothing_of_it_is_printed_among_the_translations(commands):
    main, argv, _ = commands["interactive"]
    done = Child(without("stderr", main), argv, b"de1\n\xff\nde2\n").wait()
    names = [line.partition("-")[0] for line in done.stdout.splitlines()]
    assert done.status == 3 and names.count("H") == 3 and "E" not in names
    assert "WARNING" not in done.stdout


# of the corpus command with Ray
WITH_RAY = ["fairseq_ext.corpus", "translate", "--cpu", "--data", str(DEMO)]
WITH_RAY += ["--path", str(DEMO / "checkpoint.pt")]


def test_a_ray_that_does_not_start_is_one_sentence(tmp_path):
    def main():
        def fails(**settings):
            raise Exception("The current node timed out during startup. This could happen because.")

        ray.init = fails
        return corpus_main()

    files = ["--input", str(write_text(tmp_path / "a.txt", ["Haus"]))]
    files += ["--output", str(tmp_path / "out")]
    said = Child(main, [*WITH_RAY, *files]).wait().error()
    assert "Ray could not be started (The current node timed out during startup): free" in said


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
    is_quiet(done, 130, *[-signal.SIGINT] * again)
    assert (tmp_path / "stats.json").exists()


@pytest.mark.parametrize("moment", ["loading model(s)", "fairseq_ext:0.1"])
def test_ctrl_c_ends_generate_quietly(commands, moment):
    main, argv, _ = commands["generate"]
    child = Child(main, [*argv, "--min-len", "3", "--beam", "20"])
    assert child.said(moment)
    os.kill(child.pid, signal.SIGINT)
    is_quiet(child.wait(), 0, 130)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_while_a_finished_command_ends_is_quiet(commands, tmp_path, times):
    """The moment is when Python ends the process that reads batches."""
    main, argv, _ = commands["generate"]

    def run():
        def interrupt():
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

        util.Finalize(None, interrupt, exitpriority=1)
        return main()

    done = Child(run, [*argv, "--stats-file", str(tmp_path / "stats.json")]).wait()
    is_quiet(done, 130 if times == 1 else -signal.SIGINT)
    assert (tmp_path / "stats.json").exists()
    assert times == 2 or done.stdout.count("H-") == 11


def test_a_process_that_is_started_while_a_command_ends_does_not_outlive_it(commands, tmp_path):
    """As by the thread that reads batches ahead, after Python has ended those it knew."""
    main, argv, _ = commands["generate"]

    def run():
        def start():
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
    files = ["--input", str(write_text(tmp_path / "a.txt.gz", ["Haus"] * 300_000))]
    files += ["--output", str(tmp_path / "out")]

    def main():
        os.kill(os.getpid(), signal.SIGINT)
        return corpus_main()

    is_quiet(Child(main, [*WITH_RAY, *files]).wait(), 130)


def python(script, **environment):
    """Python runs this."""
    return ran(sys.executable, "-c", script, check=False, **environment)


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
    done = python(script)
    assert done.returncode == 130 and "Traceback" not in done.stderr, done.stderr


def test_ctrl_c_raises_once_the_package_is_there(tmp_path):
    """A command of ours that has started writes its statistics and says how it goes on: it is not
    ended at once any more."""
    words = "-m fairseq_ext.terms expand --glossary opened.tsv --lang en --text t".split()
    # ignored where the tests run in the background
    script = (
        "import os, signal, sys\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        f"os.execv(sys.executable, [sys.executable, *{words!r}])"
    )
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, signal, sys\n"
        "atexit.register(print, 'at the end')\n"
        "sys.addaudithook(lambda event, args: event == 'open' and str(args[0]) == 'opened.tsv' and "
        "signal.raise_signal(signal.SIGINT))\n"
    )
    done = python(script, PYTHONPATH=str(tmp_path))
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
    assert python(script).stdout == "True\n"


def test_commands_run_with_every_warning_an_error(tiny, tmp_path):
    """python -W error: what hydra and torch say of fairseq's way to call them
    is no reason to stop."""
    (tmp_path / "c.tsv").write_text("en1\n" * 11)
    files = {"--constraints-file": "c.tsv", "--stats-file": "s", "--results-file": "r"}
    named = [word for flag, name in files.items() for word in (flag, tmp_path / name)]
    words = search(tiny, *named)
    start = [sys.executable, "-W", "error", "-m", "fairseq_cli.generate"]
    done = ran(*start, *words)
    assert done.stdout.count("H-") == 11, done.stderr
