"""Common parts of the routes: models, keys, limits, answers, errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cache, partial
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
from fairseq_ext.engine.text import TextRequest
from fairseq_ext.engine.tickets import Busy, Closed, Partial
from fairseq_ext.search.report import Report
from fairseq_ext.serve import Settings, default_folder
from fairseq_ext.serve.bodies import apart, urlencoded
from fairseq_ext.serve.glossaries import Glossaries, Missing
from fairseq_ext.serve.guard import Keys, digest, read_body
from fairseq_ext.serve.models import SOON, Metrics, Model, Models, Pair
from fairseq_ext.serve.records import Record, Text, read_records
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
        self.folder = settings.glossary_folder or default_folder()
        self.glossaries = cache(self.open_glossaries)  # by owner and pair
        self.closing = False

    def owner(self, headers: Mapping[str, str]) -> str:
        """Return the owner of a request's glossaries and documents: the one of its key, or "all"
        without keys. Errors: those of `Keys.check`."""
        self.keys.check(headers)
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

    def open_glossaries(self, owner: str, pair: Pair) -> Glossaries:
        """Return an owner's glossaries of a pair of languages."""
        of_owner = self.folder if owner == "all" else self.folder / "keys" / owner
        is_apart = self.settings.glossary_folder is None or self.models.served.several
        return Glossaries(of_owner / "-".join(pair) if is_apart else of_owner)

    async def read(self, request: Request) -> tuple[list[Record], bool, Pair]:
        """Return the records of a request whose key is right, whether they are a list, and their
        pair."""
        owner = self.owner(request.headers)
        pair = self.pair_of(request)
        body = await read_body(request, self.settings)
        # the folder of glossaries is looked for only where a record names one
        found = await apart(
            read_records,
            body,
            self.settings.max_lines,
            lambda name: self.glossaries(owner, pair).file(name),
        )
        return *found, pair

    @contextlib.asynccontextmanager
    async def using(self, request: Request | None, pair: Pair) -> AsyncIterator[Model]:
        """Return the model of a pair, see `Models.using`; raise Disconnected if the client
        disconnects before it is loaded."""
        begin = time.monotonic()
        async with self.models.using(pair, partial(waits, request)) as model:
            if time.monotonic() - begin > BRIEF:
                await waits(request)
            yield model

    def submit(
        self, model: Model, text: Text, on_partial: Callable[[Partial], None] | None = None
    ) -> Future[Report]:
        """Return a future of the translation of a text, sentence by sentence; of one sentence if it
        must have phrases. Errors: those of `Engine.send`."""
        if text.is_one_sentence:
            return model.submit(text.request, on_partial)
        future = TextRequest(
            model.submit,
            text.request,
            self.passes(text.format, model, splits=text.splits, inline=text.inline),
            on_partial,
            threads=LoopThread() if len(text.request.source) < LONG else THREADS,
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

    async def submitted(
        self, model: Model, text: Text, on_partial: Callable[[Partial], None] | None = None
    ) -> Future[Report]:
        """Return the future of `submit`. A thread reads the beginning of a long text, so that other
        requests are served. Errors: HTTPException 504 at the deadline."""
        submit = partial(self.submit, model, text, on_partial)
        is_short = len(text.request.source) < LONG or text.is_one_sentence
        return submit() if is_short else await self.read_in_time(submit)

    async def read_in_time(self, read: Callable[..., T], *args: object) -> T:
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
        self, request: Request, texts: Sequence[Text], pair: Pair
    ) -> list[Report | UsageError]:
        """Return the answers to these texts, in order, with a UsageError for one that cannot be
        used.

        Errors: HTTPException 504 at the deadline, Disconnected, what the engine raises.
        """
        futures: list[Future[Report]] = []
        async with self.using(request, pair) as model:
            try:
                for each in texts:
                    futures.append(await self.submitted(model, each))
                running = map(asyncio.wrap_future, futures)
                waiting = asyncio.gather(*running, return_exceptions=True)
                await ended(request, waiting, self.settings.deadline)
            finally:
                for future in futures:
                    future.cancel()
        out: list[Report | UsageError] = []
        for answer in waiting.result():
            if isinstance(answer, Report):
                self.metrics.answered(answer)
            elif not isinstance(answer, UsageError):
                raise answer
            out.append(answer)
        return out


# ---- Answers that a client waits for
#
# It waits until the deadline, or until it disconnects. Then its requests are cancelled:
# its rows are free.


class Disconnected(Exception):
    """The client has disconnected."""


async def waits(request: Request | None) -> None:
    """Raise Disconnected where the client has disconnected, as it may while a model is loaded; its
    body has been read. None: there is no client."""
    if request is not None and await request.is_disconnected():
        raise Disconnected


async def ended(
    request: Request | None,
    work: asyncio.Future[T],
    deadline: float,
    moved: Callable[[], float] | None = None,
) -> None:
    """Return when the work is done.

    request: as for `waits`; moved: the time from which the deadline counts (default: now). Errors:
    HTTPException 504, Disconnected.
    """
    now = time.monotonic()

    def remaining() -> float:
        return (moved() if moved else now) + deadline - time.monotonic()

    # most work is done by then, and needs no task that waits for the client
    await asyncio.wait({work}, timeout=min(BRIEF, remaining()))
    if work.done():
        return
    gone = asyncio.ensure_future(wait_for_disconnect(request))
    both: set[asyncio.Future[Any]] = {work, gone}
    try:
        while not work.done():
            if gone.done():
                raise Disconnected
            if (seconds := remaining()) <= 0:
                raise late(deadline)
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()


def late(deadline: float) -> HTTPException:
    """Return the answer to a request whose deadline has passed."""
    said = f"the translation took more than {deadline:g} seconds: ask for less at once, or later"
    return HTTPException(504, said)


async def wait_for_disconnect(request: Request | None) -> None:
    """Return when the client has disconnected; its body has been read."""
    if request is None:
        await asyncio.Event().wait()
    else:
        while (await request.receive())["type"] != "http.disconnect":
            pass


class Stream(StreamingResponse):
    """One request whose partial results are sent as they come: server-sent events `partial`, and
    `answer` or `error` at the end.

    A client that reads slowly gets fewer partial results, as the last one has all of those before.
    A request whose client has gone before the first event is cancelled as well.
    """

    def __init__(self, seconds: float, shown: Callable[[Report], object]):
        """seconds: until the first part, and from each to the next; shown: from an answer to its
        JSON. `future`, of the request, is set later."""
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(self.events(), media_type="text/event-stream", headers=headers)
        self.loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()
        self.latest: Partial | None = None
        self.seconds, self.shown = seconds, shown
        self.future = Future[Report]()

    def on_partial(self, part: Partial) -> None:
        """Handle a partial result, in a thread of the engine's."""
        self.latest = part
        self.loop.call_soon_threadsafe(self.changed.set)

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events."""
        answer = asyncio.wrap_future(self.future)
        answer.add_done_callback(lambda _: self.changed.set())
        reported, deadline = 0, self.loop.time() + self.seconds
        try:
            while True:
                await asyncio.wait_for(self.changed.wait(), deadline - self.loop.time())
                self.changed.clear()
                if answer.done():
                    yield event("answer", self.shown(answer.result()))
                    return
                if self.latest is not None and self.latest.tokens > reported:
                    reported = self.latest.tokens
                    # of a long text, the next part has as long
                    deadline = self.loop.time() + self.seconds
                    yield event("partial", {"text": self.latest.text, "tokens": reported})
        except asyncio.TimeoutError:
            yield event("error", {"error": late(self.seconds).detail})
        except (UsageError, RuntimeError) as error:
            yield event("error", {"error": str(error)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.future.cancel()


def event(name: str, value: object) -> bytes:
    """Return one server-sent event."""
    return f"event: {name}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


# ---- What a request that fails is answered
#
# `{"error": "one sentence"}`, in DeepL's API `{"message": "one sentence"}`, with a status that says
# whose fault it is.


CLIENT_CLOSED = 499  # the status that proxies log where the client has disconnected
STATUSES = {
    Disconnected: CLIENT_CLOSED,
    ClientDisconnect: CLIENT_CLOSED,
    Missing: 404,
    UsageError: 400,
    Busy: 429,
    Closed: 503,
    RuntimeError: 500,
}
REFUSED = (*STATUSES, StarletteHTTPException, OSError)
DEEPL = ("/v2", "/v3")  # how the paths of DeepL's API begin
ERRORS: dict[int | str, dict[str, object]] = {
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
    sentence, headers = str(error), dict[str, str]()
    if isinstance(error, StarletteHTTPException):
        status, sentence, headers = error.status_code, str(error.detail), dict(error.headers or {})
    elif not isinstance(error, OSError):
        status = next(code for kind, code in STATUSES.items() if isinstance(error, kind))
    elif error.errno in DISK_FULL_ERRNOS:
        status = 507
        sentence = f"the server's disk is full ({error.strerror}): ask its operator to free space"
    else:
        raise error
    if isinstance(error, Busy):
        headers = {"Retry-After": f"{error.retry_after:.0f}"}
    field = "message" if path.startswith(DEEPL) else "error"
    return JSONResponse({field: sentence}, status, headers)


def add_routes(
    app: FastAPI, tag: str, *rows: tuple[str, str, Callable[..., object], dict[str, Any]]
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
            response_model=None,
            **more,
        )
