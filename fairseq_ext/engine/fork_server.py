"""`python -m fairseq_ext.engine.fork_server FD`: the process that loads an engine's model, and
forks the workers (worker.py).

It loads the model once and decodes nothing. For each message on its socket it forks a worker, which
shares the loaded weights and gets the socket that came with the message. So a worker that dies is
replaced within milliseconds. On a GPU each worker loads the model by itself, since a process that
uses a GPU cannot be forked. All of them end when the engine's process ends, for any reason. If the
model cannot be loaded, it sends the reason and ends.

It has one thread: a thread that holds a lock at the fork would never release it in the worker.
"""

from __future__ import annotations

import errno
import gc
import os
import pickle
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from fairseq_ext.core import child
from fairseq_ext.core.channel import Channel
from fairseq_ext.core.errors import UsageError, explain, report
from fairseq_ext.core.process_pool import ignore_signals

SHORT = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN)


def main(fd: int) -> None:
    """Load the model and serve the engine: the main function of the fork server."""
    ignore_signals()
    # the program may ignore it; then no process of this one would have a status
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # the check for a GPU must not touch it before the fork
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    control = Channel(socket.socket(fileno=fd))
    messages = control.receive()
    while not messages:
        messages = control.receive()
    flags, longest = pickle.loads(messages.pop(0))
    loaded = try_to(load, flags, longest)
    if isinstance(loaded, tuple):
        control.send(pickle.dumps(loaded))
        return
    gc.collect()
    # workers share what is there; a collection of theirs would write to all of it, and so copy it
    gc.freeze()
    serve(control, list(map(pickle.loads, messages)), flags, longest, loaded)


# why a model cannot be loaded, and whether another try may succeed
Failure = tuple[str, Exception, bool]


def failure(error: BaseException) -> Failure:
    """Return the message that says why a model cannot be loaded."""
    text = explain(error) or f"the model cannot be loaded: {type(error).__name__}: {error}"
    return "failed", UsageError(text), is_passing(error)


def is_passing(error: BaseException | None) -> bool:
    """Return whether another try may succeed: the system was short of memory, processes or
    files."""
    while error is not None:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return True
        if isinstance(error, OSError) and error.errno in SHORT:
            return True
        error = error.__cause__ or error.__context__
    return False


def load(flags: dict[str, object], longest: int | None) -> object:
    """Return the loaded model; None on a GPU, where each worker has to load it."""
    import torch

    torch.set_num_threads(1)
    from fairseq_ext.engine import worker
    from fairseq_ext.kernels.library import give_back_memory

    is_on_cpu = bool(flags.get("cpu")) or not torch.cuda.is_available()
    loaded = worker.load(flags, longest) if is_on_cpu else None
    # else a worker that used this freed memory would copy it, and it would stay here as well
    give_back_memory()
    return loaded


def try_to(load: Callable[..., object], *arguments: object) -> object:
    """Return the result of `load`, or a Failure if the model cannot be loaded."""
    try:
        return load(*arguments)
    except (Exception, SystemExit) as error:
        return failure(error)


def serve(
    control: Channel,
    requests: list[int],
    flags: dict[str, object],
    longest: int | None,
    loaded: object,
) -> None:
    """Fork a worker for each request, until the engine ends. requests: their numbers, as far as
    they have come already."""
    workers: dict[int, int] = {}  # process ids by pidfd
    poll = select.poll()
    poll.register(control.socket, select.POLLIN)
    while True:
        # subtle: without a file descriptor left the system drops those that come
        if -1 in control.fds:
            return  # the engine tries again
        for number in requests:
            end = control.fds.popleft()
            try:
                pid = os.fork()
            except OSError:  # no room for a process: the worker's pipe ends, and it is tried again
                os.close(end)
                continue
            if pid == 0:
                close(control, workers)
                live(socket.socket(fileno=end), loaded, flags, longest)
            os.close(end)
            pidfd = os.pidfd_open(pid)
            workers[pidfd] = pid
            poll.register(pidfd, select.POLLIN)
            send(control, pickle.dumps(("forked", number, pid, loaded is not None)), pidfd)
        requests = []
        for fd, _ in poll.poll():
            if fd in workers:
                os.waitpid(workers.pop(fd), 0)
                poll.unregister(fd)
                os.close(fd)
            else:
                messages, is_over = control.read()
                requests += map(pickle.loads, messages)
                if is_over:
                    return


def close(control: Channel, workers: dict[int, int]) -> None:
    """Close what belongs to the fork server, in a worker, without shutting it down."""
    control.socket.close()
    for fd in (*workers, *control.fds):
        os.close(fd)


def live(
    end: socket.socket, loaded: Any, flags: dict[str, object], longest: int | None
) -> NoReturn:
    """Serve as a worker: the main function of a forked process. loaded: the model; None: load it
    here."""
    from fairseq_ext.engine import worker

    channel, status = Channel(end), 1
    try:
        if loaded is None:
            loaded = try_to(worker.load, flags, longest)
        if isinstance(loaded, tuple):
            channel.send(pickle.dumps(loaded))
        else:
            worker.serve(channel, loaded)
    except (EOFError, OSError):  # the engine has ended
        status = 0
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except BaseException as error:
        report(type(error), error, error.__traceback__)
    finally:
        os._exit(status)


def send(control: Channel, message: bytes, fd: int) -> None:
    """Send a message with a file descriptor."""
    data = len(message).to_bytes(8, "little") + message
    sent = socket.send_fds(control.socket, [data], [fd])
    control.socket.sendall(data[sent:])


if __name__ == "__main__":
    try:
        main(int(child.argument()))
    except (EOFError, OSError):
        pass  # the engine has ended
    os._exit(0)  # taking the model apart takes seconds
