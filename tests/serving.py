"""A server in a thread of this process, over an engine of the demo model, and the command in a
process of its own; one engine for all tests of serve/, and a server over it. conftest.py names this
file (a second conftest would hide the first)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import subprocess
import threading
import time
from dataclasses import replace

import demo_model
import httpx
import pytest
import uvicorn
import warm
from demo_model import ROOT

from fairseq_ext import Engine, Translator
from fairseq_ext.serve import Settings
from fairseq_ext.serve.app import Server
from fairseq_ext.serve.guard import protocol
from fairseq_ext.serve.models import Models, Served

JSON, TSV = ({"Content-Type": kind} for kind in ("application/json", "text/tab-separated-values"))
FLAGS = demo_model.FLAGS | dict(beam=5, stop="deadly", stream_width=8)


def head(path, body, host="localhost", kind="application/json"):
    """The header of a request for a raw socket."""
    return (
        f"POST {path} HTTP/1.1\r\n"
        f"Host: {host}\r\n"
        f"Content-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "\r\n"
    ).encode()


def raw_socket(client):
    """A connection to the server of a client."""
    return socket.create_connection((client.base_url.host, client.base_url.port), timeout=60)


def v1(client, body):
    """The answer of /v1/translate."""
    return client.post("/v1/translate", json=body)


def answered(client, body):
    """What it says."""
    return v1(client, body).json()


def metric(client, name):
    """The value of a metric, by its name without `fairseq_ext_`, with its labels."""
    lines = client.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(f"fairseq_ext_{name} ")).split()[1])


def libre(client, q, **more):
    """The answer of LibreTranslate's /translate, from German to English."""
    return client.post("/translate", json={"q": q, "source": "de", "target": "en", **more}).json()


def upload(
    client,
    name,
    content,
    languages=("de", "en"),
    route="/translate_file",
    key="",
):
    """The answer to a file, in LibreTranslate's API or at DeepL's /v2/document."""
    end = "_lang" if route.startswith("/v2") else ""
    named = zip(("source" + end, "target" + end), languages, strict=True)
    data = {side: code for side, code in named if code != "auto" or not end}
    headers = {"X-API-Key": key} if key else {}
    return client.post(route, files={"file": (name, content)}, data=data, headers=headers)


@contextlib.contextmanager
def listening(engine, settings, server=None):
    """A client of a server over this engine, which stays when the server goes."""
    server = server or Server(Models(engine), settings)
    sock = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        server.app,
        log_level="error",
        log_config=None,  # the loggers' handlers stay
        lifespan="off",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=settings.keep_alive,
        http=protocol(settings),
    )
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.02)
    with httpx.Client(base_url=f"http://127.0.0.1:{sock.getsockname()[1]}", timeout=180) as client:
        yield client
    running.should_exit = True
    thread.join(30)


def deepl_routes(client):
    """The methods, paths and fields of DeepL's API, as the documentation of the server has them."""
    return [
        (method.upper(), path, fields_of(route.get("requestBody", {}).get("content", {})))
        for path, methods in client.get("/openapi.json").json()["paths"].items()
        for method, route in methods.items()
        if path.startswith(("/v2/", "/v3/"))
    ]


def fields_of(content):
    """The names of the fields of a body, by its content types."""
    return sorted({name for kind in content.values() for name in kind["schema"]["properties"]})


def until(condition, seconds=60.0):
    """Wait for a condition; whether it came."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(condition())


def ended(client, made, key=""):
    """The status of a document that is done or has failed."""
    found = {"status": "queued"}
    end = time.monotonic() + 60
    while found["status"] not in ("done", "error"):
        assert time.monotonic() < end
        body, headers = {"document_key": made["document_key"]}, {"X-API-Key": key} if key else {}
        path = f"/v2/document/{made['document_id']}"
        found = client.post(path, json=body, headers=headers).json()
        time.sleep(0.02)
    return found


@pytest.fixture
def started():
    """Starts the command on a folder and a free port; returns the process, a client of it
    and what it says."""
    with contextlib.ExitStack() as stack:

        def start(*more):
            data = [] if {"--models", "--data"} & {*more} else ["--data", FLAGS["data"]]
            command = [
                warm.python(),
                "-m",
                "fairseq_ext.serve",
                *data,
                "--cpu",
                "--port",
                "0",
                *more,
            ]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
            stack.callback(process.wait)
            stack.callback(process.kill)
            said = ""
            for line in process.stderr:
                said += line
                if line.startswith(("ready:", "error:")):
                    break
            threading.Thread(target=process.stderr.read, daemon=True).start()
            url = re.search(r"listening on (http://\S+?)(;|$)", said, re.M)[1]
            client = stack.enter_context(httpx.Client(base_url=url, timeout=120))
            return process, client, said

        yield start


@pytest.fixture(scope="session")
def engine():
    """Its workers die over a source of 4 tokens, and fail at one of 5 (tests/engine/deadly.py)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIRSEQ_EXT_STRATEGIES", str(ROOT / "tests" / "engine" / "deadly.py"))
        # its process has read the variable before other tests run
        made = Engine(**FLAGS, max_queue=200)
        made.wait(180)
    with made:
        yield made


@pytest.fixture(scope="session")
def translator():
    """Of the engine's model."""
    return Translator(**{**FLAGS, "stop": "count", "stream_width": None})


@pytest.fixture(scope="session")
def lines():
    found = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()
    return [line for line in found if len(line.split()) > 5][:20]


@pytest.fixture(scope="session")
def settings(tmp_path_factory):
    return Settings(
        glossary_folder=tmp_path_factory.mktemp("glossaries"), max_body=1 << 16, max_lines=300
    )


@pytest.fixture(scope="session")
def client(engine, settings):
    with listening(engine, settings) as made:
        yield made


@pytest.fixture(scope="session")
def two_ways(engine, settings):
    """A client of a server of two pairs of languages, one engine behind both: what it says of the
    second is no translation, but a client cannot know."""

    class TwoWays(Models):
        served = Served([("de", "en"), ("en", "de")], ("de", "en"))

    more = replace(settings, max_body=1 << 20)
    with listening(engine, more, Server(TwoWays(engine), more)) as made:
        yield made


@pytest.fixture
def serving(engine, settings):
    """Starts a server with other settings."""
    return lambda **changes: listening(engine, replace(settings, **changes))


@pytest.fixture
def guarded(serving, tmp_path):
    """Starts a server that knows these keys."""

    def start(*keys, **changes):
        hashes = (hashlib.sha256(key.encode()).hexdigest() for key in keys)
        (tmp_path / "keys").write_text("\n".join(hashes), encoding="utf-8")
        return serving(api_keys=str(tmp_path / "keys"), **changes)

    return start
