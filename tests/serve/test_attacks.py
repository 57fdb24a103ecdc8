"""Every field of every route with every kind of JSON value, forms in any bytes, odd files and
addresses: each is answered, and none with status 500 or a traceback."""

import json
import logging
import random
from pathlib import Path
from urllib.parse import quote_from_bytes, unquote, urlsplit

import pytest
from conftest import warm_starts
from serving import FLAGS, JSON, TSV, deepl_routes, listening, raw_socket, upload
from sizes import drawn, part_of

from fairseq_ext import Engine

SOURCE = "Der Patient hat einen Port."
UMLAUTS = "Die Ärztin öffnet den Ordner."
PAIR = {"source": "de", "target": "en"}
NONE = "96ab91fd-e715-41a1-adeb-5d701f84a483"  # of no glossary
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
# values of JSON, and more for DeepL's API, where fields have other forms; its right fields; and
# those of the other routes
KINDS = json.loads(Path(__file__).with_name("values.json").read_text(encoding="utf-8"))
VALUES, RIGHT = KINDS["any"], KINDS["right"]


@pytest.fixture(scope="module")
def engine():
    """One that takes every text (serving.py's dies over some)."""
    with warm_starts():
        made = Engine(**FLAGS | {"stop": "count", "beam": 2})
        made.wait(180)
    with made:
        yield made


@pytest.fixture(scope="module")
def quiet(engine, settings):
    """A client of a server that has logged no traceback when the module's tests are done."""
    said = []

    class Kept(logging.Handler):
        def emit(self, record):
            said.append(self.format(record))

    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
    handler = Kept(logging.ERROR)
    with listening(engine, settings) as client:
        for each in loggers:
            each.addHandler(handler)
        yield client
        for each in loggers:
            each.removeHandler(handler)
    assert not said


def refused(response, *statuses):
    """The one sentence of a refusal."""
    assert response.status_code in (statuses or (400,)), response.text
    ((field, said),) = response.json().items()
    assert field == ("message" if response.url.path.startswith(("/v2", "/v3")) else "error")
    assert said.strip() and not any(bad in said for bad in ("\n", "pydantic", "Traceback")), said
    return said


def answered(response, what):
    """Hold that a request was translated or refused in one sentence."""
    assert response.status_code < 500, (what, response.text)
    if not response.is_success:
        refused(response, 400, 403, 404, 413)


@drawn(1)
@pytest.mark.parametrize("route", KINDS["routes"])
def test_every_field_takes_every_kind_of_value(quiet, route):
    base, fields = KINDS["routes"][route].values()
    bodies = [{**base, field: value} for field in fields for value in VALUES]
    bodies += [{name: base[name] for name in base if name != field} for field in fields]
    bodies += [{**base, name: ["x"]} for name in VALUES if type(name) is str] + VALUES
    for body in bodies:
        answered(quiet.post(route, content=json.dumps(body), headers=JSON), body)


@pytest.mark.parametrize("is_form", [False, True])
def test_every_field_of_deepl_s_api_takes_every_kind_of_value(quiet, is_form):
    kept = quiet.post("/v3/glossaries", json=RIGHT).json()["glossary_id"]
    values = VALUES + KINDS["of DeepL"]
    for method, path, names in deepl_routes(quiet):
        path = path.replace("{glossary_id}", NONE if method == "DELETE" else kept)
        headers = {"Authorization": "DeepL-Auth-Key x"}
        for name in names or ["source_lang"]:
            for value in random.Random(name).sample(values, len(part_of(len(values), 6))):
                given = {**RIGHT, name: value}
                if is_form:
                    form = {each: str(of_it) for each, of_it in given.items()}
                    file = {"file": ("a.txt", b"Ja.")} if path == "/v2/document" else None
                    sent = {"data": form, "files": file, "params": {"other": str(value)}}
                else:
                    sent = {"content": json.dumps(given)}
                    headers |= JSON
                requested = quiet.request(method, path, headers=headers, **sent)
                answered(requested, (method, path, given))
    for each in quiet.get("/v3/glossaries").json()["glossaries"]:
        quiet.delete("/v3/glossaries/" + each["glossary_id"], headers=TSV)


# ---- Forms


CHARSETS = ("", "; charset=utf-8", "; charset=UTF-8", "; charset=utf8", "; charset=us-ascii")


@pytest.mark.parametrize("charset", CHARSETS)
def test_a_form_is_read_as_utf_8(quiet, charset):
    """As curl -d sends what is typed, and as browsers do."""
    kind = {"Content-Type": FORM["Content-Type"] + charset}
    expected = quiet.post("/translate", json={"q": UMLAUTS, **PAIR}).json()
    detected = quiet.post("/detect", json={"q": UMLAUTS}).json()
    for text in (UMLAUTS, quote_from_bytes(UMLAUTS.encode())):
        body = f"q={text}&source=de&target=en".encode()
        assert quiet.post("/translate", content=body, headers=kind).json() == expected
        assert quiet.post("/detect", content=body, headers=kind).json() == detected
    parts = quiet.post("/detect", content=WHOLE, headers=multipart("; boundary=edge" + charset))
    assert parts.json() == detected


def test_a_form_has_not_too_many_fields(quiet):
    many = quiet.post("/translate", content="a=1&" * 1001, headers=FORM)
    assert refused(many) == "the form has more than 1000 fields: send fewer"


FIELDS = {"q": UMLAUTS, "format": "text", "source": "de", "target": "de"}
FIELDS |= {'file"; filename="a.txt': "Ordner"}
WHOLE = "".join(
    f'--edge\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
    for name, value in FIELDS.items()
).encode()
WHOLE += b"--edge--\r\n"
FORMS = ("/translate", "/detect", "/translate_file", "/v2/translate", "/v2/document")
FORMS += ("/v3/glossaries", f"/v2/document/{NONE}")


def multipart(more):
    return {"Content-Type": f"multipart/form-data{more}".encode("latin-1")}


@pytest.mark.parametrize(
    "name",
    [
        "a#b?c%41.txt",
        "a b.txt",
        "Übersicht (ä).txt",
        "%2e%2e.txt",
        "a+b&c=d;e.txt",
        "漢" * 60 + ".md",
    ],
)
def test_the_address_of_a_translated_file_leads_to_it(quiet, name):
    content = UMLAUTS.encode()
    url = upload(quiet, name, content, ("de", "de")).json()["translatedFileUrl"]
    parts = urlsplit(url)
    assert url.isascii() and " " not in url and not parts.query and not parts.fragment
    assert unquote(parts.path).endswith(f".{name}")
    found = quiet.get(url)
    assert found.content == content
    assert unquote(found.headers["content-disposition"]).endswith((name, f'"{name}"'))


@pytest.mark.parametrize("seed", range(4))
def test_damaged_forms(quiet, seed):
    """Cut, with bytes changed, inserted and repeated, under a header that is damaged too."""
    random_ = random.Random(seed)
    kinds = ["; boundary=edge", "; boundary=", "", "; boundary=\xff", '; boundary="ed', ";" * 50]
    for _ in range(60):
        body = bytearray(WHOLE)
        for _ in range(random_.randrange(4)):
            at = random_.randrange(len(body) + 1)
            piece = bytes(random_.choices(b'\r\n-;="\0\xff\x80edgename*', k=random_.randrange(6)))
            body[at : at + random_.randrange(8)] = piece
        if random_.random() < 0.3:
            del body[random_.randrange(len(body)) :]
        kind = random_.choice(kinds) if random_.random() < 0.3 else kinds[0]
        route = random_.choice(FORMS)
        sent = quiet.post(route, content=bytes(body), headers=multipart(kind))
        answered(sent, (route, kind, bytes(body)))
        urlencoded = bytes(body).replace(b"\r\n", random_.choice([b"&", b"=", b"%", b"%u12"]))
        answered(quiet.post(route, content=urlencoded, headers=FORM), urlencoded)


# ---- Addresses


@pytest.mark.parametrize(
    "name",
    ["x" * 5000, "%00", "%ff", "%2e%2e", "%2e%2e%2fx", "a%0ab", "~", "\\", "%", "C%3A", "x."],
)
def test_no_name_of_a_file_gives_500(quiet, name):
    assert refused(quiet.get(f"/download_file/{name}"), 400, 404)
    assert refused(quiet.get(f"/v1/glossaries/{name}"), 400, 404)
    assert refused(quiet.get(f"/v2/glossaries/{name}"), 400, 404)
    answered(quiet.post(f"/v2/document/{name}", json={"document_key": "x"}), name)
    answered(quiet.put(f"/v1/glossaries/a?file={name}", content=b"", headers=TSV), name)
    answered(quiet.delete(f"/v1/glossaries/{name}", headers=TSV), name)
    answered(quiet.delete("/v1/glossaries/a", headers=TSV), name)


def test_bytes_of_an_address(quiet):
    """Those that a client should have encoded."""
    for target in ("/download_file/ä", "/translate?q=Ä&source=de&target=en", "/v1/model?source=ü"):
        for encoding in ("utf-8", "latin-1"):
            with raw_socket(quiet) as connection:
                line = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                connection.sendall(line.encode(encoding))
                status = connection.makefile("rb").readline().split()
            assert not status or status[1].startswith(b"4"), (target, status)


def test_a_host_that_is_none(guarded):
    """With keys any name is taken, and the address of an upload is made of it."""
    kind = multipart("; boundary=edge") | {"X-API-Key": b"right"}
    with guarded("right") as client:
        for host in (b"[", b"[::1", b"a b", b"a@b", b"\xe4", b"a:b:c", b"[::1]:x", b"a/b?c#d", b""):
            answered(
                client.post("/translate_file", content=WHOLE, headers={**kind, "Host": host}), host
            )
