"""`python`, `fairseq-generate` and `fairseq-interactive` for shells that tests start: forked
children of a process that has everything imported, so that a start costs milliseconds, not seconds.
What a start itself does is tested with real ones (tests/guest, tests/plugin/compat).

    python tests/warm.py FOLDER      makes the commands in FOLDER, serves them until standard
                                     input ends, and removes it
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import gc
import json
import logging
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import sizes

NAMES = ("python", "python3", "fairseq-generate", "fairseq-interactive")
SOCKET = "warm.socket"
# the server, which ends when its standard input is closed, as by the end of this process
keep = []
CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
def is_open(fd):
    try:
        return bool(os.fstat(fd))
    except OSError:
        return False
fds = [fd for fd in map(int, os.listdir("/proc/self/fd")) if is_open(fd)]
server = socket.socket(socket.AF_UNIX)
server.connect({socket!r})
asked = json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ), fds]).encode()
socket.send_fds(server, [len(asked).to_bytes(8, "little")], fds)
server.sendall(asked)
answers = server.makefile("r")
child = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(child, number))
status = int(answers.readline() or 255)
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@functools.cache
def commands():
    """A folder of the commands for the front of PATH; with --all that of the real ones."""
    if os.environ.get(sizes.ALL):
        return Path(sys.executable).parent
    folder = tempfile.mkdtemp(prefix="warm-")
    server = subprocess.Popen(
        [sys.executable, __file__, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdout is not None and server.stdout.readline(), "it has not started"
    keep.append(server)
    return Path(folder)


def python():
    """Python, started warm."""
    return str(commands() / "python")


def serve(folder):
    import threading

    import fairseq_cli.generate  # noqa: F401
    import fairseq_cli.interactive  # noqa: F401
    import sacrebleu  # noqa: F401
    import sentencepiece  # noqa: F401

    import fairseq_ext.engine
    import fairseq_ext.plugin.tasks
    import fairseq_ext.text  # noqa: F401
    from fairseq_ext.plugin.compat import configuration
    from fairseq_ext.search.registry import all_strategies

    all_strategies()
    configuration.defaults()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / SOCKET))
    listener.listen(64)
    for name in NAMES:
        (folder / name).write_text(
            CLIENT.format(python=sys.executable, socket=str(folder / SOCKET), name=name)
        )
        (folder / name).chmod(0o755)
    assert threading.active_count() == 1, "a process with threads cannot be forked"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # the collector of a child would copy every page of what is here
    print("ready", flush=True)
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    waiting.register(0, selectors.EVENT_READ)
    while True:
        if any(key.fd == 0 for key, _ in waiting.select()):
            shutil.rmtree(folder, ignore_errors=True)  # the process that started this is gone
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            attend(connection, str(folder / NAMES[0]))
        connection.close()


def attend(connection, own):
    """In a child of the server: start the command in a child of its own, and say
    its number and its end. Where the caller is killed, so is the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, fds, *_ = socket.recv_fds(connection, 8, 64)
    with connection.makefile("rb") as stream:
        requested = json.loads(stream.read(int.from_bytes(size, "little")))
    child = os.fork()
    if child == 0:
        connection.close()
        live(own, *requested, fds)
    for fd in fds:
        os.close(fd)
    connection.sendall(f"{child}\n".encode())
    either = selectors.DefaultSelector()
    for each in (connection, os.pidfd_open(child)):
        either.register(each, selectors.EVENT_READ)
    if any(key.fileobj is connection for key, _ in either.select()):
        os.kill(child, signal.SIGKILL)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    connection.sendall(f"{status}\n".encode())
    os._exit(0)


def live(
    own,
    name,
    arguments,
    folder,
    environment,
    places,
    fds,
):
    """The life of a command. own: the path of the warm Python; fds: what it has open at the
    numbers `places`."""
    above = [fcntl.fcntl(fd, fcntl.F_DUPFD, max(places) + 1) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, place in zip(above, places, strict=True):
        os.dup2(fd, place)
        os.close(fd)
    for place in {0, 1, 2} - {*places}:
        os.close(place)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kind = arguments[0] if arguments else "-"
    if name.startswith("python") and (
        kind not in ("-", "-c", "-m")
        and kind.startswith("-")
        or kind == "-m"
        and is_light(arguments[1])
    ):
        os.execve(sys.executable, [sys.executable, *arguments], environment)
    sys.stdin, sys.stdout, sys.stderr = (
        open(fd, mode, closefd=False) for fd, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    status = 1
    try:
        status = int(run(name, kind, arguments, own) or 0)
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            print(error.code, file=sys.stderr)
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def is_light(module):
    """Whether a module starts quickly by itself; each looks at what is imported."""
    from fairseq_ext.core import command_line

    return module.startswith(command_line.TORCH_FREE_COMMANDS)


def run(name, kind, arguments, own):
    """As Python would run it."""
    import builtins
    import runpy
    import types

    from fairseq_cli import generate, interactive

    from fairseq_ext.core import command_line
    from fairseq_ext.core.exit import restore_keyboard_interrupt
    from fairseq_ext.plugin.compat import startup

    def own_this_process():
        if command_line.command():
            startup.own_this_process()
            restore_keyboard_interrupt()

    if not name.startswith("python"):
        sys.argv = [f"{Path(sys.executable).with_name(name)}", *arguments]
        sys.orig_argv = [sys.executable, *sys.argv]
        own_this_process()
        return {"fairseq-generate": generate, "fairseq-interactive": interactive}[name].cli_main()
    sys.orig_argv = [sys.executable, *arguments]
    if kind == "-m":
        sys.argv = ["-m", *arguments[2:]]
        if arguments[1] == "fairseq_ext.serve":  # it starts without fairseq, and its engine warm
            logging.root.handlers.clear()
            logging.root.setLevel(logging.WARNING)
            sys.executable = own
        sys.path.insert(0, os.getcwd())
        own_this_process()
        return runpy.run_module(arguments[1], run_name="__main__", alter_sys=True) and None
    if kind not in ("-", "-c"):
        sys.argv, place = arguments, Path(kind).resolve()
        if "scripts" in place.parts:  # what the project's scripts start, they start warm
            sys.executable = own
        if place.name == "child.py":  # the package's own: there fairseq's tasks come first
            for handler in logging.root.handlers:
                handler.setStream(sys.stderr)  # type: ignore[attr-defined]
        sys.path.insert(0, str(place.parent))
        return runpy.run_path(kind, run_name="__main__") and None
    sys.argv = [kind, *arguments[2 if kind == "-c" else 1 :]]
    sys.path.insert(0, "")
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    code = arguments[1] if kind == "-c" else sys.stdin.read()
    exec(compile(code, "<string>" if kind == "-c" else "<stdin>", "exec"), vars(main))
    return 0


if __name__ == "__main__":
    sys.path.pop(0)  # the tests' own folder
    serve(Path(sys.argv[1]))
