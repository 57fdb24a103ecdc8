"""Converted models behind the server: each request names its pair, or its text does."""

import os
import re
from pathlib import Path

import httpx
import pytest
from serving import started  # noqa: F401  (a fixture)
from sizes import ALL

from fairseq_ext import Translator

pytest.importorskip("transformers", reason="the oracle is not installed")
from hf_models import lines, make  # noqa: E402

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
    kind,
    tmp_path,
):
    made, (first, second) = make(kind, tmp_path, 2), PAIRS[kind]
    _, url, said = started(
        "--data", str(made.out), *FLAGS, "--glossary-folder", str(tmp_path / "kept")
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
            ours = translator(made.out, (source, target))
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
    tmp_path,
):
    """Each sentence is translated as with its own >>fra<<."""
    out = make("OPUS-MT", tmp_path, 2).out
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
def test_a_pair_that_the_command_names_is_the_only_one(started, tmp_path):  # noqa: F811
    made = make("M2M-100", tmp_path, 2)
    _, url, said = started("--data", str(made.out), "-s", "de", "-t", "en", *FLAGS)
    assert "ready: de to en, " in said
    assert [each["code"] for each in httpx.get(f"{url}/languages").json()] == ["de", "en"]
