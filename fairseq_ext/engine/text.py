"""The translation of a text by an engine: each segment is a request, several run at once, and their
answers are joined into one (`Joined`).

Items of the text are read when they are needed and joined in their order, so a long text takes
little more memory than its translation.
"""

from __future__ import annotations

import copy
import itertools
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from weakref import WeakMethod

from fairseq_ext.core.errors import cut
from fairseq_ext.engine.callbacks import THREADS, Reply, Threads, when_done
from fairseq_ext.engine.tickets import Busy, Closed, Partial
from fairseq_ext.search.report import ConstraintReport, Ending, Report, Span, Translation
from fairseq_ext.search.request import Request
from fairseq_ext.text import in_lines
from fairseq_ext.text.atoms import Item, Segment, Untranslated
from fairseq_ext.text.formats import Pass
from fairseq_ext.text.in_lines import pieces
from fairseq_ext.text.marks import Projection, ended
from fairseq_ext.text.segments import LONGEST
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
        self.running: dict[Slot, Future[Report]] = {}
        self.is_over = False
        self.waiting: deque[Slot] = deque()  # to be submitted
        self.untranslated: list[tuple[str, str]] = []
        self.warnings: list[str] = []
        self.rests_until = 0.0
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
        """Cancel all requests of the text, in any thread."""
        self.is_over = True  # before `running` is read: `run` looks at it behind that
        for future in list(self.running.values()):
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
        self.running[slot] = future = self.submit(request, on_partial)
        if self.is_over:
            future.cancel()
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
        del self.running[slot]
        if self.is_over or future.cancelled():
            return
        error = future.exception()
        assert isinstance(slot.item, Segment)
        if parts := pieces(slot.item, error or next(iter(future.result().hypotheses), None)):
            if error is not None:
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
            if self.on_text is not None and not self.passes:
                self.on_text(text)

    def report(self) -> None:
        """Report the certain beginning of the text, in the last pass."""
        if self.on_partial is None or self.passes or time.monotonic() < self.rests_until:
            return
        text, tokens = self.joined.text(), len(self.joined.ranks[0].tokens)
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


# ---- The answer of a text, joined from the answers of its segments
#
# A segment is dropped as soon as it is joined.


@dataclass(eq=False)
class Slot:
    """An item of the text and its result so far."""

    item: Item
    answer: Report | BaseException | None = None
    partial: Partial | None = None

    @property
    def is_open(self) -> bool:
        """Whether its answer is missing."""
        return isinstance(self.item, Segment) and self.answer is None


@dataclass
class Rank:
    """The hypotheses of one rank, in the order of the text.

    total: sum of their scores times their lengths.
    """

    texts: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    total: float = 0.0
    length: int = 0

    def hypothesis(self) -> Translation:
        """Return the hypothesis of the text, without the outcomes of its segments."""
        score = self.total / max(1, self.length)
        return Translation("".join(self.texts), self.tokens, score, self.scores)


class Joined:
    """The answer of a text so far: the i-th hypotheses of all segments are the i-th of the text,
    and places are of the whole text.

    keeps: False if the caller writes the text in parts: `add` only returns the translation of each
    item, and the answer has no text and no constraints.
    """

    def __init__(self, keeps: bool = True):
        self.keeps = keeps
        self.ranks = [Rank()]
        self.constraints: list[ConstraintReport] = []
        self.words: list[tuple[Span, Span]] | None = []
        self.gap: float | None = -math.inf
        self.queued = self.decoded = 0.0
        # characters of both, items, and segments with an answer
        self.source = self.target = self.items = self.answers = 0
        self.untranslated: list[tuple[str, str]] = []
        self.error: BaseException | None = None  # the first
        self.last: Report | None = None

    def add(self, slot: Slot) -> str:
        """Add the next item; return its translation."""
        text, projection = rendered(slot, 0)
        self.items += 1
        if isinstance(slot.item, Segment) and isinstance(slot.answer, BaseException):
            self.error = self.error or slot.answer
            self.untranslated.append((slot.item.source, str(slot.answer)))
        if isinstance(slot.item, Untranslated):
            self.untranslated.append((str(slot.item), slot.item.reason))
        if isinstance(slot.answer, Report):
            self.answers += 1
            self.last = slot.answer
        if self.keeps:
            if projection is not None and isinstance(slot.answer, Report):
                self.places(slot, projection, slot.answer)
            self.hypotheses(slot, text)
        self.source += len(slot.item if isinstance(slot.item, str) else slot.item.source)
        self.target += len(text)
        return text

    def hypotheses(self, slot: Slot, text: str) -> None:
        """Append the hypotheses of an item to those of the text."""
        found = slot.answer.hypotheses if isinstance(slot.answer, Report) else []
        for _ in range(len(self.ranks), len(found)):
            # earlier items, which have fewer hypotheses, repeat their last one
            self.ranks.append(copy.deepcopy(self.ranks[-1]))
        for rank, each in enumerate(self.ranks):
            each.texts.append(rendered(slot, rank)[0] if rank else text)
            if found:
                best = found[min(rank, len(found) - 1)]
                each.tokens.extend(map(sys.intern, best.tokens))
                each.scores.extend(best.positional_scores)
                each.total += best.score * (1 + len(best.tokens))
                each.length += 1 + len(best.tokens)

    def places(self, slot: Slot, projection: Projection, answer: Report) -> None:
        """Add the constraints and word pairs of a segment, with their places in the whole text."""
        assert isinstance(slot.item, Segment)
        origin, moved, at, start = slot.item.origin, projection.offset, self.target, self.source

        def there(span: tuple[int, int]) -> tuple[int, int]:
            return at + moved(span[0]), at + moved(span[1] - 1) + 1

        def here(span: tuple[int, int]) -> tuple[int, int]:
            return start + origin[span[0]], start + origin[span[1] - 1] + 1

        for each in answer.constraints:
            self.constraints.append(
                replace(
                    each,
                    spans=tuple(map(there, each.spans)),
                    source_spans=tuple(map(here, each.source_spans)),
                )
            )
        words = answer.hypotheses[0].words
        if words is None or self.words is None:
            self.words = None
        else:
            self.words += [(here(a), there(b)) for a, b in words]
        self.gap = None if answer.gap is None or self.gap is None else max(self.gap, answer.gap)
        self.queued, self.decoded = (
            max(self.queued, answer.queued),
            max(self.decoded, answer.decoded),
        )

    def text(self) -> str:
        """Return the translation so far."""
        return "".join(self.ranks[0].texts)

    def answer(self, untranslated: list[tuple[str, str]]) -> Report:
        """Return the answer, when all items are added. untranslated: the segments of
        all passes that stay as they are."""
        if self.items == 1 and self.last is not None and self.text() == self.last.text:
            return self.last
        hypotheses = [rank.hypothesis() for rank in self.ranks]
        hypotheses[0].words = self.words
        hypotheses[0].ending = None if self.gap is None else Ending(self.gap, 0, 0)
        return Report(hypotheses, self.constraints, self.queued, self.decoded, untranslated)


def rendered(slot: Slot, rank: int) -> tuple[str, Projection | None]:
    """Return the translation of an item by the hypothesis of this rank, and how its characters
    have moved."""
    found = slot.answer.hypotheses if isinstance(slot.answer, Report) else [None]
    return in_lines.rendered(slot.item, found[min(rank, len(found) - 1)])
