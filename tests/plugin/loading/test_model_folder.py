"""A folder is all that a user names: what it holds is found, what it lacks is requested."""

import re
import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from conftest import command
from demo_model import MODEL as DEMO
from forked import forked, interactive_forked, succeeded

from fairseq_ext import Translator, UsageError
from fairseq_ext.plugin.loading import model
from fairseq_ext.plugin.loading.model import find_model
from fairseq_ext.text.__main__ import main

TEXT = ["Der Hund schläft.", "Das ist gut."]
DEMO_FLAGS = {
    "source_lang": "de",
    "target_lang": "en",
    "bpe": "sentencepiece",
    "sentencepiece_model": str(DEMO / "spm.model"),
}


def folder_of(
    place: Path,
    *names: str,
    languages=("de", "en"),
    saved=("de", "en"),
    task="translation",
    words="a 3\nb 2\n",
    **more,
) -> Path:
    """Checkpoints that hold nothing but their settings, and dictionaries."""
    place.mkdir()
    for name in names:
        settings = Namespace(
            task=task, source_lang=saved[0], target_lang=saved[1], arch="transformer", **more
        )
        torch.save({"args": settings, "model": {}}, place / name)
    for language in languages:
        (place / f"dict.{language}.txt").write_text(words)
    return place


def test_the_demo_folder_is_all_there_is_to_say():
    found = find_model(str(DEMO), {"beam": 2})
    named = {"path": str(DEMO / "checkpoint.pt"), "data": str(DEMO), "task": "translation_ext"}
    assert found == {**named, **DEMO_FLAGS, "beam": 2}
    ours = Translator.from_folder(DEMO, beam=2, cpu=True)
    spelt = Translator(**named, **DEMO_FLAGS, beam=2, cpu=True)
    assert ours.translate(TEXT) == spelt.translate(TEXT)
    assert "de to en" in repr(ours)


def test_the_name_demo_is_the_clones_model_or_the_wheels_unless_there_is_a_folder(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert find_model("demo", {"beam": 2}) == find_model(str(DEMO), {"beam": 2})
    # without a clone, and with the wheel
    monkeypatch.setattr(model, "__file__", str(tmp_path / "a/b/c/model.py"))
    with pytest.raises(UsageError, match="the demo model is not installed: install the wheel "):
        find_model("demo", {})
    package = folder_of(tmp_path / "fairseq_ext_demo", "checkpoint.pt")
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_model("demo", {})["path"] == str(package / "checkpoint.pt")
    # a folder of the name
    folder_of(tmp_path / "demo", "own.pt")
    assert find_model("demo", {})["path"] == "demo/own.pt"


def test_commands_take_the_name_demo(tmp_path, monkeypatch):
    """With and without --path: here the text command."""
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("Der Hund schläft.\n", encoding="utf-8")
    flags = "--data demo --cpu --beam 1".split()
    succeeded(forked(main, "text", "translate", "in.txt", "out.txt", *flags))
    assert Path("out.txt").read_text(encoding="utf-8") == "The dog is sleeping.\n"
    flags += ["--path", DEMO / "checkpoint.pt", "--bpe", "sentencepiece"]
    flags += ["--sentencepiece-model", DEMO / "spm.model"]
    succeeded(forked(main, "text", "translate", "in.txt", "other.txt", *flags))
    assert Path("other.txt").read_bytes() == Path("out.txt").read_bytes()


def test_what_is_given_is_not_looked_for(tmp_path):
    shutil.copytree(DEMO, tmp_path / "model")
    shutil.copy(DEMO / "spm.model", tmp_path / "model" / "other.model")
    shutil.copy(DEMO / "checkpoint.pt", tmp_path / "model" / "checkpoint_last.pt")
    where = str(tmp_path / "model")
    given = {"path": "checkpoint_last.pt", "source_lang": "en", "target_lang": "de"}
    given["sentencepiece_model"] = "other.model"
    found = find_model(where, given)
    files = {name: f"{where}/{given[name]}" for name in ("path", "sentencepiece_model")}
    assert (given | files | {"bpe": "sentencepiece"}).items() <= found.items()
    assert find_model(where, given | {"target_lang": None})["target_lang"] == "de"
    assert "sentencepiece_model" not in find_model(where, {"path": "checkpoint.pt", "bpe": "gpt2"})


def test_the_order_of_two_languages_is_the_checkpoints(tmp_path):
    for i, saved in enumerate((("de", "en"), ("en", "de"))):
        found = find_model(str(folder_of(tmp_path / str(i), "model.pt", saved=saved)), {})
        assert (found["source_lang"], found["target_lang"]) == saved
    three = {"languages": ("de", "en", "fr"), "saved": ("fr", "de")}
    many = folder_of(tmp_path / "many", "model.pt", **three)
    assert find_model(str(many), {})["target_lang"] == "de"


@pytest.mark.parametrize(
    "line, bpe",
    [
        ("#version: 0.2\ne n</w>\n", "subword_nmt"),
        ("e n</w> 4012\n", "fastbpe"),
        ("e n</w>\n", "subword_nmt"),
    ],
)
def test_an_archive_of_fairseqs_own(tmp_path, line, bpe):
    """dict.XX.txt, bpecodes, one model; whether Moses has tokenised the text,
    the dictionary says."""
    words = "the 9\n&apos;s 4\na@@ 3\n"
    place = folder_of(tmp_path / "archive", "model.pt", saved=("en", "de"), words=words)
    (place / "bpecodes").write_text(line)
    found = {"bpe": bpe, "bpe_codes": str(place / "bpecodes"), "tokenizer": "moses"}
    assert found.items() <= find_model(str(place), {}).items()
    for language in ("en", "de"):
        (place / f"dict.{language}.txt").write_text("the 9\na@@ 3\n")
    assert "tokenizer" not in find_model(str(place), {})


def test_an_archive_translates_as_the_stock_command_with_its_codes(tiny, tmp_path):
    """The codes are named as in an archive of WMT19, and lie there twice."""
    place = tmp_path / "archive"
    place.mkdir()
    shutil.copy(tiny / "model.pt", place / "wmt19.de-en.ffn8192.pt")
    for language in ("de", "en"):
        words = (tiny / "data" / f"dict.{language}.txt").read_text().splitlines()
        pieces = [f"{a}{b}{end}" for a in ("", "a", "b") for b in "abc" for end in ("", "@@")]
        (place / f"dict.{language}.txt").write_text(
            "".join(f"{piece} 1\n" for piece in [*pieces, *words][: len(words)])
        )
    for name in ("bpecodes", "ende30k.fastbpe.code"):
        (place / name).write_text("a b\nb c</w>\na a</w>\n")
    text = ["abc caab", "bab a"]
    flags = "--task translation -s de -t en --cpu --max-len-b 9 --bpe subword_nmt".split()
    flags += ["--path", place / "wmt19.de-en.ffn8192.pt", "--bpe-codes", place / "bpecodes"]
    out = interactive_forked("\n".join([*text, ""]), place, *flags).stdout
    found = find_model(str(place), {})
    codes = {"bpe": "subword_nmt", "bpe_codes": str(place / "bpecodes"), "target_lang": "en"}
    assert codes.items() <= found.items()
    ours = Translator.from_folder(place, cpu=True, max_len_b=9).translate(text)
    assert [nbest[0].text for nbest in ours] == re.findall(r"^D-\d+\t\S+\t(.*)", out, re.M)
    assert len({nbest[0].text for nbest in ours}) == 2
    assert not any("@@" in nbest[0].text for nbest in ours)
    (place / "bpecodes").unlink()
    assert find_model(str(place), {})["bpe_codes"] == str(place / "ende30k.fastbpe.code")


OWN = """
import fairseq_ext
from fairseq.models import register_model_architecture
from fairseq.models.transformer.transformer_legacy import base_architecture
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

register_model_architecture("transformer", "own_sizes")(base_architecture)
own = register_task("own_task", dataclass=TranslationConfig)
fairseq_ext.extend(own(type("OwnTask", (TranslationTask,), {})))
"""


def test_a_folder_of_ones_own_architecture_and_task(tiny, tmp_path):
    (tmp_path / "own_code").mkdir()
    (tmp_path / "own_code" / "__init__.py").write_text(OWN)
    shutil.copytree(tiny / "data", tmp_path / "model")
    state = torch.load(tiny / "model.pt", weights_only=False)
    state["cfg"]["model"].arch = state["cfg"]["model"]._name = "own_sizes"
    state["cfg"]["task"]["_name"] = "own_task"
    torch.save(state, tmp_path / "model" / "model.pt")
    lines, flags = ["de1 de2 de3", "de4"], {"cpu": True, "max_len_b": 9}

    def show(made: Translator) -> str:
        return f"{type(made.task).__name__} {[nbest[0].text for nbest in made.translate(lines)]}"

    def translate() -> None:
        own = {"user_dir": str(tmp_path / "own_code"), **flags}
        print(show(Translator.from_folder(tmp_path / "model", **own)))

    plain = show(Translator(tiny / "model.pt", tiny / "data", **flags))
    done = succeeded(forked(translate, "python"))  # which may register what it likes
    assert done.stdout.split() == ["OwnTaskExt", *plain.split()[1:]]


def test_one_dictionary_of_all_languages(tmp_path):
    """As in archives of models of a hundred languages; the pair is the user's to say, and
    a language model has none."""
    more = {"langs": ["de", "en", "fr"], "lang_pairs": ["de-en"], "saved": (None, None)}
    task = "translation_multi_simple_epoch"
    place = folder_of(tmp_path / "many", "model.pt", languages=(), task=task, **more)
    (place / "dict.txt").write_text("a 3\n")
    said = "one dictionary for all languages: add --source-lang and --target-lang, each one of "
    with pytest.raises(UsageError, match=said + "de, en, fr"):
        find_model(str(place), {"source_lang": "de"})
    pair = {"source_lang": "de", "target_lang": "fr"}
    assert find_model(str(place), pair)["fixed_dictionary"] == str(place / "dict.txt")
    (place / "model_dict.txt").write_text("a 3\n")
    found = find_model(str(place), {**pair, "fixed_dictionary": "model_dict.txt"})
    assert found["fixed_dictionary"] == str(place / "model_dict.txt")
    prompts = folder_of(tmp_path / "lm", "model.pt", languages=(), task="language_modeling")
    found = find_model(str(prompts), {})
    assert found["task"] == "language_modeling_ext"
    assert not {"source_lang", "target_lang"} & set(found)


def test_the_checkpoints_task_is_used_with_its_languages(tmp_path):
    def found(name: str, given: dict | None = None, task: str = "", **more) -> dict:
        place = tmp_path / name
        where = place if place.exists() else folder_of(place, "model.pt", task=task, **more)
        return find_model(str(where), given or {})

    more = {"langs": "de,en", "prepend_bos": True}
    bart = found("bart", task="translation_from_pretrained_bart", **more)
    assert bart["task"] == "translation_from_pretrained_bart_ext" and more.items() <= bart.items()
    task, pair = "translation_multi_simple_epoch", {"source_lang": "de", "target_lang": "en"}
    more = {"encoder_langtok": "src", "decoder_langtok": True}
    lists = {"langs": ["de", "en"], "lang_pairs": ["de-en", "en-de"], "saved": (None, None)}
    many = found("multi", pair, task, **more, **lists)
    joined = {"langs": "de,en", "lang_pairs": "de-en,en-de"}
    assert {"task": f"{task}_ext", **more, **joined}.items() <= many.items()
    assert found("multi", pair | {"task": "translation_ext"})["task"] == "translation_ext"
    assert found("own", task="somebodys_own")["task"] == "translation_ext"


@pytest.mark.parametrize(
    "names, arguments, given, message",
    [
        (
            ["model.pt"],
            {"saved": (None, None)},
            {},
            "has dictionaries of de, en: add --source-lang and --target-lang, each one of de, en$",
        ),
        (
            ["model.pt"],
            {"saved": (None, None), "languages": ("de", "en", "fr")},
            {},
            "dictionaries of de, en, fr: add --source-lang and --target-lang, each one of de, en",
        ),
        (
            ["model.pt"],
            {"languages": ("de", "en", "fr"), "saved": ("cs", "en")},
            {"source_lang": "de"},
            "the checkpoint was trained from cs to en: add --target-lang, each one of de, en, fr",
        ),
        (["model.pt"], {"languages": ("en",)}, {}, "has a dictionary of en alone"),
        (["model.pt"], {"languages": ()}, {}, "has no dictionary of a language"),
        ([], {}, {}, r"has no checkpoint \(\*.pt\): name one by --path"),
        (
            ["model1.pt", "model2.pt", "model3.pt"],
            {},
            {},
            "has the checkpoints model1.pt, model2.pt and model3.pt: name one by --path "
            r"\S+/model1.pt, or all as an ensemble by --path \S+/model1.pt:\S+/"
            r"model2.pt:\S+/model3.pt",
        ),
    ],
)
def test_a_choice_is_requested_in_one_sentence(tmp_path, names, arguments, given, message):
    with pytest.raises(UsageError, match=message) as requested:
        find_model(str(folder_of(tmp_path / "model", *names, **arguments)), given)
    assert "\n" not in str(requested.value)


def test_two_segmentation_models_are_a_choice(tmp_path):
    place = folder_of(tmp_path / "model", "model.pt")
    (place / "bpecodes").write_text("e n</w>\n")
    (place / "spm.model").write_text("")
    codes, spm = "--bpe-codes", "--sentencepiece-model"
    said = rf"has 2 segmentation models: add {codes} \S+/bpecodes or {spm} \S+/spm.model"
    with pytest.raises(UsageError, match=said):
        find_model(str(place), {})
    for bpe, name, file in (
        ("sentencepiece", "sentencepiece_model", "spm.model"),
        ("subword_nmt", "bpe_codes", "bpecodes"),
    ):
        assert find_model(str(place), {"bpe": bpe})[name] == str(place / file)
    with pytest.raises(UsageError, match="is not a folder: name the one that has"):
        find_model(str(tmp_path / "no such"), {})


def test_an_ensemble_of_the_folder_is_named_by_its_files(tmp_path):
    place = folder_of(tmp_path / "model", "model1.pt", "model2.pt")
    found = find_model(str(place), {"path": "model1.pt:model2.pt"})["path"]
    assert found == f"{place}/model1.pt:{place}/model2.pt"


# ---- the commands


def test_interactive_reads_the_languages_from_dictionaries_and_checkpoint():
    flags = "--bpe sentencepiece --cpu --beam 2 --task translation_ext".split()
    flags += ["--path", DEMO / "checkpoint.pt", "--sentencepiece-model", DEMO / "spm.model"]
    text = "\n".join(TEXT) + "\n"
    lines = [
        re.findall(r"^[HD]-.*", interactive_forked(text, DEMO, *flags, *more).stdout, re.M)
        for more in ([], ["-s", "de", "-t", "en"])
    ]
    assert lines[0] == lines[1] and len(lines[0]) == 4


def test_interactive_requests_where_nothing_says(tmp_path):
    place = folder_of(tmp_path / "model", "model.pt", saved=(None, None))
    flags = [place, "--path", place / "model.pt", "--task", "translation_ext", "--cpu"]
    done = command("fairseq-interactive", *flags, check=False)
    said = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and said.startswith("error: ")
    assert "--source-lang and --target-lang" in said and "Traceback" not in done.stderr
