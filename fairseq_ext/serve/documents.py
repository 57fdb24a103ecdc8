"""Files that are translated while their sender does something else, and wait to be fetched."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import HTTPException

from fairseq_ext.core.errors import UsageError
from fairseq_ext.engine.jobs import Answer, GlossaryFile
from fairseq_ext.engine.text import ThroughEngine
from fairseq_ext.engine.tickets import Busy
from fairseq_ext.serve.models import Model, Pair
from fairseq_ext.serve.service import Service
from fairseq_ext.text.archives import Report
from fairseq_ext.text.files import translate
from fairseq_ext.text.formats import passes
from fairseq_ext.text.splitter import plain_ends
from fairseq_ext.text.stopping import until

logger = logging.getLogger("fairseq_ext")
KEEP_SECONDS = 3600.0  # seconds for which a translated file can be fetched
AT_ONCE = 2  # files that are translated at once; their segments share the engine's queue
MOST = 100  # files of one owner


@contextlib.asynccontextmanager
async def translating(
    service: Service, model: Model, given: Path, target: Path, **request: Any
) -> AsyncIterator[tuple[asyncio.Future[Report], ThroughEngine]]:
    """Translate one file into another: the work, which ends with this context, and what its
    texts go through. request: keywords of `submit` for every segment."""
    engine = ThroughEngine(partial(model.submit, **request), partial(service.passes, model=model))
    more = given.name, service.settings.max_unpacked
    job = asyncio.ensure_future(
        asyncio.to_thread(stoppable, engine, str(given), str(target), engine, *more)
    )
    try:
        yield job, engine
    finally:
        engine.stop()
        await asyncio.wait([job])
        if not job.cancelled():
            job.exception()  # it has been read: asyncio logs it otherwise


def stoppable(engine: ThroughEngine, *args: Any) -> Report:
    """Translate a file (args: of `translate`); the reading ends where the engine is stopped."""
    with until(lambda: engine.stopped):
        return translate(*args)


@dataclass
class Document:
    """A file that is translated.

    status: "queued", "translating", "done" or "error", with its message; characters, total: that
    have been translated, and of the whole file, as far as they are known.
    """

    owner: str
    folder: Path
    name: str
    id: str
    key: str
    status: str = "queued"
    message: str = ""
    characters: int = 0
    total: int = 0
    since: float = 0.0  # when its translation began, by time.monotonic()
    task: asyncio.Task[None] | None = None

    @property
    def input(self) -> Path:
        return self.folder / "given" / self.name

    @property
    def output(self) -> Path:
        return self.folder / "made" / self.name

    @property
    def seconds_left(self) -> float | None:
        """Seconds until it is done, where that can be said."""
        if self.status != "translating" or not 0 < self.characters:
            return None
        spent = time.monotonic() - self.since
        return spent * max(0, self.total - self.characters) / self.characters


class Documents:
    """The documents of all owners. They are lost when the server ends."""

    def __init__(self, service: Service):
        self.service = service
        self.documents: dict[str, Document] = {}
        self.folder: tempfile.TemporaryDirectory | None = None
        self.places = asyncio.Semaphore(AT_ONCE)

    def new(self, owner: str, name: str, content: bytes) -> Document:
        """Add a document whose translation is not started; raise HTTPException 429 if its owner has
        `MOST` already."""
        if sum(each.owner == owner for each in self.documents.values()) >= MOST:
            raise HTTPException(
                429,
                f"{MOST} documents wait to be fetched: fetch one first",
                {"Retry-After": "60"},
            )
        if self.folder is None or not Path(self.folder.name).is_dir():
            self.folder = tempfile.TemporaryDirectory(prefix="fairseq_ext-documents-")
        folder = Path(tempfile.mkdtemp(dir=self.folder.name))
        made = Document(owner, folder, name, uuid.uuid4().hex, secrets.token_hex(32))
        try:
            for path in (made.input, made.output):
                path.parent.mkdir()
            made.input.write_bytes(content)
        except OSError:
            self.delete(made)
            raise
        self.documents[made.id] = made
        return made

    def get(self, identifier: str, key: str, owner: str) -> Document:
        """Return a document; raise HTTPException 404 if the owner has none of this identifier and
        key."""
        found = self.documents.get(identifier)
        if (
            found is None
            or found.owner != owner
            or not hmac.compare_digest(found.key.encode(), key.encode())
        ):
            raise HTTPException(404, "there is no such document: upload it again")
        return found

    def delete(self, document: Document) -> None:
        """Delete a document and its files."""
        self.documents.pop(document.id, None)
        shutil.rmtree(document.folder, ignore_errors=True)

    def start(self, document: Document, pair: Pair, glossaries: Sequence[GlossaryFile]) -> None:
        """Translate a document in a task of its own; one of the same language stays as it is."""
        document.task = asyncio.ensure_future(self.run(document, pair, glossaries))

    async def run(self, document: Document, pair: Pair, glossaries: Sequence[GlossaryFile]) -> None:
        """Translate a document; an error becomes its message."""
        document.message = "the translation was interrupted"
        try:
            if pair[0] == pair[1]:
                document.input.rename(document.output)
            else:
                async with self.places:
                    await self.translate(document, pair, glossaries)
            document.status = "done"
        except HTTPException as error:
            document.message = str(error.detail)
        except (UsageError, RuntimeError, OSError) as error:
            said = getattr(error, "strerror", None) or str(error)
            document.message = said.replace(str(document.input), document.name)
        finally:
            if document.status != "done":
                document.status = "error"
            asyncio.get_running_loop().call_later(KEEP_SECONDS, self.delete, document)

    async def translate(
        self, document: Document, pair: Pair, glossaries: Sequence[GlossaryFile]
    ) -> None:
        """Translate a document as long as something is done within each deadline; raises
        HTTPException 504, and what the engine does. Where the engine's queue is full, it waits."""
        deadline = self.service.settings.deadline
        document.total = await asyncio.to_thread(
            characters, document.input, document.output, self.service.settings.max_unpacked
        )
        async with self.service.models.using(pair, without_client) as model:

            def submit(source: str, **request: Any) -> Future[Answer]:
                future = model.submit(source, **request)
                document.characters += len(source)
                return future

            counted = Model(submit, model.description)
            document.status, document.since = "translating", time.monotonic()
            while True:
                document.characters = 0
                work = translating(
                    self.service, counted, document.input, document.output, glossaries=glossaries
                )
                async with work as (job, engine):
                    while not job.done():
                        left = engine.moved + deadline - time.monotonic()
                        if left <= 0:
                            said = f"nothing was translated within {deadline:g} seconds: ask later"
                            raise HTTPException(504, said)
                        await asyncio.wait([job], timeout=left)
                    try:
                        job.result()
                        return
                    except Busy as error:
                        again = error.retry_after
                await asyncio.sleep(again)


def characters(given: Path, target: Path, max_unpacked: int) -> int:
    """Return the number of characters of a file's segments; target: a file that may be written.
    max_unpacked and errors: see `translate`."""
    found = 0

    def count(text: str, format: str) -> Iterator[str]:
        nonlocal found
        for item in passes(format, plain_ends)[-1](text):
            found += 0 if isinstance(item, str) else len(item.plain)
        yield text

    translate(str(given), str(target), count, given.name, max_unpacked)
    return found


async def without_client() -> None:
    """Do nothing: a document is translated whether its sender is there or not."""
