"""Wrong requests, clients that hang up or read slowly, full queues, workers that die: one clear
answer to every accepted request, and one sentence to every refused one, with a status that says
whose fault it is.

refusals.jsonl has a line a request, also such as a form or a page of another site could send: `to`,
`json` or `body`, `headers` (both as Latin-1), `status`, and what the sentence `says`: its
beginning, all of it ("$" behind it), or a part ("…" before it).
"""

import asyncio
import contextlib
import gc
import hashlib
import hmac
import json
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import sentencepiece
from serving import FLAGS, JSON, head, listening, raw_socket, until, upload, v1

from fairseq_ext.serve import bodies
from fairseq_ext.serve.app import Server
from fairseq_ext.serve.guard import Keys
from fairseq_ext.serve.models import Models
from fairseq_ext.serve.service import Stream

SOURCE = "Der Patient hat einen Port."
PAIR = {"source": "de", "target": "en"}
GUARDED = ["POST /v1/translate", "POST /v1/translate/stream"]
GUARDED += [f"GET /{path}" for path in ("metrics", "v1/glossaries", "v1/model")]
GUARDED += [f"{way} /v1/glossaries/x" for way in ("GET", "PUT", "DELETE")]


def test_a_body_that_is_too_large_is_not_read_to_its_end(client):
    # without a length
    chunks = client.post("/v1/translate", content=(b"x" * 8192 for _ in range(64)), headers=JSON)
    assert chunks.status_code == 413

    def endless():
        while True:
            yield b"x" * 8192
            time.sleep(0.01)

    begin = time.monotonic()
    try:
        assert client.post("/v1/translate", content=endless(), headers=JSON).status_code == 413
    except httpx.TransportError:  # the server has disconnected
        pass
    assert time.monotonic() - begin < 60


def test_keys(serving, tmp_path):
    file = tmp_path / "keys"
    first, second = (hashlib.sha256(key).hexdigest() for key in (b"right", b"other"))
    file.write_text(f"# ours\n{first} me\n{second.upper()}\n", encoding="utf-8")
    with serving(api_keys=str(file)) as client:

        def answer(what, headers):
            method, path = what.split()
            body = {"source": SOURCE} if method == "POST" else None
            return client.request(method, path, headers=headers, json=body)

        for each in GUARDED:
            found = answer(each, {"X-Requested-With": "x"})
            assert found.status_code == 401 and found.headers["www-authenticate"] == "Bearer", each
            assert found.json()["error"].startswith("this server asks")
        for key in ({"Authorization": "Bearer right"}, {"X-API-Key": "other"}):
            assert [answer(each, key).status_code for each in GUARDED[:5:2]] == [200] * 3
        wrong = answer(GUARDED[0], {"Authorization": "Bearer wrong"})
        assert wrong.status_code == 403
        assert wrong.json()["error"].startswith("this server does not know the key")
        for path in "/health /ready / /docs /languages".split():
            assert client.get(path).status_code == 200
        no_key = "Please contact the server operator to get an API key"
        wrong = (None, 400, no_key), ("x", 403, "Invalid API key")
        for key, *expected in (*wrong, ("right", 200, None)):
            more = {"q": SOURCE, "api_key": key}
            whole = PAIR | more
            for sent in ({"json": whole}, {"data": whole}, {"data": PAIR, "params": more}):
                found = client.post("/translate", **sent)
                assert [found.status_code, found.json().get("error")] == expected, sent
        nested = {"q": SOURCE, **PAIR, "x": {"api_key": "right"}}
        assert client.post("/translate", json=nested).status_code == 400
        body = client.get("/spec").json()["paths"]["/translate"]["post"]["requestBody"]["content"]
        assert "api_key" in body["application/json"]["schema"]["properties"]


def test_json_is_parsed_for_a_known_key_alone(guarded, monkeypatch):
    """Be it in a header or in the body itself: a megabyte of brackets takes a second."""
    parsed, read = [], bodies.read_json
    monkeypatch.setattr(bodies, "read_json", lambda body: parsed.append(body) or read(body))
    begin = b'{"q": "a", "source": "de", "target": "de", "api_key": %s, "x": []}'
    keys = (b'"wrong"', b"5", b'"', b'"\\ud800"', b'"", "y": {"api_key": 5}')
    wrong = [("/translate", JSON, begin % key) for key in keys]
    for route in ("/translate", "/detect", "/v2/translate"):
        wrong += [(route, JSON | more, b"[" * 9999) for more in ({}, {"X-API-Key": "wrong"})]
    with guarded("right") as client:
        for route, headers, content in wrong:
            assert client.post(route, content=content, headers=headers).is_client_error
        assert not parsed
        whole = begin % b'"r\\u0069ght"'
        found = client.post("/translate", content=whole, headers=JSON).json()
        assert found == {"translatedText": "a"} and parsed == [whole]


def test_every_known_hash_is_compared(monkeypatch, tmp_path):
    """The time does not say which key was nearest."""
    file = tmp_path / "keys"
    file.write_text("".join(f"{i:064x}\n" for i in range(5)), encoding="utf-8")
    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(b) or a == b)
    assert not Keys(str(file)).admit("x") and len(compared) == 5


def test_the_deadline_frees_the_rows(serving, engine, lines):
    with serving(deadline=0.01) as client:
        response = v1(client, [{"source": " ".join(lines[:4])}] * 40)
        assert response.status_code == 504 and response.json()["error"].startswith(
            "the translation took more than 0.01 seconds"
        )
        stream = client.post("/v1/translate/stream", json={"source": " ".join(lines[:6])})
        assert "event: error" in stream.text
    assert nothing_pending(engine)


def form(client, content):
    """The body of an uploaded file, and its type."""
    given = {"files": {"file": ("a.txt", content)}, "data": PAIR}
    request = client.build_request("POST", "/translate_file", **given)
    return request.read(), request.headers["content-type"]


def test_a_file_ends_with_its_client_and_where_nothing_is_done_for_a_deadline(
    serving, engine, lines, monkeypatch
):
    text = " ".join(lines * 20).encode()
    with serving(max_body=4 << 20) as client:
        host = f"{client.base_url.host}:{client.base_url.port}"
        body, kind = form(client, text)
        with raw_socket(client) as raw:
            raw.sendall(head("/translate_file", body, host, kind) + body)
            assert until(lambda: engine.pending > 0)
        assert nothing_pending(engine)
    with serving(deadline=0.5) as client:
        monkeypatch.setattr(engine, "send", lambda request, on_partial: Future())
        response = upload(client, "a.txt", text)
        assert response.status_code == 504
        assert "took more than 0.5 seconds" in response.json()["error"]
        monkeypatch.undo()
        answers = iter([engine.submit(each).result() for each in lines[:6]])
        timers = []

        def steady(request, on_partial):
            """A sentence every 0.2 seconds."""
            future, answer = Future(), next(answers)
            timers.append(threading.Timer(0.2 * (1 + len(timers)), future.set_result, [answer]))
            timers[-1].start()
            return future

        monkeypatch.setattr(engine, "send", steady)
        response = upload(client, "a.txt", "\n".join(lines[:6]).encode())
        assert response.status_code == 200 and len(timers) == 6, "something was done all the time"


@pytest.mark.parametrize("end", ["", "/stream"])
def test_a_client_that_hangs_up_is_cancelled_and_leaves_nothing_in_the_log(
    client, engine, lines, end, caplog, monkeypatch
):
    sent, send = [], engine.send
    monkeypatch.setattr(engine, "send", lambda *given: sent.append(send(*given)) or sent[-1])
    record = {"source": " ".join(lines[:8]), "prefix": "The patient"}
    body = json.dumps(record if end else [record] * 60).encode()
    with raw_socket(client) as raw:
        raw.sendall(head("/v1/translate" + end, body) + body)
        assert raw.recv(1 << 12) if end else until(lambda: engine.pending > 0)  # it has begun
    assert nothing_pending(engine) and any(future.cancelled() for future in sent)
    time.sleep(0.1)
    gc.collect()  # says of an error that no one has read
    assert not caplog.records


@pytest.mark.parametrize(
    ("path", "given"),
    [
        *(("/v1/translate", {"source": SOURCE}), ("/v1/translate/stream", {"source": SOURCE})),
        ("/translate", {"q": SOURCE, **PAIR}),
        ("/v2/translate", {"text": [SOURCE], "source_lang": "DE", "target_lang": "EN"}),
        ("/translate_file", None),
    ],
)
def test_a_client_that_has_gone_while_the_model_was_loaded_costs_no_work(
    client, engine, settings, monkeypatch, path, given
):
    """A server that waits for its model, and hears then that no one waits for it."""
    submitted, (begun, loaded) = [], (threading.Event(), threading.Event())
    monkeypatch.setattr(engine, "send", lambda *given: submitted.append(Future()) or submitted[-1])
    server = Server(Models(engine), settings)
    using = server.models.using

    @contextlib.asynccontextmanager
    async def slow(pair, waits):
        begun.set()
        while not loaded.is_set():
            await asyncio.sleep(0.01)
        async with using(pair, waits) as model:
            yield model

    monkeypatch.setattr(server.models, "using", slow)
    body, kind = json.dumps(given).encode(), "application/json"
    if given is None:
        body, kind = form(client, b"Akte")
    with listening(engine, settings, server) as found:
        with socket.create_connection((found.base_url.host, found.base_url.port)) as raw:
            raw.sendall(head(path, body, kind=kind) + body)
            assert begun.wait(60)
        gone = f'{{route="{path}",status="499"}}'
        time.sleep(0.1)  # the server hears of it
        loaded.set()
        assert until(lambda: gone in found.get("/metrics").text)
    assert not submitted


def test_a_stream_whose_client_has_gone_before_its_first_event_is_cancelled(engine, settings):
    """The events begin when they are read, which they never are."""
    future = Future()

    async def story():
        stream = Stream(60.0, dict)
        stream.future = future

        async def gone():
            return {"type": "http.disconnect"}

        async def send(message):
            await asyncio.sleep(1)

        await stream({"type": "http", "asgi": {}}, gone, send)

    asyncio.run(story())
    assert future.cancelled()


def test_a_full_queue_is_reported_and_what_was_accepted_is_answered(client, engine, lines):
    """10,000 requests at once: each is answered, some of them with 429."""
    done = []
    lock = threading.Lock()

    def query(number):
        response = v1(client, [{"source": lines[(number + i) % len(lines)]} for i in range(100)])
        with lock:
            done.append(response.status_code)
        if response.status_code == 429:
            assert int(response.headers["retry-after"]) >= 1
            said = "requests are waiting, which is all that the queue takes"
            assert said in response.json()["error"]
        else:
            assert response.status_code == 200 and all(each["text"] for each in response.json())

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(query, range(100)))
    assert len(done) == 100 and 429 in done and 200 in done
    assert nothing_pending(engine)


def test_a_request_that_kills_its_worker_is_answered_with_the_error(client, lines):
    """A source of four tokens (tests/engine/deadly.py); those that come with it have
    their translations."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=FLAGS["sentencepiece_model"])
    parts = (" ".join(line.split()[:n]) for line in lines for n in range(1, 6))
    deadly = next(part for part in parts if len(pieces.encode(part)) + 1 == 4)
    with ThreadPoolExecutor(3) as pool:
        texts = (lines[0], deadly, lines[1])
        before, found, behind = pool.map(lambda text: v1(client, {"source": text}), texts)
    assert before.json()["text"] and behind.json()["text"]
    said = "the sentence could not be translated: two worker processes died over it"
    assert (found.status_code, found.json()) == (500, {"error": said})


def nothing_pending(engine):
    return until(lambda: engine.pending == 0)


# ---- Refusals

TERMS = {"source_lang": "de", "target_lang": "en", "entries": "a\tb", "entries_format": "tsv"}
ROWS = [json.loads(line) for line in Path(__file__).with_name("refusals.jsonl").open()]
DEEP, DEEPL = "the body has lists and objects nested more than 100 deep", "POST /v2/glossaries"
LARGE = (
    ("POST /v1/translate", [[]] * 2, 400, DEEP + ": make it flat"),
    ("POST /v1/translate", {"source": "a", "id": []}, 400, DEEP),
    ("POST /v1/translate", [{"source": "a"}] * 301, 400, "the request has 301 records and the"),
    ("POST /v1/translate", {"source": "wort " * 5000, "prefix": "a"}, 400, "the source has"),
    ("POST /v1/translate", {"source": "x" * 65536}, 413, "the body has more than 65536 bytes"),
    ("POST /v2/translate", {"text": ["a"] * 301, "target_lang": "EN"}, 400, "301 texts are more"),
    ("POST /v2/translate", {"text": "a" * 65536}, 413, "the body has more than 65536 bytes"),
    (DEEPL, {"name": "n" * 1025, **TERMS}, 400, "…has 1025 bytes and may have 1024"),
    (DEEPL, {"name": "n", **TERMS, "entries": "a\t" + "b" * 1025}, 400, "…a term of 1025 bytes"),
)
ROWS += [dict(zip(("to", "json", "status", "says"), row, strict=True)) for row in LARGE]


@pytest.fixture(scope="module")
def glossary(client):
    """The identifier of a glossary that no refused request changes; none is made."""
    made = client.post("/v2/glossaries", json={"name": "kept", **TERMS}).json()
    yield made["glossary_id"]
    assert client.get("/v3/glossaries/" + made["glossary_id"]).json()["name"] == "kept"
    assert client.get("/v2/glossaries").json() == {"glossaries": [made]}
    assert client.get(f"/v2/glossaries/{made['glossary_id']}/entries").text == "a\tb"
    assert client.get("/v1/glossaries").json() == {"glossaries": []}
    client.delete("/v2/glossaries/" + made["glossary_id"], headers={"X-Requested-With": "x"})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['to']} {row.get('says', '')}"[:60])
def test_a_refusal_is_one_sentence(client, glossary, row):
    method, path = row["to"].replace("GLOSSARY", glossary).split()
    content = json.dumps(row["json"]) if "json" in row else row.get("body", "")
    if row.get("says", "").startswith(DEEP):
        content = content.replace("[]", "[" * 970 + "]" * 970)
    given = content.encode("utf-8" if "json" in row else "latin-1")
    headers = {k: v.encode("latin-1") for k, v in (JSON | row.get("headers", {})).items()}
    answer = client.request(method, path, content=given, headers=headers)
    assert answer.status_code == row["status"], answer.text
    if answer.is_error:
        [(field, said)], says = answer.json().items(), row.get("says", "")
        assert field == ("message" if path.startswith(("/v2", "/v3")) else "error")
        assert "\n" not in said and "pydantic" not in said and "Traceback" not in said
        assert said.startswith(says.rstrip("$")) or (says[:1] == "…" and says[1:] in said), said
        assert said == says[:-1] or says[-1:] != "$", said
