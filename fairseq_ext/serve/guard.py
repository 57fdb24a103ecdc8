"""Who may ask, and how much: API keys and the largest body.

A key file has a line a key: the SHA-256 of the key in hexadecimal, and behind a space a name, if you like; `#` begins a comment.
`python -m fairseq_ext.serve.guard NAME` makes a key: it prints the key, and the line for the file. Keys come in the header
`Authorization: Bearer KEY` or `X-API-Key: KEY`, in LibreTranslate's API also as `api_key`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import re
import secrets
from argparse import ArgumentParser
from collections.abc import AsyncIterator, Mapping

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import Lines
from fairseq_ext.serve.settings import Settings


class Keys:
    """The keys of a file; None for none, which lets everybody in."""

    def __init__(self, path: str | None):
        self.hashes: list[str] | None = None if path is None else read_hashes(path)

    def admit(self, key: str | None) -> bool:
        """Whether a key is one of the file's. The time that it takes does not depend on where a wrong one differs."""
        if self.hashes is None:
            return True
        given = hashlib.sha256((key or "").encode("utf-8", "surrogateescape")).hexdigest()
        found = [hmac.compare_digest(given, known) for known in self.hashes]
        return any(found)

    @staticmethod
    def given(headers: Mapping[str, str]) -> str | None:
        """The key of a request's headers."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        return (bearer.strip() if scheme.lower() == "bearer" else None) or headers.get("x-api-key")

    def check(self, headers: Mapping[str, str], also: str | None = None) -> None:
        """HTTPException 401 for a request without a key, 403 for a wrong one. also: a key that came elsewhere."""
        key = self.given(headers) or also
        if self.admit(key):
            return
        if not key:
            raise HTTPException(401, "this server asks for a key: send it as Authorization: Bearer KEY", {"WWW-Authenticate": "Bearer"})
        raise HTTPException(403, "this server does not know the key: check it, or ask who runs the server for one")


def read_hashes(path: str) -> list[str]:
    """The hashes of a key file (raises UsageError)."""
    found = []
    for number, line in enumerate(Lines(path, "--api-keys")):
        text = line.partition("#")[0].split()
        if text and not re.fullmatch(r"[0-9a-fA-F]{64}", text[0]):
            raise UsageError(
                f"line {number + 1} of {path} does not begin with the SHA-256 of a key (64 hexadecimal digits): "
                "make one with python -m fairseq_ext.serve.guard NAME"
            )
        found += [text[0].lower()] if text else []
    if not found:
        raise UsageError(f"--api-keys {path} has no key: make one with python -m fairseq_ext.serve.guard NAME")
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server at this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


LINGER = 1.0  # seconds for which the rest of a body that is too large is read and dropped


async def read_body(request: Request, settings: Settings) -> bytes:
    """The body of a request; HTTPException 408 for one that takes longer than `read_timeout`, 413 for one of more than `max_body` bytes.

    Of the latter the rest is not kept: for `LINGER` seconds it is read and dropped, so that a client that is still sending reads the
    answer and not "connection reset"; then the connection is closed.
    """
    try:
        return await asyncio.wait_for(whole_body(request, settings.max_body), settings.read_timeout)
    except (TimeoutError, asyncio.TimeoutError):
        raise HTTPException(
            408, f"the body has not come within {settings.read_timeout:g} seconds: send less at once", {"Connection": "close"}
        ) from None


async def whole_body(request: Request, most: int) -> bytes:
    """The same without a limit of time."""
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
    raise HTTPException(413, f"the body has more than {most} bytes: send less at once", {"Connection": "close"})


async def drop(parts: AsyncIterator[bytes]) -> None:
    """Read to the end and keep nothing."""
    async for _ in parts:
        pass


if __name__ == "__main__":
    parse = ArgumentParser("python -m fairseq_ext.serve.guard", description="Make a key; print it, and its line for --api-keys.")
    parse.add_argument("name", nargs="*", help="whose key it is (default: nobody's)")
    name, key = " ".join(parse.parse_args().name), secrets.token_urlsafe(32)
    print(f"key:  {key}\nline: {hashlib.sha256(key.encode()).hexdigest()} {name}".rstrip())
