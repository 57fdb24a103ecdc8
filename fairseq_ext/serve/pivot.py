"""Two models one behind the other, for a pair of languages that has none: sentence by sentence, through a third language."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from threading import Timer
from typing import Any

from fairseq_ext.core.errors import UsageError
from fairseq_ext.engine.jobs import Answer
from fairseq_ext.engine.tickets import Busy, resolve

Submit = Callable[..., Future[Answer]]
AGAIN = 0.2  # seconds after which the second model is asked again, where its queue is full
BEHIND = 1 << 62  # added to the number of a sentence for the second model, whose samples do not follow those of the first


def through(first: Submit, second: Submit) -> Submit:
    """`submit` of both: phrases that are asked for, and the n-best list, are the second's; the seed is both's. Errors: UsageError for a
    glossary, whose source terms the second does not see."""

    def submit(
        source: str, align: bool = False, terms: Any = None, glossaries: Any = (), seed: int | None = None, number: int = 0, **request: Any
    ) -> Future[Answer]:
        if terms or glossaries:
            raise UsageError("a pair that goes through a third language has no glossaries: leave it out, or require phrases")
        out: Future[Answer] = Future()
        running = [first(source, align=align, nbest=1, seed=seed, number=number)]

        def half(done: Future[Answer]) -> None:
            if out.done() or done.cancelled():
                return
            try:
                running.append(second(done.result().text, align=align, seed=seed, number=number + BEHIND, **request))
            except Busy:
                Timer(AGAIN, half, [done]).start()
            except BaseException as error:
                resolve(out, error)
            else:
                running[-1].add_done_callback(partial(whole, done.result()))

        def whole(middle: Answer, done: Future[Answer]) -> None:
            if done.cancelled() or (error := done.exception()) is not None:
                return None if done.cancelled() else resolve(out, error)
            answer, of_middle = done.result(), middle.hypotheses[0].words
            for each in answer.hypotheses:
                pairs = None if of_middle is None else each.words
                each.words = pairs and [(a, d) for c, d in pairs for a, b in of_middle or () if b == c]
            resolve(out, replace(answer, queued=middle.queued + answer.queued, decoded=middle.decoded + answer.decoded))

        running[0].add_done_callback(half)
        out.add_done_callback(lambda _: [each.cancel() for each in running])
        return out

    return submit
