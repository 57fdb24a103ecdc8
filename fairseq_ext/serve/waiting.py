"""Answers that a client waits for, up to the deadline and as long as it is there. What nobody waits for is cancelled: its rows are free."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import Any

from fastapi import HTTPException, Request

from fairseq_ext.core.errors import UsageError
from fairseq_ext.engine.jobs import Answer, Partial


class Gone(Exception):
    """The client has hung up."""


def submit_all(submit: Callable[..., Future[Answer]], requests: Sequence[dict[str, Any]]) -> list[Future[Answer]]:
    """A future of each request, or none: errors as of `submit`."""
    futures: list[Future[Answer]] = []
    try:
        for request in requests:
            futures.append(submit(**request))
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return futures


async def answers(request: Request, futures: Sequence[Future[Answer]], deadline: float) -> list[Answer | UsageError]:
    """The answers, in order, a UsageError where a request cannot be used. Errors: HTTPException 504 at the deadline, Gone, what the engine
    raises."""
    waiting = asyncio.gather(*(asyncio.wrap_future(future) for future in futures), return_exceptions=True)
    # what comes of those that are cancelled is looked at, else asyncio logs it with every client that hangs up
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    end = time.monotonic() + deadline
    try:
        await ended(request, waiting, deadline, lambda: end - time.monotonic())
        found = waiting.result()
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, UsageError):
                raise each
        return found  # type: ignore[return-value]
    finally:
        waiting.cancel()
        for future in futures:
            future.cancel()


async def ended(request: Request, work: asyncio.Future[Any], deadline: float, left: Callable[[], float]) -> None:
    """Return when the work is done. left: seconds that it still has, of the deadline. Errors: HTTPException 504, Gone."""
    gone = asyncio.ensure_future(hung_up(request))
    both: set[asyncio.Future[Any]] = {work, gone}
    try:
        while not work.done():
            if gone.done():
                raise Gone
            if (seconds := left()) <= 0:
                raise HTTPException(504, f"the translation took more than {deadline:g} seconds: ask for less at once, or later")
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()


async def hung_up(request: Request) -> None:
    """Return when the client has hung up; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Stream:
    """One request whose partial results are sent as they come: server-sent events `partial`, and `answer` or `error` at the end.

    A client that reads slowly gets fewer partial results, as the last one has all of those before.
    """

    def __init__(self, submit: Callable[..., Future[Answer]], request: dict[str, Any], deadline: float):
        self.loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()
        self.latest: Partial | None = None
        self.deadline = self.loop.time() + deadline
        self.seconds = deadline
        self.future = submit(**request, on_partial=self.heard)

    def heard(self, part: Partial) -> None:
        """In a thread of the engine's."""
        self.latest = part
        self.loop.call_soon_threadsafe(self.changed.set)

    async def events(self, shown: Any) -> AsyncIterator[bytes]:
        """The events; shown: from an answer to its JSON."""
        answer = asyncio.wrap_future(self.future)
        answer.add_done_callback(lambda _: self.changed.set())
        told = 0
        try:
            while True:
                await asyncio.wait_for(self.changed.wait(), self.deadline - self.loop.time())
                self.changed.clear()
                if answer.done():
                    yield event("answer", shown(answer.result()))
                    return
                if self.latest is not None and self.latest.tokens > told:
                    told = self.latest.tokens
                    self.deadline = self.loop.time() + self.seconds  # of a long text, the next part has as long
                    yield event("partial", {"text": self.latest.text, "tokens": told})
        except asyncio.TimeoutError:
            yield event("error", {"error": f"the translation took more than {self.seconds:g} seconds: ask for less at once, or later"})
        except (UsageError, RuntimeError) as error:
            yield event("error", {"error": str(error)})
        finally:
            self.future.cancel()


def event(name: str, value: Any) -> bytes:
    """One server-sent event."""
    return f"event: {name}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n".encode()
