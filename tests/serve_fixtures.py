"""One engine for all tests of serve/, and a server over it; conftest.py names this file (a second
conftest would hide the first)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import httpx
import pytest
from serving import FLAGS, ROOT, listening

from fairseq_ext import Engine, Translator
from fairseq_ext.serve import Settings
from fairseq_ext.serve.app import Server
from fairseq_ext.serve.models import Models, Served


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Its workers die over a source of 4 tokens, and fail at one of 5 (tests/engine/deadly.py)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIRSEQ_EXT_STRATEGIES", str(ROOT / "tests" / "engine" / "deadly.py"))
        # its process has read the variable before other tests run
        made = Engine(**FLAGS, max_queue=200)
        made.wait(180)
    with made:
        yield made


@pytest.fixture(scope="session")
def translator() -> Translator:
    """Of the engine's model."""
    return Translator(**{**FLAGS, "stop": "count", "stream_width": None})


@pytest.fixture(scope="session")
def lines() -> list[str]:
    found = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()
    return [line for line in found if len(line.split()) > 5][:20]


@pytest.fixture(scope="session")
def settings(tmp_path_factory) -> Settings:
    return Settings(
        glossary_folder=tmp_path_factory.mktemp("glossaries"), max_body=1 << 16, max_lines=300
    )


@pytest.fixture(scope="session")
def client(engine, settings) -> Iterator[httpx.Client]:
    with listening(engine, settings) as made:
        yield made


@pytest.fixture(scope="session")
def two_ways(engine, settings) -> Iterator[httpx.Client]:
    """A client of a server of two pairs of languages, one engine behind both: what it says of the
    second is no translation, but a client cannot know."""

    class TwoWays(Models):
        served = Served([("de", "en"), ("en", "de")], ("de", "en"))

    more = replace(settings, max_body=1 << 20)
    with listening(engine, more, Server(TwoWays(engine), more)) as made:
        yield made


@pytest.fixture
def serving(engine, settings) -> Callable:
    """Starts a server with other settings."""
    return lambda **changes: listening(engine, replace(settings, **changes))
