"""A text through an engine, part by part."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any

from fairseq_ext.engine.callbacks import when_done
from fairseq_ext.engine.in_engine import TextRequest
from fairseq_ext.engine.jobs import Answer
from fairseq_ext.text.formats import Pass


class ThroughEngine:
    """By an engine's `submit`, until another thread calls `stop`.

    of_format: the passes; moved: when something was last done, by time.monotonic().
    """

    def __init__(self, submit: Callable[..., Future[Answer]], of_format: Callable[..., list[Pass]]):
        self.submit, self.of_format, self.moved = (
            submit,
            partial(of_format, numbers=itertools.count()),
            time.monotonic(),
        )
        self.running: Future[Answer] | None = None
        self.stopped = False

    def __call__(self, text: str, format: str) -> Iterator[str]:
        parts: SimpleQueue[str | None] = SimpleQueue()
        self.running = TextRequest(
            self.submitted, text, self.of_format(format), {}, on_text=parts.put
        ).future
        self.running.add_done_callback(lambda _: parts.put(None))
        if self.stopped:
            self.stop()
        while (part := parts.get()) is not None:
            yield part
        self.running.result()

    def submitted(self, source: str, **request: Any) -> Future[Answer]:
        """A segment's future, of whose end is known when it was."""
        future = self.submit(source, **request)
        when_done(future, lambda _: setattr(self, "moved", time.monotonic()))
        return future

    def stop(self) -> None:
        """Whoever waits for a text gets CancelledError."""
        self.stopped = True
        if self.running is not None:
            self.running.cancel()
