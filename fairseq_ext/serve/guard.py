"""Limits of clients: API keys, the largest body, limits of connections.

A key file has a line a key: the SHA-256 of the key in hexadecimal, and behind a space a name,
if you like; `#` begins a comment. `python -m fairseq_ext.serve.guard NAME` makes a key: it
prints the key, and the line for the file. Keys come in the header `Authorization: Bearer KEY`,
`Authorization: DeepL-Auth-Key KEY` or `X-API-Key: KEY`, in LibreTranslate's API also as `api_key`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import re
import resource
import secrets
import time
from argparse import ArgumentParser
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import Lines
from fairseq_ext.serve import Settings

SCHEMES = ("bearer", "deepl-auth-key")  # of the header Authorization


class Keys:
    """The keys of a file; None for none, which lets everybody in."""

    def __init__(self, path: str | None):
        self.hashes: list[str] | None = None if path is None else read_hashes(path)

    def admit(self, key: str | None) -> bool:
        """Return whether a key is one of the file's.

        The time that it takes does not depend on where a wrong one differs.
        """
        if self.hashes is None:
            return True
        given = hashlib.sha256((key or "").encode("utf-8", "surrogatepass")).hexdigest()
        found = [hmac.compare_digest(given, known) for known in self.hashes]
        return any(found)

    @staticmethod
    def of_headers(headers: Mapping[str, str]) -> str | None:
        """Return the key of a request's headers."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        return (key.strip() if scheme.lower() in SCHEMES else None) or headers.get("x-api-key")

    def check(self, headers: Mapping[str, str], also: str | None = None) -> None:
        """Raise HTTPException 401 for a request without a key, 403 for a wrong one.

        also: a key that came elsewhere.
        """
        key = self.of_headers(headers) or also
        if self.admit(key):
            return
        if not key:
            raise HTTPException(
                401,
                "this server asks for a key: send it as Authorization: Bearer KEY",
                {"WWW-Authenticate": "Bearer"},
            )
        raise HTTPException(
            403, "this server does not know the key: check it, or ask who runs the server for one"
        )


def read_hashes(path: str) -> list[str]:
    """Return the hashes of a key file (raises UsageError)."""
    found = []
    for number, line in enumerate(Lines(path, "--api-keys")):
        text = line.partition("#")[0].split()
        if text and not re.fullmatch(r"[0-9a-fA-F]{64}", text[0]):
            raise UsageError(
                f"line {number + 1} of {path} does not begin with the SHA-256 of a key (64 "
                "hexadecimal digits): make one with python -m fairseq_ext.serve.guard NAME"
            )
        found += [text[0].lower()] if text else []
    if not found:
        raise UsageError(
            f"--api-keys {path} has no key: make one with python -m fairseq_ext.serve.guard NAME"
        )
    return found


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server at this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# seconds for which the rest of a body that is too large is read and dropped, and an idle
# connection stays at the end
LINGER = 1.0


async def read_body(request: Request, settings: Settings) -> bytes:
    """Return the body of a request; raise HTTPException 408 if it takes longer than `read_timeout`,
    413 if it has more than `max_body` bytes.

    Of the latter the rest is not kept: for `LINGER` seconds it is read and dropped, so
    that a client that is still sending reads the answer and not "connection reset"; then
    the connection is closed.
    """
    try:
        return await asyncio.wait_for(whole_body(request, settings.max_body), settings.read_timeout)
    except (TimeoutError, asyncio.TimeoutError):
        raise HTTPException(
            408,
            f"the body has not come within {settings.read_timeout:g} seconds: send less at once",
            {"Connection": "close"},
        ) from None


async def whole_body(request: Request, most: int) -> bytes:
    """Return the body without a limit of time."""
    announced = request.headers.get("content-length", "")
    parts = request.stream()
    body = bytearray()
    if not announced.isdigit() or int(announced) <= most:
        async for part in parts:
            body += part
            if len(body) > most:
                break
        else:
            return bytes(body)
    with contextlib.suppress(TimeoutError, asyncio.TimeoutError, ClientDisconnect):
        await asyncio.wait_for(drop(parts), LINGER)
    raise HTTPException(
        413, f"the body has more than {most} bytes: send less at once", {"Connection": "close"}
    )


async def drop(parts: AsyncIterator[bytes]) -> None:
    """Read to the end and keep nothing."""
    async for _ in parts:
        pass


# ---- How long a client may take, and how many there may be
#
# uvicorn leaves this to a proxy.
#
# A connection is closed whose request has not come whole after `timeout` seconds, which takes
# nothing of its answer for so long, whose header is too long, or that sends too many requests at
# once. Where there are `most` connections, a new one takes the place of the one that has waited
# longest for a request; where all of them are at work, it gets status 503.
# At the end of the server a connection that is idle stays for `LINGER` seconds: a request that is
# on its way is answered, with `Connection: close`, and not lost.


KEPT_BACK = 100  # open files for all else: pipes to workers, glossaries, the library
MOST = 1000  # connections, where the system allows as many
HEAD = 1 << 16  # most bytes of a header
MAX_PIPELINED = 32  # most requests of a connection that are not answered
CHECKS = 4  # times in a timeout that all connections are looked at
LATE = "the request has not come within {:g} seconds"
LONG = f"the header has more than {HEAD} bytes: send fewer"


def most_connections() -> int:
    """Return the number of connections that the limit of open files allows."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if allowed == resource.RLIM_INFINITY else max(1, min(MOST, allowed - KEPT_BACK))


def response(status: str, sentence: str, more: str = "") -> bytes:
    """Return a response of the server itself."""
    body = f'{{"error":"{sentence}"}}'
    headers = (
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n"
        f"{more}"
    )
    return f"HTTP/1.1 {status}\r\n{headers}\r\n{body}".encode()


def protocol(most: int, timeout: float) -> type[asyncio.Protocol]:
    """Return the protocol of a server's connections."""
    alive: set[Connection] = set()

    def check_all() -> None:
        """Look at all connections, now and again while there are any."""
        for connection in list(alive):
            connection.check(time.monotonic())
        if alive:
            asyncio.get_running_loop().call_later(min(1.0, timeout / CHECKS), check_all)

    class Connection(HttpToolsProtocol):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.requests = 0  # whose header has come, and which are not answered
            self.is_expected = True  # a request: none has come yet, or a part of one has
            self.since = time.monotonic()  # when it began to wait for a request
            self.head = 0  # bytes since the last one that belonged to a body or ended a header
            self.unwritten = 0  # bytes that the client had not taken when last looked at
            self.moved = self.since  # when it had last taken some
            if not alive:
                self.loop.call_later(min(1.0, timeout / CHECKS), check_all)
            alive.add(self)
            if len(alive) > most:
                others = (other for other in alive if not other.requests and other is not self)
                idle = min(others, key=lambda other: other.since, default=None)
                if idle is None:
                    return self.refuse(
                        "503 Service Unavailable",
                        "all connections are in use: send the request again",
                        "Retry-After: 2\r\n",
                    )
                alive.discard(idle)
                idle.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            alive.discard(self)
            super().connection_lost(exc)

        def refuse(self, status: str, sentence: str, more: str = "") -> None:
            """Say why the connection is closed, and close it."""
            if not self.transport.is_closing():
                self.transport.write(response(status, sentence, more))
                self.transport.close()

        def check(self, now: float) -> None:
            """Close the connection where its client takes too long."""
            unwritten = self.transport.get_write_buffer_size()
            if unwritten == 0 or unwritten != self.unwritten:
                self.unwritten, self.moved = unwritten, now
            elif now - self.moved >= timeout:
                return self.transport.abort()
            if self.is_expected and not self.requests and now - self.since >= timeout:
                self.refuse("408 Request Timeout", LATE.format(timeout))

        # ---- of the parser, which calls what follows `on_`

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if not self.is_expected and not self.requests:
                self.is_expected, self.since = True, time.monotonic()
            self.head += len(data)
            super().data_received(data)
            if self.head > HEAD:
                self.refuse("431 Request Header Fields Too Large", LONG)

        def on_headers_complete(self) -> None:
            self.head, self.is_expected = 0, False
            self.requests += 1
            if self.requests > MAX_PIPELINED:
                return self.transport.abort()
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self.head = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            self.head = 0
            super().on_message_complete()

        def on_response_complete(self) -> None:
            self.requests -= 1
            self.since = time.monotonic()
            super().on_response_complete()

        def shutdown(self) -> None:
            self.loop.call_later(LINGER, super().shutdown)

    return Connection


if __name__ == "__main__":
    parse = ArgumentParser(
        "python -m fairseq_ext.serve.guard",
        description="Make a key; print it, and its line for --api-keys.",
    )
    parse.add_argument("name", nargs="*", help="whose key it is (default: nobody's)")
    name, key = " ".join(parse.parse_args().name), secrets.token_urlsafe(32)
    print(f"key:  {key}\nline: {hashlib.sha256(key.encode()).hexdigest()} {name}".rstrip())
