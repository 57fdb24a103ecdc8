"""What the routes share: an engine, who may ask, what is allowed, and where glossaries are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from fastapi import HTTPException, Request
from fastapi.concurrency import run_in_threadpool

from fairseq_ext.engine.engine import Engine
from fairseq_ext.engine.jobs import Answer, Description, Partial
from fairseq_ext.errors import UsageError
from fairseq_ext.serve import records
from fairseq_ext.serve.glossaries import Glossaries
from fairseq_ext.serve.guard import Keys, read_body
from fairseq_ext.serve.metrics import Metrics
from fairseq_ext.serve.records import is_one_sentence
from fairseq_ext.serve.settings import Settings, default_folder
from fairseq_ext.serve.waiting import answers, submit_all
from fairseq_ext.text.formats import Pass, passes
from fairseq_ext.text.in_engine import TextRequest
from fairseq_ext.text.splitter import splitter

Pair = tuple[str, str]  # source and target language
LONG = 5000  # characters


class Service:
    """An engine, what it allows, and what it counts."""

    def __init__(self, engine: Engine, settings: Settings):
        self.engine, self.settings = engine, settings
        self.keys = Keys(settings.api_keys)
        self.metrics = Metrics(engine)
        self.kept: Glossaries | None = None
        self.closing = False

    def check(self, headers: Mapping[str, str]) -> None:
        """HTTPException 401 or 403 for those who may not ask."""
        self.keys.check(headers)

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
        model, folder = self.model(), self.settings.glossary_folder
        if folder is None:
            folder = default_folder() / f"{model.source}-{model.target}"
        if self.kept is None or self.kept.folder != folder:
            self.kept = Glossaries(folder)
        return self.kept

    async def read(self, request: Request) -> tuple[list[records.Record], bool]:
        """The records of a request that may ask."""
        self.check(request.headers)
        self.model()
        body = await read_body(request, self.settings)
        # the folder of glossaries is looked for only where a record names one
        return records.read_records(body, self.settings.max_lines, lambda name: self.glossaries.file(name))

    def pairs(self) -> list[Pair]:
        """The pairs of languages that are served."""
        model = self.model()
        return [(model.source, model.target)]

    def engine_of(self, pair: Pair) -> Engine:
        """The engine of a pair that is served."""
        return self.engine

    async def loaded(self, pair: Pair) -> Description:
        """What is loaded for a pair that is served."""
        return self.model()

    def submit(
        self, source: str, format: str = "text", on_partial: Callable[[Partial], None] | None = None, pair: Pair | None = None,
        items: list[Pass] | None = None, **request: Any,
    ) -> Future[Answer]:  # fmt: skip
        """A future of the translation of a text, sentence by sentence; of one sentence where it must hold phrases. Errors as of
        `Engine.submit`. items: as of `prepared`."""
        engine = self.engine if pair is None else self.engine_of(pair)
        if is_one_sentence(request):
            return engine.submit(source, on_partial=on_partial, **request)
        return TextRequest(engine.submit, source, items or self.passes(format, pair), request, on_partial).future

    def passes(self, format: str, pair: Pair | None) -> list[Pass]:
        """The passes of a format, for the source language of a pair."""
        return passes(format, splitter(self.model().source if pair is None else pair[0]))

    async def prepared(self, request: dict[str, Any], pair: Pair | None = None) -> dict[str, Any]:
        """The request with the items of its text where that is long: to find them takes time, in which others are served."""
        if len(request["source"]) < LONG or is_one_sentence(request):
            return request
        first, *others = self.passes(request.get("format", "text"), pair)
        found = await run_in_threadpool(lambda: list(first(request["source"])))
        return request | {"items": [lambda text: iter(found), *others]}

    async def answered(
        self, request: Request, requests: Sequence[dict[str, Any]], pair: Pair | None = None
    ) -> list[Answer | UsageError]:
        """The answers to these requests, keywords of `submit`."""
        self.model()
        ready = [await self.prepared(each, pair) for each in requests]
        futures: list[Future[Answer]] = submit_all(partial(self.submit, pair=pair), ready)
        found = await answers(request, futures, self.settings.deadline)
        for answer in found:
            if isinstance(answer, Answer):
                self.metrics.answered(answer)
        return found
