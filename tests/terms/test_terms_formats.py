"""Every format of a test set gives the same sentences and terms."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_ext.core.errors import UsageError
from fairseq_ext.terms.formats import hypotheses, own, text, wmt21, wmt23, wmt25
from fairseq_ext.terms.formats.files import Files
from fairseq_ext.terms.test_set import Sentence, Term

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
        {"en": "a runny nose", "fr": "nez qui coule", "proper": {"runny nose": "nez qui coule|rhume"}, "random": {"a": "b"}, "noterm": {}},
        {"en": "nothing here", "fr": "rien ici", "proper": {}, "random": {}, "noterm": {}},
    ]
    path = jsonl(tmp_path / "references.jsonl", *lines)
    assert wmt25.read(Files(path, "fr", terms="proper")) == (SENTENCES, "en")
    assert wmt25.read(Files(path, "fr", terms="random"))[0][0].terms == (Term("a", ("b",)),)


def test_wmt23_finds_sources_and_terms_by_the_names_of_the_task(tmp_path):
    write(tmp_path / "enfr.en", "a runny nose\nnothing here\n")
    write(tmp_path / "enfr.fr", "nez qui coule\nrien ici\n")
    jsonl(tmp_path / "enfr.term.proper", [{"en": "runny nose", "fr": "nez qui coule|rhume"}], [])
    assert wmt23.read(Files(str(tmp_path / "enfr.fr"), "fr", terms="proper")) == (SENTENCES, "en")


SGM = """<refset setid="x" srclang="any" trglang="fr">
<doc sysid="ref" docid="D1" genre="terminology" origlang="en">
<p>
<seg id="6"> et votre <term id="3" type="src_original_and_tgt_original" src="runny nose" tgt="nez qui coule|rhume"> nez coule-t-il </term> ?
</seg>
</p>
</doc>
<doc docid="D2">
<seg id="1"> l' eau &amp; le feu </seg>
</doc>
</refset>
"""


def test_wmt21_reads_tags_with_places_and_documents(tmp_path):
    first, second = wmt21.read(Files(write(tmp_path / "ref.sgm", SGM), "fr"))[0]
    # et votre nez coule - t - il ? : words 2 to 7
    assert first.terms == (Term("runny nose", ("nez qui coule", "rhume", "nez coule - t - il"), (2, 8), marked=True),)
    assert (first.reference, first.document, first.source) == ("et votre nez coule-t-il ?", "D1", None)
    assert (second.reference, second.document, second.terms) == ("l' eau & le feu", "D2", ())


def test_wmt21_takes_sources_and_translations_in_sgm(tmp_path):
    sources = write(tmp_path / "src.sgm", '<doc><seg id="6"> and your <term> runny nose </term> ? </seg><seg id="1"> fire </seg></doc>')
    references = write(tmp_path / "ref.sgm", SGM)
    assert [sentence.source for sentence in wmt21.read(Files(references, "fr", sources=sources))[0]] == ["and your runny nose ?", "fire"]
    assert hypotheses.read(references, "--hypotheses", "fr") == ["et votre nez coule-t-il ?", "l' eau & le feu"]


def test_own_tsv_and_jsonl(tmp_path):
    tsv = write(tmp_path / "set.tsv", "a runny nose\tnez qui coule\trunny nose\tnez qui coule | rhume\nnothing here\trien ici\n")
    assert own.read_tsv(Files(tsv, "fr")) == (SENTENCES, None)
    path = jsonl(
        tmp_path / "set.jsonl",
        {"source": "a runny nose", "reference": "nez qui coule", "terms": [{"source": "runny nose", "target": ["nez qui coule", "rhume"]}]},
        {"source": "nothing here", "reference": "rien ici", "terms": {}},
    )
    assert own.read_jsonl(Files(path, "fr", source_lang="en")) == (SENTENCES, "en")


def test_text_has_the_terms_of_a_glossary(tmp_path):
    sources = write(tmp_path / "in.de", "Zwei Häuser, ein Haus\nnichts\n")
    references = write(tmp_path / "ref.en", "two houses, one house\nnothing\n")
    glossary = write(tmp_path / "g.tsv", "Haus\thouse\nnicht\tnot\nHaus\tbuilding\n")
    files = Files(references, "en", "de", sources, glossary)
    term = Term("Haus", ("house", "building"), marked=True)
    assert [sentence.terms for sentence in text.read(files)[0]] == [(term,), ()]
    plural = Files(references, "en", "de", write(tmp_path / "plural.de", "Zwei Häuser\nnichts\n"), glossary)
    assert [sentence.terms for sentence in text.read(plural)[0]] == [(), ()]
    assert text.read(replace(plural, glossary_match="lemma"))[0][0].terms == (term,)
    with pytest.raises(UsageError, match="add --sources and --terms-file"):
        text.read(Files(references, "en"))


def test_documents_and_other_dictionaries_of_jsonl(tmp_path):
    path = jsonl(tmp_path / "set.jsonl", {"reference": "b", "mine": {"a": "b"}, "document": 7})
    expected = ([Sentence(None, "b", (Term("a", ("b",)),), "7")], None)
    assert own.read_jsonl(Files(path, "fr", terms="mine")) == expected
    with pytest.raises(UsageError, match="has 'other': --terms names one of 'reference', 'mine', 'document'"):
        own.read_jsonl(Files(path, "fr", terms="other"))
    plain = jsonl(tmp_path / "plain.jsonl", {"reference": "b", "terms": {"a": "b"}, "document": 7})
    assert own.read_jsonl(Files(plain, "fr", terms="random")) == own.read_jsonl(Files(plain, "fr")) == expected


@pytest.mark.parametrize(
    "reader, text, sentence",
    [
        (wmt25.read, '{"en": "a", "de": "b", "proper": {}}\nnot json\n', "line 2 of F is not JSON"),
        (wmt25.read, '{"en": "a", "de": "b"}\n', "line 1 of F has no dictionary 'proper'"),
        (wmt25.read, '{"en": "a", "proper": {}}\n', "line 1 of F has no text under 'de'"),
        (wmt25.read, '{"en": "a", "de": "b", "proper": {"a": 3}}\n', "line 1 of F has a term without a target"),
        (wmt25.read, "[]\n", "line 1 of F is not a JSON object"),
        (wmt25.read, '{"en": "a", "de": "\\ud800", "proper": {}}\n', "line 1 of F is not JSON"),
        (wmt21.read, "<doc>\n", "has no <seg> elements"),
        (wmt21.read, "<seg id=4> a <term tgt=b> b </seg>", "segment 4 of F has a <term> without its end"),
        (own.read_tsv, "a\tb\nc\n", "line 2 of F has 1 column:"),
        (own.read_tsv, "a\tb\tc\td\na\tb\tc\n", "line 2 of F has 3 columns"),
        (own.read_jsonl, '{"reference": "b", "terms": 3}\n', "line 1 of F has terms of another kind"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, reader, text, sentence):
    path = write(tmp_path / "F", text)
    with pytest.raises(UsageError) as error:
        reader(Files(path, "de"))
    assert sentence in str(error.value).replace(path, "F")


def test_wmt23_files_of_different_lengths_are_refused(tmp_path):
    write(tmp_path / "x.en", "a\n")
    write(tmp_path / "x.fr", "a\nb\n")
    jsonl(tmp_path / "x.term.proper", [{"en": "a", "fr": "a"}], [])
    with pytest.raises(UsageError, match="--sources has 1 line and --references has 2"):
        wmt23.read(Files(str(tmp_path / "x.fr"), "fr"))


def test_translations_in_text_results_corpus_and_submission(tmp_path):
    def read(path):
        return hypotheses.read(path, "--hypotheses", "de")

    assert read(write(tmp_path / "out.txt", "eins\n\nzwei\n")) == ["eins", "", "zwei"]
    results = [
        {"signature": "fairseq_ext:0.1|select:topk"},
        {"id": 1, "source": "f0", "text": "zwei", "hypotheses": [{"tokens": [4, 2]}]},
        {"id": 0, "source": "f1", "text": "eins", "hypotheses": [{"tokens": [5, 2]}]},
    ]
    assert read(jsonl(tmp_path / "results", *results)) == ["eins", "zwei"]
    with pytest.raises(UsageError, match="has no sentence 0"):
        read(jsonl(tmp_path / "part.jsonl", *results[:2]))
    corpus = [{"id": 0, "source": "one", "hypotheses": ["eins", "ein"]}, {"id": 1, "source": "", "hypotheses": [], "error": "empty"}]
    assert read(jsonl(tmp_path / "corpus.jsonl", *corpus)) == ["eins", ""]
    assert read(jsonl(tmp_path / "submission.jsonl", {"en": "one", "de": "eins", "terms": {}})) == ["eins"]
    with pytest.raises(UsageError, match="line 1 of .* has no translation"):
        read(jsonl(tmp_path / "other.jsonl", {"en": "one"}))


VALID = {
    wmt25.read: '{"en": "a", "de": "b", "proper": {"a": "b"}}\n',
    wmt21.read: '<doc docid="1"><seg id="1"> a <term src="a" tgt="b|c"> b </term> &amp; </seg></doc>\n',
    own.read_tsv: "a\tb\tc\td\n",
    own.read_jsonl: '{"source": "a", "reference": "b", "terms": [{"source": "a", "target": ["b"]}], "document": 1}\n',
}


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
