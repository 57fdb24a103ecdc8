"""The application: routes over an engine.

An error is an object `{"error": "one sentence"}` with a status that says whose fault it is. A record of a list that cannot be translated
has its error in its own place and costs no other one its translation.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse

from fairseq_ext.engine.engine import Engine
from fairseq_ext.engine.jobs import Answer, Description, GlossaryFile
from fairseq_ext.errors import UsageError
from fairseq_ext.serve import libretranslate, records
from fairseq_ext.serve.glossaries import Glossaries
from fairseq_ext.serve.graphs import Graphs
from fairseq_ext.serve.guard import Keys, read_body
from fairseq_ext.serve.metrics import Metrics
from fairseq_ext.serve.refusals import ERRORS, REFUSED, refusal
from fairseq_ext.serve.settings import Settings, default_folder
from fairseq_ext.serve.waiting import Stream, answers, submit_all

PAGE = Path(__file__).with_name("page.html")


def body_of(schema: dict[str, Any], examples: dict[str, Any]) -> dict[str, Any]:
    """How a JSON body is described in the documentation."""
    named = {name: {"value": value} for name, value in examples.items()}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "examples": named}}}}


class Server:
    """An engine, what it allows, and what it counts. `app` is the ASGI application."""

    def __init__(self, engine: Engine, settings: Settings):
        self.engine, self.settings = engine, settings
        self.keys = Keys(settings.api_keys)
        self.folder = settings.glossary_folder
        self.metrics = Metrics(engine)
        self.graphs = Graphs(engine.nursery.flags)
        self.kept: Glossaries | None = None
        self.closing = False
        self.app = FastAPI(title="fairseq_ext", description=__doc__, lifespan=self.lifespan)
        self.add_routes()

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """The engine ends with the server."""
        yield
        self.closing = True
        self.graphs.stop()
        await run_in_threadpool(self.engine.close)

    def model(self) -> Description:
        """What is loaded (HTTPException 503 where nothing is)."""
        model = self.engine.description
        if model is None or self.closing:
            reason = "the server is closing" if self.closing else "the model is not loaded yet: ask again"
            raise HTTPException(503, reason, {"Retry-After": "2"})
        return model

    @property
    def glossaries(self) -> Glossaries:
        """Those of this pair of languages."""
        model = self.model()
        folder = self.folder if self.folder is not None else default_folder() / f"{model.source}-{model.target}"
        if self.kept is None or self.kept.folder != folder:
            self.kept = Glossaries(folder)
        return self.kept

    # ---- routes

    def add_routes(self) -> None:
        """All routes; what a route does is the method of its name."""
        app = self.app
        app.middleware("http")(self.counted)
        for kind in REFUSED:
            app.add_exception_handler(kind, self.refused)
        record = {"oneOf": [records.RECORD, {"type": "array", "items": records.RECORD}]}
        one = {name: value for name, value in records.EXAMPLES.items() if isinstance(value, dict)}
        terms = {"text/tab-separated-values": {"example": "Patient\tpatient\nChef\tboss|chief\n"}}
        text = {"requestBody": {"required": True, "content": terms}}
        translate, libre = body_of(record, records.EXAMPLES), body_of(libretranslate.SCHEMA, {"a text": libretranslate.EXAMPLE})
        more: dict[str, Any] = {"responses": ERRORS}
        app.post("/v1/translate", openapi_extra=translate, **more)(self.translate)
        app.post("/v1/translate/stream", openapi_extra=body_of(records.RECORD, one), **more)(self.stream)
        app.get("/v1/glossaries", **more)(self.list_glossaries)
        app.put("/v1/glossaries/{name}", openapi_extra=text, **more)(self.put_glossary)
        app.get("/v1/glossaries/{name}", **more)(self.get_glossary)
        app.delete("/v1/glossaries/{name}", status_code=204, response_class=Response, **more)(self.delete_glossary)
        source = {"type": "object", "required": ["source"], "properties": {"source": records.PROPERTIES["source"]}}
        graph = body_of(source, {"one sentence": records.EXAMPLES["one sentence"]})
        app.post("/v1/graph", openapi_extra=graph, response_class=Response, **more)(self.graph)
        app.get("/v1/model", **more)(self.get_model)
        app.post("/translate", openapi_extra=libre, **more)(self.libretranslate)
        app.get("/languages", **more)(self.languages)
        app.get("/health")(self.health)
        app.get("/ready", **more)(self.ready)
        app.get("/metrics", **more)(self.prometheus)
        app.get("/", include_in_schema=False)(self.page)

    async def translate(self, request: Request) -> Any:
        """Translate a record, or a list of them."""
        given, several = await self.read(request)
        found = await self.answered(request, [each.request for each in given])
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
        (record, *_), several = await self.read(request)
        if several:
            raise UsageError("a stream has one record: send an object, not a list")
        stream = Stream(self.engine, record.request, self.settings.deadline)

        def shown(answer: Answer) -> dict[str, Any]:
            self.metrics.answered(answer)
            return records.answer_json(record, answer)

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream.events(shown), media_type="text/event-stream", headers=headers)

    async def libretranslate(self, request: Request) -> Any:
        """Translate a text: LibreTranslate's API."""
        body = await read_body(request, self.settings.max_body)
        asked = libretranslate.read(body, request.headers.get("content-type", ""), self.model(), self.settings.max_lines)
        self.keys.check(request.headers, asked.key)
        found = await self.answered(request, asked.lines())
        for answer in found:
            if isinstance(answer, UsageError):
                raise answer
        return asked.shown(found)  # type: ignore[arg-type]

    async def languages(self) -> Any:
        """The languages: LibreTranslate's API."""
        return libretranslate.languages(self.model())

    async def list_glossaries(self, request: Request) -> Any:
        """The names of the glossaries that are kept here."""
        self.keys.check(request.headers)
        return {"glossaries": self.glossaries.names()}

    async def put_glossary(self, name: str, request: Request) -> Any:
        """Keep a glossary, one term a line: source term, tab, target term (or a|b). It replaces the one of this name."""
        self.keys.check(request.headers)
        self.glossaries.path(name)
        body = await read_body(request, self.settings.max_body)
        with tempfile.NamedTemporaryFile(suffix=".tsv") as file:  # read once by a worker, who knows what the model can write
            file.write(body)
            file.flush()
            probe = {"source": "", "glossaries": [GlossaryFile(file.name, hashlib.sha256(body).hexdigest())]}
            (found,) = await self.answered(request, [probe])
            if isinstance(found, UsageError):
                raise UsageError(str(found).replace(file.name, f"glossary '{name}'").replace("--glossary: ", ""))
        is_new = await run_in_threadpool(self.glossaries.write, name, body)
        return JSONResponse({"name": name, "bytes": len(body)}, 201 if is_new else 200)

    async def get_glossary(self, name: str, request: Request) -> Response:
        """A glossary as it was put."""
        self.keys.check(request.headers)
        return Response(self.glossaries.read(name), media_type="text/tab-separated-values; charset=utf-8")

    async def delete_glossary(self, name: str, request: Request) -> Response:
        """Forget a glossary."""
        self.keys.check(request.headers)
        self.glossaries.delete(name)
        return Response(status_code=204)

    async def graph(self, request: Request) -> Response:
        """The decoding dependency graph of a source's greedy translation, as SVG. The first one takes the time to load the model."""
        (record, *_), several = await self.read(request)
        if several or not record.request["source"].strip():
            raise UsageError("a graph has one sentence: send an object with a source")
        try:
            svg = await asyncio.wait_for(self.graphs.svg(record.request["source"]), self.settings.deadline)
        except asyncio.TimeoutError:
            raise HTTPException(504, f"the graph took more than {self.settings.deadline:g} seconds: ask again") from None
        return Response(svg, media_type="image/svg+xml")

    async def get_model(self, request: Request) -> Any:
        """What is loaded, and how translations are made."""
        self.keys.check(request.headers)
        model = self.model()
        return {
            "source": model.source, "target": model.target, "signature": model.signature, "beam": model.beam, "nbest": model.nbest,
            "constraints": model.no_constraints or True, "max_tokens": self.settings.max_tokens_a_line or model.longest,
        }  # fmt: skip

    async def health(self) -> Any:
        """Whether this process answers."""
        return {"status": "ok"}

    async def ready(self) -> Any:
        """Whether requests are taken: a model is loaded, a worker is there, the server is not closing."""
        if self.closing or not self.engine.ready:
            raise HTTPException(503, "the server is closing" if self.closing else "no worker is ready", {"Retry-After": "2"})
        return {"status": "ready"}

    async def prometheus(self, request: Request) -> Response:
        """Counts and histograms in Prometheus's form."""
        self.keys.check(request.headers)
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def page(self) -> Response:
        """The page."""
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers={"Content-Security-Policy": POLICY})

    # ---- what they share

    async def read(self, request: Request) -> tuple[list[records.Record], bool]:
        """The records of a request that may ask."""
        self.keys.check(request.headers)
        self.model()
        body = await read_body(request, self.settings.max_body)
        return records.read_records(body, self.settings.max_lines, self.glossaries.file)

    async def answered(self, request: Request, requests: Sequence[dict[str, Any]]) -> list[Answer | UsageError]:
        """The answers of the engine."""
        self.model()
        futures: list[Future[Answer]] = submit_all(self.engine, requests)
        found = await answers(request, futures, self.settings.deadline)
        for answer in found:
            if isinstance(answer, Answer):
                self.metrics.answered(answer)
        return found

    async def counted(self, request: Request, go_on: Callable) -> Response:
        """Count every request by route and status."""
        response = await go_on(request)
        route = request.scope.get("route")
        self.metrics.requests.labels(getattr(route, "path", "other"), str(response.status_code)).inc()
        return response

    async def refused(self, request: Request, error: Exception) -> Response:
        """An error as JSON."""
        return refusal(error)


POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src 'self' data:"
