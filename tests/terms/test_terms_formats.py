"""Every format of a test set gives the same sentences and terms."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sizes import examples

from fairseq_ext.core.errors import UsageError
from fairseq_ext.terms import formats
from fairseq_ext.terms.cases import Files, Sentence, Term

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


def test_wmt23_finds_sources_and_terms_by_the_names_of_the_task(tmp_path):
    write(tmp_path / "enfr.en", "a runny nose\nnothing here\n")
    write(tmp_path / "enfr.fr", "nez qui coule\nrien ici\n")
    jsonl(tmp_path / "enfr.term.proper", [{"en": "runny nose", "fr": "nez qui coule|rhume"}], [])
    assert formats.read_wmt23(Files(str(tmp_path / "enfr.fr"), "fr", terms="proper")) == (
        SENTENCES,
        "en",
    )


SGM = """<refset setid="x" srclang="any" trglang="fr">
<doc sysid="ref" docid="D1" genre="terminology" origlang="en">
<p>
<seg id="6"> et votre <term id="3" type="src_original_and_tgt_original" \
src="runny nose" tgt="nez qui coule|rhume"> nez coule-t-il </term> ?
</seg>
</p>
</doc>
<doc docid="D2">
<seg id="1"> l' eau &amp; le feu </seg>
</doc>
</refset>
"""


def test_wmt21_reads_tags_with_places_and_documents(tmp_path):
    first, second = formats.read_wmt21(Files(write(tmp_path / "ref.sgm", SGM), "fr"))[0]
    # et votre nez coule - t - il ? : words 2 to 7
    assert first.terms == (
        Term("runny nose", ("nez qui coule", "rhume", "nez coule - t - il"), (2, 8), marked=True),
    )
    assert (first.reference, first.document, first.source) == (
        "et votre nez coule-t-il ?",
        "D1",
        None,
    )
    assert (second.reference, second.document, second.terms) == ("l' eau & le feu", "D2", ())


def test_wmt21_takes_sources_and_translations_in_sgm(tmp_path):
    sources = write(
        tmp_path / "src.sgm",
        '<doc><seg id="6"> and your <term> runny nose </term> ? </seg><seg id="1"> '
        "fire </seg></doc>",
    )
    references = write(tmp_path / "ref.sgm", SGM)
    assert [
        sentence.source
        for sentence in formats.read_wmt21(Files(references, "fr", sources=sources))[0]
    ] == ["and your runny nose ?", "fire"]
    assert formats.read_hypotheses(references, "--hypotheses", "fr") == [
        "et votre nez coule-t-il ?",
        "l' eau & le feu",
    ]


def test_own_tsv_and_jsonl(tmp_path):
    tsv = write(
        tmp_path / "set.tsv",
        "a runny nose\tnez qui coule\trunny nose\tnez qui coule | rhume\nnothing here\trien ici\n",
    )
    assert formats.read_tsv(Files(tsv, "fr")) == (SENTENCES, None)
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
    assert [sentence.terms for sentence in formats.read_text(plural)[0]] == [(), ()]
    assert formats.read_text(replace(plural, glossary_match="lemma"))[0][0].terms == (term,)
    with pytest.raises(UsageError, match="add --sources and --terms-file"):
        formats.read_text(Files(references, "en"))


def test_documents_and_other_dictionaries_of_jsonl(tmp_path):
    path = jsonl(tmp_path / "set.jsonl", {"reference": "b", "mine": {"a": "b"}, "document": 7})
    expected = ([Sentence(None, "b", (Term("a", ("b",)),), "7")], None)
    assert formats.read_jsonl(Files(path, "fr", terms="mine")) == expected
    with pytest.raises(
        UsageError, match="has 'other': --terms names one of 'reference', 'mine', 'document'"
    ):
        formats.read_jsonl(Files(path, "fr", terms="other"))
    plain = jsonl(tmp_path / "plain.jsonl", {"reference": "b", "terms": {"a": "b"}, "document": 7})
    assert (
        formats.read_jsonl(Files(plain, "fr", terms="random"))
        == formats.read_jsonl(Files(plain, "fr"))
        == expected
    )


@pytest.mark.parametrize(
    "reader, text, sentence",
    [
        (
            formats.read_wmt25,
            '{"en": "a", "de": "b", "proper": {}}\nnot json\n',
            "line 2 of F is not JSON",
        ),
        (formats.read_wmt25, '{"en": "a", "de": "b"}\n', "line 1 of F has no dictionary 'proper'"),
        (formats.read_wmt25, '{"en": "a", "proper": {}}\n', "line 1 of F has no text under 'de'"),
        (
            formats.read_wmt25,
            '{"en": "a", "de": "b", "proper": {"a": 3}}\n',
            "line 1 of F has a term without a target",
        ),
        (formats.read_wmt25, "[]\n", "line 1 of F is not a JSON object"),
        (
            formats.read_wmt25,
            '{"en": "a", "de": "\\ud800", "proper": {}}\n',
            "line 1 of F is not JSON",
        ),
        (formats.read_wmt21, "<doc>\n", "has no <seg> elements"),
        (
            formats.read_wmt21,
            "<seg id=4> a <term tgt=b> b </seg>",
            "segment 4 of F has a <term> without its end",
        ),
        (formats.read_tsv, "a\tb\nc\n", "line 2 of F has 1 column:"),
        (formats.read_tsv, "a\tb\tc\td\na\tb\tc\n", "line 2 of F has 3 columns"),
        (
            formats.read_jsonl,
            '{"reference": "b", "terms": 3}\n',
            "line 1 of F has terms of another kind",
        ),
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
        formats.read_wmt23(Files(str(tmp_path / "x.fr"), "fr"))


def test_translations_in_text_results_corpus_and_submission(tmp_path):
    def read(path):
        return formats.read_hypotheses(path, "--hypotheses", "de")

    assert read(write(tmp_path / "out.txt", "eins\n\nzwei\n")) == ["eins", "", "zwei"]
    results = [
        {"signature": "fairseq_ext:0.1|select:topk"},
        {"id": 1, "source": "f0", "text": "zwei", "hypotheses": [{"tokens": [4, 2]}]},
        {"id": 0, "source": "f1", "text": "eins", "hypotheses": [{"tokens": [5, 2]}]},
    ]
    assert read(jsonl(tmp_path / "results", *results)) == ["eins", "zwei"]
    with pytest.raises(UsageError, match="has no sentence 0"):
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
    formats.read_wmt21: '<doc docid="1"><seg id="1"> a <term src="a" tgt="b|c"> b </term> '
    "&amp; </seg></doc>\n",
    formats.read_tsv: "a\tb\tc\td\n",
    formats.read_jsonl: '{"source": "a", "reference": "b", "terms": [{"source": "a", "target": '
    '["b"]}], "document": 1}\n',
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
