"""Answers that clients wait for."""

import asyncio
import gc
from concurrent.futures import Future

import pytest

pytest.importorskip("fastapi")

from fairseq_ext.engine.jobs import Description
from fairseq_ext.search.request import Request
from fairseq_ext.serve import Settings
from fairseq_ext.serve.models import Model, Models
from fairseq_ext.serve.records import Text
from fairseq_ext.serve.service import Disconnected, Service


class ConnectionLost:
    """A request whose client leaves as soon as its texts are submitted."""

    def __init__(self, futures):
        self.futures = futures

    async def is_disconnected(self) -> bool:
        return bool(self.futures)

    async def receive(self) -> dict:
        return {"type": "http.disconnect"}


def test_a_client_that_hangs_up_cancels_its_requests_and_leaves_nothing_in_the_log(caplog):
    futures: list[Future] = []

    def submit(request, on_partial) -> Future:
        futures.append(Future())
        return futures[-1]

    class One(Models):
        async def __aenter__(self) -> Model:
            return Model(submit, Description("", "de", "en", 1, 1, 1, None, ""))

        async def __aexit__(self, *error) -> None:
            pass

        def using(self, pair, waits):
            return self

    async def wait() -> None:
        texts = [Text(Request(source=each)) for each in ("Ja.", "Nein.")]
        with pytest.raises(Disconnected):
            service = Service(One(), Settings())
            await service.answered(ConnectionLost(futures), texts, ("de", "en"))
        for _ in range(5):
            await asyncio.sleep(0)
        gc.collect()

    asyncio.run(wait())
    assert len(futures) == 2 and all(future.cancelled() for future in futures)
    assert not caplog.records
