"""`fairseq_ext.Engine`: a model that takes requests at any time, from any thread, and decodes them
together.

    engine = Engine("MODEL.pt", "DATA", source_lang="de", target_lang="en", beam=5, cpu=True,
        cpu_workers=2)
    future = engine.submit("Guten Morgen.", constraints=["morning"])
    print(future.result().text)
    for part in engine.stream("Guten Morgen."):  # its certain beginning; the answer last
        print(part.text)
    engine.close()

Worker processes of one thread each decode (worker.py). Requests wait in one queue, and go to the
worker with the least work (dispatch.py). One thread of the engine does all I/O (loop.py).

A worker that dies, or that is silent although it has work, is replaced. Each of its requests runs
again alone in a worker, so that the one that killed it is found: after a second death the request
is answered with the error.
"""

from __future__ import annotations

import concurrent.futures
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from os import PathLike
from typing import Any

from fairseq_ext.core.dispatch import fresh
from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.core.process_pool import GRACE, REAP, ForkServer
from fairseq_ext.engine.loop import Loop
from fairseq_ext.engine.text import TextRequest
from fairseq_ext.engine.tickets import (
    Description,
    Partial,
    Work,
    request_of,
)
from fairseq_ext.plugin.loading.settings import checked, text_of
from fairseq_ext.search.constraints.from_python import ListOf, Phrases
from fairseq_ext.search.report import Report
from fairseq_ext.search.request import GlossaryFile, Request
from fairseq_ext.text.formats import Format, check_text, passes
from fairseq_ext.text.splitter import splitter

SLACK = 5.0  # seconds more for the end of an engine's thread


class Engine:
    """A model in `cpu_workers` worker processes, which start at once; `wait` returns when they have
    loaded the model.

    path, data, task, flags: as for `Translator`. max_queue: largest number of requests that wait,
    None for no limit. longest: largest number of source tokens of a sentence, None for the model's
    limit. worker_timeout: seconds after which a worker that has work is replaced, if it has sent
    nothing and used no CPU time in them. An engine that no object refers to, and that has no
    request left, ends its processes. A process that is forked from the one that made it cannot use
    it.
    Errors: `wait`, `submit` and `stream` raise UsageError for flags that cannot be used, a model
    that cannot be loaded, and in another process.
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
        worker_timeout: float = 60.0,
        **flags: object,
    ) -> None:
        given = {"cpu_workers": cpu_workers, "max_queue": max_queue, "longest": longest}
        for name, number in given.items():
            none = "" if name == "cpu_workers" else ", or None"
            if not (number is None and none) and (type(number) is not int or number < 1):
                way = f"give a whole number, 1 or more{none}"
                raise UsageError(f"{name} is {cut(repr(number))}: {way}")
        if type(worker_timeout) not in (int, float):
            raise UsageError(f"worker_timeout is {cut(repr(worker_timeout))}: give seconds")
        if not worker_timeout > 0:
            raise UsageError(f"--worker-timeout (seconds) must be above 0, not {worker_timeout:g}")
        self.max_queue = max_queue
        files = {"path": path, "data": data, "task": task}
        self.flags = {name: text_of(name, each) for name, each in files.items()} | checked(flags)
        self.process_id = os.getpid()
        self.loop = Loop((self.flags, longest), cpu_workers, worker_timeout)
        self.loop.start()
        # an open text refers to the engine, and so keeps it
        weakref.finalize(self, self.loop.forget_engine).atexit = False

    # ---- what users call

    def wait(self, timeout: float | None = None) -> Description:
        """Wait until the model is loaded, at most `timeout` seconds; return its description.

        Errors: UsageError if it cannot be loaded, TimeoutError.
        """
        self.check_process()
        loaded = self.loop.loaded
        try:
            error = loaded.exception(timeout) or self.loop.failed
        except concurrent.futures.TimeoutError:
            raise TimeoutError(f"the model is not loaded after {timeout} seconds") from None
        if error is not None:
            raise fresh(error)
        return loaded.result()

    @property
    def loaded(self) -> Future[Description]:
        """A future with the result of `wait`; it cannot be cancelled."""
        return self.loop.loaded

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
        allowed: ListOf[str] | None = None,
    ) -> Future[Report]:
        """Return a future of the translation of one sentence. If it is cancelled, its rows are free
        at the next step.

        constraints, any_of, avoid, prefix, allowed: as in a line of a JSONL constraints file.
        glossaries: files; terms: source term to target term (or a|b), for this request. nbest:
        hypotheses, at most the beam. on_partial: called with the certain beginning of the
        translation when it has grown. It and the future's callbacks run one after another in a
        thread of their own; its error becomes the future's, and a slow one misses partial results.
        align: the `words` of the hypotheses pair places in the source with places in the
        translation. languages: source and target, for a model that has many (`wait().languages`).
        seed: of samples (default: that of the flags); number: of the sentence in its text; samples
        depend on both.
        Errors: Busy if the queue is full, Closed, UsageError for phrases in a wrong form; errors
        that need the model are the future's.
        """
        request = request_of(
            source,
            constraints,
            any_of,
            avoid,
            prefix,
            glossaries,
            terms,
            nbest,
            on_partial,
            align,
            languages,
            seed,
            number,
            allowed,
        )
        return self.send(request, on_partial)

    def send(
        self, request: Request, on_partial: Callable[[Partial], None] | None = None
    ) -> Future[Report]:
        """Return a future of a request's answer, as `submit` does. Errors: Busy, Closed."""
        self.check_process()
        request = replace(request, streams=on_partial is not None, submitted=time.monotonic())
        return self.loop.submit(request, on_partial, self.max_queue)

    def submit_text(
        self,
        text: str,
        format: Format = "text",
        protect: ListOf[str] = (),
        on_partial: Callable[[Partial], None] | None = None,
        **request: Any,
    ) -> Future[Report]:
        """Return a future of the translation of a text, made sentence by sentence as by
        `Translator.translate_text`. request: arguments of `submit`, for each sentence. Errors:
        those of both."""
        check_text(text)
        sentence = request_of(text, on_partial=on_partial, **request)
        model, languages = self.wait(), sentence.languages
        source = model.source if languages is None else languages[0]
        ways = passes(format, splitter(source), protect, model.leads)
        return TextRequest(self.send, sentence, ways, on_partial).future

    def stream(self, source: str, **request: Any) -> Iterator[Partial | Report]:
        """Yield the certain beginning of a translation each time that it has grown, and the answer
        last. A caller that stops early cancels the request.

        Arguments and errors are those of `submit`.
        """
        parts: queue.SimpleQueue[Partial | None] = queue.SimpleQueue()
        future = self.submit(source, on_partial=parts.put, **request)
        future.add_done_callback(lambda _: parts.put(None))

        def follow() -> Iterator[Partial | Report]:
            try:
                while (part := parts.get()) is not None:
                    yield part
                yield future.result()
            finally:
                future.cancel()

        return follow()

    def close(self, grace: float = 0.0) -> None:
        """Take no more requests; wait up to `grace` seconds for the current ones, then end.

        Requests that are not answered by then get the error Closed. In a forked process this
        method does nothing.
        """
        if self.process_id != os.getpid():
            return
        loop = self.loop
        with loop.lock:
            loop.closed = True
        loop.post("close", grace)
        if threading.current_thread() is not loop:
            loop.join(min(grace + GRACE + REAP + SLACK, threading.TIMEOUT_MAX))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def description(self) -> Description | None:
        """The loaded model and its settings; None before it is loaded."""
        return self.loop.description

    @property
    def pending(self) -> int:
        """Number of requests that are not answered."""
        return self.loop.pending

    @property
    def waiting(self) -> int:
        """Number of requests that no worker has."""
        return self.loop.waiting

    @property
    def ready(self) -> bool:
        """Whether any worker can decode."""
        return self.loop.ready and not self.loop.closed

    @property
    def restarts(self) -> int:
        """Number of workers that ended and were replaced."""
        return self.loop.dispatch.restarts

    @property
    def fork_server(self) -> ForkServer:
        """The fork server, the process that loads the model."""
        return self.loop.fork_server

    def work(self) -> Work:
        """Return the counts of all work so far."""
        return replace(self.loop.done, restarts=self.restarts)

    def check_process(self) -> None:
        """Raise UsageError in a forked process: it shares the pipes, and would read the answers to
        the parent's requests."""
        if self.process_id != os.getpid():
            raise UsageError(
                "the engine belongs to the process that made it, and this one was forked from it: "
                "make an Engine in this process"
            )
