"""What a request that fails is answered: `{"error": "one sentence"}`, with a status that says whose fault it is."""

from __future__ import annotations

from fastapi import Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from fairseq_ext.core.errors import UsageError
from fairseq_ext.engine.tickets import Busy, Closed, WorkerDied
from fairseq_ext.serve.glossaries import Missing
from fairseq_ext.serve.waiting import Gone

REFUSED = (StarletteHTTPException, UsageError, Busy, Closed, WorkerDied, Gone, ClientDisconnect, RuntimeError)
GONE = 499  # nobody reads the answer; the status that proxies log
ERRORS = {code: {"description": what} for code, what in {
    400: "the request cannot be used", 401: "a key is missing", 403: "the key, the host or the origin is wrong",
    408: "the body has not come in time", 413: "the body is too large", 415: "the Content-Type is missing or wrong",
    429: "the queue is full; Retry-After says when to ask again", 503: "no model is loaded, or the server is closing",
    504: "the deadline has passed",
}.items()}  # fmt: skip


def refusal(error: Exception) -> Response:
    """An error of one of the kinds REFUSED as JSON."""
    headers: dict[str, str] = {}
    if isinstance(error, StarletteHTTPException):
        status, sentence, headers = error.status_code, str(error.detail), dict(error.headers or {})
    elif isinstance(error, (Gone, ClientDisconnect)):
        status, sentence = GONE, "the client has hung up"
    elif isinstance(error, UsageError):
        status, sentence = 404 if isinstance(error, Missing) else 400, str(error)
    elif isinstance(error, Busy):
        status, sentence, headers = 429, str(error), {"Retry-After": f"{error.retry_after:.0f}"}
    else:
        status, sentence = 503 if isinstance(error, Closed) else 500, str(error)
    return JSONResponse({"error": sentence}, status, headers)
