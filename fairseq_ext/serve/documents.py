"""Files that are translated while their sender does something else, and wait to be fetched."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import shutil
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fastapi import HTTPException, Request, UploadFile

from fairseq_ext.core.errors import UsageError
from fairseq_ext.engine.text import ThroughEngine
from fairseq_ext.engine.tickets import Busy
from fairseq_ext.search.request import GlossaryFile
from fairseq_ext.search.request import Request as Sentence
from fairseq_ext.serve import Settings
from fairseq_ext.serve.models import Pair
from fairseq_ext.serve.service import Service, ended
from fairseq_ext.text.files import Report, beginning, translate
from fairseq_ext.text.formats import passes
from fairseq_ext.text.office import TooMany
from fairseq_ext.text.splitter import plain_ends
from fairseq_ext.text.stopping import until

KEEP_SECONDS = 3600.0  # seconds for which a translated file can be fetched
READ = 2000  # characters by which the language of a text is detected
# files of one owner, and those that are translated at once: their segments share the engine's queue
MOST, AT_ONCE = 100, 2


@contextlib.contextmanager
def counted() -> Iterator[None]:
    """Read a file in this context (raises HTTPException 413 for too many segments)."""
    try:
        yield
    except TooMany as error:
        raise HTTPException(413, f"the file has more than {error}: divide it") from None


def stoppable(engine: ThroughEngine, settings: Settings, given: Path, target: Path) -> Report:
    """Translate a file whose segments are counted before; its reading ends where the engine is
    stopped. Errors: those of `translate` and of `counted`."""
    segments, most = 0, settings.max_segments

    def count(text: str, format: str) -> Iterator[str]:
        nonlocal segments
        for item in passes(format, plain_ends)[-1](text):
            if not isinstance(item, str):
                segments += 1
                engine.total += len(item.plain)
            if segments > most:
                raise TooMany(f"{most} sentences")
        yield text

    limits = settings.max_unpacked, most
    with until(lambda: engine.stopped), counted():
        for through in (count, engine):
            report = translate(str(given), str(target), through, given.name, *limits)
            engine.moved = time.monotonic()
    return report


@dataclass
class Document:
    """A file that is translated.

    status: "queued", "translating", "done" or "error", with its message; since: when its
    translation began, by time.monotonic(); engine: what its texts go through.
    """

    owner: str
    folder: Path
    name: str
    id: str
    key: str
    status: str = "queued"
    message: str = ""
    since: float = 0.0
    engine: ThroughEngine | None = None
    task: asyncio.Task[None] | None = None

    @property
    def input(self) -> Path:
        return self.folder / "given" / self.name

    @property
    def output(self) -> Path:
        return self.folder / "made" / self.name

    @property
    def shown_name(self) -> str:
        """The name by which everybody who knows it may fetch a translation."""
        return f"{self.id}.{self.name}"

    @property
    def characters(self) -> int:
        """Characters that have been sent to the model."""
        return 0 if self.engine is None else self.engine.characters

    @property
    def seconds_left(self) -> float | None:
        """Seconds until it is done, where that can be said."""
        if self.status != "translating" or self.engine is None or not self.characters:
            return None
        spent = time.monotonic() - self.since
        return spent * max(0, self.engine.total - self.characters) / self.characters


class Documents:
    """The documents of all owners. They are lost when the server ends."""

    def __init__(self, service: Service):
        self.service = service
        self.documents: dict[str, Document] = {}
        self.folder: tempfile.TemporaryDirectory | None = None
        # of each owner
        self.places = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(AT_ONCE))

    @contextlib.asynccontextmanager
    async def adding(self, owner: str, name: str, given: UploadFile) -> AsyncIterator[Document]:
        """Add a document whose translation is not started; it is deleted if this context ends with
        an error. Raise HTTPException 429 if its owner has `MOST` already. owner: "" for none."""
        if owner and sum(each.owner == owner for each in self.documents.values()) >= MOST:
            raise HTTPException(
                429,
                f"{MOST} documents wait to be fetched: fetch one first",
                {"Retry-After": "60"},
            )
        content = await given.read()
        if self.folder is None or not Path(self.folder.name).is_dir():
            self.folder = tempfile.TemporaryDirectory(prefix="fairseq_ext-documents-")
        folder = Path(tempfile.mkdtemp(dir=self.folder.name))
        made = Document(owner, folder, name, uuid.uuid4().hex, secrets.token_hex(32))
        self.documents[made.id] = made
        try:
            for path in (made.input, made.output):
                path.parent.mkdir()
            made.input.write_bytes(content)
            yield made
        except BaseException as error:
            self.delete(made)
            if isinstance(error, UsageError):
                raise UsageError(str(error).replace(str(made.input), name)) from None
            raise

    async def beginning(self, document: Document) -> str:
        """Return the first sentences, by which its language is detected. Errors: those of
        `read_in_time` and of `counted`."""
        settings = self.service.settings
        limits = settings.max_unpacked, settings.max_segments
        with counted():
            return await self.service.read_in_time(
                beginning, str(document.input), READ, document.name, *limits
            )

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

    def keep(self, document: Document) -> None:
        """Delete a document when it could be fetched for `KEEP_SECONDS`."""
        asyncio.get_running_loop().call_later(KEEP_SECONDS, self.delete, document)

    async def run(self, document: Document, pair: Pair, glossaries: Sequence[GlossaryFile]) -> None:
        """Translate a document that its sender does not wait for; an error becomes its message.
        Where the engine's queue is full, it waits."""
        document.message = "the translation was interrupted"
        try:
            async with self.places[document.owner]:
                while document.status != "done":
                    try:
                        await self.translate(document, pair, glossaries)
                        document.status = "done"
                    except Busy as error:
                        await asyncio.sleep(error.retry_after)
        except HTTPException as error:
            document.message = str(error.detail)
            if error.status_code == 504:
                deadline = self.service.settings.deadline
                document.message = f"nothing was translated within {deadline:g} seconds: ask later"
        except (UsageError, RuntimeError, OSError) as error:
            said = getattr(error, "strerror", None) or str(error)
            document.message = said.replace(str(document.input), document.name)
        finally:
            if document.status != "done":
                document.status = "error"
            self.keep(document)

    async def translate(
        self,
        document: Document,
        pair: Pair,
        glossaries: Sequence[GlossaryFile] = (),
        request: Request | None = None,
    ) -> Report:
        """Translate a document as long as something is done within each deadline, and the client of
        the request, if there is one, is there; one of the same language stays as it is. Errors:
        HTTPException 504, Disconnected, and what the engine raises."""
        service = self.service
        if pair[0] == pair[1]:
            document.input.rename(document.output)
            return Report()
        async with service.using(request, pair) as model:
            document.status, document.since = "translating", time.monotonic()
            document.engine = engine = ThroughEngine(
                model.submit,
                Sentence(glossaries=tuple(glossaries)),
                partial(service.passes, model=model),
            )
            job = asyncio.ensure_future(
                asyncio.to_thread(
                    stoppable, engine, service.settings, document.input, document.output
                )
            )
            try:
                await ended(request, job, service.settings.deadline, lambda: engine.moved)
                return job.result()
            finally:
                engine.stop()
                await asyncio.wait([job])
                if not job.cancelled():
                    job.exception()  # it has been read: asyncio logs it otherwise
