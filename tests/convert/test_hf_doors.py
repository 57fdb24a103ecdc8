"""Converted models through fairseq's commands (a data set made with the converted dictionaries,
required words in each script), and behind the server: each request names its pair, or its text
does. And CTranslate2's own converter reads what is written here, where its checks allow it, and
then finds our words."""

from __future__ import annotations

import itertools
import os
import re
import unicodedata
from pathlib import Path

import pytest
import torch
from conftest import command
from serving import TSV, libre, upload
from sizes import ALL

pytest.importorskip("transformers", reason="the oracle is not installed")

from hf_models import KINDS, NO_SPACES, lines, make, numbers  # noqa: E402

from fairseq_ext import Translator  # noqa: E402
from fairseq_ext.search.request import Request  # noqa: E402
from fairseq_ext.text.marks import begun

TEXT = [
    "der Verband wird morgen geprüft",
    "никто не знает почему",
    "明日の朝医師が調べ",
    "तकल सुबह डॉक्टर",
]
TERMS = {
    "Latin": "Brücke",
    "Cyrillic": "мост",
    "Greek": "δεν ξέρει",
    "Arabic": "الجسر",
    "Devanagari": "डॉक्टर",
    "Han": "医生",
    "Japanese": "包帯",
    "Thai": "สะพาน",
}
LANGUAGE = re.compile(r"__\w+?__|\[\w+\]|<s>")  # the words of output that are languages


def kinds(*short):
    return pytest.mark.parametrize("kind", KINDS if os.environ.get(ALL) else short)


def flags_of(made):
    """The flags of the README's command, for the model's languages."""
    words = made.typed()[2:]
    pair = {"--source-lang": made.source, "--target-lang": made.target}
    for flag, value in (pair | {"--lang-pairs": "-".join(pair.values())}).items():
        if flag in words:
            words[words.index(flag) + 1] = value
    return words


def theirs(made, lines, most):
    """The first words of transformers' greedy translations, as fairseq's dictionary has
    them, without languages."""
    dictionary = made.translator().task.target_dictionary
    number_of = made.number_of(dictionary).tolist()
    out, end = [], made.model.config.eos_token_id
    how = dict(do_sample=False, num_beams=1, max_length=most)
    how |= dict(bad_words_ids=[[made.model.config.pad_token_id]], **made.generation)
    for line in lines:
        with torch.no_grad():
            row = made.model.generate(**made.batch([line]), **how)[0, 1:]
        tokens = itertools.takewhile(lambda number: number != end, row.tolist())
        words = " ".join(dictionary[number_of[token]] for token in tokens)
        out.append(without_languages(words, most))
    return out


def without_languages(text, most):
    return [word for word in text.split() if not LANGUAGE.fullmatch(word)][: most - 4]


@kinds("NLLB-200")
def test_generate_translates_a_data_set_made_with_the_converted_dictionaries(made, kind, tmp_path):
    """Binarised by fairseq's own command from text in the model's pieces."""
    of = made(kind, 2)
    found, pair = of.translator(), (of.source, of.target)
    tokenize = found.tokenizer.encode if found.tokenizer else str
    pieces = [f"{found.bpe.encode(tokenize(line))}\n" for line in TEXT]
    (tmp_path / f"test.{of.source}").write_text("".join(pieces))
    (tmp_path / f"test.{of.target}").write_text("\n" * len(TEXT))
    one = (of.out / "dict.txt").exists()
    names = [of.out / ("dict.txt" if one else f"dict.{each}.txt") for each in pair]
    given = ["--srcdict", names[0], "--tgtdict", names[1], "-s", of.source, "-t", of.target]
    given += ["--testpref", tmp_path / "test", "--destdir", tmp_path / "data"]
    command("fairseq-preprocess", *given)
    given = [tmp_path / "data", *flags_of(of), "--beam", 1, "--min-len", 0, "--max-len-b", 24]
    done = command("fairseq-generate", *given, "--cpu", "--gen-subset", "test", cwd=of.out)
    rows = dict(re.findall(r"^H-(\d+)\t\S+\t(.*)$", done.stdout, re.M))
    found = [without_languages(rows[str(i)], 22) for i in range(len(TEXT))]
    assert found == theirs(of, TEXT, 22)


@kinds("mBART-25")
def test_the_readme_names_a_pair_of_the_model(made, kind):
    """From English, in which its sentence is, or to the language that config.json names."""
    pairs = {"M2M-100": "en af", "NLLB-200": "eng_Latn ace_Arab", "mBART-50": "en_XX ar_AR"}
    pairs["mBART-25"] = "ar_AR en_XX"
    of = made(kind, 2)
    source, target = pairs.get(kind, f"{of.source} {of.target}").split()
    text = (of.out / "README.md").read_text(encoding="utf-8")
    assert f"--source-lang {source} --target-lang {target} " in text
    listed = "languages.txt lists the codes" in text
    assert listed == (kind in pairs) == (of.out / "languages.txt").exists()


@kinds("NLLB-200")
def test_required_words_stand_whole_in_each_script(made, kind, tmp_path):
    if kind == "WMT19":
        pytest.skip("its few pieces do not write every word")
    of, terms = made(kind, 2), tmp_path / "terms.tsv"
    terms.write_text("".join(f"{term}\n" for term in TERMS.values()), encoding="utf-8")
    given = [".", *flags_of(of), "--constraints-file", terms, "--cpu", "--max-len-b", 20]
    text = f"{TEXT[0]}\n" * len(TERMS)
    done = command("fairseq-interactive", *given, stdin=text, cwd=of.out)
    rows = [line.split("\t")[2] for line in done.stdout.splitlines() if line.startswith("D-")]
    for (script, term), row in zip(TERMS.items(), rows, strict=True):
        places = re.finditer(re.escape(term), row)
        around = [row[: at.start()][-1:] + row[at.end() :][:1] for at in places]
        assert around, (script, row)
        if script not in NO_SPACES:
            assert not all(any(map(is_letter, each)) for each in around), (script, row)


def is_letter(character):
    """Of a word of a script with spaces."""
    scripts = ("LATIN", "CYRILLIC", "GREEK", "ARABIC", "DEVANAGARI", "DIGIT")
    is_of_word = unicodedata.category(character)[0] in "LMN"
    return is_of_word and unicodedata.name(character, "").startswith(scripts)


# ---- the server

FLAGS = ["--beam", "3", "--max-len-b", "12"]
MBART = [("de_DE", "en_XX"), ("ru_RU", "zh_CN")]
PAIRS = {
    "NLLB-200": [("deu_Latn", "eng_Latn"), ("rus_Cyrl", "zho_Hans")],
    "M2M-100": [("de", "en"), ("ru", "zh")],
    "mBART-50": MBART,
    "mBART-25": MBART,
}
HOW = {"cpu": True, "beam": 3, "max_len_b": 12}  # as FLAGS


def translator(folder, pair):
    """Of one pair.

    A random model writes languages; the server leaves all of them out, and so it does.
    """
    found = Translator.from_folder(folder, source_lang=pair[0], target_lang=pair[1], **HOW)
    found.use_constraints()
    words = found.task.target_dictionary.symbols
    languages = {i for i, word in enumerate(words) if re.fullmatch(r"__\w+__|\[\w+\]", word)}
    found.generator.symbols_to_strip_from_output.update(languages)
    return found


@pytest.mark.parametrize("kind", PAIRS if os.environ.get(ALL) else ["NLLB-200"])
def test_requests_of_several_pairs_get_what_a_translator_of_each_gives(
    started,
    made,
    kind,
    tmp_path,
):
    of, pairs = made(kind, 2), PAIRS[kind]
    kept = tmp_path / "kept"
    _, client, said = started("--data", str(of.out), *FLAGS, "--glossary-folder", str(kept))
    count = int(re.search(r"^ready: (\d+) languages, ", said, re.M)[1])
    text, first = lines(8), pairs[0]
    phrases = [["мост"]] * len(text) + [[]] * len(text)
    languages = {e["code"]: e["targets"] for e in client.get("/languages").json()}
    assert len(languages) == count and {code for pair in pairs for code in pair} <= {*languages}
    for code, targets in languages.items():
        assert len(targets) == count - 1 and code not in targets
    for source, target in pairs:
        both = zip(text * 2, phrases, strict=True)
        records = [{"source": line, "constraints": words} for line, words in both]
        at = f"/v1/translate?source={source}&target={target}"
        scores = [each["score"] for each in client.post(at, json=records).json()]
        expected = translator(of.out, (source, target)).translate(text * 2, constraints=phrases)
        assert scores == pytest.approx([each[0].score for each in expected], abs=1e-4)
        body = {"q": text, "source": source[:2], "target": target[:2]}
        found = client.post("/translate", json=body).json()["translatedText"]
        assert found == [each[0].text for each in expected[len(text) :]]
    for path, given, sentence in (
        ("/translate", {"q": "a", "source": first[0], "target": "xx"}, "xx is not supported"),
        ("/v1/translate", {"source": "a"}, "this server translates"),
    ):
        refused = client.post(path, json=given)
        assert refused.status_code == 400 and refused.json()["error"].startswith(sentence)
    at = f"/v1/glossaries/x?source={first[0]}&target={first[1]}"
    assert client.put(at, content="a\tмост\n", headers=TSV).is_success
    assert (kept / "-".join(first) / "x.tsv").is_file()


def test_a_target_of_opus_mt_is_named_by_the_request_or_in_front_of_its_text(
    started,
    made,
):
    """Each sentence is translated as with its own >>fra<<."""
    out = made("OPUS-MT", 2).out
    _, client, said = started("--data", str(out), *FLAGS)
    assert "ready: 2 languages, " in said
    ours = Translator.from_folder(out, **HOW)
    sentences = ["Der Verband wird geprüft.", "Niemand weiß warum."]

    def expected(*languages, between=" "):
        pairs = zip(languages, sentences, strict=True)
        typed = [f">>{language}<< {each}" for language, each in pairs]
        found = [nbest[0].text for nbest in ours.translate(typed)]
        return between.join(map(begun, found, sentences))  # with the capital of its source

    french, german = expected("fra", "fra"), expected("deu", "deu")
    assert len({french, expected("fra", "deu"), german}) == 3
    text = " ".join(sentences)

    def requested(source, query="", **more):
        found = client.post(f"/v1/translate{query}", json={"source": source, **more})
        return found.raise_for_status().json()

    targets = {each["code"]: each["targets"] for each in client.get("/languages").json()}
    assert targets == {"de": ["deu", "fra"], "fra": [], "deu": []}
    both = f">>deu<<{sentences[0]}\n>>fra<< {sentences[1]}"
    for source, query, wanted in (
        (f">>fra<< {text}", "", french),
        (text, "?source=de&target=fra", french),
        (f">>deu<< {text}", "?target=fra", german),
        (both, "", expected("deu", "fra", between="\n")),
    ):
        assert requested(source, query)["text"] == wanted
    assert libre(client, text, target="fr")["translatedText"] == french
    assert libre(client, "a", target="spa") == {"error": "spa is not supported"}
    paragraph = f"<p>&gt;&gt;deu&lt;&lt; {text}</p>\n"
    for name, content, wanted in (
        ("a.txt", f"{text}\n", f"{french}\n"),
        ("a.html", paragraph, f"<p>{german}</p>\n"),
    ):
        found = upload(client, name, content.encode(), ("de", "fra")).json()
        assert client.get(found["translatedFileUrl"]).text == wanted
    given = {"constraints": ["мост"], "glossary": {"Verband": "Brücke"}, "detail": True}
    for source, query in ((sentences[0], "?target=fra"), (f">>fra<< {sentences[0]}", "")):
        met = requested(source, query, **given)
        assert "мост" in met["text"] and "Brücke" in met["text"]
        (term,) = [each for each in met["constraints"] if each.get("term")]
        assert [source[a:b] for a, b in term["source_spans"]] == ["Verband"]


@pytest.mark.skipif(not os.environ.get(ALL), reason="one more model and server: --all")
def test_a_pair_that_the_command_names_is_the_only_one(started, made):
    _, client, said = started("--data", str(made("M2M-100", 2).out), "-s", "de", "-t", "en", *FLAGS)
    assert "ready: de to en, " in said
    assert [each["code"] for each in client.get("/languages").json()] == ["de", "en"]


# ---- CTranslate2


# of a translation
FIRST = {
    "M2M-100": "__en__",
    "NLLB-200": "__eng_Latn__",
    "mBART-50": "[en_XX]",
    "mBART-25": "[en_XX]",
    "BART": "<s>",
}
ROOT = Path(__file__).resolve().parents[2]
READ = [kind for kind in KINDS if not kind.startswith("OPUS")]
MOST = 24


def converted(made, kind):
    """CTranslate2's folder, by its own command."""
    out = str(made.folder.parent / "ct2")
    flags = ["--model_path", made.out / "checkpoint.pt", "--data_dir", made.out, "--output_dir"]
    flags += [out, "--unsafe_deserialization", "--source_lang", made.source]
    flags += ["--target_lang", made.target]
    if (made.out / "dict.txt").exists():
        flags += ["--fixed_dictionary", made.out / "dict.txt"]
    if kind == "mBART-25":  # whose decoder begins with the language
        flags += ["--no_default_special_tokens"]
    if kind.startswith(("BART", "OPUS")):  # a task, an architecture of ours
        flags += ["--user_dir", ROOT / "fairseq_ext"]
    done = command("ct2-fairseq-converter", *flags, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("kind", READ if os.environ.get(ALL) else ["NLLB-200"])
def test_ctranslate2_reads_what_is_converted_and_finds_our_words(kind, tmp_path):
    made = make(kind, tmp_path, 2)  # without a bias of the output
    ctranslate2 = pytest.importorskip("ctranslate2", reason="the oracle is not installed")
    rival = ctranslate2.Translator(converted(made, kind), intra_threads=1)
    ours = made.translator(beam=1, max_len_b=MOST, min_len=0)
    source, text, seen = ours.task.source_dictionary, lines(16, 4), set()
    prefix = [FIRST[kind]] if kind in FIRST else []
    greedy = dict(beam_size=1, min_decoding_length=0, max_decoding_length=MOST)
    whole = kind == "mBART-25"  # others have </s> from CTranslate2, and the prefix in the answer
    for line in text:
        tokens = numbers(ours, line)
        words = [source[token] for token in (tokens if whole else tokens[:-1])]
        theirs = rival.translate_batch([words], [prefix], **greedy)[0].hypotheses[0]
        theirs = theirs if whole else theirs[len(prefix) :]
        found = ours.search([Request(tokens=ours.encode(line), nbest=1)])[0][0].tokens
        assert found[: MOST - 2] == theirs[: MOST - 2], line
        seen.update(theirs)
    assert len(seen) > 3


@pytest.mark.skipif(not os.environ.get(ALL), reason="a sentence of its own: with --all")
def test_ctranslate2_refuses_marians_architecture_by_its_name(tmp_path):
    pytest.importorskip("ctranslate2", reason="the oracle is not installed")
    name = "'marian_transformer'"
    said = f"Model {name} used by architecture {name} is not supported"
    with pytest.raises(AssertionError, match=said):
        converted(make("OPUS-MT", tmp_path, 3), "OPUS-MT")
