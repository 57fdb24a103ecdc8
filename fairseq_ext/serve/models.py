"""The models of a server.

They are one that stays (`Models`), of one pair of languages or of all pairs of many, or those of a
folder (`ModelsOfFolder`), one folder a pair.

    models/de-en    as plugin/loading/model.py reads it
    models/en-pt_BR

The latter are loaded at first use. Those that are not in use are dropped, the least recently used
first, where there are `most` already, and where memory is short for another. The folders are looked
for when the server starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fastapi import HTTPException
from fastapi.concurrency import run_in_threadpool
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from fairseq_ext.core.errors import UsageError, explain
from fairseq_ext.engine.engine import Engine
from fairseq_ext.engine.tickets import Description, Partial, Work
from fairseq_ext.plugin.loading.languages import dictionary_language
from fairseq_ext.plugin.loading.model import find_model
from fairseq_ext.search.report import Report
from fairseq_ext.search.request import Request

logger = logging.getLogger("fairseq_ext")
Pair = tuple[str, str]  # source and target language
Flags = Mapping[str, Any]  # of a model
NAME = re.compile(r"(\w+)-(\w+)")
# bytes of a model's processes: times its checkpoint's, plus what Python and torch take
PER_CHECKPOINT, BASE = 3, 500 << 20
CLOSES = 0.5  # seconds in which the processes of a model that is dropped give their memory back
ONLY_MODEL = "", ""  # the key of a model that is no folder's
SOON = {"Retry-After": "2"}
Waits = Callable[[], Awaitable[None]]
Release = Callable[[], object]
Submit = Callable[..., Future[Report]]
OnPartial = Callable[[Partial], None] | None


@dataclass(frozen=True)
class Model:
    """The translator of one pair. submit: `send` of Engine; hold: keeps it loaded until the
    function that it returns is called."""

    submit: Submit
    description: Description
    hold: Callable[[], Release] = lambda: lambda: None


@dataclass(frozen=True)
class Served:
    """The pairs of languages that one model serves. own: the one that is meant where a request
    names none, None where it must; several: whether requests may choose among pairs."""

    pairs: list[Pair]
    own: Pair | None
    several: bool = False


class Models:
    """The models of a server: here one. any_pair: if it has many languages, every pair of them is
    served, and not that of the flags alone."""

    def __init__(self, engine: Engine | None = None, any_pair: bool = False):
        self.any_pair = any_pair
        # the most recently used last
        self.engines: dict[Pair, Engine] = {} if engine is None else {ONLY_MODEL: engine}
        self.dropped_work = Work()  # of engines that are dropped

    @cached_property
    def served(self) -> Served:
        """The served pairs of languages (raises HTTPException 503 before they are known)."""
        found = self.engines[ONLY_MODEL].description
        if found is None:
            raise HTTPException(503, "the model is not loaded yet: send the request again", SOON)
        own = (found.source, found.target)
        if not self.any_pair or not found.languages:
            return Served([own], own)
        if found.leads:  # the text may say its language
            return Served(list(itertools.product([found.source], found.languages)), own, True)
        return Served(list(itertools.permutations(found.languages, 2)), None, True)

    def ready_line(self) -> str:
        """Return a line that names what is served, when the model is loaded (raises UsageError if
        it cannot be)."""
        model = self.engines[ONLY_MODEL].wait()
        said = (
            f"{len(model.languages)} languages"
            if len(self.served.pairs) > 1
            else f"{model.source} to {model.target}"
        )
        return f"{said}, {model.signature}"

    @contextlib.asynccontextmanager
    async def using(self, pair: Pair, waits: Waits) -> AsyncIterator[Model]:
        """Return the model of a served pair; it is not dropped inside of this context.

        waits: raises an error where the client has disconnected. Errors: of `waits`,
        HTTPException 429, 503.
        """
        engine = self.engines[ONLY_MODEL]
        assert engine.description is not None
        several = self.served.several

        def submit(request: Request, *more: OnPartial) -> Future[Report]:
            return engine.send(replace(request, languages=pair) if several else request, *more)

        yield Model(submit, replace(engine.description, source=pair[0], target=pair[1]))

    @property
    def ready(self) -> bool:
        """Whether requests can be taken."""
        return self.engines[ONLY_MODEL].ready

    def work(self) -> Work:
        """Counts of all work so far."""
        found = Work(**vars(self.dropped_work))
        for engine in list(self.engines.values()):
            found.add(engine.work())
        return found

    def close(self) -> None:
        """End all engines."""
        while self.engines:
            self.engines.popitem()[1].close()


class ModelsOfFolder(Models):
    """The models of a folder.

    given: flags of all of them; options: of their engines. Errors: UsageError for
    what cannot be read.
    """

    def __init__(self, folder: Path, given: Flags, most: int | None, **options: Any):
        super().__init__()
        self.most, self.options = most, options
        self.flags_of = models_in(folder, given)
        self.users: dict[object, Pair] = {}  # the pair that each one uses
        self.loading = asyncio.Lock()

    def hold(self, pair: Pair) -> Release:
        """Keep the model of a pair loaded until what this returns is called. Any thread may call
        both."""
        user = object()
        self.users[user] = pair
        return partial(self.users.pop, user, None)

    def ready_line(self) -> str:
        return ", ".join("-".join(pair) for pair in self.served.pairs)

    @property
    def served(self) -> Served:  # type: ignore[override]
        return Served(sorted(self.flags_of), None, True)

    @contextlib.asynccontextmanager
    async def using(self, pair: Pair, waits: Waits) -> AsyncIterator[Model]:
        release = self.hold(pair)
        try:
            engine = await self.engine(pair, waits)
            try:
                # no thread waits, and a client that hangs up cancels only its own waiting
                description = await asyncio.shield(asyncio.wrap_future(engine.loaded))
            except UsageError as error:
                await self.drop(pair, engine)
                raise HTTPException(
                    503, f"the model {'-'.join(pair)} cannot be loaded: {error}"
                ) from None
            yield Model(engine.send, description, partial(self.hold, pair))
        finally:
            release()

    async def engine(self, pair: Pair, waits: Waits) -> Engine:
        """Return the engine of a pair, started if necessary."""
        if pair not in self.engines:
            async with self.loading:
                if pair not in self.engines:
                    await waits()
                    flags = self.flags_of[pair]
                    await self.make_room(flags["path"])
                    self.engines[pair] = Engine(**flags, **self.options)
        self.engines[pair] = engine = self.engines.pop(pair)
        return engine

    async def make_room(self, checkpoint: str) -> None:
        """Drop models that are not in use, until there is room and memory for this one."""
        needed = BASE + PER_CHECKPOINT * sum(
            os.path.getsize(path) for path in checkpoint.split(":") if os.path.exists(path)
        )
        while (
            is_full := self.most is not None and len(self.engines) >= self.most
        ) or available() < needed:
            used = set(self.users.values())
            idle = (
                each for each in self.engines.items() if not (each[0] in used or each[1].pending)
            )
            if (found := next(idle, None)) is not None:
                await self.drop(*found)
            elif is_full:
                raise HTTPException(
                    429,
                    f"all {self.most} models that may be loaded (--max-models) are at "
                    "work: send the request again",
                    SOON,
                )
            else:
                return

    async def drop(self, pair: Pair, engine: Engine) -> None:
        """End an engine, if it is still the one of this pair."""
        if self.engines.get(pair) is not engine:
            return
        del self.engines[pair]
        logger.info("%s-%s is dropped", *pair)
        self.dropped_work.add(engine.work())
        await run_in_threadpool(engine.close)
        await asyncio.sleep(CLOSES)

    @property
    def ready(self) -> bool:
        return True


def models_in(folder: Path, given: Flags) -> dict[Pair, Flags]:
    """Return the flags of each model that can be read, by its pair; those given are of all of them.
    The log names the others.

    Errors: UsageError for a folder without a model that can be read.
    """
    try:
        pairs = [NAME.fullmatch(each.name) for each in sorted(folder.iterdir()) if each.is_dir()]
    except OSError as error:
        raise UsageError(
            f"--models: cannot read {folder} ({error.strerror}): name a folder of folders of models"
        ) from None
    found, failed = dict[Pair, Flags](), list[str]()
    for name in filter(None, pairs):
        languages = {"source_lang": name[1], "target_lang": name[2]}
        try:
            flags = find_model(str(folder / name[0]), {**given, **languages})
            check_dictionaries(flags)
            found[name[1], name[2]] = flags
        except Exception as error:  # whatever is wrong with one, the others are served
            failed.append(explain(error) or f"{type(error).__name__}: {error}")
            logger.warning("%s is not served: %s", name[0], failed[-1])
    if not any(pairs):
        raise UsageError(
            f"--models {folder} has no folder that is named as a pair of languages, such as de-en: "
            "make one"
        )
    if not found:
        raise UsageError(failed[0])
    return found


def check_dictionaries(flags: Flags) -> None:
    """Raise UsageError for a model without its dictionaries; other errors are found when it is
    loaded."""
    if flags["task"] != "translation_ext":
        return
    folder, first = flags["data"], flags["path"].split(":")[0]
    target = dictionary_language(folder, first, flags["target_lang"])
    for language in (flags["source_lang"], target):
        if not os.path.isfile(path := os.path.join(folder, f"dict.{language}.txt")):
            raise UsageError(f"{path} is missing: add it, or name the folder by its languages")


def available() -> float:
    """Return the bytes of memory that the system, or this process's container (cgroup 2), can still
    give; infinite where neither says so."""
    found = math.inf
    with contextlib.suppress(OSError, ValueError):
        found = (
            int(re.findall(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())[0]) << 10
        )
    with contextlib.suppress(OSError, ValueError, IndexError):
        group = Path("/sys/fs/cgroup")
        used, most = (int((group / f"memory.{name}").read_text()) for name in ("current", "max"))
        cache = int(
            re.findall(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)[
                0
            ]
        )
        found = min(found, most - used + cache)
    return found


# ---- Counts and histograms for Prometheus


SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Metrics(Collector):
    """The metrics of one server: those that its engines count (`collect`), and its own."""

    def __init__(self, models: Models):
        self.models = models
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.requests = Counter(
            "fairseq_ext_requests", "HTTP requests", ["route", "status"], registry=self.registry
        )
        self.queue = Histogram(
            "fairseq_ext_queue_seconds",
            "from submission to the decoder",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.latency = Histogram(
            "fairseq_ext_latency_seconds",
            "from submission to the answer",
            buckets=SECONDS,
            registry=self.registry,
        )

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | SummaryMetricFamily]:
        work, engines = self.models.work(), list(self.models.engines.values())
        pending, waiting = (sum(getattr(e, of) for e in engines) for of in ("pending", "waiting"))
        counts = {
            "target_tokens": ("target tokens of the best hypotheses, EOS included", work.tokens),
            "sentences": ("sentences decoded", work.sentences),
            "refills": ("times that waiting sentences joined the search", work.refills),
            "worker_restarts": ("workers that died and were replaced", work.restarts),
        }
        gauges = {
            "models": ("models that are loaded", len(engines)),
            "pending": ("requests that are not answered", pending),
            "waiting": ("of these, the ones in the queue", waiting),
        }
        for kind, rows in ((CounterMetricFamily, counts), (GaugeMetricFamily, gauges)):
            for name, row in rows.items():
                yield kind(f"fairseq_ext_{name}", *row)
        yield SummaryMetricFamily(
            "fairseq_ext_rows_a_step", "rows of each decoder call", work.steps, work.rows
        )

    def answered(self, answer: Report) -> None:
        """Count an answer."""
        self.queue.observe(answer.queued)
        self.latency.observe(answer.queued + answer.decoded)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's form."""
        return generate_latest(self.registry)
