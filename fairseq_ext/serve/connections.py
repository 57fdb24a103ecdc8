"""How long a client may take, and how many there may be: what uvicorn leaves to a proxy.

A connection whose request has not come whole after `read_timeout` seconds is closed. Where there are `most` connections, a new one takes
the place of the one that has waited longest for a request; where all of them are at work, it is told to come again.
At the end of the server a connection that is idle stays for `LINGER` seconds: a request that is on its way is answered, with
`Connection: close`, and not lost.
"""

from __future__ import annotations

import asyncio
import resource
import time
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

LINGER = 1.0  # seconds
KEPT_BACK = 100  # open files for all else: pipes to workers, glossaries, the library
MOST = 1000  # connections where the system allows so many


def most_connections() -> int:
    """How many connections the limit of open files leaves room for."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if allowed == resource.RLIM_INFINITY else max(1, min(MOST, allowed - KEPT_BACK))


def response(status: str, sentence: str, more: str = "") -> bytes:
    """A response that no application gives."""
    body = f'{{"error":"{sentence}"}}'
    headers = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}"
    return f"HTTP/1.1 {status}\r\n{headers}\r\n{body}".encode()


def protocol(most: int, read_timeout: float) -> type[asyncio.Protocol]:
    """The protocol of a server's connections."""

    class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.since = time.monotonic()  # not the loop's time, which is of milliseconds: several connections would share it
            self.patience: Any = None
            if len(self.connections) > most:
                others = (other for other in self.connections if other.waits and other is not self)
                idle = min(others, key=lambda other: other.since, default=None)
                if idle is None:
                    transport.write(response("503 Service Unavailable", "all connections are in use: ask again", "Retry-After: 2\r\n"))
                    return transport.close()
                idle.transport.abort()
                self.connections.discard(idle)
            self.expect()

        @property
        def waits(self) -> bool:
            """Whether no request has come."""
            return self.cycle is None or self.cycle.response_complete

        def expect(self) -> None:
            """A request must have come by then."""
            if self.patience is None:
                self.patience = self.loop.call_later(read_timeout, self.late)

        def data_received(self, data: bytes) -> None:
            if self.waits:
                self.expect()
            super().data_received(data)
            if not self.waits and self.patience is not None:
                self.patience.cancel()
                self.patience = None
            self.since = time.monotonic()

        def late(self) -> None:
            self.patience = None
            if self.waits and not self.transport.is_closing():
                self.transport.write(response("408 Request Timeout", f"the request has not come within {read_timeout:g} seconds"))
                self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.patience is not None:
                self.patience.cancel()
            super().connection_lost(exc)

        def shutdown(self) -> None:
            self.loop.call_later(LINGER, super().shutdown)

    return Connection
