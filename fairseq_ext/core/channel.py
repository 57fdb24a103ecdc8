"""Messages between this process and one of ours, over a stream socket: each is its length in
8 bytes, and its content.

The side that has many processes uses `put`, `flush` and `read`, which never wait. The side that
serves uses `send` and `receive`, which may.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Iterator
from itertools import islice

LENGTH = struct.Struct("<Q")
PIECE = 1 << 16  # bytes that are read at once
PIECES = 16  # of one pipe that are read before the next one has its turn
BUFFERS = 64  # that are written at once
# subtle: computed once, as an `|` of these takes longer than the system call
HOW = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
CUT, CONTROL = int(socket.MSG_CTRUNC), socket.CMSG_SPACE(4)  # bytes of one file descriptor
LAST_STREAM = 2  # the file descriptor of standard error


@contextlib.contextmanager
def standard_streams_open() -> Iterator[None]:
    """In the context, /dev/null replaces standard streams that are closed, such as a daemon's.

    A pipe that is made in the context then does not get the number of a standard stream, so that no
    printed text goes into the pipe.
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


class Channel:
    """One end of a socket, which belongs to it."""

    def __init__(self, end: socket.socket):
        self.socket = end
        self.incoming = bytearray()
        self.outgoing: deque[bytes | memoryview] = deque()
        self.passed: dict[int, socket.socket] = {}  # by id of the buffer that takes it along
        # that have come with messages, -1 for one that the system had no room for
        self.fds: deque[int] = deque()
        self.poll: select.poll | None = None

    @staticmethod
    def pair() -> tuple[Channel, socket.socket]:
        """Make a channel that never blocks, and the socket at its other end (raises OSError)."""
        with standard_streams_open():
            ours, theirs = socket.socketpair()
        ours.setblocking(False)
        return Channel(ours), theirs

    def fileno(self) -> int:
        """Return the file descriptor, -1 once it is closed."""
        return self.socket.fileno()

    def close(self) -> None:
        """Shut the socket down, so that a process that shares it reads the end, and close it."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for end in self.passed.values():
            end.close()
        while self.fds:
            if (fd := self.fds.popleft()) >= 0:
                os.close(fd)
        self.outgoing.clear()
        self.passed.clear()

    def messages(self) -> list[bytes]:
        """Take the whole messages out of what has been read."""
        found, at = [], 0
        while len(self.incoming) - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self.incoming, at)
            if len(self.incoming) - at - LENGTH.size < size:
                break
            at += LENGTH.size + size
            found.append(bytes(memoryview(self.incoming)[at - size : at]))
        if at:
            del self.incoming[:at]
        return found

    # ---- without waiting

    def put(self, message: bytes, end: socket.socket | None = None) -> None:
        """Queue a message; end: goes along, and is closed here when it is written."""
        header = LENGTH.pack(len(message))
        if end is not None:
            self.passed[id(header)] = end
        self.outgoing += (header, message)

    def flush(self) -> bool:
        """Write what the socket takes; whether that is all. What a closed one loses is no error:
        reading says so."""
        try:
            while self.outgoing:
                end = self.passed.get(id(self.outgoing[0]))
                if end is not None:
                    sent = socket.send_fds(self.socket, [self.outgoing[0]], [end.fileno()])
                    del self.passed[id(self.outgoing[0])]
                    end.close()
                else:
                    sent = self.socket.sendmsg(self.next_buffers())
                while sent and sent >= len(self.outgoing[0]):
                    sent -= len(self.outgoing.popleft())
                if sent:
                    self.outgoing[0] = memoryview(self.outgoing[0])[sent:]
        except BlockingIOError:
            return False
        except OSError:
            self.outgoing.clear()
        return True

    def next_buffers(self) -> list[bytes | memoryview]:
        """Return the buffers up to the next one that a file descriptor goes along with."""
        found: list[bytes | memoryview] = []
        for each in islice(self.outgoing, BUFFERS):
            if id(each) in self.passed:
                break
            found.append(each)
        return found

    def read(self) -> tuple[list[bytes], bool]:
        """Read what is there: the whole messages, and whether the other end is closed."""
        is_over = False
        try:
            for _ in range(PIECES):
                data, control, flags, _ = self.socket.recvmsg(PIECE, CONTROL, HOW)
                for level, kind, content in control:
                    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                        self.fds.append(int.from_bytes(content[:4], "little"))
                if flags & CUT:
                    self.fds.append(-1)
                if not data:
                    is_over = True
                    break
                self.incoming += data
                if len(data) < PIECE and not control:
                    break  # what has come since is read the next time
        except BlockingIOError:
            pass
        except OSError:
            is_over = True
        return self.messages(), is_over

    # ---- with waiting

    def send(self, message: bytes) -> None:
        """Write a message (raises OSError where the other end is closed)."""
        self.socket.sendall(LENGTH.pack(len(message)) + message)

    def is_readable(self, milliseconds: int | None) -> bool:
        """Return whether there is something to read; wait for it (None: without a limit)."""
        # made once: this is a call a step
        if self.poll is None:
            self.poll = select.poll()
            self.poll.register(self.socket, select.POLLIN)
        return bool(self.poll.poll(milliseconds))

    def receive(self, milliseconds: int | None = None) -> list[bytes]:
        """Return the messages that are there; wait for the first piece of one (None: without a
        limit). Errors: EOFError where the other end is closed."""
        if not self.is_readable(milliseconds):
            return []
        found, is_over = self.read()
        if is_over and not found:
            raise EOFError
        return found
