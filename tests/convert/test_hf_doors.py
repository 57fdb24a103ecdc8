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

import httpx
import pytest
import torch
from conftest import command
from serving import started  # noqa: F401  (a fixture)
from sizes import ALL

pytest.importorskip("transformers", reason="the oracle is not installed")

from hf_models import KINDS, Made, lines, make  # noqa: E402

from fairseq_ext import Translator  # noqa: E402
from fairseq_ext.search.request import Request  # noqa: E402

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


def kinds(*short: str):
    return pytest.mark.parametrize("kind", KINDS if os.environ.get(ALL) else short)


def flags_of(made: Made) -> list[str]:
    """The flags of the README's command, for the model's languages."""
    words = made.typed()[2:]
    pair = (
        ("--source-lang", made.source),
        ("--target-lang", made.target),
        ("--lang-pairs", f"{made.source}-{made.target}"),
    )
    for flag, value in pair:
        if flag in words:
            words[words.index(flag) + 1] = value
    return words


def theirs(made: Made, lines: list[str], most: int) -> list[list[str]]:
    """The first words of transformers' greedy translations, as fairseq's dictionary has
    them, without languages."""
    dictionary = made.translator().task.target_dictionary
    number_of = made.number_of(dictionary).tolist()
    out, pad, end = [], made.model.config.pad_token_id, made.model.config.eos_token_id
    for line in lines:
        with torch.no_grad():
            row = made.model.generate(
                **made.batch([line]),
                **made.generation,
                do_sample=False,
                num_beams=1,
                max_length=most,
                bad_words_ids=[[pad]],
            )[0, 1:]
        tokens = itertools.takewhile(lambda number: number != end, row.tolist())
        out.append(
            without_languages(" ".join(dictionary[number_of[token]] for token in tokens), most)
        )
    return out


def without_languages(text: str, most: int) -> list[str]:
    return [word for word in text.split() if not LANGUAGE.fullmatch(word)][: most - 4]


@kinds("NLLB-200")
def test_generate_translates_a_data_set_made_with_the_converted_dictionaries(made, kind, tmp_path):
    """Binarised by fairseq's own command from text in the model's pieces."""
    of = made(kind, 2)
    found = of.translator()
    raw = tmp_path / f"test.{of.source}"
    raw.write_text(
        "".join(
            f"{found.bpe.encode(found.tokenizer.encode(line) if found.tokenizer else line)}\n"
            for line in TEXT
        )
    )
    (tmp_path / f"test.{of.target}").write_text("\n" * len(TEXT))
    names = (
        ["dict.txt"] * 2
        if (of.out / "dict.txt").exists()
        else [f"dict.{each}.txt" for each in (of.source, of.target)]
    )
    pair = ["-s", of.source, "-t", of.target]
    dictionaries = [
        f"--{side}dict={of.out / name}" for side, name in zip(("src", "tgt"), names, strict=True)
    ]
    command(
        "fairseq-preprocess",
        *pair,
        "--testpref",
        tmp_path / "test",
        *dictionaries,
        "--destdir",
        tmp_path / "data",
    )
    greedy = ["--beam", 1, "--min-len", 0, "--max-len-b", 24, "--cpu"]
    done = command(
        "fairseq-generate",
        tmp_path / "data",
        *flags_of(of),
        *greedy,
        "--gen-subset",
        "test",
        cwd=of.out,
    )
    rows = {
        int(number): text for number, text in re.findall(r"^H-(\d+)\t\S+\t(.*)$", done.stdout, re.M)
    }
    assert [without_languages(rows[i], 22) for i in range(len(TEXT))] == theirs(of, TEXT, 22)


@kinds("mBART-25")
def test_the_readme_names_a_pair_of_the_model(made, kind):
    """From English, in which its sentence is, or to the language that config.json names."""
    pairs = {
        "M2M-100": ("en", "af"),
        "NLLB-200": ("eng_Latn", "ace_Arab"),
        "mBART-50": ("en_XX", "ar_AR"),
        "mBART-25": ("ar_AR", "en_XX"),
    }
    of = made(kind, 2)
    source, target = pairs.get(kind, (of.source, of.target))
    text = (of.out / "README.md").read_text(encoding="utf-8")
    assert f"--source-lang {source} --target-lang {target} " in text
    assert (
        ("languages.txt lists the codes" in text)
        == (kind in pairs)
        == (of.out / "languages.txt").exists()
    )


@kinds("NLLB-200")
def test_required_words_stand_whole_in_each_script(made, kind, tmp_path):
    if kind == "WMT19":
        pytest.skip("its few pieces do not write every word")
    of = made(kind, 2)
    (tmp_path / "terms.tsv").write_text(
        "".join(f"{term}\n" for term in TERMS.values()), encoding="utf-8"
    )
    flags = [
        *flags_of(of),
        "--constraints-file",
        tmp_path / "terms.tsv",
        "--cpu",
        "--max-len-b",
        20,
    ]
    done = command(
        "fairseq-interactive", ".", *flags, stdin=f"{TEXT[0]}\n" * len(TERMS), cwd=of.out
    )
    rows = [line.split("\t")[2] for line in done.stdout.splitlines() if line.startswith("D-")]
    for (script, term), text in zip(TERMS.items(), rows, strict=True):
        places = [
            (text[: found.start()][-1:], text[found.end() :][:1])
            for found in re.finditer(re.escape(term), text)
        ]
        assert places, (script, text)
        if script not in ("Han", "Japanese", "Thai"):
            assert any(
                not is_letter(before) and not is_letter(behind) for before, behind in places
            ), (script, text)


def is_letter(character: str) -> bool:
    """Of a word of a script with spaces."""
    scripts = ("LATIN", "CYRILLIC", "GREEK", "ARABIC", "DEVANAGARI", "DIGIT")
    return (
        bool(character)
        and unicodedata.category(character)[0] in "LMN"
        and unicodedata.name(character, "").startswith(scripts)
    )


# ---- the server

FLAGS = ["--beam", "3", "--max-len-b", "12"]
PAIRS = {
    "NLLB-200": [("deu_Latn", "eng_Latn"), ("rus_Cyrl", "zho_Hans")],
    "M2M-100": [("de", "en"), ("ru", "zh")],
    "mBART-50": [("de_DE", "en_XX"), ("ru_RU", "zh_CN")],
    "mBART-25": [("de_DE", "en_XX"), ("ru_RU", "zh_CN")],
}


def translator(folder: Path, pair: tuple[str, str]) -> Translator:
    """Of one pair.

    A random model writes languages; the server leaves all of them out, and so it does.
    """
    found = Translator.from_folder(
        folder, source_lang=pair[0], target_lang=pair[1], cpu=True, beam=3, max_len_b=12
    )
    found.use_constraints()
    words = found.task.target_dictionary.symbols
    found.generator.symbols_to_strip_from_output.update(
        i for i, word in enumerate(words) if re.fullmatch(r"__\w+__|\[\w+\]", word)
    )
    return found


@pytest.mark.parametrize("kind", PAIRS if os.environ.get(ALL) else ["NLLB-200"])
def test_requests_of_several_pairs_get_what_a_translator_of_each_gives(
    started,  # noqa: F811
    made,
    kind,
    tmp_path,
):
    of, (first, second) = made(kind, 2), PAIRS[kind]
    _, url, said = started(
        "--data", str(of.out), *FLAGS, "--glossary-folder", str(tmp_path / "kept")
    )
    count = int(re.search(r"^ready: (\d+) languages, ", said, re.M)[1])
    text = lines(8)
    with httpx.Client(base_url=url, timeout=120) as client:
        languages = client.get("/languages").json()
        assert len(languages) == count and {*first, *second} <= {each["code"] for each in languages}
        assert all(
            len(each["targets"]) == count - 1 and each["code"] not in each["targets"]
            for each in languages
        )
        for source, target in (first, second):
            ours = translator(of.out, (source, target))
            records = [{"source": line, "constraints": ["мост"]} for line in text] + [
                {"source": line} for line in text
            ]
            found = client.post(
                f"/v1/translate?source={source}&target={target}", json=records
            ).json()
            expected = ours.translate(
                text * 2, constraints=[["мост"]] * len(text) + [[]] * len(text)
            )
            assert [each["score"] for each in found] == pytest.approx(
                [each[0].score for each in expected], abs=1e-4
            )
            requested = client.post(
                "/translate", json={"q": text, "source": source[:2], "target": target[:2]}
            )
            assert requested.json()["translatedText"] == [
                each[0].text for each in expected[len(text) :]
            ]
        for path, given, sentence in (
            ("/translate", {"q": "a", "source": first[0], "target": "xx"}, "xx is not supported"),
            ("/v1/translate", {"source": "a"}, "this server translates"),
        ):
            refused = client.post(path, json=given)
            assert refused.status_code == 400 and refused.json()["error"].startswith(sentence)
        kept = f"/v1/glossaries/x?source={first[0]}&target={first[1]}"
        assert client.put(kept, content="a\tмост\n", headers={"X-Requested-With": "x"}).is_success
        assert (tmp_path / "kept" / "-".join(first) / "x.tsv").is_file()


def test_a_target_of_opus_mt_is_named_by_the_request_or_in_front_of_its_text(
    started,  # noqa: F811
    made,
):
    """Each sentence is translated as with its own >>fra<<."""
    out = made("OPUS-MT", 2).out
    _, url, said = started("--data", str(out), *FLAGS)
    assert "ready: 2 languages, " in said
    ours = Translator.from_folder(out, cpu=True, beam=3, max_len_b=12)
    sentences = ["Der Verband wird geprüft.", "Niemand weiß warum."]

    def expected(*languages: str, between: str = " ") -> str:
        typed = [
            f">>{language}<< {each}" for language, each in zip(languages, sentences, strict=True)
        ]
        return between.join(found[0].text for found in ours.translate(typed))

    assert len({expected("fra", "fra"), expected("fra", "deu"), expected("deu", "deu")}) == 3
    text, both = " ".join(sentences), {"source": "de", "target": "fra"}
    with httpx.Client(base_url=url, timeout=120) as client:

        def requested(source: str, query: str = "", **more) -> dict:
            return (
                client.post(f"/v1/translate{query}", json={"source": source, **more})
                .raise_for_status()
                .json()
            )

        assert {each["code"]: each["targets"] for each in client.get("/languages").json()} == {
            "de": ["deu", "fra"],
            "fra": [],
            "deu": [],
        }
        assert requested(f">>fra<< {text}")["text"] == expected("fra", "fra")
        assert requested(text, "?source=de&target=fra")["text"] == expected("fra", "fra")
        assert requested(f">>deu<< {text}", "?target=fra")["text"] == expected("deu", "deu")
        assert requested(f">>deu<<{sentences[0]}\n>>fra<< {sentences[1]}")["text"] == expected(
            "deu", "fra", between="\n"
        )
        short = client.post("/translate", json={"q": text, "source": "de", "target": "fr"}).json()
        assert short["translatedText"] == expected("fra", "fra")
        paragraph = f"<p>&gt;&gt;deu&lt;&lt; {text}</p>\n"
        for name, content, wanted in (
            ("a.txt", f"{text}\n", f"{expected('fra', 'fra')}\n"),
            ("a.html", paragraph, f"<p>{expected('deu', 'deu')}</p>\n"),
        ):
            found = client.post(
                "/translate_file", data=both, files={"file": (name, content.encode())}
            ).raise_for_status()
            assert client.get(found.json()["translatedFileUrl"]).text == wanted
        for source, query in ((sentences[0], "?target=fra"), (f">>fra<< {sentences[0]}", "")):
            met = requested(
                source, query, constraints=["мост"], glossary={"Verband": "Brücke"}, detail=True
            )
            assert "мост" in met["text"] and "Brücke" in met["text"]
            (term,) = [each for each in met["constraints"] if each.get("term")]
            assert [source[a:b] for a, b in term["source_spans"]] == ["Verband"]
        refused = client.post("/translate", json={"q": "a", "source": "de", "target": "spa"})
        assert refused.status_code == 400 and refused.json()["error"] == "spa is not supported"


@pytest.mark.skipif(not os.environ.get(ALL), reason="one more model and server: --all")
def test_a_pair_that_the_command_names_is_the_only_one(started, made):  # noqa: F811
    _, url, said = started("--data", str(made("M2M-100", 2).out), "-s", "de", "-t", "en", *FLAGS)
    assert "ready: de to en, " in said
    assert [each["code"] for each in httpx.get(f"{url}/languages").json()] == ["de", "en"]


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


def converted(made: Made, kind: str) -> str:
    """CTranslate2's folder, by its own command."""
    out = made.folder.parent / "ct2"
    flags = [
        "--model_path",
        made.out / "checkpoint.pt",
        "--data_dir",
        made.out,
        "--output_dir",
        out,
        "--unsafe_deserialization",
    ]
    flags += ["--source_lang", made.source, "--target_lang", made.target]
    flags += (
        ["--fixed_dictionary", made.out / "dict.txt"] if (made.out / "dict.txt").exists() else []
    )
    # whose decoder begins with the language
    flags += ["--no_default_special_tokens"] if kind == "mBART-25" else []
    # a task, an architecture of ours
    flags += (
        ["--user_dir", ROOT / "fairseq_ext"] if kind == "BART" or kind.startswith("OPUS") else []
    )
    done = command("ct2-fairseq-converter", *flags, check=False)
    assert done.returncode == 0, done.stderr
    return str(out)


@pytest.mark.parametrize("kind", READ if os.environ.get(ALL) else ["NLLB-200"])
def test_ctranslate2_reads_what_is_converted_and_finds_our_words(kind, tmp_path):
    made = make(kind, tmp_path, 2)  # without a bias of the output
    ctranslate2 = pytest.importorskip("ctranslate2", reason="the oracle is not installed")
    rival = ctranslate2.Translator(converted(made, kind), intra_threads=1)
    ours = made.translator(beam=1, max_len_b=MOST, min_len=0)
    source, text, seen = ours.task.source_dictionary, lines(16, 4), set()
    for line in text:
        tokens = next(iter(ours.batches([ours.encode(line)])))["net_input"]["src_tokens"][
            0
        ].tolist()
        # it adds </s> itself
        words = [source[token] for token in (tokens if kind == "mBART-25" else tokens[:-1])]
        prefix = [FIRST[kind]] if kind in FIRST else []
        greedy = dict(beam_size=1, min_decoding_length=0, max_decoding_length=MOST)
        theirs = rival.translate_batch([words], [prefix], **greedy)[0].hypotheses[0]
        # of which it is the word before the first
        theirs = theirs if kind == "mBART-25" else theirs[len(prefix) :]
        found = ours.search([Request(tokens=ours.encode(line), nbest=1)])[0][0].tokens
        assert found[: MOST - 2] == theirs[: MOST - 2], line
        seen.update(theirs)
    assert len(seen) > 3


@pytest.mark.skipif(not os.environ.get(ALL), reason="a sentence of its own: with --all")
def test_ctranslate2_refuses_marians_architecture_by_its_name(tmp_path):
    pytest.importorskip("ctranslate2", reason="the oracle is not installed")
    with pytest.raises(
        AssertionError,
        match="Model 'marian_transformer' used by architecture 'marian_transformer' "
        "is not supported",
    ):
        converted(make("OPUS-MT", tmp_path, 3), "OPUS-MT")
