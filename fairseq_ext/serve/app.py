"""The application: routes of translation and of stored glossaries, and checks of the origin.

The models' running search takes requests in. Each has its own constraints, glossaries and
n-best list. Where several pairs of languages are served, the query says which is meant:
`?source=de&target=en`.

An error is an object `{"error": "one sentence"}` with a status that says whose fault it is.
A record of a list that cannot be translated has its error in its own place, and the others are
translated.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePath
from urllib.parse import urlsplit

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import contextmanager_in_threadpool, run_in_threadpool
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi_offline import FastAPIOffline
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.glossary import READERS, Entry, Languages, LineErrors, read, written
from fairseq_ext.search.report import Report
from fairseq_ext.search.request import Request as Sentence
from fairseq_ext.serve import Settings, records
from fairseq_ext.serve.bodies import (
    checked,
    content_type,
    described,
    file_name,
    read_json,
    urlencoded,
)
from fairseq_ext.serve.deepl import DeepL
from fairseq_ext.serve.glossaries import Glossaries, with_name
from fairseq_ext.serve.guard import LONG, MAX_HEADER, read_body
from fairseq_ext.serve.libretranslate import LibreTranslate
from fairseq_ext.serve.models import Models, Pair
from fairseq_ext.serve.records import Text
from fairseq_ext.serve.service import (
    REFUSED,
    Service,
    Stream,
    add_routes,
    refusal,
    waits,
)

PAGE = Path(__file__).with_name("page.html")


TSV = "text/tab-separated-values"
EXAMPLE = "Patient\tpatient\nChef\tboss|chief\n"


class TermsFile(BaseModel):
    """A glossary file as JSON."""

    model_config = ConfigDict(strict=True)

    name: str = Field(description="the file's name, whose ending says its form")
    content: str | None = Field(None, description="its text")
    base64: Base64Bytes | None = Field(
        None, strict=False, description="its bytes, instead of the text"
    )


class Server(Service):
    """A service over HTTP. `app` is the ASGI application."""

    def __init__(self, models: Models, settings: Settings):
        super().__init__(models, settings)
        # the documentation's scripts come from here, too: /docs works without a network
        self.app = FastAPIOffline(
            title="fairseq_ext",
            description=__doc__,
            lifespan=self.lifespan,
            redoc_url=None,
            static_url="/docs-assets",
            swagger_ui_parameters={"validatorUrl": None, "tryItOutEnabled": True},
        )
        self.add_routes()

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """End the engines with the server."""
        yield
        self.closing = True
        await run_in_threadpool(self.models.close)

    # ---- routes

    def add_routes(self) -> None:
        """Add all routes; each is handled by the method of its name."""
        app = self.app
        app.add_middleware(Gate, service=self)
        # answers OPTIONS; what is refused says so to the page, too
        if origins := self.settings.allowed_origins:
            app.add_middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["*"],
                allow_headers=["*"],
                max_age=600,
            )
        for kind in REFUSED:
            app.add_exception_handler(kind, self.refused)
        some = {"oneOf": [records.SCHEMA, {"type": "array", "items": records.SCHEMA}]}
        one = {name: value for name, value in records.EXAMPLES.items() if isinstance(value, dict)}
        body = {"required": True, "content": {TSV: {"example": EXAMPLE}}}
        path, file = "/v1/glossaries/{name}", {"a file": {"name": "a.tsv", "content": EXAMPLE}}
        add_routes(
            app,
            "fairseq_ext",
            ("POST", "/v1/translate", self.translate, described(some, records.EXAMPLES)),
            ("POST", "/v1/translate/stream", self.stream, described(records.SCHEMA, one)),
            ("GET", "/v1/model", self.get_model, {}),
            ("GET", "/health", self.health, {}),
            ("GET", "/ready", self.ready, {}),
            ("GET", "/metrics", self.prometheus, {}),
            ("GET", "/v1/glossaries", self.names, {}),
            ("POST", "/v1/terms", self.terms, described(TermsFile.model_json_schema(), file)),
            ("PUT", path, self.put, {"openapi_extra": {"requestBody": body}}),
            ("GET", path, self.get, {}),
            ("DELETE", path, self.delete, {"status_code": 204, "response_class": Response}),
        )
        for part in (LibreTranslate(self), DeepL(self)):
            part.add_to(app)
        app.get("/", include_in_schema=False)(self.page)

    async def translate(self, request: Request) -> object:
        """Translate a record, or a list of them."""
        given, several, pair = await self.read(request)
        found = await self.answered(request, [each.text for each in given], pair)
        if not several and isinstance(found[0], UsageError):
            raise found[0]
        out = list(map(records.answer_json, given, found))
        return JSONResponse(out if several else out[0])

    async def stream(self, request: Request) -> object:
        """Translate a record while it is watched: server-sent events `partial` {text, tokens},
        then `answer`, or `error`."""
        given, several, pair = await self.read(request)
        if several:
            raise UsageError("a stream has one record: send an object, not a list")
        (record,) = given

        def shown(answer: Report) -> dict[str, object]:
            self.metrics.answered(answer)
            return records.answer_json(record, answer)

        async with self.using(request, pair) as model:
            await waits(request)
            out = Stream(self.settings.deadline, shown)
            out.future = await self.submitted(model, record.text, out.on_partial)
        return out

    async def get_model(self, request: Request) -> object:
        """Return what is loaded, and how translations are made."""
        self.keys.check(request.headers)
        pair = self.pair_of(request) if request.query_params else self.pairs()[0]
        others = self.pairs()
        async with self.using(request, pair) as loaded:
            model = loaded.description
        return {
            "source": pair[0],
            "target": pair[1],
            "signature": model.signature,
            "beam": model.beam,
            "nbest": model.nbest,
            "pairs": others,
            "constraints": model.no_constraints or True,
            "max_tokens": self.settings.max_line_tokens or model.longest,
        }

    async def health(self) -> object:
        """Answer that this process runs."""
        return {"status": "ok"}

    async def ready(self) -> object:
        """Answer whether requests are taken: a model is loaded, a worker is ready, the server is
        not closing."""
        if self.closing or not self.models.ready:
            raise HTTPException(
                503,
                "the server is closing" if self.closing else "no worker is ready",
                {"Retry-After": "2"},
            )
        return {"status": "ready"}

    async def prometheus(self, request: Request) -> Response:
        """Counts and histograms in Prometheus's form."""
        self.keys.check(request.headers)
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    # ---- glossaries that are kept here

    def stored(self, request: Request) -> Glossaries:
        """Return the glossaries of the request's key and pair."""
        return self.glossaries(self.owner(request.headers), self.pair_of(request))

    async def names(self, request: Request) -> object:
        """Return the names of the stored glossaries."""
        return {"glossaries": self.stored(request).names()}

    async def terms(self, request: Request) -> object:
        """Return the terms of a glossary file (TSV, CSV, XLSX, JSONL, TBX or TMX, by its name), and
        the errors of its other lines."""
        self.keys.check(request.headers)
        pair = self.pair_of(request)
        body = await read_body(request, self.settings)
        return await run_in_threadpool(self.read_terms, body, pair)

    def read_terms(self, body: bytes, pair: Pair) -> dict[str, object]:
        """Return terms and errors of the file in the body of a request."""
        way = (
            'the request needs "name", of the file, and "content", its text, or "base64", its bytes'
        )
        given = checked(TermsFile, read_json(body), lambda *_: way)
        if given.content is given.base64 is None:
            raise UsageError(way)
        content = (given.content or "").encode() if given.base64 is None else given.base64
        terms, cases = dict[str, dict[str, None]](), dict[str, str]()
        entries, wrong = self.entries_of(file_name(given.name), content, pair)
        for entry in entries:
            terms.setdefault(entry.source, {}).update(dict.fromkeys(entry.targets))
            if entry.case:
                cases.setdefault(entry.source, entry.case)
        found = {source: "|".join(targets) for source, targets in terms.items()}
        return {
            "terms": found,
            **({"cases": cases} if cases else {}),
            **({"error": wrong} if wrong else {}),
        }

    def entries_of(self, name: str, content: bytes, pair: Pair) -> tuple[list[Entry], str]:
        """Return the entries of a file, and its first error, if there is one."""
        errors, found = LineErrors(), list[Entry]()
        suffix = PurePath(name).suffix.lower()
        with tempfile.NamedTemporaryFile(suffix=suffix if suffix in READERS else "") as file:
            file.write(content)
            file.flush()
            try:
                found = read(file.name, "--glossary", Languages(*pair), errors)
                errors.raise_first()
            except UsageError as error:
                return found, with_name(str(error), file.name, name)
        return found, ""

    async def put(self, name: str, request: Request) -> object:
        """Keep a glossary, one term a line: source term, tab, target term (or a|b).

        It replaces the one of this name. With the query `?file=NAME` the body is a file of another
        form, as the name ends.
        """
        kept, pair = self.stored(request), self.pair_of(request)
        path = kept.path(name)
        body = await read_body(request, self.settings)
        if given := urlencoded(request.scope["query_string"], "the query").get("file"):
            entries, wrong = await run_in_threadpool(self.entries_of, file_name(given), body, pair)
            if wrong:
                raise UsageError(wrong)
            body = "".join(written(entries)).encode()
        is_new = not path.exists()
        # subtle: in its folder, which workers on other machines see as well; one of them knows
        # what the model can write
        async with contextmanager_in_threadpool(kept.written(name, body)) as file:
            probe = Text(Sentence(glossaries=(file,)))
            (answer,) = await self.answered(request, [probe], pair)
            if isinstance(answer, UsageError):
                raise UsageError(with_name(str(answer), file.path, f"glossary '{name}'"))
        return JSONResponse({"name": name, "bytes": len(body)}, 201 if is_new else 200)

    async def get(self, name: str, request: Request) -> Response:
        """Return a glossary as it was put."""
        return Response(self.stored(request).read(name), media_type=f"{TSV}; charset=utf-8")

    async def delete(self, name: str, request: Request) -> Response:
        """Forget a glossary."""
        self.stored(request).delete(name)
        return Response(status_code=204)

    # ---- the page, and errors

    async def page(self) -> Response:
        """Return the page."""
        return HTMLResponse(
            PAGE.read_text(encoding="utf-8"), headers={"Content-Security-Policy": POLICY}
        )

    async def refused(self, request: Request, error: Exception) -> Response:
        """Return an error as JSON."""
        return refusal(error, request.url.path)


POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src "
    "'self'; img-src 'self' data:"
)


# ---- Which sites may use the server
#
# What a page of another site could have a browser send is refused: requests under a name
# that is not this server's (DNS rebinding), from another origin, JSON that a form could have sent,
# and changes without a header that no form can send.


LOOPBACK = ("localhost", "127.0.0.1", "::1")
# what browsers send across sites without a preflight request
FORMS = ("", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain")


class Gate:
    """The application behind these checks. All requests are counted by route and status, and at the
    server's end each response says that its connection ends. Plain ASGI, as FastAPI's middleware
    starts a task a request."""

    def __init__(self, app: ASGIApp, service: Service):
        self.app, self.service = app, service
        self.origins, hosts = service.settings.allowed_origins, service.settings.hosts
        # names that the server answers to; None for any, where keys guard it
        self.hosts = (
            None if hosts is None else {name.lower().strip("[]") for name in (*LOOPBACK, *hosts)}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        app, status = self.app, 500

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if message["type"] == "http.response.start" and self.service.closing:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        try:
            self.check(scope["method"], scope["path"], Headers(scope=scope))
        except HTTPException as error:
            app = refusal(error, scope["path"])
        try:
            await app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.service.metrics.requests.labels(route, str(status)).inc()

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Raise HTTPException 403, 415 or 431 for a refused request."""
        if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEADER:
            raise HTTPException(431, LONG, {"Connection": "close"})
        for name, url in (
            ("Host", "//" + headers.get("host", "")),
            ("Origin", headers.get("origin", "//localhost")),
        ):
            is_allowed = name == "Origin" and ("*" in self.origins or url in self.origins)
            if self.hosts is not None and host_of(url) not in self.hosts and not is_allowed:
                said = f"the {name} '{url.removeprefix('//')}' is not this server's"
                raise HTTPException(403, f"{said}: use its own, or add --allowed-{name.lower()}s")
        kind = content_type(headers)
        if method == "POST" and path.startswith("/v1/") and kind != "application/json":
            raise HTTPException(
                415, "the body is JSON: say so with the header Content-Type: application/json"
            )
        # subtle: no form sends the header Authorization, and a script of another site can send it
        # only after a preflight request
        if (
            method in ("PUT", "DELETE")
            and kind in FORMS
            and not {"x-requested-with", "authorization"} & {*headers.keys()}
        ):
            way = f"Content-Type: {TSV}, or X-Requested-With with any value"
            raise HTTPException(415, f"a change needs a header that no form sends: {way}")


def host_of(url: str) -> str:
    """Return the name or address in a URL, without its port; "" if there is none."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""
