"""Our own long-running processes that answer requests: start, send, receive, kill, end (`Pool`).

One thread owns a pool and all its pipes, and never waits for a single process: an engine has a
thread for it, `--cpu-workers` uses the command's own. supervision.py decides when a process is
silent, and when it is started again.

These processes are an engine's fork server and its workers, and the processes of `--cpu-workers`.
Programs that run once, such as a compiler, pip and the doctor's probes, are not among them, nor are
Ray's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import select
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from fairseq_ext.core import child
from fairseq_ext.core.channel import Channel, standard_streams_open

logger = logging.getLogger("fairseq_ext")
GRACE = 0.5  # seconds in which a process may end by itself after its pipe is closed
REAP = 2.0  # seconds until a killed process has ended
TICKS = os.sysconf("SC_CLK_TCK")
# a process that has started threads cannot be forked; pyarrow, which fairseq imports, starts one
ONE_THREAD = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


class Process:
    """One process and this side of its pipe.

    pidfd: a file descriptor that refers to this process alone, also after its end. pid and pidfd
    are None while another process of ours is still to fork it. reap: returns its exit status, in
    its parent.
    """

    def __init__(
        self,
        channel: Channel,
        pid: int | None = None,
        pidfd: int | None = None,
        reap: Callable[[], int | None] | None = None,
    ):
        self.channel, self.pid, self.pidfd, self.reap = channel, pid, pidfd, reap
        self.status: int | None = None  # exit code, or minus the signal, if known
        self.is_writing = False  # messages wait until its pipe takes more
        self.shares: Process | None = None  # the process that forked it, whose weights it shares

    def kill(self) -> None:
        """Kill the process."""
        if self.pidfd is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or minus the signal, once the process has closed its pipe; None if
        that is unknown or takes longer."""
        if self.pidfd is not None and self.reap is not None:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            if poll.poll(1000 * seconds):
                self.status = self.reap()
        return self.status

    def cpu_seconds(self, with_children: bool = False) -> float | None:
        """Return the CPU time of the process, None if that is unknown. with_children: also that of
        its running descendants."""
        return None if self.pid is None else cpu_seconds(self.pid, with_children)


def cpu_seconds(pid: int, with_children: bool) -> float | None:
    """Return the CPU time of a process (and its descendants), None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        # utime and stime (fields 14 and 15 of proc(5)), cutime and cstime of children that ended
        found = sum(map(int, fields[11:15] if with_children else fields[11:13])) / TICKS
        if with_children:
            with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
                for each in file.read().split():
                    found += cpu_seconds(int(each), True) or 0.0
    except (OSError, ValueError, IndexError):
        return None
    return found


class Event(NamedTuple):
    """The messages of a process, and whether it has ended."""

    process: Process
    messages: list[bytes]
    is_over: bool  # it has ended, or closed its pipe, after these messages


class Pool:
    """Processes and their messages. All methods but `wake` belong to one thread."""

    def __init__(self) -> None:
        self.processes: set[Process] = set()
        self.ending: set[Process] = set()  # their pipe is closed, their status not yet read
        with standard_streams_open():
            self.selector = selectors.DefaultSelector()
            self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.selector.register(self.bell, selectors.EVENT_READ, None)
        self.is_rung = False

    def wake(self) -> None:
        """Make `wait` return; from any thread."""
        if self.is_rung:
            return
        try:
            self.is_rung = True
            os.eventfd_write(self.bell, 1)
        except OSError:  # it is closed
            pass
        except BaseException:  # Ctrl-C: no other thread rings again
            os.eventfd_write(self.bell, 1)
            raise

    def add(self, process: Process) -> None:
        """Add a process."""
        self.selector.register(process.channel, selectors.EVENT_READ, process)
        self.processes.add(process)
        self.watch(process)

    def watch(self, process: Process) -> None:
        """Watch for the end of a process whose pidfd is known."""
        if process.pidfd is not None:
            self.selector.register(process.pidfd, selectors.EVENT_READ, process)

    def send(self, process: Process, message: bytes, end: socket.socket | None = None) -> None:
        """Queue a message, which `wait` writes as the pipe has room. end: of a socket that is sent
        with it."""
        process.channel.put(message, end)

    def mark(self, process: Process, is_writing: bool) -> None:
        """Note whether messages wait to be written."""
        if process.is_writing != is_writing and process in self.processes:
            process.is_writing = is_writing
            writes = selectors.EVENT_WRITE if is_writing else 0
            self.selector.modify(process.channel, selectors.EVENT_READ | writes, process)

    def flush(self) -> None:
        """Write what can be written now."""
        for process in [each for each in self.processes if each.channel.outgoing]:
            self.mark(process, not process.channel.flush())

    def wait(self, seconds: float | None) -> list[Event]:
        """Write queued messages and return events; wait for one, or until `wake`. seconds: at most
        (None: no limit)."""
        self.flush()
        found: dict[Process, Event] = {}
        for key, mask in self.selector.select(seconds):
            process = key.data
            if process is None:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self.bell)
                continue
            if process in self.ending:
                self.finish(process)
                continue
            if mask & selectors.EVENT_WRITE:
                self.mark(process, not process.channel.flush())
            if mask & selectors.EVENT_READ:
                has_ended = key.fd == process.pidfd
                messages, is_over = process.channel.read()
                while has_ended and not is_over:  # read all its messages
                    size = len(process.channel.incoming)
                    more, is_over = process.channel.read()
                    messages += more
                    if not more and len(process.channel.incoming) == size:
                        break
                is_over = is_over or has_ended
                if process in found:
                    messages = found[process].messages + messages
                    is_over = is_over or found[process].is_over
                found[process] = Event(process, messages, is_over)
        self.is_rung = False
        return list(found.values())

    def remove(self, process: Process, kill: bool = True) -> None:
        """Close the pipe of a process and kill it."""
        if process not in self.processes:
            return
        self.processes.discard(process)
        self.selector.unregister(process.channel)
        process.channel.close()
        if process.pidfd is None:
            return
        self.ending.add(process)
        if kill:
            process.kill()

    def finish(self, process: Process) -> None:
        """Drop a process that has ended."""
        self.ending.discard(process)
        if process.pidfd is not None:
            self.selector.unregister(process.pidfd)
            os.close(process.pidfd)
            process.pidfd = None
        if process.reap is not None and process.status is None:
            process.status = process.reap()

    def end(self, grace: float = GRACE) -> None:
        """Close all pipes; kill each process that does not end by itself in `grace` seconds."""
        for process in list(self.processes):
            self.remove(process, kill=False)
        for seconds, kill in ((grace, False), (REAP, True)):
            end = time.monotonic() + seconds
            for process in self.ending if kill else ():
                process.kill()
            while self.ending and (left := end - time.monotonic()) > 0:
                self.wait(left)
        for process in list(self.ending):
            self.finish(process)
        self.selector.close()
        os.close(self.bell)


# ---- Processes that Python starts for a module, and that fork workers


class ForkServer:
    """The process that loads a model once, and forks a worker for each request. module: runs in it
    (core/child.py); content: what it loads.

    `fork` starts it if necessary. Pass its messages to `on_event`.
    """

    def __init__(self, pool: Pool, module: str, content: object):
        self.content = pickle.dumps(content)
        self.pool, self.module = pool, module
        self.process: Process | None = None
        self.requested: dict[int, Process] = {}  # workers that are still to be forked, by number
        self.number = 0

    def fork(self) -> Process:
        """Request a worker (raises OSError if the system has no room for it)."""
        if self.process is None:
            self.start()
        assert self.process is not None
        channel, theirs = Channel.pair()
        worker = Process(channel)
        try:
            self.pool.add(worker)
        except BaseException:
            channel.close()
            theirs.close()
            raise
        self.number += 1
        self.requested[self.number] = worker
        self.pool.send(self.process, pickle.dumps(self.number), theirs)
        return worker

    def start(self) -> None:
        """Start the process; it loads the model meanwhile."""
        channel, theirs = Channel.pair()
        try:
            environment = {**os.environ, **ONE_THREAD}
            with standard_streams_open():
                popen = subprocess.Popen(
                    child.python(self.module, str(theirs.fileno())),
                    pass_fds=[theirs.fileno()],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                )
            self.process = Process(channel, popen.pid, pidfd_of(popen.pid), popen.poll)
            self.pool.add(self.process)
        except BaseException:
            self.process = None
            channel.close()
            raise
        finally:
            theirs.close()
        self.pool.send(self.process, self.content)

    def on_event(self, event: Event) -> tuple[list[Process], Any]:
        """Read its messages. If it has ended, return the workers that it will not fork, and its
        last message: why the model could not be loaded."""
        error = None
        for message in event.messages:
            kind, *values = pickle.loads(message)
            if kind == "forked":
                number, pid, is_sharing = values
                fds = event.process.channel.fds
                pidfd = fd if fds and (fd := fds.popleft()) >= 0 else None
                worker = self.requested.pop(number, None)
                if worker is not None and worker in self.pool.processes:
                    worker.pid, worker.pidfd = pid, pidfd
                    worker.shares = event.process if is_sharing else None
                    self.pool.watch(worker)
                elif pidfd is not None:
                    os.close(pidfd)
            else:
                error = values
        return (self.end() if event.is_over or error is not None else []), error

    def end(self) -> list[Process]:
        """End the process; return the workers that it has not forked."""
        if self.process is not None:
            self.pool.remove(self.process)
        orphans = [each for each in self.requested.values() if each in self.pool.processes]
        self.process = None
        self.requested.clear()
        return orphans


def pidfd_of(pid: int) -> int | None:
    """Open a file descriptor of a process; return None if it has ended."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


# ---- Processes that are forked from this one


def fork(pool: Pool, work: Callable[[Channel], None]) -> Process:
    """Fork a process that runs `work` with its end of a pipe. It has all that this process has
    loaded, and ends with it. Errors: OSError if the system has no room."""
    channel, theirs = Channel.pair()
    try:
        pid = os.fork()
    except BaseException:
        channel.close()
        theirs.close()
        raise
    if pid == 0:
        live(pool, channel, theirs, work)
    theirs.close()
    process = Process(channel, pid, pidfd_of(pid), lambda: status_of(pid))
    pool.add(process)
    return process


def live(
    pool: Pool, channel: Channel, theirs: socket.socket, work: Callable[[Channel], None]
) -> NoReturn:
    """Run a forked process."""
    status = 1
    try:
        ignore_signals()
        # subtle: not `close`, which would shut down a socket that the parent still uses
        for other in (channel, *(each.channel for each in pool.processes)):
            other.socket.close()
        pool.selector.close()
        work(Channel(theirs))
        status = 0
    except (EOFError, OSError):  # the parent has ended
        status = 0
    except BaseException:
        logger.exception("a process of ours has failed")
    finally:
        os._exit(status)


def ignore_signals() -> None:
    """Ignore Ctrl-C and SIGTERM in a process of ours: they may go to the whole process group, and
    the parent handles them by closing the pipe."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def status_of(pid: int) -> int | None:
    """Return the exit code of a child, or minus its signal."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None
