"""What the server translates, in each of its APIs, next to the Python API over the same model."""

import base64
import functools
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from conftest import warm_starts
from libretranslatepy import LibreTranslateAPI
from office_files import W, archive, parts_of
from serving import FLAGS, ROOT, TSV, answered, libre, listening, metric, upload, v1
from sizes import ALL

from fairseq_ext import Engine, Translator, UsageError
from fairseq_ext.serve import Settings
from fairseq_ext.text.__main__ import through_translator
from fairseq_ext.text.files import translate

SOURCE = "Der Patient hat einen Port."


def test_one_record_and_a_list(client, lines):
    one = answered(client, {"source": lines[0], "id": {"any": 1}, "detail": True})
    (best,) = one["nbest"]
    assert (one["text"], one["id"], one["certificate"]) == (best["text"], {"any": 1}, None)
    assert "".join(best["tokens"]).replace("▁", " ").strip() == one["text"]
    assert one["score"] == best["score"]
    assert one["seconds"]["decoder"] > 0 and one["seconds"]["queue"] >= 0
    many = answered(client, [{"source": line, "id": i} for i, line in enumerate(lines)])
    assert [each["id"] for each in many] == [*range(len(lines))]
    assert many[0]["text"] == one["text"] and [*many[0]["nbest"][0]] == ["text", "score"]


def test_a_record_that_cannot_be_translated_costs_no_other_one_its_translation(client):
    records = [{"source": SOURCE}, {"source": SOURCE, "constraints": ["</s>"], "id": "b"}]
    first, second, third = answered(client, [*records, {"source": ""}])
    assert first["text"] and third["text"] == "" and "warnings" not in first
    assert second["id"] == "b" and "text" not in second
    assert "a symbol that no translation holds" in second["error"]
    alone = v1(client, records[1])
    assert alone.status_code == 400 and alone.json() == {"error": second["error"]}
    (said,) = answered(client, {"source": "Er kam. Sie ging.", "constraints": ["he"]})["warnings"]
    assert said.startswith("the source holds 2 sentences")
    unmet = answered(client, {"source": SOURCE, "constraints": ["漢"]})
    (constraint,) = unmet["constraints"]
    assert unmet["text"] == first["text"] and not constraint["met"]
    assert "which the target dictionary lacks" in constraint["reason"]


def events(client, record):
    """The server-sent events of a stream."""
    response = client.post("/v1/translate/stream", json=record)
    assert response.headers["content-type"].startswith("text/event-stream")
    found = re.findall("event: (.*)\ndata: (.*)\n\n", response.text)
    return [(name, json.loads(data)) for name, data in found]


def test_a_stream_grows_to_the_answer_or_ends_with_an_error(client, lines):
    whole = answered(client, {"source": lines[1]})
    *parts, last = events(client, {"source": lines[1]})
    assert last[0] == "answer" and {**last[1], "seconds": 0} == {**whole, "seconds": 0}
    tokens = [part["tokens"] for name, part in parts if name == "partial"]
    assert len(tokens) == len(parts) and tokens == sorted(set(tokens))
    said = {"error": "nbest is 9 and the beam is 5: ask for 1 to 5 hypotheses"}
    assert events(client, {"source": SOURCE, "nbest": 9}) == [("error", said)]


def test_unmodified_clients_of_libretranslate(client, translator, lines):
    """Its own, deep_translator's, and lists with alternatives."""
    from deep_translator import LibreTranslator

    expected = [[h.text for h in nbest] for nbest in translator.translate(lines[:3], 3)]
    one, two, three = (texts[0] for texts in expected)
    api = LibreTranslateAPI(str(client.base_url))
    assert api.translate(lines[0], "de", "en") == one
    assert api.translate(f"{lines[1]}\n\n{lines[2]}", "auto", "en") == f"{two}\n\n{three}"
    assert api.languages() == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": []},
    ]
    of_deep = {"custom_url": f"{client.base_url}/", "api_key": "none"}
    found = LibreTranslator(source="de", target="en", **of_deep)
    assert found.translate(lines[0]) == one and found.translate_batch(lines[:1]) == [one]
    several = libre(client, lines[:3], alternatives=2)
    assert several["translatedText"] == [one, two, three]
    assert several["alternatives"] == [texts[1:] for texts in expected]


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
    headless = {"content": json.dumps(fields)}  # with no header for its type
    sent = [{"json": fields}, headless, {"data": fields}]
    found = [client.post("/translate", **each).json()["translatedText"] for each in sent]
    assert found == [fields["q"], fields["q"], "a\nb"]


def test_a_file_is_translated_and_fetched(client, lines):
    """As the client of LibreTranslate uploads it."""
    text = libre(client, lines[0])["translatedText"]
    found = upload(client, "a b.md", f"# {lines[0]}\n\n`code`\n".encode(), ("auto", "en"))
    fetched = client.get(found.json()["translatedFileUrl"])
    assert fetched.text == f"# {text}\n\n`code`\n"
    assert "a%20b.md" in fetched.headers["content-disposition"]
    encrypted = archive({"META-INF/manifest.xml": "<encryption-data/>"})
    password = "a.docx must be an archive without a password, as its ending says: save it again as "
    for name, content, sentence in (
        ("a.exe", b"x", "Invalid request: file format not supported"),
        ("a.docx", b"x", f"{password}docx with its program"),
        ("a.odt", encrypted, "a.odt needs a password: save it without"),
    ):
        answer = upload(client, name, content)
        assert (answer.status_code, answer.json()) == (400, {"error": sentence})


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
        warnings = answered(client, {"source": source}).get("warnings", [])
        assert len(warnings) == count
        assert all(each.startswith(f"'{source[:20]}") and said in each for each in warnings)


def test_a_file_that_unpacks_to_much_is_refused(serving):
    with serving(max_unpacked=2000) as client:
        said = upload(client, "a.docx", docx("Hund " * 1000)).json()["error"]
    assert said.startswith("the text of a.docx unpacks to more than is allowed: raise --max-unpack")


def test_pages_of_other_sites_that_are_allowed(serving, lines):
    here, there = {"Origin": "https://example.org"}, {"Origin": "https://example.com"}
    body, allowed = {"q": lines[0], "source": "de", "target": "en"}, "access-control-allow-origin"
    requested = here | {"Access-Control-Request-Method": "POST"}
    requested["Access-Control-Request-Headers"] = "content-type"
    with serving(allowed_origins=("https://example.org",)) as client:
        for answer in (
            client.options("/translate", headers=requested),
            client.post("/translate", json=body, headers=here),
        ):
            assert answer.status_code == 200 and answer.headers[allowed] == here["Origin"]
        refused = client.post("/translate", json=body, headers=there)
        assert refused.status_code == 403 and "add --allowed-origins" in refused.json()["error"]
        assert allowed not in client.options("/translate", headers=requested | there).headers


def of_text(*paragraphs):
    """The smallest part of a docx that has text."""
    runs = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in paragraphs)
    return f'<w:body xmlns:w="{W}">{runs}</w:body>'


def docx(text):
    return archive({"word/document.xml": of_text(text)})


def test_the_language_of_a_file_is_that_of_its_text(client):
    """Of a docx, whose bytes say nothing; one that is in the target language already stays."""
    for text, kept in (
        ("Das ist die Geschichte von einem alten Hund.", False),
        ("This is the story of an old dog.", True),
    ):
        made = upload(client, "a.docx", content := docx(text), ("auto", "en")).json()
        found = client.get(made["translatedFileUrl"]).content
        assert (found == content) is kept and parts_of(found)


def test_glossaries_are_kept_replaced_and_forgotten(client, settings):
    path, record = "/v1/glossaries/clinic", {"source": SOURCE, "glossary": "clinic"}

    def put(content):
        return client.put(path, content=content, headers=TSV)

    assert client.get(path).status_code == 404
    assert put("Patient\thouse\n").status_code == 201
    assert client.get(path).content == b"Patient\thouse\n"
    assert client.get("/v1/glossaries").json() == {"glossaries": ["clinic"]}
    (constraint,) = answered(client, record)["constraints"]
    assert (constraint["term"], constraint["met"]) == ("Patient", True)
    assert constraint["source_spans"] == [[4, 11]]
    assert put("Patient\temployee\n").status_code == 200
    text = answered(client, record)["text"]
    assert "employee" in text and "house" not in text
    for wrong in ("Patient\t|x\n", "no tab here\n"):
        refused = put(wrong)
        assert refused.status_code == 400 and "line 1 of glossary 'clinic'" in refused.text
    assert client.get(path).content == b"Patient\temployee\n", "what is refused replaces nothing"
    assert [file.name for file in settings.glossary_folder.glob("*.*")] == ["clinic.tsv"]
    assert [client.delete(path, headers=TSV).status_code for _ in range(2)] == [204, 404]
    assert v1(client, record).status_code == 404


@pytest.mark.parametrize("pair", ["source house", "German house", "de house", "Port en"])
def test_a_term_of_a_request_is_no_header_of_a_table(client, pair):
    """Although a file of terms may begin with one."""
    source, target = pair.split()
    record = {"source": f"Der {source} hat einen Patienten.", "glossary": {source: target}}
    (constraint,) = answered(client, record)["constraints"]
    assert constraint["phrase"] == target
    assert constraint["term"] == source or not constraint["met"]


def test_a_glossary_file_is_read_and_kept_whatever_its_form(client, tmp_path):
    """What a page does with a file that a person drops on it, as --glossary reads it: in text or
    in bytes, as Excel's tables; and by PUT."""
    openpyxl = pytest.importorskip("openpyxl")
    wrong = "line 2 of a.tsv has 1 column and needs 2"
    files = {
        "a.tsv": ("Port\thouse\nnothing\nPort\thome|house\n", {"Port": "house|home"}, wrong),
        "a.tbx": ("<", {}, "line 1 of a.tbx is not valid XML"),
        "a.csv": ("en,de\nhouse,Port\n", {"Port": "house"}, ""),
        "no ending": ("Port\thouse\n", {"Port": "house"}, ""),
    }
    for name, (content, terms, said) in files.items():
        found = client.post("/v1/terms", json={"name": name, "content": content}).json()
        assert found["terms"] == terms and found.get("error", "").startswith(said), found
        assert ("error" in found) == bool(said)
    table = openpyxl.Workbook()
    for row in (("Deutsch", "English"), ("Port", "house")):
        table.active.append(row)
    table.save(tmp_path / "a.xlsx")
    (tmp_path / "a.txt").write_text("Port\thouse\n", encoding="utf-16")
    (tmp_path / "a.csv").write_text("Port;house\n")

    def put(name, content):
        return client.put(f"/v1/glossaries/kept?file={name}", content=content, headers=TSV)

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
    example, path = content[TSV["Content-Type"]]["example"], "/v1/glossaries/example"
    assert client.put(path, content=example, headers=TSV).status_code == 201
    assert client.delete(path, headers=TSV).status_code == 204
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


# ---- Samples: a request's seed draws those that the commands draw with that --seed

SAMPLES = {k: v for k, v in FLAGS.items() if k not in ("stop", "stream_width")} | {"beam": 4}
LINE = "Die Ärztin öffnet den Ordner."
MANY = 2**32 - 1
# of a docx, paragraphs in each; their sentences are counted together
PARTS = {"word/document.xml": 4, "word/header1.xml": 2}


@functools.cache
def seeded(seed):
    return Translator(**SAMPLES, select="sampling", seed=seed)


def pairs(hypotheses):
    return [(h.text, round(h.score, 4)) for h in hypotheses]


@pytest.fixture(scope="module")
def sampling():
    """An engine that draws samples with seed 3, and a client of a server over it."""
    with warm_starts():
        engine = Engine(**SAMPLES, select="sampling", seed=3)
        engine.wait(180)
    with engine, listening(engine, Settings(max_lines=8)) as client:
        yield engine, client


def test_the_server_draws_by_a_requests_seed(sampling):
    """Whatever is decoded next to it."""
    _, client = sampling
    seeds = {None: 3, 7: 7, MANY: MANY}
    together = answered(client, [{"source": LINE, "nbest": 4, "seed": seed} for seed in seeds])
    for seed, answer in zip(seeds.values(), together, strict=True):
        (expected,) = seeded(seed).translate([LINE], nbest=4)
        assert pairs(SimpleNamespace(**h) for h in answer["nbest"]) == pairs(expected)
    found = libre(client, LINE, alternatives=3)
    texts = list(dict.fromkeys(h["text"] for h in together[0]["nbest"]))
    assert [found["translatedText"], *found["alternatives"]] == texts and len(texts) > 1
    for seed, said in ((-1, "seed is -1: give a whole number from 0"), (MANY + 1, "whole number")):
        wrong = v1(client, {"source": LINE, "seed": seed})
        assert wrong.status_code == 400 and said in wrong.json()["error"]


def test_each_sentence_of_a_text_has_its_own_samples_by_every_entry(sampling, tmp_path):
    """The i-th draws as the i-th line of a file does, though all are equal."""
    engine, client = sampling
    both = f"{SOURCE} {SOURCE}"
    text, page = f"{both}\n{SOURCE}  {SOURCE}", f"<p title='{SOURCE}'>{both}</p>"
    three, found = (
        [nbest[0].text for nbest in seeded(seed).translate([SOURCE] * 6)] for seed in (3, 7)
    )
    assert len(set(found[:4])) > 1 and len(set(three)) > 1
    expected = ["{} {}\n{}  {}".format(*found), "<p title='{}'>{} {}</p>".format(*found)]
    texts = [{"source": text}, {"source": page, "format": "html"}]
    answers = answered(client, [{**each, "seed": 7} for each in texts])
    assert [answer["text"] for answer in answers] == expected
    assert engine.submit_text(text, seed=7).result(60).text == expected[0]
    for each, wanted in zip(texts, expected, strict=True):
        assert seeded(7).translate_text(*each.values()).text == wanted
    whole = archive({name: of_text(*[SOURCE] * times) for name, times in PARTS.items()})
    made = upload(client, "in.docx", whole).json()
    assert texts_of(client.get(made["translatedFileUrl"]).content) == three
    there, out = tmp_path / "in.docx", tmp_path / "out.docx"
    there.write_bytes(whole)
    translate(str(there), str(out), through_translator(seeded(7), (), []))
    assert texts_of(out.read_bytes()) == found


def texts_of(docx):
    whole = "".join(parts_of(docx)[name].decode() for name in PARTS)
    return re.findall("(?<=>)[^<>]+(?=</w:t>)", whole)


def test_calls_of_python_draw_by_their_seeds():
    lines = ["Guten Morgen.", LINE]
    expected = [pairs(nbest) for nbest in seeded(7).translate(lines, nbest=4)]
    for calls in (
        seeded(3).translate(lines, 4, seed=7),
        seeded(3).translate_iter(lines, 4, buffer=1, seed=7),
    ):
        assert [pairs(nbest) for nbest in calls] == expected
    with pytest.raises(UsageError, match="seed is 1.5"):
        seeded(3).translate([LINE], seed=1.5)


# ---- LibreTranslate's own tests


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
