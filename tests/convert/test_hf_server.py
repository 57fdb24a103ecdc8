"""One multilingual model behind the server, as `convert hf` writes it: each request names its pair."""

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
    "NLLB-200": [("deu_Latn", "eng_Latn"), ("rus_Cyrl", "zho_Hans")], "M2M-100": [("de", "en"), ("ru", "zh")],
    "mBART-50": [("de_DE", "en_XX"), ("ru_RU", "zh_CN")], "mBART-25": [("de_DE", "en_XX"), ("ru_RU", "zh_CN")],
}  # fmt: skip


def translator(folder: Path, pair: tuple[str, str]) -> Translator:
    """Of one pair. A random model writes languages; the server leaves all of them out, and so it does."""
    found = Translator.from_folder(folder, source_lang=pair[0], target_lang=pair[1], cpu=True, beam=3, max_len_b=12)
    found.use_constraints()
    words = found.task.target_dictionary.symbols
    found.generator.symbols_to_strip_from_output.update(i for i, word in enumerate(words) if re.fullmatch(r"__\w+__|\[\w+\]", word))
    return found


@pytest.mark.parametrize("kind", PAIRS if os.environ.get(ALL) else ["NLLB-200"])
def test_requests_of_several_pairs_get_what_a_translator_of_each_gives(started, kind, tmp_path):  # noqa: F811
    made, (first, second) = make(kind, tmp_path, 2), PAIRS[kind]
    _, url, said = started("--data", str(made.out), *FLAGS, "--glossary-folder", str(tmp_path / "kept"))
    count = int(re.search(r"^ready: (\d+) languages, ", said, re.M)[1])
    text = lines(8)
    with httpx.Client(base_url=url, timeout=120) as client:
        languages = client.get("/languages").json()
        assert len(languages) == count and {*first, *second} <= {each["code"] for each in languages}
        assert all(len(each["targets"]) == count - 1 and each["code"] not in each["targets"] for each in languages)
        for source, target in (first, second):
            ours = translator(made.out, (source, target))
            records = [{"source": line, "constraints": ["мост"]} for line in text] + [{"source": line} for line in text]
            found = client.post(f"/v1/translate?source={source}&target={target}", json=records).json()
            expected = ours.translate(text * 2, constraints=[["мост"]] * len(text) + [[]] * len(text))
            assert [each["score"] for each in found] == pytest.approx([each[0].score for each in expected], abs=1e-4)
            asked = client.post("/translate", json={"q": text, "source": source[:2], "target": target[:2]})
            assert asked.json()["translatedText"] == [each[0].text for each in expected[len(text) :]]
        for path, given, sentence in (
            ("/translate", {"q": "a", "source": first[0], "target": "xx"}, "xx is not supported"),
            ("/v1/translate", {"source": "a"}, "this server translates"),
        ):
            refused = client.post(path, json=given)
            assert refused.status_code == 400 and refused.json()["error"].startswith(sentence)
        kept = f"/v1/glossaries/x?source={first[0]}&target={first[1]}"
        assert client.put(kept, content="a\tмост\n", headers={"X-Requested-With": "x"}).is_success
        assert (tmp_path / "kept" / "-".join(first) / "x.tsv").is_file()


@pytest.mark.skipif(not os.environ.get(ALL), reason="one more model and server: --all")
def test_a_pair_that_the_command_names_is_the_only_one(started, tmp_path):  # noqa: F811
    made = make("M2M-100", tmp_path, 2)
    _, url, said = started("--data", str(made.out), "-s", "de", "-t", "en", *FLAGS)
    assert "ready: de to en, " in said
    assert [each["code"] for each in httpx.get(f"{url}/languages").json()] == ["de", "en"]
