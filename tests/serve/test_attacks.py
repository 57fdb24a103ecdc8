"""Every field of every route with every kind of JSON value, forms in any bytes, odd files and
addresses: each is answered, and none with status 500 or a traceback."""

import json
import logging

import httpx
import pytest
from serving import FLAGS, listening

from fairseq_ext import Engine

SOURCE = "Der Patient hat einen Port."
UMLAUTS = "Die Ärztin öffnet die Akte."
PAIR = {"source": "de", "target": "en"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def engine():
    """One that takes every text (serve_fixtures.py's dies over some)."""
    with Engine(**FLAGS | {"stop": "count", "beam": 2}) as made:
        made.wait(180)
        yield made


@pytest.fixture(scope="module")
def quiet(engine, settings):
    """A client of a server that has logged no traceback when the module's tests are done."""
    said: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(self.format(record))

    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
    handler = Kept(logging.ERROR)
    with listening(engine, settings) as client:
        for each in loggers:
            each.addHandler(handler)
        yield client
        for each in loggers:
            each.removeHandler(handler)


def refused(response: httpx.Response, *statuses: int) -> str:
    """The one sentence of a refusal."""
    assert response.status_code in (statuses or (400,)), response.text
    (found,) = response.json().items()
    assert found[0] == "error" and found[1].strip() and "\n" not in found[1], found
    assert "pydantic" not in found[1] and "Traceback" not in found[1]
    return found[1]


@pytest.mark.xfail(strict=True)
@pytest.mark.parametrize(
    ("route", "body", "sentence"),
    [
        *(
            ("/v1/translate", {"source": SOURCE, "format": value}, "the request has %s for")
            for value in ([], {}, ["x"])
        ),
        *(
            ("/translate", {"q": SOURCE, **PAIR, "format": value}, "%s format is not supported")
            for value in ([], {})
        ),
        *(
            (route, {"q": value, **PAIR}, "Invalid request: q parameter must be a text or a list")
            for route in ("/translate", "/detect")
            for value in (5, ["a", 5], {"a": 1})
        ),
        ("/translate", {"q": "a", "source": [], "target": "en"}, "Invalid request: source"),
        ("/v1/terms", {"name": "a.ts\0", "content": "a\tb"}, "a file name has a control character"),
        ("/v1/terms", {"name": "a" * 300, "content": ""}, "a file name has 300 bytes"),
    ],
)
def test_a_wrong_type_gets_one_sentence(quiet, route, body, sentence):
    said = sentence.replace("%s", json.dumps(body.get("format")).replace('"', "'"))
    assert refused(quiet.post(route, json=body)).replace('"', "'").startswith(said)


@pytest.mark.xfail(strict=True)
@pytest.mark.parametrize("value", ["Ä".encode("latin-1"), b"%C4", b"%ff", b"\x80", b"a\xc3"])
@pytest.mark.parametrize("field", ["q", "source", "target", "other"])
def test_a_form_of_other_bytes_is_refused(quiet, field, value):
    fields = {b"q": b"Akte", b"source": b"de", b"target": b"en", field.encode(): value}
    body = b"&".join(b"=".join(pair) for pair in fields.items())
    for route in ("/translate", "/detect"):
        response = quiet.post(route, content=body, headers=FORM)
        assert "is not valid UTF-8" in refused(response)
    if value.startswith(b"%"):
        query = b"/translate?" + body
        response = quiet.post(httpx.URL(str(quiet.base_url)).copy_with(raw_path=query))
        assert "is not valid UTF-8" in refused(response)
    raw_part = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    parts = b"".join(raw_part % pair for pair in fields.items()) + b"--x--\r\n"
    response = post(quiet, "/translate", parts, "multipart/form-data; boundary=x")
    if not value.startswith(b"%"):
        assert "is not valid UTF-8" in refused(response)


@pytest.mark.xfail(strict=True)
def test_a_form_has_a_field_once_and_not_too_many(quiet):
    twice = quiet.post("/translate", content="q=a&q=b&source=de&target=en", headers=FORM)
    assert refused(twice) == "the form has the field 'q' twice: send it once"
    many = quiet.post("/translate", content="a=1&" * 1001, headers=FORM)
    assert refused(many) == "the form has more than 1000 fields: send fewer"


def part(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    return b'--edge\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % (
        name,
        more,
        value,
    )


def uploaded(name: bytes, content: bytes = b"Akte", pair: tuple[bytes, bytes] = (b"de", b"de")):
    """A multipart body with a file; nothing is to be translated."""
    file = part(b"file", content, b'; filename="%s"' % name)
    return part(b"source", pair[0]) + part(b"target", pair[1]) + file + b"--edge--\r\n"


def sent(client: httpx.Client, route: str, body: bytes, kind: str = "; boundary=edge"):
    return post(client, route, body, f"multipart/form-data{kind}")


def post(client: httpx.Client, route: str, body: bytes, kind: str) -> httpx.Response:
    return client.post(route, content=body, headers={"Content-Type": kind.encode("latin-1")})


OTHERS = (
    *("undefined", "idna", "punycode", "rot13", "hex", "zlib", "utf-16", "utf-32", "utf-7"),
    *("unicode_escape", "raw_unicode_escape", "latin-1", "cp037", "nothing", "\xe4", "a b", "''"),
)


@pytest.mark.xfail(strict=True)
@pytest.mark.parametrize("charset", OTHERS)
def test_a_form_in_another_charset_is_refused(quiet, charset):
    for kind in (f"; charset={charset}; boundary=edge", f'; boundary=edge; charset="{charset}"'):
        assert "send it as UTF-8" in refused(sent(quiet, "/translate", uploaded(b"a"), kind))
    urlencoded = f"application/x-www-form-urlencoded; charset={charset}"
    response = post(quiet, "/translate", b"q=a&source=de&target=de", urlencoded)
    assert "send it as UTF-8" in refused(response)


@pytest.mark.xfail(strict=True)
def test_an_uploaded_file_is_no_text(quiet):
    file = part(b"q", b"Akte", b'; filename="a.txt"') + b"--edge--\r\n"
    for route in ("/detect", "/translate"):
        body = part(b"source", b"de") + part(b"target", b"en") + file
        assert refused(sent(quiet, route, body)).startswith("Invalid request: q parameter must be")
    text = part(b"source", b"de") + part(b"target", b"de") + part(b"file", b"a") + b"--edge--\r\n"
    assert refused(sent(quiet, "/translate_file", text)) == "Invalid request: empty file"
