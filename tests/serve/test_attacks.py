"""Every field of every route with every kind of JSON value, forms in any bytes, odd files and
addresses: each is answered, and none with status 500 or a traceback."""

import json
import logging
import random
from urllib.parse import quote_from_bytes, unquote, urlsplit

import httpx
import pytest
from conftest import warm_starts
from serving import FLAGS, JSON, TSV, deepl_routes, listening, raw_socket
from sizes import drawn, part_of

from fairseq_ext import Engine

SOURCE = "Der Patient hat einen Port."
UMLAUTS = "Die Ärztin öffnet den Ordner."
PAIR = {"source": "de", "target": "en"}
NONE = "96ab91fd-e715-41a1-adeb-5d701f84a483"  # of no glossary
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
NUMBERS = (0, -1, 1.5, 10**30, -(2**63), 1e308)
TEXTS = ("", " ", "\0", "text", "fr", "\U0001f600" * 40, "x" * 300, "..", "a.tbx", "%", "\u2028")
VALUES = (
    *(None, True, False, *NUMBERS, *TEXTS, [], {}, [None], ["x"], [5], ["a", 5], [[]], [{}]),
    *([["x"]], [["x", 5]], {"x": "y"}, {"x": 5}, {"": ""}, {"x": None}, {"x": {"y": []}}),
)
# the same for DeepL's API, where fields have other forms, and its right values
MORE = (
    *(*VALUES, "x" * 2000, "*", "a(b", "<", "EN-XX", "xml", "html", "tsv", "csv", "more", NONE),
    *("a\tb\tc", '"a', "a,b,c,d", "<a>", "</a>", "<a/>", "&x;", "<!DOCTYPE a [<!ENTITY x"),
    *(["a"] * 400, [{"source_lang": "de"}], [{**PAIR, "entries": ["a"]}]),
)
RIGHT = {"text": SOURCE, "source_lang": "DE", "target_lang": "EN", "entries": "a\tb", "name": "n"}
RIGHT |= {"document_key": "x", "type": "target", "dictionaries": [{**RIGHT}]}
RECORD = "source id constraints any_of avoid prefix glossary nbest detail format alignment seed"
ROUTES = {
    "/v1/translate": ({"source": SOURCE}, RECORD.split()),
    "/v1/translate/stream": ({"source": SOURCE}, RECORD.split()),
    "/v1/terms": ({"name": "a.tsv", "content": "a\tb\n"}, ["name", "content", "base64"]),
    "/translate": ({"q": SOURCE, **PAIR}, ["q", *PAIR, "format", "alternatives", "api_key"]),
    "/detect": ({"q": SOURCE}, ["q", "api_key"]),
    "/translate_file": (PAIR, ["file", *PAIR, "api_key"]),
}


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
    assert not said


def refused(response: httpx.Response, *statuses: int) -> str:
    """The one sentence of a refusal."""
    assert response.status_code in (statuses or (400,)), response.text
    (found,) = response.json().items()
    is_deepl = response.url.path.startswith(("/v2", "/v3"))
    assert found[0] == ("message" if is_deepl else "error"), found
    assert found[1].strip() and "\n" not in found[1], found
    assert "pydantic" not in found[1] and "Traceback" not in found[1]
    return found[1]


def answered(response: httpx.Response, what: object) -> None:
    """Hold that a request was translated or refused in one sentence."""
    if not response.is_success:
        assert response.status_code < 500, (what, response.text)
        refused(response, 400, 403, 404, 413)


@drawn(1)
@pytest.mark.parametrize("route", ROUTES)
def test_every_field_takes_every_kind_of_value(quiet, route):
    base, fields = ROUTES[route]
    for field in fields:
        for value in VALUES:
            body = {**base, field: value}
            answered(quiet.post(route, content=json.dumps(body).encode(), headers=JSON), body)
        body = {name: each for name, each in base.items() if name != field}
        answered(quiet.post(route, json=body), body)
    for name in TEXTS:
        body = {**base, name: ["x"]}
        answered(quiet.post(route, json=body), body)
    for value in VALUES:
        answered(quiet.post(route, content=json.dumps(value).encode(), headers=JSON), value)


@pytest.mark.parametrize("is_form", [False, True])
def test_every_field_of_deepl_s_api_takes_every_kind_of_value(quiet, is_form):
    kept = quiet.post("/v3/glossaries", json=RIGHT).json()["glossary_id"]
    for method, path, names in deepl_routes(quiet):
        path = path.replace("{glossary_id}", NONE if method == "DELETE" else kept)
        headers = {"Authorization": "DeepL-Auth-Key x"}
        for name in names or ["source_lang"]:
            for value in random.Random(name).sample(MORE, len(part_of(len(MORE), 6))):
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


@pytest.mark.parametrize(
    "encode", [str.encode, lambda text: quote_from_bytes(text.encode()).encode()]
)
def test_a_form_is_read_as_utf_8(quiet, encode):
    """As curl -d sends what is typed, and as browsers do."""
    expected = quiet.post("/translate", json={"q": UMLAUTS, **PAIR}).json()
    body = b"q=" + encode(UMLAUTS) + b"&source=de&target=en"
    assert quiet.post("/translate", content=body, headers=FORM).json() == expected
    found = quiet.post("/detect", content=b"q=" + encode(UMLAUTS), headers=FORM).json()
    assert found == quiet.post("/detect", json={"q": UMLAUTS}).json()
    wrong = quiet.post("/translate", content=b"q=a&target=en&source=" + encode("ü"), headers=FORM)
    assert refused(wrong) == "ü is not supported"


@pytest.mark.parametrize("value", ["Ä".encode("latin-1"), b"%C4", b"%ff", b"\x80", b"a\xc3"])
@pytest.mark.parametrize("field", ["q", "source", "target", "other"])
def test_a_form_of_other_bytes_is_refused(quiet, field, value):
    fields = {b"q": b"Ordner", b"source": b"de", b"target": b"en", field.encode(): value}
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


def uploaded(name: bytes, content: bytes = b"Ordner", pair: tuple[bytes, bytes] = (b"de", b"de")):
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


@pytest.mark.parametrize("charset", [*OTHERS, "utf-8", "UTF-8", "utf8", "us-ascii"])
def test_a_form_in_another_charset_is_refused(quiet, charset):
    kinds = f"; charset={charset}; boundary=edge", f'; boundary=edge; charset="{charset}"'
    multipart = part(b"q", "Ä".encode()) + uploaded(b"a.txt")
    urlencoded = f"application/x-www-form-urlencoded; charset={charset}"
    for answer in (
        *(sent(quiet, "/translate", multipart, kind) for kind in kinds),
        post(quiet, "/translate", "q=Ä&source=de&target=de".encode(), urlencoded),
    ):
        if charset in OTHERS:
            assert "send it as UTF-8" in refused(answer)
        else:
            assert answer.json() == {"translatedText": "Ä"}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (b"a\0.txt", "has a control character"),
        (b"a\x1b.txt", "has a control character"),
        ("ä\x85.txt".encode(), "has a control character"),
        (b"x" * 300 + b".txt", "has 304 bytes"),
        ("ä".encode() * 120 + b".txt", "has 244 bytes"),
        (b"\xff.txt", "is not valid UTF-8"),
        (b"", "Invalid request: empty file"),
        (b"..", "file format not supported"),
        (b".txt", "file format not supported"),
        (b"a.tx", "file format not supported"),
    ],
)
def test_an_odd_file_name_is_refused(quiet, name, sentence):
    assert sentence in refused(sent(quiet, "/translate_file", uploaded(name)))


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
    url = sent(quiet, "/translate_file", uploaded(name.encode(), content)).json()[
        "translatedFileUrl"
    ]
    parts = urlsplit(url)
    assert url.isascii() and " " not in url and not parts.query and not parts.fragment
    assert unquote(parts.path).endswith(f".{name}")
    found = quiet.get(url)
    assert found.content == content
    assert unquote(found.headers["content-disposition"]).endswith((name, f'"{name}"'))


def test_an_uploaded_file_is_no_text(quiet):
    file = part(b"q", b"Ordner", b'; filename="a.txt"') + b"--edge--\r\n"
    for route in ("/detect", "/translate"):
        body = part(b"source", b"de") + part(b"target", b"en") + file
        assert refused(sent(quiet, route, body)).startswith("Invalid request: q parameter must be")
    text = part(b"source", b"de") + part(b"target", b"de") + part(b"file", b"a") + b"--edge--\r\n"
    assert refused(sent(quiet, "/translate_file", text)) == "Invalid request: empty file"


@pytest.mark.parametrize("seed", range(4))
def test_damaged_forms(quiet, seed):
    """Cut, with bytes changed, inserted and repeated, under a header that is damaged too."""
    random_ = random.Random(seed)
    whole = part(b"q", UMLAUTS.encode()) + part(b"format", b"text") + uploaded(b"a.txt")
    kinds = ["; boundary=edge", "; boundary=", "", "; boundary=\xff", '; boundary="ed', ";" * 50]
    for _ in range(60):
        body = bytearray(whole)
        for _ in range(random_.randrange(4)):
            at = random_.randrange(len(body) + 1)
            piece = bytes(random_.choices(b'\r\n-;="\0\xff\x80edgename*', k=random_.randrange(6)))
            body[at : at + random_.randrange(8)] = piece
        if random_.random() < 0.3:
            del body[random_.randrange(len(body)) :]
        kind = random_.choice(kinds) if random_.random() < 0.3 else kinds[0]
        route = random_.choice(["/translate", "/detect", "/translate_file", *FORMS])
        answered(sent(quiet, route, bytes(body), kind), (route, kind, bytes(body)))
        urlencoded = bytes(body).replace(b"\r\n", random_.choice([b"&", b"=", b"%", b"%u12"]))
        answered(quiet.post(route, content=urlencoded, headers=FORM), urlencoded)


FORMS = ("/v2/translate", "/v2/document", "/v3/glossaries", f"/v2/document/{NONE}")


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
    kind = {"Content-Type": "multipart/form-data; boundary=edge", "X-API-Key": "right"}
    with guarded("right") as client:
        for host in (b"[", b"[::1", b"a b", b"a@b", b"\xe4", b"a:b:c", b"[::1]:x", b"a/b?c#d", b""):
            answered(
                client.post(
                    "/translate_file", content=uploaded(b"a.txt"), headers={**kind, "Host": host}
                ),
                host,
            )
