"""DeepL's API: the official clients as people install them, and what they never send; of
glossaries, what its own suite calls of a server."""

import io
import json
import os
import shutil
import subprocess
import time
import uuid
import zipfile

import pytest
from office_files import docx
from serving import JSON, ROOT, TSV, answered, deepl_routes, until, v1
from sizes import ALL

from fairseq_ext.serve import deepl as routes
from fairseq_ext.serve import documents
from fairseq_ext.serve.deepl_requests import Tagged, TextRequest, read

if os.environ.get(ALL):
    import deepl
else:
    deepl = pytest.importorskip("deepl")
from deepl.api_data import MultilingualGlossaryDictionaryEntries as Dictionary  # noqa: E402

SOURCE = "Der Patient hat einen Port."
PAIR = {"source_lang": "DE", "target_lang": "EN-GB"}
TERMS = {"Patient": "moonlight"}
# terms that no model can write, and marks that a term base of ours reads as its own
ODD = {"A%=&": "B&=%", "\u0394\u3041": "\u6df1", "\U0001faa8": "\U0001fab5", "it's": '"so"'}
ODD |= {"a|b": "c|d", "Yes, no": "ja, nein", '"x", y': "z # w", "source": "target"}
LARGE = {f"Source-${i}": f"Target-${i}" for i in range(10_000)}
CSV = 'tree,Baum,en,de\n\n"a ""large"" tree","Baum, groß"\n'
OF_CSV = {"tree": "Baum", 'a "large" tree': "Baum, groß"}


@pytest.fixture(scope="module")
def api(client):
    return deepl.DeepLClient("any", server_url=str(client.base_url))


@pytest.fixture
def wide(two_ways):
    """A client of a server that takes large bodies, and of two pairs of languages."""
    found = deepl.DeepLClient("any", server_url=str(two_ways.base_url))
    yield found
    for each in found.list_multilingual_glossaries():
        found.delete_multilingual_glossary(each)


@pytest.fixture(scope="module")
def plain(client):
    """The translation of SOURCE, by the server's own API."""
    return answered(client, {"source": SOURCE})["text"]


@pytest.fixture
def glossary(api):
    made = api.create_glossary("terms", "DE", "EN", TERMS)
    yield made
    api.delete_glossary(made)


def refused(function, *given, error=deepl.DeepLException, **named):
    """What the client's exception says."""
    with pytest.raises(error) as raised:
        function(*given, **named)
    return str(raised.value)


def posted(client, how="json", **fields):
    """What the server says of texts that no client sends."""
    return client.post("/v2/translate", **{how: fields}).json()["translations"]


def text_of(api, text, **more):
    return api.translate_text(text, **more, **PAIR).text


# ---- Texts


def test_texts_and_lists_of_them(api, client, plain):
    one = api.translate_text(SOURCE, target_lang="EN-US")
    assert (one.text, one.detected_source_lang, one.billed_characters) == (plain, "DE", len(SOURCE))
    english = "The patient is already English and stays as it is."
    given = [SOURCE, english, "", f"{SOURCE}\n\n{SOURCE}"]
    found = api.translate_text(given, target_lang="en-gb")
    assert [each.text for each in found] == [plain, english, "", f"{plain}\n\n{plain}"]
    assert [each.detected_source_lang for each in found[:2]] == ["DE", "EN"]
    fields = {"text": [SOURCE] * 2, "target_lang": "EN", "source_lang": "de", "unknown": "1"}
    form = posted(client, "data", **fields)
    assert form == [{"detected_source_language": "DE", "text": plain}] * 2
    loose = {"formality": "prefer_more", "context": "a", "model_type": "prefer_quality_optimized"}
    (found,) = posted(client, text=SOURCE, target_lang="EN", **loose)
    assert (found["text"], found["model_type_used"]) == (plain, "quality_optimized")


def test_words_of_several_languages_are_translated(two_ways):
    """They are believed to be in the target language only where that is clear."""
    for text, source in (
        ("proton beam, " * 3, "EN"),
        ("Das Haus ist am Morgen geschlossen.", "DE"),
    ):
        (found,) = posted(two_ways, text=text, target_lang="DE")
        assert found["detected_source_language"] == source
        assert (found["text"] == text) == (source == "DE")


def test_languages_and_usage(api):
    assert [(each.code, each.name) for each in api.get_source_languages()] == [("DE", "German")]
    targets = [(each.code, each.supports_formality) for each in api.get_target_languages()]
    assert targets == [("EN-GB", False), ("EN-US", False)]
    before = api.get_usage().character
    api.translate_text(SOURCE, **PAIR)
    after = api.get_usage()
    assert after.character.count == before.count + len(SOURCE) and not after.any_limit_reached


def test_sentences_are_split_as_the_request_says(api, client, plain):
    two, lines = f"{SOURCE}\n{SOURCE}", f"{plain}\n{plain}"
    found = {how: text_of(api, two, split_sentences=how) for how in ("0", "1", "nonewlines")}
    assert "\n" not in found.pop("0") and found == {"1": lines, "nonewlines": f"{plain} {plain}"}
    (number,) = posted(client, text=two, split_sentences=1, **PAIR)
    assert number["text"] == lines


@pytest.mark.parametrize("kind", ["xml", "html"])
def test_tags_and_what_stays_as_it_is(api, kind):
    kept = "<keep>einen Termin in der Klinik am Morgen</keep>"
    first = f"<p>Der <b>Patient</b> wurde gestern in der Klinik untersucht und bekam {kept}.</p>"
    text = f"{first}<p>Der Patient hat <br/> heute wieder einen Termin, mit {kept}.</p>"
    found = text_of(api, text, tag_handling=kind, ignore_tags="no,keep")
    assert found.count(kept) == 2 and found.count("<p>") == 2 and found.count("<br/>") == 1
    assert "translate" not in found and "<b>" in found and "untersucht" not in found
    whole = text_of(api, text, tag_handling=kind)
    assert kept not in whole and whole.count("<keep>") == 2
    said = '<keep translate="no">Port</keep>'
    assert said in text_of(api, f"{said} {SOURCE}", tag_handling=kind, ignore_tags=["keep"])


def test_tags_that_split_and_those_that_do_not(api, plain):
    def translated(text, **options):
        return text_of(api, text, tag_handling="xml", **options)

    apart = "<a><b>{0}</b><b>{0}</b></a>"
    assert translated(apart.format(SOURCE)) == apart.format(plain)
    inside = f"Dieser Satz steht vor <b>{SOURCE}</b>"
    alone = translated(inside, splitting_tags="b")
    assert alone.endswith(f"<b>{plain}</b>")
    assert translated(inside, outline_detection=False, splitting_tags=["b"]) == alone
    cells = "<r><c>Der Patient wurde gestern in der Klinik</c><c>noch einmal untersucht.</c></r>"
    joined = translated(cells, outline_detection=False)
    assert joined == translated(cells, non_splitting_tags="c") != translated(cells)
    for whole in ("<r/>", "<?xml version='1.0'?><r/>"):
        assert translated(whole) == whole
    for more in ({}, {"splitting_tags": "a"}):
        assert "not well-formed" in refused(translated, "<a>Port", **more)


@pytest.mark.parametrize(("kind", "kept"), [("xml", 3), ("html", 4)])
def test_what_is_added_to_tags_is_taken_out_again(kind, kept):
    """A translation that changes nothing returns the text; of a name's tags each has the mark that
    does not say itself whether it is translated."""
    text = "<keep>a</keep><keeper/><x:c/><keep q='1'/><KEEP/><keep translate='yes'>a &lt; b</keep>"
    fields = {"text": text, "target_lang": "EN", "ignore_tags": "keep,x:c", "tag_handling": kind}
    tagged = Tagged.from_text(text, read(TextRequest, fields))
    marked = tagged.text.request.source
    assert tagged.read(marked) == text and marked.count(tagged.mark) == kept


# ---- Glossaries: of one dictionary in /v2, of several in /v3


@pytest.mark.parametrize("terms", [{"Hello": "Hallo"}, ODD, LARGE, CSV], ids=lambda t: str(len(t)))
def test_a_glossary_of_either_version_is_read_by_both(wide, terms):
    name, csv, pair = f"a name, {uuid.uuid4()}", {}, ("EN", "DE")
    if terms is CSV:
        csv, terms = {"csv_data": CSV}, OF_CSV
        made = [
            wide.create_glossary_from_csv(name, *pair, **csv),
            wide.create_multilingual_glossary_from_csv(name, *pair, **csv),
        ]
    else:
        made = [
            wide.create_glossary(name, *pair, terms),
            wide.create_multilingual_glossary(name, [Dictionary(*pair, terms)]),
        ]
    for each in made:
        one = wide.get_glossary(each.glossary_id)
        several = wide.get_multilingual_glossary(each.glossary_id)
        assert [(one.source_lang, one.target_lang, one.entry_count)] == counts(several)
        assert counts(several) == [(*pair, len(terms))]
        assert one.name == several.name == each.name == name
        assert one.creation_time == several.creation_time == each.creation_time
        assert wide.get_glossary_entries(each.glossary_id) == entries(wide, each) == terms
    for listed in (wide.list_glossaries(), wide.list_multilingual_glossaries()):
        assert {g.glossary_id for g in listed} == {g.glossary_id for g in made}


def counts(glossary):
    """The dictionaries of a glossary of /v3, and their sizes."""
    return [(d.source_lang, d.target_lang, d.entry_count) for d in glossary.dictionaries]


def entries(api, glossary):
    """Those of its dictionary from English to German."""
    found = api.get_multilingual_glossary_entries(glossary.glossary_id, "EN", "DE").dictionaries
    return deepl.convert_tsv_to_dict(found[0].entries)


@pytest.mark.parametrize("version", ["", "multilingual_"])
@pytest.mark.parametrize("what", ["get_{}glossary", "get_{}glossary_entries", "delete_{}glossary"])
def test_a_glossary_that_is_not_there(wide, version, what):
    call, made = getattr(wide, what.format(version)), wide.create_glossary("a", "EN", "DE", TERMS)
    pair = ("EN", "DE") if version and "entries" in what else ()
    wide.delete_glossary(made)
    for identifier in (made.glossary_id, str(uuid.uuid4())):
        refused(call, identifier, *pair, error=deepl.GlossaryNotFoundException)
    assert "identifier" in refused(call, "invalid_glossary_id", *pair)


def test_a_glossary_of_one_dictionary(api, client, glossary, plain):
    assert glossary.ready
    placed = answered(client, {"source": SOURCE, "glossary": TERMS})["text"]
    assert "moonlight" in placed and placed != plain
    other = api.create_multilingual_glossary("v3", [Dictionary("DE", "EN", TERMS)])
    for each in (glossary, glossary.glossary_id, other, other.glossary_id):
        found = api.translate_text([SOURCE, SOURCE], glossary=each, **PAIR)
        assert [text.text for text in found] == [placed] * 2
    api.delete_multilingual_glossary(other)
    assert api.translate_text_with_glossary(SOURCE, glossary).text == placed
    tagged = "Der <b>Patient</b> hat einen Port."
    found = text_of(api, tagged, tag_handling="html", glossary=glossary)
    assert "<b>moonlight</b>" in found
    assert client.get("/v1/glossaries").json()["glossaries"] == [], "named ones are others"
    path = f"/v2/glossaries/{glossary.glossary_id}/entries"
    as_csv = client.get(path, headers={"Accept": "text/csv"})
    assert as_csv.text == "Patient,moonlight\n" and as_csv.headers["content-type"][:8] == "text/csv"


@pytest.mark.parametrize("terms", [{"Patient": "\u6df1"}, {"Patient": "moon|light"}, ODD], ids=str)
def test_terms_that_cannot_be_written_cost_no_translation(api, client, terms):
    """A bar is a character of the target; a term base of ours has alternatives there."""
    made = api.create_glossary("odd", "DE", "EN", terms)
    text = text_of(api, SOURCE, glossary=made)
    ours = v1(client, {"source": SOURCE, "glossary": {"Patient": "moon|light"}})
    assert text and text != ours.json()["text"], "neither alternative is placed alone"
    api.delete_glossary(made)


def test_several_glossaries_at_once(api, glossary):
    other = api.create_glossary("more", "DE", "EN", {"Port": "sunlight"})
    text = text_of(api, SOURCE, glossary_ids=[glossary, other.glossary_id])
    assert "moonlight" in text and "sunlight" in text
    api.delete_glossary(other)


def test_a_limit_of_glossaries(api, monkeypatch):
    monkeypatch.setattr(routes, "MOST_GLOSSARIES", 0)
    refused(api.create_glossary, "n", "DE", "EN", TERMS, error=deepl.QuotaExceededException)


def test_a_pair_that_a_glossary_has_no_dictionary_for(wide):
    made = wide.create_glossary("terms", "EN", "DE", {"patient": "Mondlicht"})
    refused(wide.translate_text, SOURCE, target_lang="DE", glossary=made, error=ValueError)
    refused(wide.translate_text, SOURCE, glossary=made, **PAIR, error=ValueError)
    there = {**PAIR, "glossary": made.glossary_id}  # of which the client cannot know
    for call, name in ((wide.translate_text, {}), (wide.translate_document_upload, "a.txt")):
        more = {"filename": name} if name else {}
        assert "no dictionary from DE to EN" in refused(call, SOURCE, **there, **more)


def test_the_pairs_of_languages_that_are_listed_are_kept(wide):
    pairs = [(each.source_lang, each.target_lang) for each in wide.get_glossary_languages()]
    assert {("en", "de"), ("de", "en"), ("ja", "pt")} <= {*pairs} and len({*pairs}) == len(pairs)
    for source, target in pairs[::97]:
        wide.delete_glossary(wide.create_glossary("any", source, target, {"a": "b"}))


@pytest.mark.parametrize("of_csv", ["", "_from_csv"])
def test_a_glossary_of_two_dictionaries_changes(wide, of_csv):
    """Its name; entries that are added to a dictionary, a dictionary that is replaced or deleted;
    /v2 knows glossaries of one."""
    pairs = [Dictionary("EN", "DE", {"patient": "Mondlicht"}), Dictionary("DE", "EN", {"a": "b"})]
    several = wide.create_multilingual_glossary("several", pairs)
    assert wide.list_glossaries() == []
    assert "/v3/glossaries" in refused(wide.get_glossary, several.glossary_id)

    def change(how, terms, csv):
        call = getattr(wide, f"{how}_multilingual_glossary_dictionary{of_csv}")
        given = ("EN", "DE", csv) if of_csv else (Dictionary("EN", "DE", terms),)
        return call(several, *given)

    more = {"patient": "Kranker", "tree": "Baum"}
    found = change("update", more, "patient,Kranker\ntree,Baum\n")
    assert found.name == "several" and entries(wide, several) == more
    assert counts(found) == [("EN", "DE", 2), ("DE", "EN", 1)]
    change("update", {"house": "Haus"}, "house,Haus\n")
    assert entries(wide, several) == {**more, "house": "Haus"}
    assert change("replace", OF_CSV, CSV).entry_count == 2
    assert entries(wide, several) == OF_CSV
    rename = wide.update_multilingual_glossary_name
    assert rename(several, "other").name == "other"
    refused(rename, several, "", error=ValueError)
    delete, pair = (
        wide.delete_multilingual_glossary_dictionary,
        dict(zip(PAIR, ("EN", "DE"), strict=True)),
    )
    delete(several, several.dictionaries[0])
    left = wide.get_multilingual_glossary(several.glossary_id)
    assert counts(left) == [("DE", "EN", 1)]
    assert [each.name for each in wide.list_glossaries()] == [left.name] == ["other"]
    refused(delete, str(uuid.uuid4()), **pair, error=deepl.GlossaryNotFoundException)
    refused(delete, "invalid_glossary_id", **pair)
    refused(delete, several, error=ValueError)
    assert "no dictionary from EN to DE" in refused(delete, several, **pair)


# ---- Documents


def finished(api, handle):
    """The status of a document that is done or has failed."""
    while (status := api.translate_document_get_status(handle)).ok and not status.done:
        time.sleep(0.05)
    return status


def fetched(api, content, name, **options):
    handle = api.translate_document_upload(content, filename=name, **{**PAIR, **options})
    status, out = finished(api, handle), io.BytesIO()
    assert status.done, status.error_message
    api.translate_document_download(handle, out)
    return out.getvalue(), status, handle


def test_a_document_is_translated_and_deleted(api, plain, glossary):
    content, status, handle = fetched(api, f"{SOURCE}\n", "a.txt")
    assert content.decode() == f"{plain}\n" and status.billed_characters == len(SOURCE)
    assert "Not found" in refused(api.translate_document_get_status, handle)
    refused(api.translate_document_download, handle)
    found, *_ = fetched(api, f"<p>{SOURCE}</p>", "a.html", source_lang=None)
    assert found.decode() == f"<p>{plain}</p>"
    found, *_ = fetched(api, f"{SOURCE}\n", "b.TXT", glossary=glossary)
    assert "moonlight" in found.decode()
    found, *_ = fetched(api, "It stays.", "c.md", source_lang="EN")
    assert found == b"It stays."
    found, *_ = fetched(api, docx(f"<w:r><w:t>{SOURCE}</w:t></w:r>"), "a.docx")
    with zipfile.ZipFile(io.BytesIO(found)) as archive:
        assert plain in archive.read("word/document.xml").decode()


def test_a_limit_of_documents(client, monkeypatch):
    monkeypatch.setattr(documents, "MOST", 0)
    given = {"file": ("a.txt", b"Guten Tag, Frau Nowak.")}
    answer = client.post("/v2/document", data=PAIR, files=given)
    assert answer.status_code == 429 and list(answer.json()) == ["message"]
    assert int(answer.headers["Retry-After"]) > 0


def test_a_wrong_document_and_a_wrong_key(api):
    handle = api.translate_document_upload(b"\xff\xfe\x00", filename="b.docx", **PAIR)
    status = finished(api, handle)
    assert "archive" in status.error_message and "/" not in status.error_message
    for identifier, key in ((handle.document_id, "x"), (uuid.uuid4().hex, handle.document_key)):
        wrong = deepl.DocumentHandle(identifier, key)
        assert "Not found" in refused(api.translate_document_get_status, wrong)


@pytest.mark.parametrize("name", ["a.txt", "a.docx"])  # a translated one, and a wrong one
def test_a_document_that_no_one_fetches_is_deleted(api, monkeypatch, name):
    """At its time, not at the next request."""
    made = []
    keep = documents.Documents.keep
    monkeypatch.setattr(documents, "KEEP_SECONDS", 1.0)
    monkeypatch.setattr(
        documents.Documents, "keep", lambda self, each: made.append(each) or keep(self, each)
    )
    handle = api.translate_document_upload(b"Guten Tag, Frau Nowak.", filename=name, **PAIR)
    finished(api, handle)
    assert made[0].input.exists()
    assert until(lambda: not made[0].folder.exists(), 30)
    assert "Not found" in refused(api.translate_document_get_status, handle)


# ---- Keys


def test_each_key_has_glossaries_and_documents_of_its_own(guarded, tmp_path):
    with guarded("one", "two", glossary_folder=tmp_path / "kept") as client:
        one, two, wrong = (
            deepl.DeepLClient(key, server_url=str(client.base_url)) for key in ("one", "two", "x")
        )
        made = one.create_glossary("of one", "DE", "EN", TERMS)
        handle = one.translate_document_upload(b"Guten Tag, Frau Nowak.", filename="a.txt", **PAIR)
        one.translate_text(SOURCE, **PAIR)
        assert two.get_usage().character.count == 0 < one.get_usage().character.count
        assert two.list_multilingual_glossaries() == [] and client.get("/v2/usage").is_error
        refused(wrong.get_usage, error=deepl.AuthorizationException)
        fields = {"document_key": handle.document_key, "name": "mine", **PAIR, "entries": "a\tb"}
        for method, path, _ in deepl_routes(client):
            at = path.format(glossary_id=made.glossary_id, document_id=handle.document_id)
            for key, status in (("x", 403), ("two", 404))[: 1 + ("{" in path)]:
                header = {"Authorization": f"DeepL-Auth-Key {key}"}
                answer = client.request(method, at, json=fields, headers=header)
                assert answer.status_code == status and list(answer.json()) == ["message"], path
        assert "Not found" in refused(two.translate_text, SOURCE, glossary=made, **PAIR)
        given = {"glossary_id": made.glossary_id, **PAIR}, {"file": ("a.txt", b"Guten Tag.")}
        other = {"Authorization": "DeepL-Auth-Key two"}
        answer = client.post("/v2/document", data=given[0], files=given[1], headers=other)
        assert answer.status_code == 404 and one.get_glossary_entries(made) == TERMS
        # the second key requests what the first one has
        path, both = "/v1/glossaries/a", [{"X-API-Key": key, **TSV} for key in ("one", "two")]
        for headers in both:
            assert client.put(path, content="a\tb\n", headers=headers).status_code == 201
        assert client.delete(path, headers=both[1]).status_code == 204
        named = {"source": SOURCE, "glossary": "a"}
        for headers, kept, status in zip(both, (["a"], []), (200, 404), strict=True):
            assert client.get("/v1/glossaries", headers=headers).json() == {"glossaries": kept}
            answer = client.post("/v1/translate", json=named, headers={**headers, **JSON})
            assert answer.status_code == status


# ---- The client of Node


@pytest.mark.skipif(not os.environ.get(ALL), reason="npm fetches it: --all")
def test_the_client_of_node(client, plain, tmp_path):
    if shutil.which("npm") is None:
        pytest.skip("no npm")
    install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", tmp_path, "deepl-node@1"]
    if subprocess.run(install, capture_output=True).returncode:
        pytest.skip("npm does not reach a registry")
    script = ROOT / "tests" / "serve" / "deepl_node.js"
    module = tmp_path / "node_modules" / "deepl-node"
    done = subprocess.run(
        ["node", script, module, str(client.base_url), SOURCE], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["one"] == plain and found["several"] == [plain, plain]
    assert found["targets"] == ["en-GB", "en-US"]
    assert found["entries"] == TERMS and "moonlight" in found["placed"]
    assert found["dictionaries"] == [["de", "en", 1], ["en", "fr", 1]]
    assert found["changed"] == [["de", "en", 2]] and found["name"] == "renamed"
    assert found["document"] == f"{plain}\n" and found["missing"] == "GlossaryNotFoundError"
    assert found["left"] == []
