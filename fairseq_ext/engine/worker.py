"""A worker process of an engine: it loads the model with its search, and answers messages.

From the engine: ("add", number, Request), ("cancel", number). To the engine: a Description or the
error of loading first, then lists of events (decoding.py), among them Work at least every REPORT
seconds while it works, which is its heartbeat. Its process is forked (fork_server.py), and ends
when the engine's end of the pipe does.
"""

from __future__ import annotations

import gc
import heapq
import pickle
import time
from typing import Any

import torch

from fairseq_ext.core.channel import Channel
from fairseq_ext.core.errors import UsageError
from fairseq_ext.engine.decoding import Decoding
from fairseq_ext.engine.requirements import OfRequests
from fairseq_ext.engine.tickets import Description
from fairseq_ext.kernels.library import give_back_memory
from fairseq_ext.plugin.loading.settings import languages_of, source_limit
from fairseq_ext.search.checks import refused_by_engine
from fairseq_ext.search.request import Request
from fairseq_ext.search.strategies.schedule import Stream, StreamFlags
from fairseq_ext.translator import Translator

WIDTH = 32  # sentences at once where --stream-width does not say
# flags that say how requests share a search
SCHEDULE = "schedule", "stream_width", "stream_rows", "stream_order", "refill_threshold"
STEPS = 8  # between two starts: an encoder call has costs that several sentences share
REPORT = 0.25  # seconds between two reports of work
# answers after which the memory that steps leave in pieces goes back to the system
EVENTS_BETWEEN_TRIMS = 100
IDLE_MS = 1000  # without a request: then too
# seconds for which requests are read before a step of the search; what one takes longer is made
# good by steps
INTAKE = 0.1
# a request with many terms (9,000 take a second) is read behind those with fewer that come after
# it, up to the number of the latter
MANY_TERMS, SMALLER_BEFORE = 500, 100


class Waiting(dict[int, Request]):
    """Requests that are not read yet, such as their glossaries, by the engine's number."""

    def __init__(self) -> None:
        self.order: list[tuple[int, int]] = []  # a heap: places, numbers

    def add(self, number: int, request: Request) -> None:
        self[number] = request
        late = SMALLER_BEFORE if len(request.terms) >= MANY_TERMS else 0
        heapq.heappush(self.order, (number + late, number))

    def take(self) -> tuple[int, Request]:
        """Remove the request that is read next, and return it with its number."""
        while (number := heapq.heappop(self.order)[1]) not in self:
            pass  # it was cancelled
        return number, self.pop(number)


def load(flags: dict[str, Any], longest: int | None = None) -> Decoding:
    """Return a model with a search that new requests may join, by the flags of `Translator` (raises
    UsageError); with parallel decoding they are decoded one after another. longest: largest number
    of source tokens.

    Without flags for schedule, width and order, those for single requests are used.
    """
    for name, why in refused_by_engine().items():
        if flags.get(name) not in (None, False, 0, "0"):
            raise UsageError(f"--{name.replace('_', '-')} {why}: leave it out")
    if str(flags.get("constraint_compete")) == "search":
        raise UsageError(
            "--constraint-compete search searches a sentence twice, which an engine does not do: "
            "use rows or off"
        )
    is_beam = str(flags.get("decoding") or "beam") == "beam"
    given = dict(flags)
    for name in () if is_beam else SCHEDULE:
        if given.pop(name, None) not in (None, "batch"):
            raise UsageError(
                f"--{name.replace('_', '-')} says how requests share a search, and with --decoding "
                f"{flags['decoding']} each is decoded by itself: leave one of the two out"
            )
    threshold = given.get("refill_threshold", 1.0)  # whenever there is room
    if str(given.pop("schedule", "stream")) == "batch":
        given.pop("refill_threshold", None)
        threshold = 0.0  # a batch starts when the one before it has ended
    if is_beam:
        given = {"schedule": "stream", "stream_order": "fifo", "stream_width": WIDTH} | given
    translator, no_constraints = constrained(given | {"cpu_workers": 1})
    settings, setup = translator.generator.settings, translator.generator.setup
    softmax = settings.choice("softmax")
    for name, kinds in (("lsh_share", ("lsh",)), ("shortlist_share", ("top", "lexical"))):
        if softmax in kinds and settings.values[name] == "batch":
            raise UsageError(
                f"--softmax {softmax} has one list for all rows that are decoded together, so that "
                f"a request's result would depend on others: add --{name.replace('_', '-')} "
                "sentence"
            )
    own, places = settings.get(StreamFlags), 1
    if is_beam:
        places = max(1, own.stream_rows // setup.k) if own.stream_rows else own.stream_width
    setup.strategies.schedule = Stream(
        places, float(threshold), own.stream_order == "shortest", None, STEPS, fills=True
    )
    return Decoding(translator, setup.strategies.schedule, places, no_constraints, longest)


def constrained(flags: dict[str, Any]) -> tuple[Translator, str]:
    """Return a translator whose requests may have constraints, and ""; if the flags do not allow
    them, a translator without constraints, and the reason."""
    try:
        return OfRequests(**({"constraints": "unordered"} | flags)), ""
    except UsageError as error:
        if flags.get("constraints"):
            raise
        return Translator(**flags), f"requests with constraints are refused here: {error}"


def description(decoding: Decoding) -> Description:
    """Return what the engine needs to know of a worker."""
    translator = decoding.translator
    longest = source_limit(translator.max_positions)
    languages = languages_of(translator.task.flags())  # a language model has none
    return Description(
        translator.signature,
        languages.source or "",
        languages.target or "",
        translator.generator.setup.k,
        translator.nbest,
        decoding.places,
        longest,
        decoding.requirements.no_constraints,
        decoding.languages.targets,
    )


@torch.no_grad()
def serve(channel: Channel, decoding: Decoding) -> None:
    """Answer the messages of the channel until it is closed (raises EOFError or OSError): the main
    loop of a worker."""
    torch.set_num_threads(1)
    channel.send(pickle.dumps(description(decoding)))
    reported, answered = time.monotonic(), 0
    waiting, left = Waiting(), INTAKE

    def report() -> None:
        """Send the results of requests, and counts of work now and then."""
        nonlocal reported, answered
        events, decoding.events = decoding.events, []
        now = time.monotonic()
        if now - reported > REPORT or not decoding.busy:
            events.append((-1, decoding.take_work()))
            reported = now
        if events:
            channel.send(pickle.dumps(events))
        answered += len(events)
        if answered >= EVENTS_BETWEEN_TRIMS:
            tidy()

    def tidy() -> None:
        """Return memory to the system.

        The garbage collector hardly runs by itself (plugin/compat/patches.py).
        """
        nonlocal answered
        gc.collect()
        give_back_memory()
        answered = 0

    def next_messages() -> list[bytes]:
        """Return the messages that have arrived; wait for one if no request is live and no event is
        to be sent."""
        if decoding.busy or decoding.events or waiting:
            return channel.receive(0)
        if answered:
            if channel.is_readable(IDLE_MS):
                return channel.receive(0)
            tidy()
        return channel.receive()

    while True:
        for message in next_messages():
            kind, number, *request = pickle.loads(message)
            if kind == "add":
                waiting.add(number, request[0])
            else:
                waiting.pop(number, None)
                decoding.cancel(number)
                decoding.events.append((number, None))  # it is gone
        left = left if decoding.busy else INTAKE
        while waiting and left > 0:
            begin = time.monotonic()
            decoding.add(*waiting.take())
            left += begin - time.monotonic()
        if decoding.busy:
            begin = time.monotonic()
            decoding.work()
            left = min(INTAKE, left + time.monotonic() - begin)
        report()
