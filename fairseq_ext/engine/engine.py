"""`fairseq_ext.Engine`: a model that takes requests at any time, from any thread, and
decodes them together.

    engine = Engine("MODEL.pt", "DATA", source_lang="de", target_lang="en", beam=5, cpu=True,
        cpu_workers=2)
    future = engine.submit("Guten Morgen.", constraints=["morning"])
    print(future.result().text)
    for part in engine.stream("Guten Morgen."):  # what is certain so far; the answer last
        print(part.text)
    engine.close()

Worker processes of one thread each decode (worker.py). Requests wait in one queue, and go to the
worker with the least work (dispatch.py).

A worker that dies is replaced. The requests that it had run again, each with a worker to itself,
so that the one that killed it is found: a request that has been in two workers that died is
answered with the error.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.core.process_pool import ForkServer, Worker
from fairseq_ext.engine.callbacks import Threads
from fairseq_ext.engine.dispatch import Dispatch
from fairseq_ext.engine.in_engine import TextRequest
from fairseq_ext.engine.jobs import (
    Answer,
    Description,
    GlossaryFile,
    Job,
    Partial,
    Work,
    check_request,
    fields_or_none,
)
from fairseq_ext.engine.tickets import Busy, Closed, Pace, Ticket, WorkerDied
from fairseq_ext.search.constraints.from_python import ListOf, Phrases, items
from fairseq_ext.search.constraints.lines import fields_of
from fairseq_ext.text.formats import Format, check_text, passes
from fairseq_ext.text.splitter import splitter

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fairseq_ext.plugin.flags import EngineFlags

logger = logging.getLogger("fairseq_ext")
WORKER = "fairseq_ext.engine.worker"  # the module that its processes run
PAUSE = 0.5  # seconds before a worker is replaced that has not answered any request
TRIES = 3  # workers in a row that end before their model is loaded, before there is no model


class Engine:
    """Requests through `cpu_workers` worker processes, which are started at once; they load the
    model meanwhile (`wait`).

    path, data, task, flags: as of `Translator`. max_queue: most requests that wait, None for no
    limit. longest: most source tokens of a sentence, None for as many as the model takes.
    An engine that nothing refers to, and that has no request left, ends its processes. A process
    that is forked from the one that made it cannot use it.
    Errors: `wait`, `submit` and `stream` raise UsageError for flags that cannot be used and a
    model that cannot be loaded, and in another process.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        data: str | PathLike[str],
        task: str = "translation_ext",
        *,
        cpu_workers: int = 1,
        max_queue: int | None = None,
        longest: int | None = None,
        **flags: Unpack[EngineFlags],
    ) -> None:
        if type(cpu_workers) is not int or cpu_workers < 1:
            raise UsageError(f"--cpu-workers {cpu_workers} would decode nothing: use 1 or more")
        for name, number in (("max_queue", max_queue), ("longest", longest)):
            if number is not None and type(number) is not int:
                raise UsageError(f"{name} is {cut(repr(number))}: give a whole number, or None")
        self.max_queue = max_queue
        self.flags = {"path": str(path), "data": str(data), "task": task, **flags}
        self.process = os.getpid()
        self.fork_server = ForkServer(WORKER, self.flags, longest)
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.requests = Dispatch()
        self.callbacks = Threads()
        self.number = 0
        self.closed = False
        self.failed: Exception | None = None  # why there is no model
        self.description: Description | None = None
        self.done = Work()
        self.pace = Pace()
        self.restarts = 0
        self.stillborn = 0  # workers in a row that ended before their model was loaded
        with self.lock:  # nothing is heard of a worker before all are known
            self.requests.workers = [self.start_worker() for _ in range(cpu_workers)]
        # an open request refers to the engine, and so keeps it
        weakref.finalize(
            self, forgotten, self.process, self.requests, self.fork_server
        ).atexit = False

    # ---- what users call

    def wait(self, timeout: float | None = None) -> Description:
        """Wait until the model is loaded; say what it is.

        Errors: UsageError where it cannot be loaded, TimeoutError.
        """
        self.check_process()
        with self.changed:
            if not self.changed.wait_for(
                lambda: self.description or self.failed or self.closed, timeout
            ):
                raise TimeoutError(f"the model is not loaded after {timeout} seconds")
            if self.failed is not None:
                raise self.failed
            if self.description is None:
                raise Closed("the engine was closed before its model was loaded")
            return self.description

    def submit(
        self,
        source: str,
        constraints: Phrases = (),
        any_of: ListOf[ListOf[str]] = (),
        avoid: ListOf[str] = (),
        prefix: str | None = None,
        glossaries: ListOf[GlossaryFile] = (),
        terms: Mapping[str, str] | None = None,
        nbest: int | None = None,
        on_partial: Callable[[Partial], None] | None = None,
        align: bool = False,
        languages: tuple[str, str] | None = None,
        seed: int | None = None,
        number: int = 0,
    ) -> Future[Answer]:
        """A future of the translation of one sentence. Cancelling it frees its
        rows at the next step.

        constraints, any_of, avoid, prefix: as in a line of a JSONL constraints file. glossaries:
        files; terms: source term to target term (or a|b), for this request. nbest: hypotheses,
        at most the beam. on_partial: called with what has become certain of the translation.
        It and the future's callbacks run one after another in a thread beside the engine's; what
        on_partial raises is the future's error, and a slow one misses partial results. align:
        hypotheses say which of their `words` stand for which of the source. languages: source and
        target, of a model that has many (`wait().languages`). seed: of samples (default: that of
        the flags), which depend on it and on number, the sentence's in its text.
        Errors: Busy where the queue is full, Closed, UsageError for phrases in a wrong form; the
        future has those that need the model.
        """
        self.check_process()
        if not isinstance(source, str):
            raise UsageError(f"the source is {type(source).__name__}, and a sentence is a text")
        given = {
            "constraints": items(constraints, "constraints"),
            "any_of": [items(each, "an entry of any_of") for each in items(any_of, "any_of")],
            "avoid": items(avoid, "avoid"),
        } | ({} if prefix in (None, "") else {"prefix": prefix})
        check_request(glossaries, terms, languages, on_partial, nbest, number)
        job = Job(
            source,
            fields_or_none(fields_of(given, "the request")),
            tuple(glossaries),
            tuple((terms or {}).items()),
            nbest,
            on_partial is not None,
            align,
            None if languages is None else (languages[0], languages[1]),
            seed,
            number,
            time.monotonic(),
        )
        with self.lock:
            if self.failed is not None:
                raise self.failed
            if self.closed:
                raise Closed("the engine is closed")
            if self.max_queue is not None and len(self.waiting) >= self.max_queue:
                raise Busy(len(self.waiting), self.pace.until_half(len(self.waiting)))
            self.number += 1
            ticket = Ticket(
                self.number, job, on_partial, partial(self.forget, self.number), self.callbacks
            )
            self.requests.waiting[ticket.number] = ticket
            self.requests.give_out()
        return ticket.future

    def submit_text(
        self,
        text: str,
        format: Format = "text",
        protect: ListOf[str] = (),
        on_partial: Callable[[Partial], None] | None = None,
        **request: Any,
    ) -> Future[Answer]:
        """A future of the translation of a text, sentence by sentence, as of
        `Translator.translate_text`. request: as of `submit`, for each sentence.
        Errors: as of both."""
        check_text(text)
        model = self.wait()
        ways = passes(
            format, splitter((request.get("languages") or [model.source])[0]), protect, model.leads
        )
        return TextRequest(self.submit, text, ways, request, on_partial).future

    def stream(self, source: str, **request: Any) -> Iterator[Partial | Answer]:
        """What is certain of a translation so far, each time that it is more, and the answer last.
        A caller that stops cancels it.

        Arguments and errors as of `submit`.
        """
        parts: queue.SimpleQueue[Partial | None] = queue.SimpleQueue()
        future = self.submit(source, on_partial=parts.put, **request)
        future.add_done_callback(lambda _: parts.put(None))

        def follow() -> Iterator[Partial | Answer]:
            try:
                while (part := parts.get()) is not None:
                    yield part
                yield future.result()
            finally:
                future.cancel()

        return follow()

    def close(self, grace: float = 0.0) -> None:
        """Take no more requests; wait up to `grace` seconds for those there are, then end.

        What is left has the error Closed. In a process that was forked it does nothing.
        """
        if self.process != os.getpid():
            return
        with self.changed:
            self.closed = True
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.pending or self.failed is not None, grace)
            workers, self.requests.workers = self.requests.workers, []
            left = [
                *self.requests.clear(),
                *(ticket for worker in workers for ticket in worker.requests.values()),
            ]
        end(workers, self.fork_server)
        for ticket in left:
            ticket.tell(Closed("the engine was closed before the request was answered"))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def pending(self) -> int:
        """Requests that are not answered."""
        with self.lock:
            return len(self.requests)

    @property
    def waiting(self) -> Mapping[int, Ticket]:
        """Requests that no worker has, by number."""
        return self.requests.waiting

    @property
    def ready(self) -> bool:
        """Whether a worker is there that can decode."""
        with self.lock:
            return not self.closed and any(worker.ready for worker in self.requests.workers)

    def work(self) -> Work:
        """Counts of all work so far."""
        with self.lock:
            return Work(**vars(self.done))

    # ---- requests and workers

    def check_process(self) -> None:
        """Refuse a process that was forked: its copy of the engine has no threads, and would wait
        for ever (raises UsageError)."""
        if self.process != os.getpid():
            raise UsageError(
                "the engine belongs to the process that made it, and this one was forked from it: "
                "make an Engine in this process"
            )

    def start_worker(self) -> Worker:
        return Worker(self.fork_server, weakly(self.heard), weakly(self.lost))

    def forget(self, number: int) -> None:
        """Nobody waits for a request any more."""
        with self.changed:
            if self.requests.cancel(number):
                self.changed.notify_all()
                if not self.closed:
                    self.requests.give_out()

    def heard(self, worker: Worker, message: Any) -> None:
        """A message of a worker, in its thread."""
        if isinstance(message, Exception):
            self.fail(message)
            return
        if isinstance(message, Description):
            with self.changed:
                worker.ready, self.description, self.stillborn = True, message, 0
                self.requests.width = message.width
                self.changed.notify_all()
                self.requests.give_out()
            return
        told: list[tuple[Ticket, Any]] = []
        try:
            with self.changed:
                for number, what in message:
                    if isinstance(what, Work):
                        self.done.add(what)
                    elif (ticket := worker.requests.get(number)) is not None:
                        told.append((ticket, what))
                        if not isinstance(what, Partial):
                            worker.fresh = False
                            self.requests.take(ticket)
                            self.pace.one_is_done()
                if told:
                    self.changed.notify_all()
                    self.requests.give_out()
        finally:  # those that have been taken out are told, whatever went wrong
            for ticket, what in told:
                ticket.tell(what)

    def fail(self, error: Exception) -> None:
        """There is no model: every request has this error."""
        with self.changed:
            self.failed = error
            left = self.requests.clear()
            self.changed.notify_all()
        for ticket in left:
            ticket.tell(error)

    def lost(self, worker: Worker) -> None:
        """A worker is gone, in its thread: its requests run again, and another
        worker takes its place."""
        with self.changed:
            if (
                self.closed
                and not worker.requests
                and not self.pending
                or worker not in self.requests.workers
                or self.failed is not None
            ):
                return
            self.stillborn += not worker.ready
            worker.ready = False
            given_up = self.requests.retry(worker)
            self.restarts += 1
            self.changed.notify_all()
            self.requests.give_out()
        for ticket in given_up:
            ticket.tell(
                WorkerDied(
                    "the sentence could not be translated: two worker processes died over it"
                )
            )
        if self.stillborn >= TRIES * len(self.requests.workers):
            self.fail(
                UsageError(
                    "the processes that load the model ended before it was loaded: "
                    "see their messages on standard error, and mend what they name"
                )
            )
            return
        if worker.fresh:
            time.sleep(PAUSE)
        why = ""
        for attempt in range(TRIES):
            try:
                return self.replace(worker)
            except Exception as error:  # the system gives no process, no memory or no thread
                why = f"{type(error).__name__}: {error}"
                time.sleep(PAUSE * attempt)
        if self.ready:  # the other workers go on
            logger.error(
                "a worker of the engine is gone, and no other can be started in its place (%s)", why
            )
            return
        self.fail(
            UsageError(
                f"no process that translates can be started ({why}): end others, or allow more "
                "processes and open files"
            )
        )

    def replace(self, worker: Worker) -> None:
        """Start a worker in the place of one that is gone."""
        with self.changed:
            workers = self.requests.workers
            if worker in workers:
                workers[workers.index(worker)] = self.start_worker()


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """A function that calls a method for as long as its object is there."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        if (found := reference()) is not None:
            found(*arguments)

    return call


def end(workers: Sequence[Worker], fork_server: ForkServer) -> None:
    """End the processes of an engine."""
    for worker in workers:
        worker.send(None)
        worker.close()
    fork_server.stop()


def forgotten(process: int, requests: Dispatch, fork_server: ForkServer) -> None:
    """End the processes of an engine that nothing refers to any more, in the process that has
    made it: one that is forked from it has no say in them."""
    if os.getpid() == process:
        end(requests.workers, fork_server)
