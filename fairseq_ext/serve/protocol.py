"""What the server asks of an engine: `fairseq_ext.Engine` has it, and so have replicas elsewhere (ray_app.py)."""

from __future__ import annotations

from collections.abc import Sized
from concurrent.futures import Future
from typing import Any, Protocol

from fairseq_ext.engine.jobs import Answer, Description, Work


class AnyEngine(Protocol):
    """Takes requests at any time."""

    flags: dict[str, Any]  # of the model and its decoding, as of `Translator`
    restarts: int  # workers that died and were replaced

    @property
    def description(self) -> Description | None:
        """What is loaded; None as long as nothing is."""

    @property
    def waiting(self) -> Sized:
        """Requests in the queue."""

    @property
    def pending(self) -> int:
        """Requests that are not answered."""

    @property
    def ready(self) -> bool:
        """Whether there is something that can decode."""

    def submit(self, *args: Any, **request: Any) -> Future[Answer]:
        """As `Engine.submit`."""

    def work(self) -> Work:
        """Counts of all work so far."""

    def close(self) -> None:
        """Take no more requests."""
