"""What the server translates, in each of its APIs, next to the Python API over the same model."""

import base64
import functools
import io
import json
import os
import re
import subprocess
import sys
import zipfile

import pytest
from libretranslatepy import LibreTranslateAPI
from office_files import W
from serving import ROOT, TSV, libre, metric, upload, v1
from sizes import ALL

SOURCE = "Der Patient hat einen Port."


def test_one_record_and_a_list(client, translator, lines):
    expected = [found[0] for found in translator.translate(lines)]
    one = v1(client, {"source": lines[0], "id": {"any": 1}, "detail": True}).json()
    (best,) = one["nbest"]
    assert (one["text"], one["id"], one["certificate"]) == (best["text"], {"any": 1}, None)
    assert best["tokens"] == expected[0].tokens and one["score"] == best["score"]
    assert one["seconds"]["decoder"] > 0 and one["seconds"]["queue"] >= 0
    many = v1(client, [{"source": line, "id": i} for i, line in enumerate(lines)]).json()
    found = [(each["id"], each["text"]) for each in many]
    assert found == [(i, h.text) for i, h in enumerate(expected)]
    assert [*many[0]["nbest"][0]] == ["text", "score"]


def test_a_record_that_cannot_be_translated_costs_no_other_one_its_translation(client):
    records = [
        {"source": SOURCE},
        {"source": SOURCE, "constraints": ["</s>"], "id": "b"},
        {"source": ""},
    ]
    first, second, third = v1(client, records).json()
    assert first["text"] and third["text"] == "" and "warnings" not in first
    (said,) = v1(client, {"source": "Er kam. Sie ging.", "constraints": ["he"]}).json()["warnings"]
    assert said.startswith("the source holds 2 sentences")
    assert second["id"] == "b" and "text" not in second
    assert "a symbol that no translation holds" in second["error"]
    alone = v1(client, records[1])
    assert alone.status_code == 400 and alone.json() == {"error": second["error"]}
    unmet = v1(client, {"source": SOURCE, "constraints": ["漢"]}).json()
    (constraint,) = unmet["constraints"]
    assert unmet["text"] == first["text"] and not constraint["met"]
    assert "which the target dictionary lacks" in constraint["reason"]


def events(client, record: dict) -> list[tuple[str, dict]]:
    """The server-sent events of a stream."""
    response = client.post("/v1/translate/stream", json=record)
    assert response.headers["content-type"].startswith("text/event-stream")
    found = re.findall("event: (.*)\ndata: (.*)\n\n", response.text)
    return [(name, json.loads(data)) for name, data in found]


def test_a_stream_grows_to_the_answer_or_ends_with_an_error(client, lines):
    whole = v1(client, {"source": lines[1]}).json()
    *parts, last = events(client, {"source": lines[1]})
    assert last[0] == "answer" and {**last[1], "seconds": 0} == {**whole, "seconds": 0}
    tokens = [part["tokens"] for name, part in parts if name == "partial"]
    assert len(tokens) == len(parts) and tokens == sorted(set(tokens))
    said = {"error": "nbest is 9 and the beam is 5: ask for 1 to 5 hypotheses"}
    assert events(client, {"source": SOURCE, "nbest": 9}) == [("error", said)]


def test_the_unmodified_client_of_libretranslate(client, translator, lines):
    api = LibreTranslateAPI(str(client.base_url))
    one, two = (found[0].text for found in translator.translate(lines[2:4]))
    assert api.translate(lines[2], "de", "en") == one
    assert api.translate(f"{lines[2]}\n\n{lines[3]}", "auto", "en") == f"{one}\n\n{two}"
    assert api.languages() == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": []},
    ]


def test_libretranslate_in_json_with_lists_and_alternatives(client, translator, lines):
    found = libre(client, lines[:2], alternatives=2)
    expected = [[h.text for h in nbest] for nbest in translator.translate(lines[:2], 3)]
    assert found == {
        "translatedText": [texts[0] for texts in expected],
        "alternatives": [texts[1:] for texts in expected],
    }


def test_html_and_detection_of_libretranslate(client, lines):
    text = libre(client, lines[0])["translatedText"]
    page = f"<p>{lines[0]}</p>"
    found = libre(client, page, source="auto", format="html", alternatives=2)
    assert found["translatedText"] == f"<p>{text}</p>" and found["alternatives"] == []
    detected = found["detectedLanguage"]
    assert detected["language"] == "de" and detected["confidence"] > 80
    english = "This is the story of a dog."
    assert libre(client, [english], source="auto")["translatedText"] == [english]
    (first, *_) = client.post("/detect", data={"q": english}).json()
    assert first["language"] == "en" and first["confidence"] > 80
    settings = client.get("/frontend/settings").json()
    assert settings["language"]["source"] == {"code": "de", "name": "German"}
    assert ".docx" in settings["supportedFilesFormat"]
    assert client.get("/spec").json()["paths"]["/translate"]


def test_lines_of_json_are_those_that_were_sent_and_those_of_a_form_are_joined(client):
    fields = {"q": "a\r\nb\n", "source": "de", "target": "de"}
    body = json.dumps(fields).encode()
    for sent, text in (
        ({"json": fields}, fields["q"]),
        ({"content": body}, fields["q"]),  # with no header for its type
        ({"data": fields}, "a\nb"),
    ):
        assert client.post("/translate", **sent).json() == {"translatedText": text}


def test_a_file_is_translated_and_fetched(client, lines):
    """As the client of LibreTranslate uploads it."""
    text = libre(client, lines[0])["translatedText"]
    encrypted = io.BytesIO()
    with zipfile.ZipFile(encrypted, "w") as archive:
        archive.writestr("META-INF/manifest.xml", "<encryption-data/>")
    found = upload(client, "a b.md", f"# {lines[0]}\n\n`code`\n".encode(), ("auto", "en"))
    fetched = client.get(found.json()["translatedFileUrl"])
    assert fetched.text == f"# {text}\n\n`code`\n"
    assert "a%20b.md" in fetched.headers["content-disposition"]
    password = "a.docx must be an archive without a password, as its ending says: save it again as "
    for name, content, sentence in (
        ("a.exe", b"x", "Invalid request: file format not supported"),
        ("a.docx", b"x", f"{password}docx with its program"),
        ("a.odt", encrypted.getvalue(), "a.odt needs a password: save it without"),
    ):
        answer = upload(client, name, content)
        assert (answer.status_code, answer.json()) == (400, {"error": sentence})
    pair, file = {"source": "de", "target": "en"}, {"file": ("a.txt", b"x")}
    for missing, given in (("file", {"data": pair}), ("target", {"data": {"source": "de"}})):
        answer = client.post("/translate_file", **given, files=file if missing != "file" else None)
        assert answer.json() == {"error": f"Invalid request: missing {missing} parameter"}
    assert client.get("/download_file/..%2Fx").status_code in (400, 404)


def test_a_sentence_that_is_cut_is_named(client):
    """For its tokens, or for its characters where it has fewer tokens than the model takes."""
    word = "Gesundheitsministerium "
    long, cut = f"Das {word * 290}ist hier. ", "is translated in parts: "
    characters = f"{cut}it has more than 3000 characters"
    for source, count, said in (
        ("Ω9" * 1000, 1, f"{cut}the source has"),
        (long * 2, 2, characters),
        (f"Das {word * 100}ist hier. " * 4, 0, ""),
    ):
        warnings = v1(client, {"source": source}).json().get("warnings", [])
        assert len(warnings) == count
        assert all(each.startswith(f"'{source[:20]}") and said in each for each in warnings)


def test_a_file_that_unpacks_to_much_is_refused(serving):
    with serving(max_unpacked=2000) as client:
        response = upload(client, "a.docx", of_text("Hund " * 1000))
    assert response.status_code == 400 and response.json()["error"] == (
        "the text of a.docx unpacks to more than is allowed: raise --max-unpacked, or divide the "
        "file"
    )


def test_pages_of_other_sites_that_are_allowed(serving, lines):
    here, there = {"Origin": "https://example.org"}, {"Origin": "https://example.com"}
    body = {"q": lines[0], "source": "de", "target": "en"}
    with serving(allowed_origins=("https://example.org",)) as client:
        requested = here | {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type",
        }
        allowed = "access-control-allow-origin"
        for answer in (
            client.options("/translate", headers=requested),
            client.post("/translate", json=body, headers=here),
        ):
            assert answer.status_code == 200 and answer.headers[allowed] == here["Origin"]
        refused = client.post("/translate", json=body, headers=there)
        assert refused.status_code == 403 and "add --allowed-origins" in refused.json()["error"]
        assert allowed not in client.options("/translate", headers=requested | there).headers


def test_the_unmodified_client_of_deep_translator(client, lines):
    from deep_translator import LibreTranslator

    text = libre(client, lines[0])["translatedText"]
    made = LibreTranslator(
        source="de", target="en", custom_url=f"{client.base_url}/", api_key="none"
    )
    assert made.translate(lines[0]) == text and made.translate_batch(lines[:1]) == [text]


def of_text(text: str) -> bytes:
    """The smallest docx."""
    file, paragraph = io.BytesIO(), f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("word/document.xml", f'<w:body xmlns:w="{W}">{paragraph}</w:body>')
    return file.getvalue()


def test_the_language_of_a_file_is_that_of_its_text(client):
    """Of a docx, whose bytes say nothing; one that is in the target language
    already stays as it is."""
    for text, kept in (
        ("Das ist die Geschichte von einem alten Hund.", False),
        ("This is the story of an old dog.", True),
    ):
        content = of_text(text)
        made = upload(client, "a.docx", content, ("auto", "en")).json()
        found = client.get(made["translatedFileUrl"]).content
        assert (found == content) is kept and zipfile.ZipFile(io.BytesIO(found)).testzip() is None


def test_glossaries_are_kept_replaced_and_forgotten(client, settings):
    path = "/v1/glossaries/clinic"
    assert client.get(path).status_code == 404
    assert client.put(path, content="Patient\thouse\n", headers=TSV).status_code == 201
    assert client.get(path).content == b"Patient\thouse\n"
    assert client.get("/v1/glossaries").json() == {"glossaries": ["clinic"]}
    record = {"source": SOURCE, "glossary": "clinic"}
    (constraint,) = v1(client, record).json()["constraints"]
    assert (constraint["term"], constraint["met"]) == ("Patient", True)
    assert constraint["source_spans"] == [[4, 11]]
    assert client.put(path, content="Patient\temployee\n", headers=TSV).status_code == 200
    text = v1(client, record).json()["text"]
    assert "employee" in text and "house" not in text
    refused = client.put(path, content="Patient\t|x\n", headers=TSV)
    assert refused.status_code == 400 and "line 1 of glossary 'clinic'" in refused.json()["error"]
    assert client.put(path, content="no tab here\n", headers=TSV).status_code == 400
    assert client.get(path).content == b"Patient\temployee\n", "what is refused replaces nothing"
    assert [file.name for file in settings.glossary_folder.glob("*.*")] == ["clinic.tsv"]
    assert [client.delete(path, headers=TSV).status_code for _ in range(2)] == [204, 404]
    assert v1(client, record).status_code == 404


@pytest.mark.parametrize(
    ("source", "target"),
    [("source", "house"), ("German", "house"), ("de", "house"), ("Port", "en")],
)
def test_a_term_of_a_request_is_no_header_of_a_table(client, source, target):
    """Although a file of terms may begin with one."""
    record = {"source": f"Der {source} hat einen Patienten.", "glossary": {source: target}}
    (constraint,) = v1(client, record).json()["constraints"]
    assert (constraint["phrase"], constraint["term"]) == (target, source) or (
        constraint["phrase"] == target and not constraint["met"]
    )


def test_a_glossary_file_is_read_whatever_its_form(client):
    """What a page does with a file that a person drops on it: as --glossary reads it."""
    files = {
        "a.tsv": (
            "Port\thouse\nnothing\nPort\thome|house\n",
            {"Port": "house|home"},
            "line 2 of a.tsv has 1 column and needs 2",
        ),
        "a.csv": ("en,de\nhouse,Port\n", {"Port": "house"}, None),
        "a.tbx": ("<", {}, "line 1 of a.tbx is not valid XML"),
        "no ending": ("Port\thouse\n", {"Port": "house"}, None),
    }
    for name, (content, terms, wrong) in files.items():
        found = client.post("/v1/terms", json={"name": name, "content": content}).json()
        assert found["terms"] == terms, found
        assert found["error"].startswith(wrong) if wrong else "error" not in found, found


def test_a_file_of_bytes_is_read_and_kept(client, tmp_path):
    """Excel's tables and text: as the page sends them, and by PUT."""
    openpyxl = pytest.importorskip("openpyxl")
    table = openpyxl.Workbook()
    for row in (("Deutsch", "English"), ("Port", "house")):
        table.active.append(row)
    table.save(tmp_path / "a.xlsx")
    (tmp_path / "a.txt").write_text("Port\thouse\n", encoding="utf-16")
    (tmp_path / "a.csv").write_text("Port;house\n")

    def put(name: str, content: bytes):
        path, curl = f"/v1/glossaries/kept?file={name}", {"X-Requested-With": "curl"}
        return client.put(path, content=content, headers=curl)

    for file in sorted(tmp_path.glob("a.*")):
        sent = {"name": file.name, "base64": base64.b64encode(file.read_bytes()).decode()}
        assert client.post("/v1/terms", json=sent).json() == {"terms": {"Port": "house"}}, file
        assert put(file.name, file.read_bytes()).is_success
    assert put("b.csv", b"source,target,case\nPort,house,exact\n").is_success
    assert client.get("/v1/glossaries/kept").text == "source\ttarget\tcase\nPort\thouse\texact\n"
    client.delete("/v1/glossaries/kept", headers=TSV)


def test_the_documentation_has_examples_that_work(client):
    paths = client.get("/openapi.json").json()["paths"]
    tried = 0
    for path, methods in paths.items():
        body = methods.get("post", {}).get("requestBody", {})
        for kind, content in body.get("content", {}).items():
            assert content["schema"].get("oneOf") or content["schema"]["properties"]
            for example in content.get("examples", {}).values():
                response = client.post(path, json=example["value"], headers={"Content-Type": kind})
                assert response.status_code == 200, (path, example, response.text)
                assert "error" not in response.text
                tried += 1
    content = paths["/v1/glossaries/{name}"]["put"]["requestBody"]["content"]
    example = content[TSV["Content-Type"]]["example"]
    assert client.put("/v1/glossaries/example", content=example, headers=TSV).status_code == 201
    assert client.delete("/v1/glossaries/example", headers=TSV).status_code == 204
    assert tried >= 7 and client.get("/docs").status_code == 200


def test_health_readiness_model_and_metrics(client):
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready"}
    model = client.get("/v1/model").json()
    assert [model[name] for name in ("source", "target", "beam")] == ["de", "en", 5]
    assert "stop:deadly" in model["signature"]
    value = functools.partial(metric, client)
    before = value("latency_seconds_count")
    v1(client, [{"source": SOURCE}] * 3)
    assert value("latency_seconds_count") == before + 3
    assert value("rows_a_step_sum") > value("rows_a_step_count") > 0
    assert value('requests_total{route="/v1/translate",status="200"}') >= 1
    assert value("refills_total") >= 1 and value("target_tokens_total") > 0


@pytest.mark.skipif(not os.environ.get(ALL), reason="pip fetches them: --all")
def test_libretranslates_own_tests_pass_as_they_are(tmp_path):
    """By the script that runs them over HTTP."""
    fetch = [sys.executable, *"-m pip download --quiet --no-deps --dest".split(), tmp_path]
    if subprocess.run([*fetch, "libretranslate==1.9.6"], capture_output=True).returncode:
        pytest.skip("pip does not reach a package index")
    (wheel,) = tmp_path.glob("*.whl")
    command = [sys.executable, ROOT / "scripts" / "libretranslate_tests.py", "--wheel", wheel]
    how = {"capture_output": True, "text": True, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    done = subprocess.run(command, **how)
    assert done.returncode == 0 and "14 passed" in done.stdout, done.stdout + done.stderr
