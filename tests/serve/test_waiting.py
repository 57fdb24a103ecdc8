"""Answers that clients wait for."""

import asyncio
import gc
from concurrent.futures import Future

import pytest

pytest.importorskip("fastapi")

from fairseq_ext.serve.service import Disconnected, answers


class ConnectionLost:
    """A request whose client is gone."""

    async def receive(self) -> dict:
        return {"type": "http.disconnect"}


def test_a_client_that_hangs_up_cancels_its_requests_and_leaves_nothing_in_the_log(caplog):
    futures: list[Future] = [Future(), Future()]

    async def wait() -> None:
        with pytest.raises(Disconnected):
            await answers(ConnectionLost(), futures, 10.0)
        for _ in range(5):
            await asyncio.sleep(0)
        gc.collect()

    asyncio.run(wait())
    assert all(future.cancelled() for future in futures)
    assert not caplog.records
