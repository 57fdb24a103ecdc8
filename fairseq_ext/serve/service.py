"""What the routes share: models, who may ask, what is allowed, and where glossaries are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain, islice
from typing import Any

from fastapi import HTTPException, Request
from fastapi.concurrency import run_in_threadpool

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.engine.in_engine import TextRequest
from fairseq_ext.engine.jobs import Answer, Partial
from fairseq_ext.serve import records
from fairseq_ext.serve.glossaries import Glossaries
from fairseq_ext.serve.guard import Keys, read_body
from fairseq_ext.serve.metrics import Metrics
from fairseq_ext.serve.models import SOON, Model, Models, Pair
from fairseq_ext.serve.records import is_one_sentence
from fairseq_ext.serve.settings import Settings, default_folder
from fairseq_ext.serve.waiting import answers, submit_all
from fairseq_ext.text.formats import Pass, passes
from fairseq_ext.text.splitter import splitter

LONG = 5000  # characters


class Service:
    """Models, what is allowed, and what is counted."""

    def __init__(self, models: Models, settings: Settings):
        self.models, self.settings = models, settings
        self.keys = Keys(settings.api_keys)
        self.metrics = Metrics(models)
        self.kept: dict[Pair, Glossaries] = {}
        self.closing = False

    def check(self, headers: Mapping[str, str]) -> None:
        """HTTPException 401 or 403 for those who may not ask."""
        self.keys.check(headers)

    def pairs(self) -> list[Pair]:
        """The pairs of languages that are served (HTTPException 503 where none is)."""
        if self.closing:
            raise HTTPException(503, "the server is closing", SOON)
        return self.models.pairs()

    def pair_of(self, request: Request) -> Pair:
        """The pair that the request's query names (`?source=de&target=en`), else the only one. Errors: UsageError, HTTPException 503."""
        pairs, (source, target) = self.pairs(), map(request.query_params.get, ("source", "target"))
        if source is target is None and self.models.own is not None:
            return self.models.own
        known = [pair for pair in pairs if source in (None, pair[0]) and target in (None, pair[1])]
        if len(known) != 1:
            said = cut(", ".join("-".join(pair) for pair in pairs[:20]))
            raise UsageError(f"this server translates {said}: name one of them by ?source={pairs[0][0]}&target={pairs[0][1]}")
        return known[0]

    def glossaries(self, pair: Pair) -> Glossaries:
        """Those of a pair of languages."""
        if pair not in self.kept:
            folder, name = self.settings.glossary_folder, "-".join(pair)
            self.kept[pair] = Glossaries((folder or default_folder()) / name if folder is None or self.models.several else folder)
        return self.kept[pair]

    async def read(self, request: Request) -> tuple[list[records.Record], bool, Pair]:
        """The records of a request that may ask, whether they are a list, and their pair."""
        self.check(request.headers)
        pair = self.pair_of(request)
        body = await read_body(request, self.settings)
        # the folder of glossaries is looked for only where a record names one
        found = records.read_records(body, self.settings.max_lines, lambda name: self.glossaries(pair).file(name))
        return *found, pair

    def submit(
        self, model: Model, source: str, format: str = "text", on_partial: Callable[[Partial], None] | None = None,
        items: list[Pass] | None = None, **request: Any,
    ) -> Future[Answer]:  # fmt: skip
        """A future of the translation of a text, sentence by sentence; of one sentence where it must hold phrases. Errors as of
        `Engine.submit`. items: as of `prepared`."""
        if is_one_sentence(request):
            return model.submit(source, on_partial=on_partial, **request)
        return TextRequest(model.submit, source, items or self.passes(format, model), request, on_partial).future

    def passes(self, format: str, model: Model, numbers: Iterator[int] | None = None) -> list[Pass]:
        """The passes of a format, for the languages of a model; numbers: of the segments."""
        return passes(format, splitter(model.description.source), leads=model.description.leads, numbers=numbers)

    async def prepared(self, request: dict[str, Any], model: Model) -> dict[str, Any]:
        """The request with the items of its text where that is long: to find the first takes time, in which others are served."""
        if len(request["source"]) < LONG or is_one_sentence(request):
            return request
        first, *others = self.passes(request.get("format", "text"), model)
        found = first(request["source"])
        head = await run_in_threadpool(lambda: list(islice(found, 1)))
        return request | {"items": [lambda text: chain(head, found), *others]}

    async def answered(self, request: Request, requests: Sequence[dict[str, Any]], pair: Pair) -> list[Answer | UsageError]:
        """The answers to these requests, keywords of `submit`."""
        async with self.models.using(pair) as model:
            ready = [await self.prepared(each, model) for each in requests]
            futures: list[Future[Answer]] = submit_all(partial(self.submit, model), ready)
            found = await answers(request, futures, self.settings.deadline)
        for answer in found:
            if isinstance(answer, Answer):
                self.metrics.answered(answer)
        return found
