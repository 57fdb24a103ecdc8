"""The routes of the glossaries that are kept here: `PUT`, `GET`, `DELETE /v1/glossaries/NAME`, `GET /v1/glossaries`."""

from __future__ import annotations

import hashlib
import tempfile
from base64 import b64decode
from pathlib import PurePath
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.glossary import Errors, Languages, read
from fairseq_ext.engine.jobs import GlossaryFile
from fairseq_ext.serve.glossaries import Glossaries
from fairseq_ext.serve.guard import read_body
from fairseq_ext.serve.models import Pair
from fairseq_ext.serve.records import read_json
from fairseq_ext.serve.refusals import ERRORS
from fairseq_ext.serve.service import Service

EXAMPLE = "Patient\tpatient\nChef\tboss|chief\n"


class GlossaryRoutes:
    """Glossaries over HTTP."""

    def __init__(self, service: Service):
        self.service = service

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to an application."""
        path = "/v1/glossaries/{name}"
        more: dict[str, Any] = {"responses": ERRORS}
        body = {"requestBody": {"required": True, "content": {"text/tab-separated-values": {"example": EXAMPLE}}}}
        app.get("/v1/glossaries", summary="Names of glossaries", **more)(self.names)
        example = {"examples": {"a file": {"value": {"name": "a.tsv", "content": EXAMPLE}}}}
        file = {"requestBody": {"required": True, "content": {"application/json": example}}}
        app.post("/v1/terms", summary="Read a glossary file", openapi_extra=file, **more)(self.terms)
        app.put(path, summary="Keep a glossary", openapi_extra=body, **more)(self.put)
        app.get(path, summary="Read a glossary", **more)(self.get)
        app.delete(path, summary="Forget a glossary", status_code=204, response_class=Response, **more)(self.delete)

    def glossaries(self, request: Request) -> Glossaries:
        """Those of the request's pair."""
        return self.service.glossaries(self.service.pair_of(request))

    async def names(self, request: Request) -> Any:
        """The names of the glossaries that are kept here."""
        self.service.check(request.headers)
        return {"glossaries": self.glossaries(request).names()}

    async def terms(self, request: Request) -> Any:
        """The terms of a glossary file (TSV, CSV, XLSX, JSONL, TBX or TMX, as its name ends), and what is wrong with its other lines."""
        self.service.check(request.headers)
        given = read_json(await read_body(request, self.service.settings))
        way = 'the request needs "name", of the file, and "content", its text, or "base64", its bytes'
        content = given.get("base64", given.get("content")) if isinstance(given, dict) else None
        if not isinstance(content, str) or not isinstance(given.get("name"), str):
            raise UsageError(way)
        try:
            body = b64decode(content) if "base64" in given else content.encode("utf-8", "replace")
        except ValueError:
            raise UsageError(way) from None
        return await run_in_threadpool(self.read_file, given["name"], body, self.service.pair_of(request))

    def read_file(self, name: str, content: bytes, pair: Pair) -> dict[str, Any]:
        """The same for a file of this name."""
        errors, terms = Errors(), dict[str, list[str]]()
        with tempfile.NamedTemporaryFile(suffix=PurePath(name).suffix[:8]) as file:
            file.write(content)
            file.flush()
            try:
                for entry in read(file.name, "--glossary", Languages(*pair), errors):
                    known = terms.setdefault(entry.source, [])
                    known += [target for target in entry.targets if target not in known]
                errors.tell()
                wrong = {}
            except UsageError as error:
                wrong = {"error": str(error).replace(file.name, name).replace("--glossary: ", "")}
        return {"terms": {source: "|".join(targets) for source, targets in terms.items()}, **wrong}

    async def put(self, name: str, request: Request) -> Any:
        """Keep a glossary, one term a line: source term, tab, target term (or a|b). It replaces the one of this name. With the query
        `?file=NAME` the body is a file of another form, as the name ends."""
        self.service.check(request.headers)
        pair, kept = self.service.pair_of(request), self.glossaries(request)
        kept.path(name)
        body = await read_body(request, self.service.settings)
        if file_name := request.query_params.get("file"):
            found = await run_in_threadpool(self.read_file, file_name, body, pair)
            if "error" in found:
                raise UsageError(found["error"])
            body = "".join(f"{' '.join(source.split())}\t{target}\n" for source, target in found["terms"].items()).encode()
        kept.folder.mkdir(parents=True, exist_ok=True)
        # subtle: in this folder, which workers on other machines see as well; one of them knows what the model can write
        with tempfile.NamedTemporaryFile(dir=kept.folder, prefix=".", suffix=".tsv") as file:
            file.write(body)
            file.flush()
            probe = {"source": "", "glossaries": [GlossaryFile(file.name, hashlib.sha256(body).hexdigest())]}
            (answer,) = await self.service.answered(request, [probe], pair)
            if isinstance(answer, UsageError):
                raise UsageError(str(answer).replace(file.name, f"glossary '{name}'").replace("--glossary: ", ""))
        is_new = await run_in_threadpool(kept.write, name, body)
        return JSONResponse({"name": name, "bytes": len(body)}, 201 if is_new else 200)

    async def get(self, name: str, request: Request) -> Response:
        """A glossary as it was put."""
        self.service.check(request.headers)
        return Response(self.glossaries(request).read(name), media_type="text/tab-separated-values; charset=utf-8")

    async def delete(self, name: str, request: Request) -> Response:
        """Forget a glossary."""
        self.service.check(request.headers)
        self.glossaries(request).delete(name)
        return Response(status_code=204)
