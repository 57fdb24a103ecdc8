"""Every format of a test set gives the same sentences and terms."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sizes import examples
from terms.test_terms_glossary_files import rows

from fairseq_ext.core.errors import UsageError
from fairseq_ext.terms import formats
from fairseq_ext.terms.cases import Sentence, Term
from fairseq_ext.terms.formats import Files

SENTENCES = [
    Sentence("a runny nose", "nez qui coule", (Term("runny nose", ("nez qui coule", "rhume")),)),
    Sentence("nothing here", "rien ici", ()),
]


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def jsonl(path, *records):
    return write(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def test_wmt25_has_source_reference_and_dictionaries_in_each_line(tmp_path):
    lines = [
        {
            "en": "a runny nose",
            "fr": "nez qui coule",
            "proper": {"runny nose": "nez qui coule|rhume"},
            "random": {"a": "b"},
            "noterm": {},
        },
        {"en": "nothing here", "fr": "rien ici", "proper": {}, "random": {}, "noterm": {}},
    ]
    path = jsonl(tmp_path / "references.jsonl", *lines)
    assert formats.read_wmt25(Files(path, "fr", terms="proper")) == (SENTENCES, "en")
    assert formats.read_wmt25(Files(path, "fr", terms="random"))[0][0].terms == (Term("a", ("b",)),)


def test_own_jsonl(tmp_path):
    path = jsonl(
        tmp_path / "set.jsonl",
        {
            "source": "a runny nose",
            "reference": "nez qui coule",
            "terms": [{"source": "runny nose", "target": ["nez qui coule", "rhume"]}],
        },
        {"source": "nothing here", "reference": "rien ici", "terms": {}},
    )
    assert formats.read_jsonl(Files(path, "fr", source_lang="en")) == (SENTENCES, "en")


def test_text_has_the_terms_of_a_glossary(tmp_path):
    sources = write(tmp_path / "in.de", "Zwei Häuser, ein Haus\nnichts\n")
    references = write(tmp_path / "ref.en", "two houses, one house\nnothing\n")
    glossary = write(tmp_path / "g.tsv", "Haus\thouse\nnicht\tnot\nHaus\tbuilding\n")
    files = Files(references, "en", "de", sources, glossary)
    term = Term("Haus", ("house", "building"), marked=True)
    assert [sentence.terms for sentence in formats.read_text(files)[0]] == [(term,), ()]
    plural = Files(
        references, "en", "de", write(tmp_path / "plural.de", "Zwei Häuser\nnichts\n"), glossary
    )
    assert [sentence.terms for sentence in formats.read_text(plural)[0]] == [(term,), ()]
    surface = replace(plural, glossary_match="surface")
    assert [sentence.terms for sentence in formats.read_text(surface)[0]] == [(), ()]
    with pytest.raises(UsageError, match="add --sources and --terms-file"):
        formats.read_text(Files(references, "en"))


def test_other_dictionaries_of_jsonl(tmp_path):
    path = jsonl(tmp_path / "set.jsonl", {"reference": "b", "mine": {"a": "b"}})
    expected = ([Sentence(None, "b", (Term("a", ("b",)),))], None)
    assert formats.read_jsonl(Files(path, "fr", terms="mine")) == expected
    with pytest.raises(UsageError, match="has 'other': --terms names one of 'reference', 'mine'"):
        formats.read_jsonl(Files(path, "fr", terms="other"))
    plain = jsonl(tmp_path / "plain.jsonl", {"reference": "b", "terms": {"a": "b"}})
    assert (
        formats.read_jsonl(Files(plain, "fr", terms="random"))
        == formats.read_jsonl(Files(plain, "fr"))
        == expected
    )


@pytest.mark.parametrize(("reader", "text", "sentence"), rows("test set"))
def test_a_wrong_line_is_named(tmp_path, reader, text, sentence):
    path = write(tmp_path / "F", text)
    with pytest.raises(UsageError) as error:
        getattr(formats, reader)(Files(path, "de"))
    assert sentence in str(error.value).replace(path, "F")


def test_files_of_different_lengths_are_refused(tmp_path):
    sources, references = write(tmp_path / "x.en", "a\n"), write(tmp_path / "x.fr", "a\nb\n")
    files = Files(references, "fr", sources=sources, terms_file=write(tmp_path / "g", "a\ta\n"))
    with pytest.raises(UsageError, match="--sources has 1 line and --references has 2"):
        formats.read_text(files)


def test_translations_in_text_results_corpus_and_submission(tmp_path):
    def read(path):
        return formats.read_hypotheses(path, "de")

    assert read(write(tmp_path / "out.txt", "eins\n\nzwei\n")) == ["eins", "", "zwei"]
    results = [
        {"signature": "fairseq_ext:0.1|select:topk"},
        {"id": 1, "source": "f0", "text": "zwei", "hypotheses": [{"tokens": [4, 2]}]},
        {"id": 0, "source": "f1", "text": "eins", "hypotheses": [{"tokens": [5, 2]}]},
    ]
    assert read(jsonl(tmp_path / "results", *results)) == ["eins", "zwei"]
    with pytest.raises(UsageError, match="has no sentence 1"):
        read(jsonl(tmp_path / "part.jsonl", *results[:2]))
    corpus = [
        {"id": 0, "source": "one", "hypotheses": ["eins", "ein"]},
        {"id": 1, "source": "", "hypotheses": [], "error": "empty"},
    ]
    assert read(jsonl(tmp_path / "corpus.jsonl", *corpus)) == ["eins", ""]
    assert read(jsonl(tmp_path / "submission.jsonl", {"en": "one", "de": "eins", "terms": {}})) == [
        "eins"
    ]
    with pytest.raises(UsageError, match="line 1 of .* has no translation"):
        read(jsonl(tmp_path / "other.jsonl", {"en": "one"}))


VALID = {
    formats.read_wmt25: '{"en": "a", "de": "b", "proper": {"a": "b"}}\n',
    formats.read_jsonl: '{"source": "a", "reference": "b", "terms": [{"source": "a", "target": '
    '["b"]}]}\n',
}


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(list(VALID)), st.data())
def test_any_text_is_a_test_set_or_one_sentence(tmp_path, reader, data):
    at = data.draw(st.integers(0, len(VALID[reader])))
    some = data.draw(st.text(max_size=6) | st.text('<>/"{}[],:|\\ \t\nabdenu8', max_size=8))
    (tmp_path / "F").write_text(VALID[reader][:at] + some + VALID[reader][at:], encoding="utf-8")
    try:
        sentences, _ = reader(Files(str(tmp_path / "F"), "de"))
    except UsageError as error:
        assert str(error)
    else:
        assert all(term.targets for sentence in sentences for term in sentence.terms)
