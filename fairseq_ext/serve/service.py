"""What the routes share: an engine, who may ask, what is allowed, and where glossaries are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from fastapi import HTTPException, Request

from fairseq_ext.engine.engine import Engine
from fairseq_ext.engine.jobs import Answer, Description
from fairseq_ext.errors import UsageError
from fairseq_ext.serve import records
from fairseq_ext.serve.glossaries import Glossaries
from fairseq_ext.serve.guard import Keys, read_body
from fairseq_ext.serve.metrics import Metrics
from fairseq_ext.serve.settings import Settings, default_folder
from fairseq_ext.serve.waiting import answers, submit_all


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

    async def answered(self, request: Request, requests: Sequence[dict[str, Any]]) -> list[Answer | UsageError]:
        """The answers of the engine."""
        self.model()
        futures: list[Future[Answer]] = submit_all(self.engine, requests)
        found = await answers(request, futures, self.settings.deadline)
        for answer in found:
            if isinstance(answer, Answer):
                self.metrics.answered(answer)
        return found
