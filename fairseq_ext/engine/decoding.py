"""Requests through one model, in one process: prepared as they come, started as the schedule says, decoded together, answered.

The search is never empty on purpose: at every step, as many requests start as there is room for (--stream-width sentences, or
--stream-rows rows); --refill-threshold waits until few are left, and --schedule batch until none is.

A request whose preparation fails is answered with the error. When a step fails, whatever the reason, all its sentences run again, each
alone, so that the error goes to the request that is to blame.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import utils
from torch import Tensor

from fairseq_ext.constraints.report import ConstraintCounts
from fairseq_ext.constraints.sentence import SentenceConstraints
from fairseq_ext.engine.jobs import Answer, Job, Partial, Work
from fairseq_ext.engine.requirements import Requirements, Term
from fairseq_ext.errors import UsageError, explain
from fairseq_ext.search.open_search import OpenSearch
from fairseq_ext.search.pool import Pool
from fairseq_ext.translator import Translation, Translator

Event = tuple[int, Any]  # the number of a request, and a Partial, an Answer or an Exception
EMPTY = Answer([Translation("", [], 0.0, [])])


@dataclass
class Request:
    """A request on its way."""

    number: int
    job: Job
    tokens: Tensor  # (L,)
    nbest: int
    wanted: SentenceConstraints | None
    terms: list[Term]
    started: float = 0.0  # time.monotonic()
    told: int = 0  # tokens of the prefix that has been told


@dataclass(frozen=True)
class Refill:
    """When waiting requests start."""

    places: int  # most sentences at once
    threshold: float  # they start when at most this share of the places is taken

    def newcomers(self, live: int) -> int:
        """How many may start beside so many live sentences."""
        return self.places - live if live <= self.threshold * self.places else 0


class Decoding:
    """One model and its requests. `add` and `cancel` at any time, then `work` as long as it is `busy`; take what comes from `events`."""

    def __init__(self, translator: Translator, refill: Refill):
        self.translator, self.refill = translator, refill
        self.generator = translator.generator
        self.requirements = Requirements(translator)
        self.longest: int | None = None  # most source tokens, where fewer are allowed than the model takes
        self.device = torch.device("cuda" if translator.cuda else "cpu")
        self.events: list[Event] = []
        self.waiting: OrderedDict[int, Request] = OrderedDict()
        self.alone: deque[Request] = deque()  # that run by themselves, after a step that failed
        self.clear()
        self.before = self.work_done()

    def clear(self) -> None:
        """Start with an empty search."""
        self.search = OpenSearch(self.generator.engine, self.refill.places, self.device)
        self.live: dict[int, Request] = {}  # by place
        self.place: dict[int, int] = {}  # by number

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.live or self.waiting or self.alone)

    def add(self, number: int, job: Job) -> None:
        """Take in a request."""
        try:
            if not job.source.strip():
                self.requirements.named(job)  # what is wrong with a glossary is told all the same
                constraints = self.requirements.of_empty(job)
                now = time.monotonic()
                self.events.append((number, Answer(EMPTY.hypotheses, constraints, queued=now - job.submitted)))
                return
            self.waiting[number] = self.prepared(number, job)
        except Exception as error:
            self.events.append((number, told(error)))

    def prepared(self, number: int, job: Job) -> Request:
        """The request, segmented and checked (raises UsageError)."""
        translator, spec = self.translator, self.generator.spec
        nbest = translator.nbest if job.nbest is None else job.nbest
        if not 1 <= nbest <= spec.k:
            raise UsageError(f"nbest is {nbest} and the beam is {spec.k}: ask for 1 to {spec.k} hypotheses")
        tokens = translator.encode(job.source)
        translator.check_length(tokens, "the source")
        if self.longest is not None and tokens.numel() > self.longest:
            raise UsageError(f"the source has {tokens.numel()} tokens and {self.longest} are allowed: shorten or split it")
        wanted, terms = self.requirements.of(job, tokens)
        return Request(number, job, tokens, nbest, wanted, terms)

    def cancel(self, number: int) -> None:
        """Forget a request; its rows are free at the next step."""
        self.waiting.pop(number, None)
        self.alone = deque(request for request in self.alone if request.number != number)
        if number in self.place:
            place = self.place.pop(number)
            del self.live[place]
            self.search.cancel([place])

    def work(self) -> None:
        """Start what may start, and decode one step."""
        newcomers = self.newcomers()
        try:
            if newcomers:
                self.start(newcomers)
            final = self.search.step()
            for place in final:
                self.finish(place)
            self.tell_prefixes()
        except Exception as error:
            self.fail(newcomers, error)

    def newcomers(self) -> list[Request]:
        """The requests that start now."""
        if self.alone:
            return [] if self.live else [self.alone.popleft()]
        room = min(self.refill.newcomers(len(self.live)), len(self.waiting)) if self.waiting else 0
        return [self.waiting.popitem(last=False)[1] for _ in range(room)]

    def start(self, requests: list[Request]) -> None:
        """Put these requests into the search."""
        arrivals = self.collated(requests)
        order = arrivals.ids.tolist()
        requests = [requests[i] for i in order]
        places = self.search.admit(arrivals, [request.nbest for request in requests])
        now = time.monotonic()
        for place, request in zip(places, requests, strict=True):
            request.started = now
            self.live[place] = request
            self.place[request.number] = place

    def collated(self, requests: list[Request]) -> Pool:
        """The requests as the task makes a batch of them, whose ids are their places in the list."""
        task, caught = self.translator.task, []
        tokens = [request.tokens for request in requests]
        dataset = task.build_dataset_for_inference(tokens, [t.numel() for t in tokens])
        batch = dataset.collater([dataset[i] for i in range(len(tokens))])
        batch = utils.move_to_cuda(batch) if self.translator.cuda else batch
        numbers = batch["id"].tolist()
        wanted = [requests[i].wanted for i in numbers]
        if wanted[0] is not None:
            batch["sentence_constraints"] = wanted

        def take(pool: Pool) -> list:
            caught.append(pool)
            return [[] for _ in numbers]

        self.generator.take = take
        try:
            task.inference_step(self.generator, self.translator.models, batch)
        finally:
            self.generator.take = None
        return caught[0]

    def finish(self, place: int) -> None:
        """Answer a request whose search is over."""
        request = self.live[place]
        found = self.generator.answer(self.search.pool, place, self.search.take(place))[: request.nbest]
        gap = self.search.gap(place)
        hypotheses = [self.translator.translation(h) for h in found]
        constraints = self.requirements.report(request.job, request.wanted, request.terms, hypotheses[0])
        now = time.monotonic()
        answer = Answer(hypotheses, constraints, gap, request.started - request.job.submitted, now - request.started)
        self.search.leave(place)
        del self.live[place], self.place[request.number]
        self.events.append((request.number, answer))

    def tell_prefixes(self) -> None:
        """Tell what has become certain of the requests that stream."""
        for place, request in self.live.items():
            if request.job.streams:
                prefix = self.search.common_prefix(place)
                if len(prefix) > request.told:
                    request.told = len(prefix)
                    self.events.append((request.number, Partial(self.generator.target_text.text(prefix), len(prefix))))

    def fail(self, newcomers: list[Request], error: Exception) -> None:
        """A step has failed: its sentences run again alone; the one that was alone is to blame."""
        error.__traceback__ = None  # it would keep the step's tensors alive
        known = {request.number: request for request in [*newcomers, *self.live.values()]}
        if len(known) == 1:
            self.events.append((next(iter(known)), told(error)))
        else:
            self.alone.extend(request for request in known.values())
        self.clear()

    def work_done(self) -> Work:
        """Counts of all work so far."""
        stats = self.generator.stats
        counts = stats.found(ConstraintCounts)
        if counts is not None:
            counts.unmet.clear()  # every request has its own report; here they would grow for ever
        return Work(stats.decoder_calls, stats.decoder_rows, stats.encoder_calls, stats.target_tokens, stats.sentences)

    def take_work(self) -> Work:
        """Counts of the work since the last call."""
        now, before = self.work_done(), self.before
        self.before = now
        return Work(**{name: value - getattr(before, name) for name, value in vars(now).items()})


def told(error: Exception) -> Exception:
    """The error as the one who asked gets it: a UsageError for a known mistake, else one sentence."""
    sentence = explain(error)
    if sentence is not None:
        return UsageError(sentence)
    first = (str(error).splitlines() or [""])[0]
    return RuntimeError(f"the sentence could not be translated: {type(error).__name__}: {first}")
