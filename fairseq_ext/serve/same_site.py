"""What a page of somebody else's site could have a browser send is refused: requests under a name that is not this server's (DNS
rebinding), from another origin, JSON that a form could have sent, and changes without a header that no form can send.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from fairseq_ext.serve.refusals import refusal

LOOPBACK = ("localhost", "127.0.0.1", "::1")
FORMS = ("", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain")  # what browsers send across sites unasked


class SameSite:
    """An application behind these checks. hosts: names that it answers to; None for any, which keys must guard. origins: that may use it
    all the same."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str] | None, origins: Sequence[str] = ()):
        self.origins = origins
        self.app, self.hosts = app, None if hosts is None else {name.lower().strip("[]") for name in (*LOOPBACK, *hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self.check(scope["method"], scope["path"], Headers(scope=scope))
            except HTTPException as error:
                return await refusal(error)(scope, receive, send)
        await self.app(scope, receive, send)

    def check(self, method: str, path: str, headers: Headers) -> None:
        """HTTPException 403 or 415 for what is refused."""
        for name, url in (("Host", "//" + headers.get("host", "")), ("Origin", headers.get("origin", "//localhost"))):
            is_allowed = name == "Origin" and ("*" in self.origins or url in self.origins)
            if self.hosts is not None and host_of(url) not in self.hosts and not is_allowed:
                said = f"the {name} '{url.removeprefix('//')}' is not this server's"
                raise HTTPException(403, f"{said}: use its own, or add --allowed-{name.lower()}s")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and path.startswith("/v1/") and kind != "application/json":
            raise HTTPException(415, "the body is JSON: say so with the header Content-Type: application/json")
        if method in ("PUT", "DELETE") and kind in FORMS and "x-requested-with" not in headers:
            way = "Content-Type: text/tab-separated-values, or X-Requested-With with any value"
            raise HTTPException(415, f"a change needs a header that no form sends: {way}")


def host_of(url: str) -> str:
    """The name or address in a URL, without its port; "" where there is none."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""
