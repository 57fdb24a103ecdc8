"""Limits of clients: API keys, the largest body, limits of connections.

A key file has a line a key: the SHA-256 of the key in hexadecimal, and behind a space a name,
if you like; `#` begins a comment. `python -m fairseq_ext.serve.guard NAME` makes a key: it
prints the key, and the line for the file. Keys come in the header `Authorization: Bearer KEY`,
`Authorization: DeepL-Auth-Key KEY` or `X-API-Key: KEY`, in LibreTranslate's API also as `api_key`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import re
import resource
import secrets
import time
from argparse import ArgumentParser
from collections.abc import AsyncIterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import Lines, sha256
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
        given = digest(key)
        found = [hmac.compare_digest(given, known) for known in self.hashes]
        return any(found)

    @staticmethod
    def of_headers(headers: Mapping[str, str]) -> str | None:
        """Return the key of a request's headers."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        return (key.strip() if scheme.lower() in SCHEMES else None) or headers.get("x-api-key")

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise HTTPException 401 for a request without a key, 403 for a wrong one."""
        key = self.of_headers(headers)
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


def digest(key: str | None) -> str:
    """Return the SHA-256 of a key."""
    return sha256([(key or "").encode("utf-8", "surrogatepass")])


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
    except asyncio.TimeoutError:
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
    with contextlib.suppress(asyncio.TimeoutError, ClientDisconnect):
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
# uvicorn leaves to a proxy how long a header may take and be. Where there are more connections than
# allowed, a new one takes the place of the one that has waited longest for its client, which sends
# no request or takes nothing of its answer; where all of them are at work, it gets status 503.


KEPT_BACK = 100  # open files for all else: pipes to workers, glossaries, the library
MOST = 1000  # connections, where the system allows as many
MAX_HEADER = 1 << 16  # bytes
MAX_PIPELINED = 32  # requests of a connection that wait for the one before them
LONG = f"the header has more than {MAX_HEADER} bytes: send fewer"


def most_connections() -> int:
    """Return the number of connections that the limit of open files allows."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if allowed == resource.RLIM_INFINITY else max(1, min(MOST, allowed - KEPT_BACK))


class Connection(HttpToolsProtocol):
    """A connection that is closed where a header takes longer than `timeout` seconds, and counts
    among the `most` of its server."""

    def __init__(self, most: int, timeout: float, **given: Any):
        super().__init__(**given)
        self.most, self.timeout = most, timeout
        self.head = 0  # bytes that have come since the last header or part of a body
        self.url = b""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.wait()
        if len(self.connections) > self.most:
            others: set[Any] = self.connections - {self}
            waiting = (each for each in others if each.is_idle)
            idle = min(waiting, key=lambda each: each.since, default=None)
            if idle is None:
                return self.refuse(503, "all connections are in use: send the request again")
            self.connections.discard(idle)
            idle.transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether the connection waits for its client."""
        return self.cycle is None or self.cycle.response_complete or self.flow.write_paused

    def wait(self) -> None:
        """Note that a header begins; close the connection if it does not end in time."""
        self.since = time.monotonic()  # that of the loop is equal for all of one turn
        said = f"the request has not come within {self.timeout:g} seconds"
        self.header_timer = self.loop.call_later(self.timeout, self.refuse, 408, said)

    def refuse(self, status: int, sentence: str) -> None:
        """Say why the connection is closed, and close it."""
        if not self.transport.is_closing():
            body = json.dumps({"error": sentence}).encode()
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nConnection: close\r\n"
            head += "Retry-After: 2\r\n" if status == 503 else ""
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            self.transport.write(head.encode() + body)
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Say what uvicorn refuses: a line of a request that is too long for its parser, or no
        HTTP."""
        is_long = len(self.url) >= MAX_HEADER
        self.refuse(*((431, LONG) if is_long else (400, "the request is not valid HTTP: check it")))

    # ---- of the parser, which calls what follows `on_`

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        has_answered = self.cycle is None or self.cycle.response_complete
        if has_answered and self.header_timer.cancelled():
            self.wait()
        self.head += len(data)
        super().data_received(data)
        if self.head > MAX_HEADER:
            self.refuse(431, LONG)

    def on_headers_complete(self) -> None:
        self.head = 0
        self.header_timer.cancel()
        if len(self.pipeline) >= MAX_PIPELINED:
            return self.transport.abort()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.head = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        self.since = time.monotonic()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.header_timer.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        self.loop.call_later(LINGER, super().shutdown)


def protocol(settings: Settings) -> Any:
    """Return what makes a server's connections."""
    return partial(
        Connection, settings.max_connections or most_connections(), settings.read_timeout
    )


if __name__ == "__main__":
    parse = ArgumentParser(
        "python -m fairseq_ext.serve.guard",
        description="Make a key; print it, and its line for --api-keys.",
    )
    parse.add_argument("name", nargs="*", help="whose key it is (default: nobody's)")
    name, key = " ".join(parse.parse_args().name), secrets.token_urlsafe(32)
    print(f"key:  {key}\nline: {digest(key)} {name}".rstrip())
