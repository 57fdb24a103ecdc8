"""Glossaries of both versions of DeepL's API through its official client: what its own suite calls
of a server, between German and English."""

import os
import time
import uuid

import pytest
from sizes import ALL

if os.environ.get(ALL):
    import deepl
else:
    deepl = pytest.importorskip("deepl")
from deepl.api_data import MultilingualGlossaryDictionaryEntries as Dictionary  # noqa: E402

ENGLISH = "The patient was examined in the hospital yesterday."
GERMAN = "Der Patient hat einen Port."
# terms that no model can write, and marks that a term base of ours reads as its own
ODD = {"A%=&": "B&=%", "\u0394\u3041": "\u6df1", "\U0001faa8": "\U0001fab5", "it's": '"so"'}
ODD |= {"a|b": "c|d", "Yes, no": "ja, nein", '"x", y': "z # w", "source": "target"}
LARGE = {f"Source-${i}": f"Target-${i}" for i in range(10_000)}
CSV = 'tree,Baum,en,de\n\n"a ""large"" tree","Baum, groß"\n'
OF_CSV = {"tree": "Baum", 'a "large" tree': "Baum, groß"}
PAIR = {"source_lang": "EN", "target_lang": "DE"}


class One:
    """/v2: a glossary has one dictionary."""

    def __init__(self, api):
        self.create, self.create_from_csv = api.create_glossary, api.create_glossary_from_csv
        self.get, self.entries = api.get_glossary, api.get_glossary_entries
        self.all, self.delete = api.list_glossaries, api.delete_glossary

    @staticmethod
    def counts(glossary):
        """Its dictionaries and their sizes."""
        return [(glossary.source_lang, glossary.target_lang, glossary.entry_count)]


class Several:
    """/v3: a glossary has a dictionary for each pair of languages."""

    def __init__(self, api):
        self.api = api
        self.create_from_csv = api.create_multilingual_glossary_from_csv
        self.get, self.all = api.get_multilingual_glossary, api.list_multilingual_glossaries
        self.delete = api.delete_multilingual_glossary

    def create(self, name, source, target, terms):
        return self.api.create_multilingual_glossary(name, [Dictionary(source, target, terms)])

    def entries(self, glossary):
        (found,) = self.api.get_multilingual_glossary_entries(glossary, "EN", "DE").dictionaries
        return deepl.convert_tsv_to_dict(found.entries)

    @staticmethod
    def counts(glossary):
        return [(d.source_lang, d.target_lang, d.entry_count) for d in glossary.dictionaries]


@pytest.fixture(scope="module")
def api(two_ways):
    return deepl.DeepLClient("any", server_url=str(two_ways.base_url))


@pytest.fixture(params=[One, Several], ids=["v2", "v3"])
def kind(request, api):
    yield request.param(api)
    for each in api.list_multilingual_glossaries():
        api.delete_multilingual_glossary(each)


@pytest.fixture
def several(api):
    """A glossary of two dictionaries."""
    pairs = [Dictionary("EN", "DE", {"patient": "Mondlicht"}), Dictionary("DE", "EN", {"a": "b"})]
    yield api.create_multilingual_glossary("several", pairs)
    for each in api.list_multilingual_glossaries():
        api.delete_multilingual_glossary(each)


def refused(error, function, *args, **more):
    """What the client's exception says."""
    with pytest.raises(error) as raised:
        function(*args, **more)
    return str(raised.value)


# ---- What both versions can do


def test_it_is_created_and_found_again(kind):
    name = f"a name, {uuid.uuid4()}"
    made = kind.create(name, "EN", "DE", {"Hello": "Hallo"})
    found = kind.get(made.glossary_id)
    assert found.name == made.name == name and found.creation_time == made.creation_time
    assert kind.counts(found) == kind.counts(made) == [("EN", "DE", 1)]
    assert name in [each.name for each in kind.all()]


def test_a_large_one(kind):
    made = kind.create("large", "EN", "DE", LARGE)
    assert kind.counts(made) == [("EN", "DE", 10_000)] and kind.entries(made) == LARGE


def test_one_of_csv(kind):
    made = kind.create_from_csv("table", "EN", "DE", csv_data=CSV)
    assert kind.counts(made) == [("EN", "DE", 2)] and kind.entries(made) == OF_CSV


def test_entries_of_all_characters(api, kind):
    made = kind.create("odd", "EN", "DE", ODD)
    assert kind.entries(made) == ODD == kind.entries(made.glossary_id)
    unusable = kind.create("none that can be used", "EN", "DE", {"patient": "\u6df1"})
    for each in (made, unusable):
        assert api.translate_text(ENGLISH, glossary=each, **PAIR).text


@pytest.mark.parametrize("what", ["get", "entries", "delete"])
def test_one_that_is_not_there(kind, what):
    made = kind.create("deleted", "EN", "DE", {"Hello": "Hallo"})
    kind.delete(made)
    for identifier in (made.glossary_id, str(uuid.uuid4())):
        refused(deepl.GlossaryNotFoundException, getattr(kind, what), identifier)
    assert "identifier" in refused(deepl.DeepLException, getattr(kind, what), "invalid_glossary_id")


def test_texts_are_translated_with_it(api, kind):
    made = kind.create("terms", "EN", "DE", {"patient": "Mondlicht"})
    plain = api.translate_text(ENGLISH, **PAIR).text
    for each in (made, made.glossary_id):
        found = api.translate_text([ENGLISH, ENGLISH], glossary=each, **PAIR)
        assert all("mondlicht" in text.text.lower() for text in found)
        assert "mondlicht" not in plain.lower()
    back = kind.create("back", "DE", "EN", {"Patient": "moonlight"})
    for target in ("EN-US", "EN-GB"):
        text = api.translate_text(GERMAN, source_lang="DE", target_lang=target, glossary=back).text
        assert "moonlight" in text.lower()


def test_a_document_is_translated_with_it(api, kind, tmp_path, monkeypatch):
    sleep = time.sleep  # the client waits for 5 seconds
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.1)))
    made = kind.create("terms", "EN", "DE", {"patient": "Mondlicht", "hospital": "Sternwarte"})
    given, out = tmp_path / "in.txt", tmp_path / "out.txt"
    given.write_text(f"{ENGLISH}\n{ENGLISH}\n", encoding="utf-8")
    api.translate_document_from_filepath(given, out, glossary=made, **PAIR)
    lines = out.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    assert all("mondlicht" in x.lower() and "sternwarte" in x.lower() for x in lines)


def test_a_pair_that_it_has_no_dictionary_for(api, kind):
    made = kind.create("terms", "EN", "DE", {"patient": "Mondlicht"})
    away = {"source_lang": "DE", "target_lang": "EN-GB"}
    refused(ValueError, api.translate_text, GERMAN, target_lang="DE", glossary=made)
    refused(ValueError, api.translate_text, GERMAN, glossary=made, **away)
    away["glossary"] = made.glossary_id  # of which the client cannot know
    for call, more in (
        (api.translate_text, {}),
        (api.translate_document_upload, {"filename": "a.txt"}),
    ):
        said = refused(deepl.DeepLException, call, GERMAN, **away, **more)
        assert "no dictionary from DE to EN" in said


# ---- /v2 alone


def test_the_pairs_of_languages_that_are_listed_are_kept(api):
    pairs = [(each.source_lang, each.target_lang) for each in api.get_glossary_languages()]
    assert {("en", "de"), ("de", "en"), ("ja", "pt")} <= {*pairs} and len({*pairs}) == len(pairs)
    for source, target in pairs[::97]:
        api.delete_glossary(api.create_glossary("any", source, target, {"a": "b"}))


# ---- /v3 alone


def test_a_name_is_changed(api, several):
    assert api.list_glossaries() == [], "/v2 knows one dictionary of each"
    assert "/v3/glossaries" in refused(deepl.DeepLException, api.get_glossary, several.glossary_id)
    assert api.update_multilingual_glossary_name(several, "other").name == "other"
    found = api.get_multilingual_glossary(several.glossary_id)
    assert found.name == "other" and Several.counts(found) == [("EN", "DE", 1), ("DE", "EN", 1)]
    refused(ValueError, api.update_multilingual_glossary_name, several, "")


@pytest.mark.parametrize("of_csv", ["", "_from_csv"])
def test_entries_are_added_to_a_dictionary_and_it_is_replaced(api, several, of_csv):
    def change(how: str, terms: dict, csv: str):
        call = getattr(api, f"{how}_multilingual_glossary_dictionary{of_csv}")
        given = ("EN", "DE", csv) if of_csv else (Dictionary("EN", "DE", terms),)
        return call(several, *given)

    more = {"patient": "Kranker", "tree": "Baum"}
    found = change("update", more, "patient,Kranker\ntree,Baum\n")
    assert found.name == "several" and Several(api).entries(several) == more
    assert Several.counts(found) == [("EN", "DE", 2), ("DE", "EN", 1)]
    found = change("update", {"house": "Haus"}, "house,Haus\n")
    assert Several(api).entries(several) == {**more, "house": "Haus"}
    assert change("replace", OF_CSV, CSV).entry_count == 2
    assert Several(api).entries(several) == OF_CSV


def test_a_dictionary_is_deleted(api, several):
    delete = api.delete_multilingual_glossary_dictionary
    delete(several, several.dictionaries[0])
    left = api.get_multilingual_glossary(several.glossary_id)
    assert Several.counts(left) == [("DE", "EN", 1)]
    assert [each.name for each in api.list_glossaries()] == ["several"]
    refused(deepl.GlossaryNotFoundException, delete, str(uuid.uuid4()), **pair_of(several))
    refused(deepl.DeepLException, delete, "invalid_glossary_id", **pair_of(several))
    refused(ValueError, delete, several)
    said = refused(deepl.DeepLException, delete, several, source_lang="EN", target_lang="DE")
    assert "no dictionary from EN to DE" in said


def pair_of(glossary):
    found = glossary.dictionaries[0]
    return {"source_lang": found.source_lang, "target_lang": found.target_lang}
