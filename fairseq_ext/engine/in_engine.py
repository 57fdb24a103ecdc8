"""A text through an engine: its segments are requests of their own, some at once, and one answer
is made of theirs (joined.py).

Items are read as they are needed and joined in their order, so that a long text takes the
memory of its translation.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from fairseq_ext.engine.jobs import Answer, Partial
from fairseq_ext.engine.joined import Joined, Slot
from fairseq_ext.engine.tickets import Busy, Closed, resolve
from fairseq_ext.plugin.loading.settings import TooLong
from fairseq_ext.text.formats import Pass
from fairseq_ext.text.marks import ended
from fairseq_ext.text.segments import Item, Segment, halves

# segments of a text that an engine has at once, and items that are not joined:
# one may take its time
AHEAD, OPEN = 64, 512
# seconds between two partial results for each character of them: each has the whole text so far
REST = 3e-6


class TextRequest:
    """A text in an engine; `future` has its answer, whose `left` are the segments
    that stay as they are.

    submit: of an engine; passes: of the text's format; request: keywords of `submit` for every
    segment; on_text: gets the translation in parts, and the answer then has none. A text none
    of whose segments can be translated has the error of the first. Errors: as of `submit`,
    of the first segments.
    """

    def __init__(
        self,
        submit: Callable[..., Future[Answer]],
        text: str,
        passes: Sequence[Pass],
        request: dict[str, Any],
        on_partial: Callable[[Partial], None] | None = None,
        on_text: Callable[[str], object] | None = None,
    ):
        self.submit, self.passes, self.request = submit, list(passes), request
        self.on_partial, self.on_text = on_partial, on_text
        self.lock = threading.RLock()
        self.future: Future[Answer] = Future()
        self.running: dict[Slot, Future[Answer]] = {}
        self.waiting: deque[Slot] = deque()  # to be submitted
        self.left: list[tuple[str, str]] = []
        self.told, self.rests_until = 0, 0.0
        self.future.add_done_callback(lambda _: self.stop())
        try:
            self.start(text)
        except BaseException:
            self.stop()
            raise

    def start(self, text: str) -> None:
        """Begin the next pass."""
        self.items: Iterator[Item] = self.passes.pop(0)(text)
        self.slots: deque[Slot] = deque()  # that are not joined
        self.joined = Joined(self.on_text is None or bool(self.passes))
        # no segment yet: where none comes, an empty one is submitted, so that the engine
        # checks the request
        self.is_mute = not self.passes
        self.go_on()

    def stop(self) -> None:
        """Leave the engine."""
        with self.lock:
            self.waiting.clear()
            running, self.running = list(self.running.values()), {}
        for future in running:
            future.cancel()

    def next_slot(self) -> Slot | None:
        """The next segment to submit; None where there is none."""
        while not self.waiting:
            item = next(self.items, None)
            if item is None and not self.is_mute:
                return None
            slot = Slot(Segment("", "", [], [], []) if item is None else item)
            self.slots.append(slot)
            if slot.is_open:
                self.is_mute = False
                self.waiting.append(slot)
        return self.waiting.popleft()

    def go_on(self) -> None:
        """Give the engine more, or end (raises what `submit` does)."""
        with self.lock:
            self.join()
            while (
                len(self.running) < AHEAD
                and (self.waiting or len(self.slots) < OPEN)
                and not self.future.done()
            ):
                if (slot := self.next_slot()) is None:
                    break
                assert isinstance(slot.item, Segment)
                request = (
                    self.request
                    | {"number": slot.item.number}
                    | ({"align": True} if slot.item.marks else {})
                )
                if self.on_partial is not None and not slot.item.marks:
                    request["on_partial"] = partial(self.partly, slot)
                try:
                    future = self.submit(slot.item.plain, **request)
                except Busy:
                    self.waiting.appendleft(slot)
                    if not self.running:
                        raise
                    break
                self.running[slot] = future
                future.add_done_callback(partial(self.heard, slot))
            if not self.waiting and not self.running and not self.future.done():
                self.end()

    def heard(self, slot: Slot, future: Future[Answer]) -> None:
        """A segment has its answer."""
        with self.lock:
            if self.running.pop(slot, None) is None or future.cancelled():
                return
            error = future.exception()
            assert isinstance(slot.item, Segment)
            if isinstance(error, TooLong) and len(parts := halves(slot.item)) > 1:
                place, news = self.slots.index(slot), [Slot(part) for part in parts]
                del self.slots[place]
                for new in reversed(news):
                    self.slots.insert(place, new)
                self.waiting.extendleft(reversed([new for new in news if new.is_open]))
            elif isinstance(error, Closed):
                return resolve(self.future, error)
            else:
                slot.answer = error or future.result()
            try:
                self.join()
                self.tell()
                self.go_on()
            except BaseException as raised:
                resolve(self.future, raised)

    def partly(self, slot: Slot, part: Partial) -> None:
        """A segment is further."""
        with self.lock:
            slot.partial = part
            self.tell()

    def join(self) -> None:
        """Join the items at the beginning of which nothing more is to come."""
        while self.slots and not self.slots[0].is_open:
            slot = self.slots.popleft()
            text = self.joined.add(slot)
            self.told += (
                len(slot.answer.hypotheses[0].tokens) if isinstance(slot.answer, Answer) else 0
            )
            if self.on_text is not None and not self.passes:
                self.on_text(text)

    def tell(self) -> None:
        """Say what the text certainly begins with, in the last pass."""
        if self.on_partial is None or self.passes or time.monotonic() < self.rests_until:
            return
        text, tokens, part = (
            self.joined.text(),
            self.told,
            self.slots[0].partial if self.slots else None,
        )
        if part is not None:
            text, tokens = text + ended(part.text, ""), tokens + part.tokens
        if text.strip():
            self.on_partial(Partial(text, tokens))
            self.rests_until = time.monotonic() + REST * len(text)

    def end(self) -> None:
        """Answer, or begin the next pass."""
        self.join()
        if self.joined.error is not None and not self.joined.answers:
            return resolve(self.future, self.joined.error)
        self.left += self.joined.left
        if self.passes:
            self.told = 0
            return self.start(self.joined.text())
        resolve(self.future, self.joined.answer(self.left))
