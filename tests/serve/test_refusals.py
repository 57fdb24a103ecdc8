"""Wrong requests of each API, and requests that a form or a page of another site could have sent:
one sentence, with a status that says whose fault it is.

refusals.jsonl has a line a request: `to`, `json` or `body` (as Latin-1), `headers`, `status`, and
what the sentence `says`: its beginning, all of it ("$" behind it), or a part ("…" before it).
"""

import json
from pathlib import Path

import pytest
from serving import JSON

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
    answer = client.request(method, path, content=given, headers=JSON | row.get("headers", {}))
    assert answer.status_code == row["status"], answer.text
    if answer.is_error:
        ((field, said),) = answer.json().items()
        assert field == ("message" if path.startswith(("/v2", "/v3")) else "error")
        assert "\n" not in said and "pydantic" not in said and "Traceback" not in said
        says = row.get("says", "")
        assert said.startswith(says.rstrip("$")) or (says[:1] == "…" and says[1:] in said), said
        assert said == says[:-1] or says[-1:] != "$", said
