"""The translation of a text by an engine: each segment is a request, several run at once, and their
answers are joined into one (joined.py).

Items of the text are read when they are needed and joined in their order, so a long text takes
little more memory than its translation.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from weakref import WeakMethod

from fairseq_ext.core.errors import cut
from fairseq_ext.engine.callbacks import THREADS, Reply, Threads, when_done
from fairseq_ext.engine.jobs import Partial
from fairseq_ext.engine.joined import Joined, Slot
from fairseq_ext.engine.tickets import Busy, Closed
from fairseq_ext.search.report import Report
from fairseq_ext.search.request import Request
from fairseq_ext.text.formats import Pass
from fairseq_ext.text.in_lines import pieces
from fairseq_ext.text.marks import ended
from fairseq_ext.text.segments import LONGEST, Item, Segment
from fairseq_ext.text.stopping import until

# segments of a text that an engine has at once, and items that are not joined:
# one may take its time
MAX_RUNNING, MAX_SLOTS = 64, 512
# seconds between two partial results for each character of them: each has the whole text so far
REST = 3e-6


class TextRequest:
    """A text in an engine; `future` has its answer, whose `untranslated` are the segments
    that stay as they are.

    submit: `send` of an engine; request: the text, and what is wanted of every segment; passes: of
    the text's format; on_text: gets the translation in parts, and the answer then has none. A text
    none of whose segments can be translated has the error of the first. threads: where answers are
    joined. Errors: those of `submit`, for the first segments.
    """

    def __init__(
        self,
        submit: Callable[..., Future[Report]],
        request: Request,
        passes: Sequence[Pass],
        on_partial: Callable[[Partial], None] | None = None,
        on_text: Callable[[str], object] | None = None,
        threads: Threads = THREADS,
    ):
        self.submit, self.passes, self.request = submit, list(passes), request
        self.on_partial, self.on_text = on_partial, on_text
        self.future = Reply(threads, lambda: None, on_partial)
        # its calls are those of this object too, one after another: no lock is held in them
        self.calls = self.future.calls
        self.lock = threading.Lock()  # of these two, which `stop` reads in any thread
        self.running: dict[Slot, Future[Report]] = {}
        self.is_over = False
        self.waiting: deque[Slot] = deque()  # to be submitted
        self.untranslated: list[tuple[str, str]] = []
        self.warnings: list[str] = []
        self.joined_tokens, self.rests_until = 0, 0.0
        # subtle: a future keeps its callbacks, and one that knew this object would make a circle,
        # which holds the request until the garbage collector runs, as it seldom does. The futures
        # of segments keep this object while it has something to do.
        stop = WeakMethod(self.stop)
        when_done(self.future, lambda _: call() if (call := stop()) is not None else None)
        with self.calls.exclusive():
            try:
                self.start(request.source)
            except BaseException:
                self.stop()
                raise

    def start(self, text: str) -> None:
        """Begin the next pass."""
        self.items: Iterator[Item] = self.passes.pop(0)(text)
        self.slots: deque[Slot] = deque()  # that are not joined
        self.joined = Joined(self.on_text is None or bool(self.passes))
        # the last pass has no segment yet: if the text has none, an empty one is submitted, so
        # that the engine checks the request
        self.needs_segment = not self.passes
        self.go_on()

    def stop(self) -> None:
        """Cancel all requests of the text."""
        with self.lock:
            self.is_over = True
            running, self.running = list(self.running.values()), {}
        for future in running:
            future.cancel()

    def finish(self, what: Report | BaseException) -> None:
        """Complete the future with the answer or the error, after the partial results."""
        self.is_over = True
        self.future.answer(what)

    def next_slot(self) -> Slot | None:
        """Return the next segment to submit; None if no segment is left."""
        while not self.waiting:
            with until(lambda: self.is_over):
                item = next(self.items, None)
            if item is None and not self.needs_segment:
                return None
            slot = Slot(Segment("", "", [], [], []) if item is None else item)
            self.slots.append(slot)
            if isinstance(item, Segment) and item.is_cut:
                self.warnings.append(
                    f"'{cut(item.plain)}' is translated in parts: it has more than {LONGEST} "
                    "characters"
                )
            if slot.is_open:
                self.needs_segment = False
                self.waiting.append(slot)
        return self.waiting.popleft()

    def go_on(self) -> None:
        """Submit further segments, or end (raises the errors of `submit`)."""
        self.join()
        while (
            len(self.running) < MAX_RUNNING
            and (self.waiting or len(self.slots) < MAX_SLOTS)
            and not self.is_over
        ):
            if (slot := self.next_slot()) is None:
                break
            try:
                self.run(slot)
            except Busy:
                self.waiting.appendleft(slot)
                if not self.running:
                    raise
                break
        if not self.waiting and not self.running and not self.is_over:
            self.end()

    def run(self, slot: Slot) -> None:
        """Submit a segment (raises the errors of `submit`)."""
        assert isinstance(slot.item, Segment)
        request = replace(self.request, number=slot.item.number, source=slot.item.plain)
        on_partial = None
        if slot.item.marks:
            request = replace(request, align=True)
        elif self.on_partial is not None:
            on_partial = partial(self.add_call, self.partly, slot)
        future = self.submit(request, on_partial)
        with self.lock:
            is_over = self.is_over
            if not is_over:
                self.running[slot] = future
        if is_over:
            future.cancel()
        else:
            when_done(future, partial(self.add_call, self.on_answer, slot))

    def add_call(self, method: Callable[..., None], slot: Slot, what: object) -> None:
        """Call a method in another thread, after the calls before it; its error becomes that of the
        text."""

        def call() -> None:
            try:
                with until(lambda: self.is_over):
                    method(slot, what)
            except BaseException as error:
                self.finish(error)

        self.calls.add(call)

    def on_answer(self, slot: Slot, future: Future[Report]) -> None:
        """Store the answer of a segment, and continue."""
        with self.lock:
            is_known = self.running.pop(slot, None) is not None
        if not is_known or future.cancelled():
            return
        error = future.exception()
        assert isinstance(slot.item, Segment)
        if parts := pieces(slot.item, error):
            self.warnings.append(f"'{cut(slot.item.plain)}' is translated in parts: {error}")
            place, news = self.slots.index(slot), [Slot(part) for part in parts]
            del self.slots[place]
            for new in reversed(news):
                self.slots.insert(place, new)
            self.waiting.extendleft(reversed([new for new in news if new.is_open]))
        elif isinstance(error, Closed):
            return self.finish(error)
        else:
            slot.answer = error or future.result()
        self.join()
        self.report()
        self.go_on()

    def partly(self, slot: Slot, part: Partial) -> None:
        """Store the partial result of a segment, and report it."""
        slot.partial = part
        self.report()

    def join(self) -> None:
        """Join the items at the beginning of the text that have their answers."""
        while self.slots and not self.slots[0].is_open:
            slot = self.slots.popleft()
            text = self.joined.add(slot)
            self.joined_tokens += (
                len(slot.answer.hypotheses[0].tokens) if isinstance(slot.answer, Report) else 0
            )
            if self.on_text is not None and not self.passes:
                self.on_text(text)

    def report(self) -> None:
        """Report the certain beginning of the text, in the last pass."""
        if self.on_partial is None or self.passes or time.monotonic() < self.rests_until:
            return
        text = self.joined.text()
        tokens = self.joined_tokens
        part = self.slots[0].partial if self.slots else None
        if part is not None:
            text, tokens = text + ended(part.text, ""), tokens + part.tokens
        if text.strip():
            self.future.pass_partial(Partial(text, tokens))
            self.rests_until = time.monotonic() + REST * len(text)

    def end(self) -> None:
        """Begin the next pass; after the last one, complete the future."""
        self.join()
        if self.joined.error is not None and not self.joined.answers:
            return self.finish(self.joined.error)
        self.untranslated += self.joined.untranslated
        if self.passes:
            self.joined_tokens = 0
            return self.start(self.joined.text())
        self.finish(replace(self.joined.answer(self.untranslated), warnings=self.warnings))


# ---- A text through an engine, part by part


class ThroughEngine:
    """A translator of texts by an engine's `send`, until another thread calls `stop`.

    request: what is wanted of every sentence; of_format: returns the passes of a format; moved:
    time of the last answer, by time.monotonic(); characters, total: that have been submitted, and
    of the whole file, where it is known.
    """

    def __init__(
        self,
        submit: Callable[..., Future[Report]],
        request: Request,
        of_format: Callable[..., list[Pass]],
    ):
        self.submit, self.request = submit, request
        self.of_format = partial(of_format, numbers=itertools.count())
        self.moved = time.monotonic()
        self.characters = self.total = 0
        self.running: Future[Report] | None = None
        self.stopped = False

    def __call__(self, text: str, format: str) -> Iterator[str]:
        parts: SimpleQueue[str | None] = SimpleQueue()
        request = replace(self.request, source=text)
        self.running = TextRequest(
            self.submitted, request, self.of_format(format), on_text=parts.put
        ).future
        self.running.add_done_callback(lambda _: parts.put(None))
        if self.stopped:
            self.stop()
        while (part := parts.get()) is not None:
            yield part
        self.running.result()

    def submitted(
        self, request: Request, on_partial: Callable[[Partial], None] | None
    ) -> Future[Report]:
        """Return a segment's future; its end sets `moved`."""
        future = self.submit(request, on_partial)
        self.characters += len(request.source)
        when_done(future, lambda _: setattr(self, "moved", time.monotonic()))
        return future

    def stop(self) -> None:
        """Cancel the current text and all later ones: their callers get CancelledError."""
        self.stopped = True
        if self.running is not None:
            self.running.cancel()
