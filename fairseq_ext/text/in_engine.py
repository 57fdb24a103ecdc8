"""A text through an engine: its segments are requests of their own, some at once, and one answer is made of theirs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fairseq_ext.engine.jobs import Answer, Partial
from fairseq_ext.engine.tickets import Busy, Closed, resolve
from fairseq_ext.loading.lengths import TooLong
from fairseq_ext.text.formats import Pass
from fairseq_ext.text.marks import Projection, ended
from fairseq_ext.text.segments import Item, Segment, halves
from fairseq_ext.text.translation import Translation

AHEAD = 64  # segments of a text that an engine has at once


@dataclass(eq=False)
class Slot:
    """An item of the text and what has come of it."""

    item: Item
    answer: Answer | BaseException | None = None
    partial: Partial | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is more to come."""
        return isinstance(self.item, Segment) and self.answer is None


class TextRequest:
    """A text in an engine; `future` has its answer, whose `left` are the segments that stay as they are.

    submit: of an engine; passes: of the text's format; request: keywords of `submit` for every segment. A text none of whose segments can
    be translated has the error of the first. Errors: as of `submit`, of the first segments.
    """

    def __init__(
        self, submit: Callable[..., Future[Answer]], text: str, passes: Sequence[Pass], request: dict[str, Any],
        on_partial: Callable[[Partial], None] | None = None,
    ):  # fmt: skip
        self.submit, self.passes, self.request, self.on_partial = submit, list(passes), request, on_partial
        self.lock = threading.RLock()
        self.future: Future[Answer] = Future()
        self.running: dict[Slot, Future[Answer]] = {}
        self.waiting: deque[Slot] = deque()
        self.left: list[tuple[str, str]] = []
        self.future.add_done_callback(lambda _: self.stop())
        try:
            self.start(text)
        except BaseException:
            self.stop()
            raise

    def start(self, text: str) -> None:
        """Begin the next pass."""
        self.text, self.done, self.told, self.told_text = text, 0, 0, ""
        self.slots = [Slot(item) for item in self.passes.pop(0)(text)]
        if not any(isinstance(slot.item, Segment) for slot in self.slots) and not self.passes:
            self.slots.append(Slot(Segment("", "", [], [], [])))  # the engine says what it has to say
        self.waiting.extend(slot for slot in self.slots if slot.is_open)
        self.go_on()

    def stop(self) -> None:
        """Leave the engine."""
        with self.lock:
            self.waiting.clear()
            running, self.running = list(self.running.values()), {}
        for future in running:
            future.cancel()

    def go_on(self) -> None:
        """Give the engine more, or end (raises what `submit` does)."""
        with self.lock:
            while self.waiting and len(self.running) < AHEAD and not self.future.done():
                slot = self.waiting.popleft()
                assert isinstance(slot.item, Segment)
                request = self.request | ({"align": True} if slot.item.marks else {})
                if self.on_partial is not None and not slot.item.marks:
                    request["on_partial"] = partial(self.partly, slot)
                try:
                    future = self.submit(slot.item.plain, **request)
                except Busy:
                    if not self.running:
                        raise
                    self.waiting.appendleft(slot)
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
                place = self.slots.index(slot)
                self.slots[place : place + 1] = news = [Slot(part) for part in parts]
                self.waiting.extendleft(reversed([new for new in news if new.is_open]))
            elif isinstance(error, Closed):
                return resolve(self.future, error)
            else:
                slot.answer = error or future.result()
            try:
                self.tell()
                self.go_on()
            except BaseException as raised:
                resolve(self.future, raised)

    def partly(self, slot: Slot, part: Partial) -> None:
        """A segment is further."""
        with self.lock:
            slot.partial = part
            self.tell()

    def tell(self) -> None:
        """Say what the text certainly begins with, in the last pass."""
        if self.on_partial is None or self.passes:
            return
        while self.done < len(self.slots) and not self.slots[self.done].is_open:
            slot = self.slots[self.done]
            self.told_text += rendered(slot, 0)[0]
            self.told += len(slot.answer.hypotheses[0].tokens) if isinstance(slot.answer, Answer) else 0
            self.done += 1
        part = self.slots[self.done].partial if self.done < len(self.slots) else None
        text, tokens = (self.told_text, self.told) if part is None else (self.told_text + ended(part.text, ""), self.told + part.tokens)
        if text.strip():
            self.on_partial(Partial(text, tokens))

    def end(self) -> None:
        """Answer, or begin the next pass."""
        errors = [slot for slot in self.slots if isinstance(slot.answer, BaseException)]
        answers = [slot.answer for slot in self.slots if isinstance(slot.answer, Answer)]
        if errors and not answers:
            return resolve(self.future, errors[0].answer)
        self.left += [(slot.item.source, str(slot.answer)) for slot in errors if isinstance(slot.item, Segment)]
        if self.passes:
            return self.start("".join(rendered(slot, 0)[0] for slot in self.slots))
        (slot, *others) = self.slots
        is_whole = not others and isinstance(slot.item, Segment) and rendered(slot, 0)[0] == answers[0].text
        resolve(self.future, answers[0] if is_whole else joined(self.slots, answers, self.left))


def rendered(slot: Slot, rank: int) -> tuple[str, Projection | None]:
    """What an item comes to in the n-best list's rank, and how its characters have moved there."""
    if isinstance(slot.item, str):
        return slot.item, None
    if not isinstance(slot.answer, Answer):
        return slot.item.source, None
    hypotheses = slot.answer.hypotheses
    best = hypotheses[min(rank, len(hypotheses) - 1)]
    projection = Projection(slot.item, best.text, best.words)
    return projection.rendered(), projection


def joined(slots: Sequence[Slot], answers: Sequence[Answer], left: list[tuple[str, str]]) -> Answer:
    """One answer: the i-th hypotheses of all segments are the i-th of the text, and places are of the whole text."""
    hypotheses = [one_hypothesis(slots, answers, rank) for rank in range(max(len(answer.hypotheses) for answer in answers))]
    constraints, words, source, target = [], list[Any](), 0, 0
    has_words = all(answer.hypotheses[0].words is not None for answer in answers)
    for slot in slots:
        text, projection = rendered(slot, 0)
        if projection is not None and isinstance(slot.answer, Answer) and isinstance(slot.item, Segment):
            item, moved, at, start = slot.item, projection.offset, target, source

            def there(span: tuple[int, int], moved: Any = moved, at: int = at) -> tuple[int, int]:
                return at + moved(span[0]), at + moved(span[1] - 1) + 1

            def here(span: tuple[int, int], item: Segment = item, start: int = start) -> tuple[int, int]:
                return start + item.origin[span[0]], start + item.origin[span[1] - 1] + 1

            for each in slot.answer.constraints:
                spans, of_source = tuple(map(there, each.spans)), tuple(map(here, each.source_spans))
                constraints.append(replace(each, spans=spans, source_spans=of_source))
            words += [(here(a), there(b)) for a, b in slot.answer.hypotheses[0].words or ()]
        source += len(slot.item if isinstance(slot.item, str) else slot.item.source)
        target += len(text)
    hypotheses[0].words = words if has_words else None
    gaps = [answer.gap for answer in answers]
    gap = None if None in gaps else max(gaps)  # type: ignore[type-var]
    return Answer(hypotheses, constraints, gap, max(a.queued for a in answers), max(a.decoded for a in answers), left)


def one_hypothesis(slots: Sequence[Slot], answers: Sequence[Answer], rank: int) -> Translation:
    """The hypothesis of this rank; its score is that of its segments by their lengths."""
    best = [answer.hypotheses[min(rank, len(answer.hypotheses) - 1)] for answer in answers]
    lengths = [1 + len(each.tokens) for each in best]
    return Translation(
        text="".join(rendered(slot, rank)[0] for slot in slots),
        tokens=[token for each in best for token in each.tokens],
        score=sum(each.score * length for each, length in zip(best, lengths, strict=True)) / sum(lengths),
        positional_scores=[score for each in best for score in each.positional_scores],
    )
