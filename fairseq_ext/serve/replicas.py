"""Decoders elsewhere, as one engine: what the server asks of an engine (protocol.py), from the replicas of a Ray Serve deployment.

A replica that dies takes no request with it: what it had is asked of another one. Ray chooses the replica with the shorter queue.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

from ray.exceptions import RayActorError
from ray.serve.handle import DeploymentHandle

from fairseq_ext.engine.engine import Engine
from fairseq_ext.engine.jobs import Answer, Description, Partial, Work
from fairseq_ext.engine.tickets import Busy, Closed, Pace, WorkerDied, resolve
from fairseq_ext.errors import UsageError

TRIES = 5  # replicas that may die over a request
PAUSE = 0.2  # seconds before it is asked of another one
Found = tuple[str, Work, Any]  # the replica, the work that it has done so far, and an Answer or an error


class Replica:
    """A replica: an engine of its own. Errors of a request are returned, not raised, so that they come through as they are."""

    def __init__(self, flags: dict[str, Any], longest: int | None, cpu_workers: int):
        self.name = uuid.uuid4().hex
        self.engine = Engine(**flags, longest=longest, cpu_workers=cpu_workers)
        self.description: Description | UsageError
        try:
            self.description = self.engine.wait()
        except UsageError as error:
            self.description = error

    async def describe(self) -> Description | UsageError:
        """What is loaded, or why nothing is."""
        return self.description

    async def translate(self, request: dict[str, Any]) -> Found:
        """The answer to a request, keywords of Engine.submit."""
        future: Future[Answer] | None = None
        found: Any
        try:
            future = self.engine.submit(**request)
            found = await asyncio.wrap_future(future)
        except (UsageError, RuntimeError) as error:
            found = error
        finally:
            if future is not None:
                future.cancel()  # of a request that was cancelled
        return self.name, self.engine.work(), found

    async def follow(self, request: dict[str, Any]) -> AsyncIterator[Partial | Found]:
        """Partial results as they come, and at the end as `translate`."""
        loop, parts = asyncio.get_running_loop(), asyncio.Queue[Partial | None]()

        def hear(part: Partial) -> None:
            loop.call_soon_threadsafe(parts.put_nowait, part)

        answer = asyncio.ensure_future(self.translate({**request, "on_partial": hear}))
        answer.add_done_callback(lambda _: parts.put_nowait(None))
        try:
            while (part := await parts.get()) is not None:
                yield part
            yield await answer
        finally:
            answer.cancel()

    def check_health(self) -> None:
        """Ray replaces a replica whose engine is over."""
        if self.engine.closed:
            raise RuntimeError("the engine is closed")


class Replicas:
    """The replicas behind a handle, as one engine. It lives in one event loop. max_queue: most requests that are not answered."""

    def __init__(self, handle: DeploymentHandle, flags: dict[str, Any], max_queue: int | None = None):
        self.handle, self.flags, self.max_queue = handle, flags, max_queue
        self.description: Description | None = None
        self.restarts = 0
        self.waiting: tuple = ()  # Ray has the queue
        self.closed = False
        self.tasks: set[asyncio.Task] = set()
        self.pace = Pace()
        self.done: dict[str, Work] = {}  # by replica

    def start(self) -> None:
        """Begin to ask for a replica; called in the event loop."""
        self.loading = asyncio.get_running_loop().create_task(self.load())

    async def load(self) -> None:
        """Wait until a replica is there; note what it has loaded."""
        while self.description is None and not self.closed:
            try:
                found = await self.handle.describe.remote()
            except RayActorError:
                await asyncio.sleep(PAUSE)
                continue
            if isinstance(found, UsageError):
                return
            self.description = found

    @property
    def pending(self) -> int:
        """Requests that are not answered."""
        return len(self.tasks)

    @property
    def ready(self) -> bool:
        """Whether there is something that can decode."""
        return self.description is not None and not self.closed

    def submit(self, source: str, *, on_partial: Callable[[Partial], None] | None = None, **request: Any) -> Future[Answer]:
        """As Engine.submit, in the event loop."""
        if self.closed:
            raise Closed("the engine is closed")
        if self.max_queue is not None and self.pending >= self.max_queue:
            raise Busy(self.pending, self.pace.until_half(self.pending))
        future: Future[Answer] = Future()
        loop = asyncio.get_running_loop()
        task = loop.create_task(self.run({"source": source, **request}, on_partial, future))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        future.add_done_callback(lambda f: loop.call_soon_threadsafe(task.cancel) if f.cancelled() else None)
        return future

    async def run(self, request: dict[str, Any], on_partial: Callable[[Partial], None] | None, future: Future[Answer]) -> None:
        """Ask replicas until one has lived to answer."""
        found: Any = None
        for _ in range(TRIES):
            try:
                name, work, found = await (self.asked(request) if on_partial is None else self.followed(request, on_partial))
            except RayActorError:
                self.restarts += 1
                await asyncio.sleep(PAUSE)
                continue
            except Exception as error:
                found = RuntimeError(f"the sentence could not be translated: {type(error).__name__}: {str(error).splitlines()[0]}")
                break
            self.done[name] = work
            break
        else:
            found = WorkerDied(f"the sentence could not be translated: {TRIES} replicas died over it")
        self.pace.one_is_done()
        resolve(future, found)

    async def asked(self, request: dict[str, Any]) -> Found:
        """A replica's answer."""
        response = self.handle.translate.remote(request)
        try:
            return await response
        except asyncio.CancelledError:
            response.cancel()
            raise

    async def followed(self, request: dict[str, Any], on_partial: Callable[[Partial], None]) -> Found:
        """A replica's answer, and its partial results meanwhile."""
        parts: Any = self.handle.options(stream=True).follow.remote(request)
        try:
            async for part in parts:
                if not isinstance(part, Partial):
                    return part
                on_partial(part)
        except asyncio.CancelledError:
            parts.cancel()
            raise
        raise RuntimeError("the stream ended before its answer")

    def work(self) -> Work:
        """Counts of the work of all replicas that have answered."""
        total = Work()
        for work in self.done.values():
            total.add(work)
        return total

    def close(self) -> None:
        """Take no more requests; the replicas are Ray's to end."""
        self.closed = True
