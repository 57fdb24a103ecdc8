"""An engine's processes as the engine sees them: the fork server, and workers at the
other ends of pipes."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from fairseq_ext.core import child
from fairseq_ext.core.errors import UsageError

logger = logging.getLogger("fairseq_ext")
LAST_STREAM = 2  # the file descriptor of standard error


@contextlib.contextmanager
def standard_streams_open() -> Iterator[None]:
    """Standard streams that are closed, as a daemon's are, lead to /dev/null for as long as the
    context lasts.

    A pipe that is made in it has another number than they: what is printed does not go there.
    """
    opened: list[int] = []
    try:
        while (fd := os.open(os.devnull, os.O_RDWR)) <= LAST_STREAM:
            os.set_inheritable(fd, True)
            opened.append(fd)
        os.close(fd)
        yield
    finally:
        for fd in opened:
            os.close(fd)


class ForkServer:
    """The process that forks workers; module: what it runs. It is started when the first worker is
    asked for, and again if it has died.

    Errors: UsageError for flags that cannot be sent to it.
    """

    def __init__(self, module: str, flags: dict[str, Any], longest: int | None):
        try:
            content = pickle.dumps((flags, longest))
        except Exception as error:
            raise UsageError(
                f"the flags cannot be sent to a process ({error}): give text and numbers"
            ) from None
        self.module = module
        self.content = len(content).to_bytes(8, "little") + content
        self.process: subprocess.Popen | None = None
        self.control: socket.socket | None = None
        self.lock = threading.Lock()

    def worker(self) -> Connection:
        """The engine's end of the pipe to a new worker."""
        with standard_streams_open():
            ours, theirs = multiprocessing.Pipe()
        with self.lock:
            try:
                self.ask_for(theirs.fileno())
            except OSError:  # it has died: the next one loads the model again
                self.stop()
                self.ask_for(theirs.fileno())
        theirs.close()
        return ours

    def ask_for(self, fd: int) -> None:
        if self.process is None or self.process.poll() is not None:
            self.start()
        assert self.control is not None
        socket.send_fds(self.control, [b"w"], [fd])

    def start(self) -> None:
        """Start the process; it loads the model meanwhile."""
        self.stop()
        # one thread a worker; and a process that has started others cannot be forked
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with standard_streams_open():
            self.control, theirs = socket.socketpair()
            command = child.python(self.module, str(theirs.fileno()))
            self.process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL
            )
        theirs.close()
        self.control.sendall(self.content)

    def stop(self) -> None:
        """End the process; its workers go on until their pipes are closed."""
        if self.control is not None:
            self.control.close()
            self.control = None
        if self.process is not None:
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None


class Worker:
    """One worker process.

    heard: called with each message, in a thread of this worker's own; lost: called there
    when the worker is gone.
    """

    def __init__(
        self,
        fork_server: ForkServer,
        heard: Callable[[Worker, Any], None],
        lost: Callable[[Worker], None],
    ):
        self.heard, self.lost = heard, lost
        self.ready = False  # its model is loaded
        self.fresh = True  # it has not answered any request yet
        self.load = 0  # of the requests that it has, a measure
        self.requests: dict[int, Any] = {}  # that it has, by number
        self.pipe = fork_server.worker()
        self.closing = threading.RLock()  # a finaliser may close it in the same thread
        self.thread = threading.Thread(target=self.listen, name="fairseq_ext engine", daemon=True)
        self.thread.start()

    def listen(self) -> None:
        """Hear the worker until it is gone."""
        try:
            while True:
                self.heard(self, self.pipe.recv())
        except (EOFError, OSError):
            pass
        except BaseException:
            # a message that cannot be read, or a fault of this package's own: whoever
            # waits must hear of it
            if not self.pipe.closed:  # else `close` has taken it away from under the reading
                logger.exception("a worker of the engine cannot be heard any more, and is replaced")
        self.close()
        self.lost(self)

    def send(self, message: Any) -> None:
        """Send a message; one to a worker that is gone is lost, which `lost` tells."""
        try:
            self.pipe.send(message)
        except (OSError, ValueError):
            pass

    def close(self) -> None:
        """Close the pipe.

        Two threads may do so, and a connection that both close at once would close a file
        of somebody else's.
        """
        with self.closing:
            self.pipe.close()
