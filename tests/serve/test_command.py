"""The command: what it says, what it refuses, and how it ends; who is let in, and for how long:
names, origins, slow clients, many of them."""

import contextlib
import hashlib
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import warm
from conftest import limited
from forked import forked
from serving import (
    FLAGS,
    JSON,
    ROOT,
    TSV,
    answered,
    head,
    metric,
    raw_socket,
    until,
    v1,
)
from sizes import drawn

from fairseq_ext.serve.__main__ import main

NEEDED = ["--path", FLAGS["path"], "--data", FLAGS["data"], "-s", "de", "-t", "en", "--cpu"]
SOURCE = "Der Patient hat einen Port."


def test_it_says_where_it_listens_and_ends_at_sigterm_when_what_runs_is_answered(
    started,
    tmp_path,
):
    flags = "--beam 4 --stop optimal --unnormalized --grace 60 --max-line-tokens 60"
    glossaries = f"--glossary-folder {tmp_path} --glossary-match casefold --glossary-repeat each"
    process, client, said = started(*flags.split(), *glossaries.split())
    assert "; no --api-keys, so this machine alone can reach it" in said
    assert re.search(r"ready: de to en, fairseq_ext:\S+stop:optimal", said)
    one = answered(client, {"source": SOURCE})
    assert one["certificate"] == {"proved": True, "gap": 0.0}
    long = {"source": "Ja , " * 60, "prefix": "Yes"}  # one sentence, as it must begin so
    assert "tokens and the limit is 60: " in answered(client, long)["error"]
    terms = b"patient\temployee\n"
    assert client.put("/v1/glossaries/clinic", content=terms, headers=TSV).status_code == 201
    for glossary in ("clinic", {"patient": "employee"}):
        record = {"source": "Der Patient sieht den Patient.", "glossary": glossary}
        twice = answered(client, record)
        assert twice["text"].count("employee") == 2 and "employee" not in one["text"], twice
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(v1, client, [{"source": SOURCE}] * 60)
        assert until(lambda: answer.done() or metric(client, "pending"))
        process.send_signal(signal.SIGTERM)
        assert answer.result().status_code == 200
    assert [each["text"] for each in answer.result().json()] == [one["text"]] * 60
    assert process.wait(60) == 0
    with pytest.raises(httpx.TransportError):
        client.get("/health")


def test_what_cannot_be_is_refused_in_one_sentence_before_a_worker_is_started(
    tmp_path, monkeypatch
):
    """commands.tsv has the flags, {0} being a folder, and the sentence's beginning: with the flags
    of a model, or alone."""
    monkeypatch.setattr("fairseq_ext.serve.__main__.Engine", None)
    (tmp_path / "models" / "de-en").mkdir(parents=True)  # a folder of no model
    for name, content in (("keys", "secret\n"), ("empty", "# none\n")):
        (tmp_path / name).write_text(content, encoding="utf-8")
    table = Path(__file__).with_name("commands.tsv").read_text(encoding="utf-8").splitlines()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        used = f"cannot listen on 127.0.0.1:{port} (Address already in use): choose another --host"
        for row in [*table, f"of a model\t--port {port}\t{used}"]:
            kind, flags, sentence = row.format(tmp_path).split("\t")
            more = NEEDED if kind == "of a model" else []
            done = forked(main, "serve", *flags.split(), *more)
            said = done.stderr.splitlines()[-1]
            assert done.status == 1 and said.startswith(f"error: {sentence}"), (row, done)


@drawn(0)  # long
def test_a_server_whose_standard_output_is_closed_starts():
    words = [sys.executable, "-m", "fairseq_ext.serve", *NEEDED, "--port", "0"]
    with subprocess.Popen(
        ["sh", "-c", 'exec "$@" >&-', "sh", *words], stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:
        assert server.stderr is not None
        said = [server.stderr.readline(), server.stderr.readline()]
        server.terminate()
        assert said[1].startswith("ready: ") and server.wait(60) == 0, said


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_sentence():
    done = forked(main, "serve", *NEEDED[2:], "--path", "/nowhere.pt", "--port", "0")
    assert done.status == 1 and "error: Model file not found: /nowhere.pt" in done.stderr


def test_a_key_is_made_with_the_line_for_its_file():
    def said(word):
        command = [warm.python(), "-m", "fairseq_ext.serve.guard", word]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.check_output(command, text=True, env=environment)

    key, line = (text.split()[1:] for text in said("me").splitlines())
    assert line == [hashlib.sha256(key[0].encode()).hexdigest(), "me"] and len(key[0]) > 40
    assert said("--help").startswith("usage: ") and "key:" not in said("--help")


# ---- Connections

BODY = {"source": SOURCE}
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
PATHS = ("/v1/translate", "/v1/translate/stream", "/translate")
UNFINISHED = head("/v1/translate", b"x" * 1000) + b"{"


def rest(sock):
    """What comes until the server closes the connection."""
    return b"".join(iter(lambda: sock.recv(1 << 20), b""))


def answer(client, sent, whole=False):
    """What comes for these bytes: its beginning, or all until the connection is closed."""
    with raw_socket(client) as sock:
        sock.sendall(sent)
        return rest(sock) if whole else sock.recv(1000)


def test_keys_guard_any_name_and_others_are_named_by_a_flag(serving, guarded):
    with serving(allowed_hosts=("mt.example",)) as client:
        named = {"Host": "mt.example:443", "Origin": "https://mt.example"}
        assert client.get("/health", headers=named).status_code == 200
        assert client.get("/health", headers={"Host": "evil.example"}).status_code == 403
    with guarded("right") as client:
        any_name = {"Host": "any.example", "Origin": "null"}
        assert client.get("/health", headers=any_name).status_code == 200


def test_a_client_that_hangs_up_inside_its_body_is_cancelled_and_no_fault(client, caplog):
    def counted(status):
        pattern = rf'requests_total{{.*status="{status}"}} (\S+)'
        return sum(map(float, re.findall(pattern, client.get("/metrics").text)))

    gone, faults = counted(499), counted(500)
    for sent in (
        *(head(path, b"x" * 1000) for path in PATHS),
        head("/v1/glossaries/x", b"x" * 1000).replace(b"POST", b"PUT"),
    ):
        with raw_socket(client) as sock:
            sock.sendall(sent + b"{")
            time.sleep(0.05)
    assert until(lambda: counted(499) == gone + 4) and counted(500) == faults
    assert "Traceback" not in caplog.text


def test_keys_are_read_before_the_body(guarded):
    with guarded("right") as client:
        for path in PATHS:  # and no body
            begin = head(path, b"x" * 1000).replace(b"\r\n\r\n", b"\r\nX-API-Key: wrong\r\n\r\n")
            assert answer(client, begin).startswith(b"HTTP/1.1 403 ")


def test_slow_clients_get_an_error_and_are_disconnected(serving):
    with serving(read_timeout=0.3) as client:
        for sent, what in ((UNFINISHED, b"body"), (b"", b"request"), (GET[:-5], b"request")):
            found = answer(client, sent, whole=True)
            assert found.startswith(b"HTTP/1.1 408 ")
            assert b"the %s has not come within 0.3 seconds" % what in found
        with raw_socket(client) as sock:  # the second request of a connection, too
            sock.sendall(GET + b"\r\n")
            assert sock.recv(1000).startswith(b"HTTP/1.1 200 ")
            sock.sendall(GET[:8])
            assert b"HTTP/1.1 408 " in rest(sock)


def test_connections_that_send_nothing_make_room(serving):
    with serving(max_connections=4) as client:
        held = [raw_socket(client) for _ in range(12)]
        for sock in held:
            sock.sendall(GET[:-5])
        assert answered(client, BODY)["text"]
        # all places are taken by requests whose body is still to come
        working = [raw_socket(client) for _ in range(4)]
        for sock in working:
            sock.sendall(UNFINISHED)
        time.sleep(0.1)
        assert answer(client, GET + b"\r\n").startswith(b"HTTP/1.1 503 ")
        for sock in held + working:
            sock.close()
        assert until(lambda: client.get("/health").status_code == 200)


def test_a_header_is_not_kept_without_a_limit(client):
    """Neither that of a first request, nor of one behind another, nor what follows a body in
    pieces; without a key."""
    get, chunked = GET, b"Transfer-Encoding: chunked"
    chunked = head("/v1/translate", b"").replace(b"Content-Length: 0", chunked)
    line = b"X-Many: " + b"x" * 1000 + b"\r\n"
    for begin in (get, get + b"\r\n" + get, chunked + b"1\r\n{\r\n0\r\n", get + b"X-Long: "):
        with raw_socket(client) as sock:
            sock.sendall(begin)
            sent = 0
            with contextlib.suppress(OSError):  # it is closed
                while sent < 10 << 20:
                    sock.sendall(line if begin[-2:] == b"\r\n" else line[8:-2])
                    sent += len(line)
            assert sent < 10 << 20
    for end in (b"", b"\r\n"):
        assert answer(client, get + line * 70 + end).startswith(b"HTTP/1.1 431 ")
    long = get.replace(b"health", b"x" * 70_000) + b"\r\n"
    refused = (long, 431, b"the header has more"), (b"x\r\n\r\n", 400, b"the request")
    for sent, status, said in refused:
        top, _, body = answer(client, sent, whole=True).partition(b"\r\n\r\n")
        assert top.startswith(b"HTTP/1.1 %d " % status) and b"application/json" in top
        assert json.loads(body)["error"].encode().startswith(said)
    assert client.get("/health", headers={"X-Some": "x" * 60000}).status_code == 200


def test_clients_that_do_not_read_make_room(serving):
    """Their answers are more than the buffers take."""
    with serving(max_connections=8, max_body=4 << 20) as client:
        body = json.dumps({"q": "x" * (3 << 20), "source": "de", "target": "de"}).encode()
        held = []
        for _ in range(8):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect((client.base_url.host, client.base_url.port))
            sock.sendall((head("/translate", body) + body) * 3)
            held.append(sock)
        assert until(lambda: answers_health(client), 30)
        for sock in held:
            sock.close()


def answers_health(client):
    try:
        return client.get("/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_a_client_that_sends_too_much_at_once_is_closed(client):
    get = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    size = len(client.get("/openapi.json").content)
    with contextlib.suppress(OSError):
        assert len(answer(client, get * 5000, whole=True)) < 5000 * size


def test_the_limits_as_they_are_typed(started):
    flags = "--read-timeout 3 --keep-alive 1 --max-connections 2 --allowed-hosts".split()
    _, client, _ = started(*flags, "mt.example, b.example")
    unfinished, idle, third = (raw_socket(client) for _ in range(3))
    assert unfinished.recv(1000) == b"", (
        "the third connection takes the place of the one that has waited longest"
    )
    begun = time.monotonic()
    idle.sendall(GET + b"\r\n")
    assert idle.recv(1000).startswith(b"HTTP/1.1 200 ")
    third.sendall(b"GET /health HTTP/1.1\r\n")
    assert third.recv(1000).startswith(b"HTTP/1.1 408 ")
    while idle.recv(1000):
        pass
    assert 0.9 < time.monotonic() - begun < 30
    statuses = [
        client.get("/health", headers={"Host": name}).status_code
        for name in ("mt.example", "b.example", "evil.example")
    ]
    assert statuses == [200, 200, 403]


def test_few_open_files_are_enough_and_no_request_is_lost_at_the_end(
    started,
    monkeypatch,
):
    """300 unfinished headers lock no one out; at SIGTERM every request on a connection that
    is kept gets an answer."""
    with limited(resource.RLIMIT_NOFILE, 256):
        process, client, _ = started()
    held = [raw_socket(client) for _ in range(300)]
    for sock in held:
        sock.sendall(b"POST /v1/translate HTTP/1.1\r\nHost: local")
    assert answered(client, BODY)["text"]
    for sock in held:
        sock.close()
    statuses = []

    def query(_):
        at, closes = client.base_url, False
        connection = http.client.HTTPConnection(at.host, at.port, timeout=60)
        while not closes:
            connection.request("POST", "/v1/translate", b'{"source": "Ja."}', JSON)
            response = connection.getresponse()
            closes = response.getheader("Connection") == "close"
            response.read()
            statuses.append(response.status)
            time.sleep(0.05)

    with ThreadPoolExecutor(20) as threads:
        queries = threads.map(query, range(20))
        assert until(lambda: len(statuses) > 100)
        process.send_signal(signal.SIGTERM)
        assert [*queries] == [None] * 20  # none has failed
    assert set(statuses) <= {200, 503} and process.wait(60) == 0
