"""Translation by models whose running search takes requests in. Each has its own constraints, glossaries and n-best list.

Where several pairs of languages are served, the query says which is meant: `?source=de&target=en`.

An error is an object `{"error": "one sentence"}` with a status that says whose fault it is. A record of a list that cannot be translated
has its error in its own place and costs no other one its translation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from fastapi_offline import FastAPIOffline

from fairseq_ext.core.errors import UsageError
from fairseq_ext.engine.jobs import Answer
from fairseq_ext.serve import records
from fairseq_ext.serve.glossary_routes import GlossaryRoutes
from fairseq_ext.serve.libretranslate import LibreTranslate
from fairseq_ext.serve.metrics import Counted
from fairseq_ext.serve.models import Models
from fairseq_ext.serve.refusals import ERRORS, REFUSED, refusal
from fairseq_ext.serve.same_site import SameSite
from fairseq_ext.serve.service import Service
from fairseq_ext.serve.settings import Settings
from fairseq_ext.serve.waiting import Stream

PAGE = Path(__file__).with_name("page.html")


def body_of(schema: dict[str, Any], examples: dict[str, Any]) -> dict[str, Any]:
    """How a JSON body is described in the documentation."""
    named = {name: {"value": value} for name, value in examples.items()}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "examples": named}}}}


class Server(Service):
    """A service over HTTP. `app` is the ASGI application."""

    def __init__(self, models: Models, settings: Settings):
        super().__init__(models, settings)
        # the documentation's scripts come from here, too: /docs works without a network
        self.app = FastAPIOffline(
            title="fairseq_ext", description=__doc__, lifespan=self.lifespan, redoc_url=None, static_url="/docs-assets",
            swagger_ui_parameters={"validatorUrl": None, "tryItOutEnabled": True},
        )  # fmt: skip
        self.add_routes()

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """The engines end with the server."""
        yield
        self.closing = True
        await run_in_threadpool(self.models.close)

    # ---- routes

    def add_routes(self) -> None:
        """All routes; what a route does is the method of its name."""
        app = self.app
        app.add_middleware(SameSite, hosts=self.settings.hosts, origins=self.settings.allowed_origins)
        app.add_middleware(Counted, requests=self.metrics.requests, is_closing=lambda: self.closing)
        if origins := self.settings.allowed_origins:  # answers OPTIONS; what is refused says so to the page, too
            app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], max_age=600)
        for kind in REFUSED:
            app.add_exception_handler(kind, self.refused)
        record = {"oneOf": [records.RECORD, {"type": "array", "items": records.RECORD}]}
        one = {name: value for name, value in records.EXAMPLES.items() if isinstance(value, dict)}
        translate = body_of(record, records.EXAMPLES)
        more: dict[str, Any] = {"responses": ERRORS}
        app.post("/v1/translate", openapi_extra=translate, **more)(self.translate)
        app.post("/v1/translate/stream", openapi_extra=body_of(records.RECORD, one), **more)(self.stream)
        GlossaryRoutes(self).add_to(app)
        app.get("/v1/model", summary="What is loaded", **more)(self.get_model)
        LibreTranslate(self).add_to(app)
        app.get("/health")(self.health)
        app.get("/ready", **more)(self.ready)
        app.get("/metrics", summary="Counts for Prometheus", **more)(self.prometheus)
        app.get("/", include_in_schema=False)(self.page)

    async def translate(self, request: Request) -> Any:
        """Translate a record, or a list of them."""
        given, several, pair = await self.read(request)
        found = await self.answered(request, [each.request for each in given], pair)
        out = [
            {**({} if each.id is None else {"id": each.id}), "error": str(answer)}
            if isinstance(answer, UsageError)
            else records.answer_json(each, answer)
            for each, answer in zip(given, found, strict=True)
        ]
        if not several and isinstance(found[0], UsageError):
            raise found[0]
        return JSONResponse(out if several else out[0])

    async def stream(self, request: Request) -> Any:
        """Translate a record while it is watched: server-sent events `partial` {text, tokens}, then `answer`, or `error`."""
        given, several, pair = await self.read(request)
        if several:
            raise UsageError("a stream has one record: send an object, not a list")
        (record,) = given
        async with self.models.using(pair) as model:
            ready = await self.prepared(record.request, model)
            stream = Stream(partial(self.submit, model), ready, self.settings.deadline)

        def shown(answer: Answer) -> dict[str, Any]:
            self.metrics.answered(answer)
            return records.answer_json(record, answer)

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream.events(shown), media_type="text/event-stream", headers=headers)

    async def get_model(self, request: Request) -> Any:
        """What is loaded, and how translations are made."""
        self.check(request.headers)
        pair, others = self.pair_of(request) if request.query_params else self.pairs()[0], self.pairs()
        async with self.models.using(pair) as loaded:
            model = loaded.description
        return {
            "source": pair[0], "target": pair[1], "signature": model.signature, "beam": model.beam, "nbest": model.nbest, "pairs": others,
            "constraints": model.no_constraints or True, "max_tokens": self.settings.max_tokens_a_line or model.longest,
        }  # fmt: skip

    async def health(self) -> Any:
        """Whether this process answers."""
        return {"status": "ok"}

    async def ready(self) -> Any:
        """Whether requests are taken: a model is loaded, a worker is there, the server is not closing."""
        if self.closing or not self.models.ready:
            raise HTTPException(503, "the server is closing" if self.closing else "no worker is ready", {"Retry-After": "2"})
        return {"status": "ready"}

    async def prometheus(self, request: Request) -> Response:
        """Counts and histograms in Prometheus's form."""
        self.check(request.headers)
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def page(self) -> Response:
        """The page."""
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers={"Content-Security-Policy": POLICY})

    async def refused(self, request: Request, error: Exception) -> Response:
        """An error as JSON."""
        return refusal(error)


POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src 'self' data:"
