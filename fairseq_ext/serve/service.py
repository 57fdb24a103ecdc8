"""Common parts of the routes: models, keys, limits, answers, errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.core.exit import DISK_FULL_ERRNOS
from fairseq_ext.engine.callbacks import THREADS, Threads, when_done
from fairseq_ext.engine.jobs import Partial
from fairseq_ext.engine.text import TextRequest
from fairseq_ext.engine.tickets import Busy, Closed, WorkerDied
from fairseq_ext.search.report import Report
from fairseq_ext.serve import Settings, default_folder, records
from fairseq_ext.serve.bodies import apart, urlencoded
from fairseq_ext.serve.glossaries import Glossaries, Missing
from fairseq_ext.serve.guard import Keys, digest, read_body
from fairseq_ext.serve.metrics import Metrics
from fairseq_ext.serve.models import SOON, Model, Models, Pair
from fairseq_ext.serve.records import is_one_sentence
from fairseq_ext.text.formats import Pass, passes
from fairseq_ext.text.splitter import splitter
from fairseq_ext.text.stopping import Stopped, until

T = TypeVar("T")
LONG = 5000  # characters
BRIEF = 0.02  # seconds in which no client hangs up: whether it has takes 0.06 ms to find out


def whole_line(line: str) -> list[int]:
    """Return the end of a line that is not split into sentences."""
    return [len(line)]


class LoopThread(Threads):
    """The thread of the running event loop, in place of others: none is woken for a short text."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def run(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(work)


class Service:
    """Models, what is allowed, and what is counted."""

    def __init__(self, models: Models, settings: Settings):
        self.models, self.settings = models, settings
        self.keys = Keys(settings.api_keys)
        self.metrics = Metrics(models)
        self.glossaries_of: dict[tuple[str, Pair], Glossaries] = {}
        self.closing = False

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise HTTPException 401 or 403 for a missing or wrong key."""
        self.keys.check(headers)

    def owner(self, headers: Mapping[str, str]) -> str:
        """Return the owner of a request's glossaries and documents: the one of its key, or "all"
        without keys. Errors: those of `check`."""
        self.check(headers)
        return "all" if self.keys.hashes is None else digest(self.keys.of_headers(headers))[:32]

    def pairs(self) -> list[Pair]:
        """Return the served pairs of languages (HTTPException 503 if there are none)."""
        if self.closing:
            raise HTTPException(503, "the server is closing", SOON)
        if not (found := self.models.served.pairs):
            raise HTTPException(503, "no model can be loaded: send the request again", SOON)
        return found

    def codes(self) -> list[str]:
        """Return the served languages."""
        return list(dict.fromkeys(code for pair in self.pairs() for code in pair))

    def pair_of(self, request: Request) -> Pair:
        """Return the pair that the request's query names (`?source=de&target=en`), else the only
        one.

        Errors: UsageError, HTTPException 503.
        """
        query = urlencoded(request.scope["query_string"], "the query")
        pairs, (source, target) = self.pairs(), map(query.get, ("source", "target"))
        if source is target is None and (own := self.models.served.own) is not None:
            return own
        known = [pair for pair in pairs if source in (None, pair[0]) and target in (None, pair[1])]
        if len(known) != 1:
            said = cut(", ".join("-".join(pair) for pair in pairs[:20]))
            raise UsageError(
                f"this server translates {said}: name one of them by "
                f"?source={pairs[0][0]}&target={pairs[0][1]}"
            )
        return known[0]

    def glossaries(self, owner: str, pair: Pair) -> Glossaries:
        """Return an owner's glossaries of a pair of languages."""
        if (owner, pair) not in self.glossaries_of:
            folder = self.settings.glossary_folder
            found = folder or default_folder()
            if owner != "all":
                found = found / "keys" / owner
            if folder is None or self.models.served.several:
                found = found / "-".join(pair)
            self.glossaries_of[owner, pair] = Glossaries(found)
        return self.glossaries_of[owner, pair]

    async def read(self, request: Request) -> tuple[list[records.Record], bool, Pair]:
        """Return the records of a request whose key is right, whether they are a list, and their
        pair."""
        owner = self.owner(request.headers)
        pair = self.pair_of(request)
        body = await read_body(request, self.settings)
        # the folder of glossaries is looked for only where a record names one
        found = await apart(
            records.read_records,
            body,
            self.settings.max_lines,
            lambda name: self.glossaries(owner, pair).file(name),
        )
        return *found, pair

    @contextlib.asynccontextmanager
    async def using(self, request: Request, pair: Pair) -> AsyncIterator[Model]:
        """Return the model of a pair, see `Models.using`; raise Disconnected if the client
        disconnects before it is loaded."""
        begin = time.monotonic()
        async with self.models.using(pair, partial(waits, request)) as model:
            if time.monotonic() - begin > BRIEF:
                await waits(request)
            yield model

    def submit(
        self,
        model: Model,
        source: str,
        format: str = "text",
        on_partial: Callable[[Partial], None] | None = None,
        items: list[Pass] | None = None,
        options: Mapping[str, Any] | None = None,
        **request: Any,
    ) -> Future[Report]:
        """Return a future of the translation of a text, sentence by sentence; of one sentence if it
        must have phrases. Errors: those of `Engine.submit`. items: see `prepared`; options: of
        `passes`."""
        if is_one_sentence(request):
            return model.submit(source, on_partial=on_partial, **request)
        future = TextRequest(
            model.submit,
            source,
            items or self.passes(format, model, **options or {}),
            request,
            on_partial,
            threads=LoopThread() if len(source) < LONG else THREADS,
        ).future
        release = model.hold()  # between two of its sentences, too
        when_done(future, lambda _: release())
        return future

    def passes(
        self,
        format: str,
        model: Model,
        numbers: Iterator[int] | None = None,
        splits: bool = True,
        inline: Collection[str] | None = None,
    ) -> list[Pass]:
        """Return the passes of a format, for the languages of a model.

        numbers: of the segments; splits: whether a line is split into sentences; inline: names of
        the inline elements of XML, where the text does not say them.
        """
        return passes(
            format,
            splitter(model.description.source) if splits else whole_line,
            leads=model.description.leads,
            numbers=numbers,
            inline=inline,
        )

    async def prepared(self, request: dict[str, Any], model: Model) -> dict[str, Any]:
        """Return a request with a long text together with the items of that text; another request
        unchanged. A thread finds the first item, so that other requests are served.

        Errors: HTTPException 504 at the deadline."""
        if len(request["source"]) < LONG or is_one_sentence(request):
            return request
        first, *others = self.passes(
            request.get("format", "text"), model, **request.get("options", {})
        )
        found = first(request["source"])
        head = await self.read_in_time(lambda: list(islice(found, 1)))
        return request | {"items": [lambda text: chain(head, found), *others]}

    async def read_in_time(self, read: Callable[..., T], *args: Any) -> T:
        """Return what a function reads in a thread. Errors: its own, HTTPException 504 at the
        deadline."""
        end = time.monotonic() + self.settings.deadline

        def run() -> T:
            with until(lambda: self.closing or time.monotonic() > end):
                return read(*args)

        try:
            return await run_in_threadpool(run)
        except Stopped:
            raise late(self.settings.deadline) from None

    async def answered(
        self, request: Request, requests: Sequence[dict[str, Any]], pair: Pair
    ) -> list[Report | UsageError]:
        """Return the answers to these requests, keywords of `submit`."""
        async with self.using(request, pair) as model:
            begin = time.monotonic()
            ready = [await self.prepared(each, model) for each in requests]
            if time.monotonic() - begin > BRIEF:
                await waits(request)
            futures: list[Future[Report]] = submit_all(partial(self.submit, model), ready)
            found = await answers(request, futures, self.settings.deadline)
        for answer in found:
            if isinstance(answer, Report):
                self.metrics.answered(answer)
        return found


# ---- Answers that a client waits for
#
# It waits until the deadline, or until it disconnects. Then its requests are cancelled:
# its rows are free.


class Disconnected(Exception):
    """The client has disconnected."""


async def waits(request: Request) -> None:
    """Raise Disconnected where the client has disconnected, as it may while a model is loaded;
    its body has been read."""
    if await request.is_disconnected():
        raise Disconnected


def submit_all(
    submit: Callable[..., Future[Report]], requests: Sequence[dict[str, Any]]
) -> list[Future[Report]]:
    """Return a future of each request, or of none: errors are those of `submit`."""
    futures: list[Future[Report]] = []
    try:
        for request in requests:
            futures.append(submit(**request))
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return futures


async def answers(
    request: Request, futures: Sequence[Future[Report]], deadline: float
) -> list[Report | UsageError]:
    """Return the answers, in order, with a UsageError for a request that cannot be used.

    Errors: HTTPException 504 at the deadline, Disconnected, what the engine raises.
    """
    waiting = asyncio.gather(
        *(asyncio.wrap_future(future) for future in futures), return_exceptions=True
    )
    # errors of those that are cancelled are read, else asyncio logs them for every client that
    # disconnects
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    end = time.monotonic() + deadline
    try:
        await ended(request, waiting, deadline, lambda: end - time.monotonic())
        found = waiting.result()
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, UsageError):
                raise each
        return found  # type: ignore[return-value]
    finally:
        waiting.cancel()
        for future in futures:
            future.cancel()


async def ended(
    request: Request, work: asyncio.Future[Any], deadline: float, left: Callable[[], float]
) -> None:
    """Return when the work is done.

    left: seconds that it still has, of the deadline. Errors: HTTPException 504, Disconnected.
    """
    # most work is done by then, and needs no task that waits for the client
    await asyncio.wait({work}, timeout=min(BRIEF, left()))
    if work.done():
        return
    gone = asyncio.ensure_future(wait_for_disconnect(request))
    both: set[asyncio.Future[Any]] = {work, gone}
    try:
        while not work.done():
            if gone.done():
                raise Disconnected
            if (seconds := left()) <= 0:
                raise late(deadline)
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()


def late(deadline: float) -> HTTPException:
    """Return the answer to a request whose deadline has passed."""
    said = f"the translation took more than {deadline:g} seconds: ask for less at once, or later"
    return HTTPException(504, said)


async def wait_for_disconnect(request: Request) -> None:
    """Return when the client has disconnected; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Stream:
    """One request whose partial results are sent as they come: server-sent events `partial`, and
    `answer` or `error` at the end.

    A client that reads slowly gets fewer partial results, as the last one has all of those before.
    """

    def __init__(
        self, submit: Callable[..., Future[Report]], request: dict[str, Any], deadline: float
    ):
        self.loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()
        self.latest: Partial | None = None
        self.deadline = self.loop.time() + deadline
        self.seconds = deadline
        self.future = submit(**request, on_partial=self.on_partial)

    def on_partial(self, part: Partial) -> None:
        """Handle a partial result, in a thread of the engine's."""
        self.latest = part
        self.loop.call_soon_threadsafe(self.changed.set)

    async def events(self, shown: Any) -> AsyncIterator[bytes]:
        """Yield the events; shown: from an answer to its JSON."""
        answer = asyncio.wrap_future(self.future)
        answer.add_done_callback(lambda _: self.changed.set())
        reported = 0
        try:
            while True:
                await asyncio.wait_for(self.changed.wait(), self.deadline - self.loop.time())
                self.changed.clear()
                if answer.done():
                    yield event("answer", shown(answer.result()))
                    return
                if self.latest is not None and self.latest.tokens > reported:
                    reported = self.latest.tokens
                    # of a long text, the next part has as long
                    self.deadline = self.loop.time() + self.seconds
                    yield event("partial", {"text": self.latest.text, "tokens": reported})
        except asyncio.TimeoutError:
            yield event("error", {"error": late(self.seconds).detail})
        except (UsageError, RuntimeError) as error:
            yield event("error", {"error": str(error)})
        finally:
            self.future.cancel()


class Streamed(StreamingResponse):
    """The events of a stream. One whose client has gone before the first is cancelled as well."""

    def __init__(self, stream: Stream, shown: Callable[[Report], Any]):
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(stream.events(shown), media_type="text/event-stream", headers=headers)
        self.future = stream.future

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.future.cancel()


def event(name: str, value: Any) -> bytes:
    """Return one server-sent event."""
    return f"event: {name}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


# ---- What a request that fails is answered
#
# `{"error": "one sentence"}`, in DeepL's API `{"message": "one sentence"}`, with a status that says
# whose fault it is.


REFUSED = (
    StarletteHTTPException,
    UsageError,
    Busy,
    Closed,
    WorkerDied,
    Disconnected,
    ClientDisconnect,
    RuntimeError,
    OSError,
)
DEEPL = ("/v2", "/v3")  # how the paths of DeepL's API begin
CLIENT_CLOSED = 499  # the status that proxies log where the client has disconnected
ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"description": what}
    for code, what in {
        400: "the request cannot be used",
        401: "a key is missing",
        403: "the key, the host or the origin is wrong",
        408: "the body has not come in time",
        413: "the body is too large",
        415: "the Content-Type is missing or wrong",
        429: "the queue is full; Retry-After says when to send the request again",
        503: "no model is loaded, or the server is closing",
        504: "the deadline has passed",
        507: "the server's disk is full",
    }.items()
}


def refusal(error: Exception, path: str) -> Response:
    """Return an error of one of the kinds REFUSED as JSON. path: of the request."""
    headers: dict[str, str] = {}
    if isinstance(error, StarletteHTTPException):
        status, sentence, headers = error.status_code, str(error.detail), dict(error.headers or {})
    elif isinstance(error, (Disconnected, ClientDisconnect)):
        status, sentence = CLIENT_CLOSED, "the client has hung up"
    elif isinstance(error, UsageError):
        status, sentence = 404 if isinstance(error, Missing) else 400, str(error)
    elif isinstance(error, Busy):
        status, sentence, headers = 429, str(error), {"Retry-After": f"{error.retry_after:.0f}"}
    elif isinstance(error, OSError):
        if error.errno not in DISK_FULL_ERRNOS:
            raise error
        status = 507
        sentence = f"the server's disk is full ({error.strerror}): ask its operator to free space"
    else:
        status, sentence = 503 if isinstance(error, Closed) else 500, str(error)
    field = "message" if path.startswith(DEEPL) else "error"
    return JSONResponse({field: sentence}, status, headers)


def add_routes(
    app: FastAPI, tag: str, *rows: tuple[str, str, Callable[..., Any], dict[str, Any]]
) -> None:
    """Add routes to an application: method, path, what answers, and more of their description. tag:
    the API that they belong to."""
    for method, path, route, more in rows:
        app.add_api_route(
            path,
            route,
            methods=[method],
            summary=(route.__doc__ or "").partition(".")[0],
            tags=[tag],
            responses=ERRORS,
            **more,
        )
