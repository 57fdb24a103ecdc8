"""`python -m fairseq_ext.convert hf`, and what users then type: the commands of the README that it
writes, constraints, other doors."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from conftest import command, ran
from sizes import ALL, drawn

pytest.importorskip("transformers", reason="the oracle is not installed")

from hf_models import Made  # noqa: E402

from fairseq_ext.convert.__main__ import main  # noqa: E402


@pytest.fixture(scope="module")
def opus(made) -> Made:
    return made("OPUS-MT")


def linked(folder: Path, to: Path) -> Path:
    """A folder whose files are links to those of another."""
    to.mkdir(exist_ok=True)
    for path in folder.iterdir():
        (to / path.name).symlink_to(path)
    return to


def sentences(done: subprocess.CompletedProcess) -> list[str]:
    return [line.split("\t")[2] for line in done.stdout.splitlines() if line.startswith("D-")]


@drawn(0)  # long
def test_the_commands_of_its_readme_give_transformers_words(opus, tmp_path, monkeypatch):
    text = ["der Verband wird geprüft", ">>fra<< der Verband wird geprüft", "никто не знает почему"]
    expected = []
    for line in text:
        pad = opus.model.config.pad_token_id
        found = opus.model.generate(
            **opus.batch([line]), num_beams=1, do_sample=False, max_length=20, bad_words_ids=[[pad]]
        )
        expected.append(opus.tokenizer.decode(found[0], skip_special_tokens=True))
    # from here on none is installed
    for library in ("transformers", "tokenizers", "huggingface_hub"):
        (tmp_path / "lacking").mkdir(exist_ok=True)
        (tmp_path / "lacking" / f"{library}.py").write_text(
            "raise ModuleNotFoundError(f'No module named {__name__}')"
        )
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path / "lacking"), os.environ.get("PYTHONPATH", "")])
    )
    absent = [sys.executable, "-c", "import transformers"]
    assert ran(*absent, check=False).returncode == 1
    words = [sys.executable, "-m", "fairseq_ext.convert", "hf", opus.folder, tmp_path / "again"]
    assert "checkpoint.pt" in ran(*words).stdout
    same = [
        torch.load(folder / "checkpoint.pt", weights_only=False)["model"]
        for folder in (opus.out, tmp_path / "again")
    ]
    assert all(torch.equal(same[0][each], same[1][each]) for each in {*same[0], *same[1]})
    name, *flags = opus.typed()
    lines = "".join(f"{line}\n" for line in text)
    if os.environ.get(ALL):  # else their commands' translations are compared in Python alone
        done = command(
            name, *flags, "--beam", 1, "--min-len", 0, "--max-len-b", 18, stdin=lines, cwd=opus.out
        )
        assert sentences(done) == expected


def test_targets_are_scored_as_transformers_scores_them(opus):
    """Segmented by the target's model."""
    text, translator = ["der Verband wird geprüft"], opus.translator()
    with torch.no_grad():
        labels = opus.tokenizer(text_target=["мост Brücke"], return_tensors="pt")["input_ids"]
        source = opus.batch(text)
        first = torch.full((1, 1), opus.generation["decoder_start_token_id"])
        logits = opus.model(
            **source, decoder_input_ids=torch.cat([first, labels[:, :-1]], 1)
        ).logits
    log_probs = logits.log_softmax(-1).gather(2, labels[:, :, None])[0, :, 0]
    assert translator.score(text, ["мост Brücke"])[0].positional_scores == pytest.approx(
        log_probs.tolist(), abs=1e-4
    )


def test_a_target_language_is_named_once_for_text_of_several_sentences(opus, tmp_path, capsys):
    """By --target-lang or in front of the text: each sentence is translated as
    with its own >>fra<<."""
    from fairseq_ext import Translator
    from fairseq_ext.text.__main__ import main as text_command

    text = [
        "Der Verband wird geprüft.",
        "Niemand weiß, warum {name} fehlt.",
        "Die Brücke bleibt zu.",
    ]
    flags = {"cpu": True, "beam": 2, "max_len_b": 15}
    plain, french = (
        Translator.from_folder(opus.out, **flags),
        Translator.from_folder(opus.out, target_lang="fra", **flags),
    )
    assert "`--target-lang` may name one of fra, deu; " in (opus.out / "README.md").read_text(
        encoding="utf-8"
    )
    alone = [each[0] for each in plain.translate([f">>fra<< {line}" for line in text])]
    assert (
        [each[0] for each in french.translate(text)]
        == alone
        != [each[0] for each in plain.translate(text)]
    )
    assert (
        french.translate([f">>deu<< {text[0]}", " "])[0][0]
        == plain.translate([f">>deu<< {text[0]}"])[0][0]
    )
    whole = french.translate_text(" ".join(text)).text
    assert "{name}" in whole and whole == plain.translate_text(f">>fra<< {' '.join(text)}").text
    for name, lead, more in (("typed", ">>fra<< ", []), ("named", "", ["-t", "fra"])):
        (tmp_path / f"{name}.txt").write_text(lead + " ".join(text) + "\n", encoding="utf-8")
        given = [tmp_path / f"{name}.txt", tmp_path / "out.txt", "--data", opus.out]
        more += ["--cpu", "--beam", "2", "--max-len-b", "15"]
        assert text_command(["translate", *map(str, given), *more]) == 0
        assert (tmp_path / "out.txt").read_text(encoding="utf-8") == f"{whole}\n"
    capsys.readouterr()
    assert text_command(["translate", *map(str, given), "-t", "spa"]) == 1
    assert capsys.readouterr().err.endswith("has no target language spa: use one of fra, deu\n")
    if os.environ.get(ALL):  # typed phrases, which the command segments as source text
        name, *flags = opus.typed()
        flags += ["--target-lang", "fra", "--constraints", "--beam", 2]
        done = command(name, *flags, stdin=f"{text[0]}\tмост\n", cwd=opus.out)
        pieces = " ".join(opus.tokenizer.spm_target.encode("мост", out_type=str))
        assert "мост" in sentences(done)[0] and f"C-0\t{pieces}" in done.stdout


REFUSED = {
    "quantization_config": ({"quantization_config": {"bits": 4}}, "has quantization_config"),
    "NLLB-MoE": (
        {"architectures": ["NllbMoeForConditionalGeneration"]},
        "architectures=['NllbMoeForConditionalGeneration']",
    ),
    "no class": ({"architectures": None}, "architectures=None"),
    "activation": ({"activation_function": "mish"}, "activation_function='mish'"),
    "sizes": ({"d_model": "wide"}, "d_model='wide'"),
    "other sizes": ({"d_model": 64}, "of width 64"),
    "layers": ({"decoder_layers": 3}, "decoder.layers.2."),
    "fewer layers": ({"decoder_layers": 1}, "decoder.layers.1."),
    "words": ({"vocab_size": 100}, "and the model has 100 words"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_converted_is_refused_by_its_field(opus, tmp_path, capsys, name):
    change, said = REFUSED[name]
    linked(opus.folder, tmp_path)
    (tmp_path / "config.json").unlink()
    config = json.loads((opus.folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    assert main(["hf", str(tmp_path), str(tmp_path / "out")]) == 1
    assert said in (reported := capsys.readouterr().err) and reported.count("\n") == 1


@pytest.mark.parametrize(
    "name", ["M2M100ForConditionalGeneration", "MBartForConditionalGeneration"]
)
def test_a_damaged_model_of_pieces_is_refused(opus, tmp_path, capsys, name):
    """Also of M2M-100, whose vocab.json has all words."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name]}))
    (tmp_path / "vocab.json").write_text('{"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}')
    for content in (b"", b"no pieces", (opus.folder / "source.spm").read_bytes()[:-1]):
        (tmp_path / "sentencepiece.bpe.model").write_bytes(content)
        assert main(["hf", str(tmp_path), str(tmp_path / "out")]) == 1
        assert capsys.readouterr().err == (
            f"error: {tmp_path / 'sentencepiece.bpe.model'} is not a SentencePiece "
            "model: copy it again\n"
        )


class Runs:
    """Pickled, it makes a folder where it is loaded."""

    def __init__(self, place: str):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (self.place,)


def test_a_wrong_folder_is_reported_in_a_sentence(opus, tmp_path, capsys):
    good = linked(opus.folder, tmp_path / "good")

    def reported(*arguments) -> str:
        assert main(["hf", *map(str, arguments)]) == 1
        said = capsys.readouterr().err
        assert said.startswith("error: ") and said.count("\n") == 1, said
        return said

    assert "is not a folder" in reported(tmp_path / "none", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in reported(tmp_path / "empty", tmp_path / "out")
    # without config.json, as adapters are kept
    (tmp_path / "empty" / "adapter_config.json").write_text("{}")
    assert "adapter_config.json" in reported(tmp_path / "empty", tmp_path / "out")
    for full in (opus.out, opus.folder / "config.json"):
        assert "is not an empty folder" in reported(good, full)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (100, 300_000):  # of files: a copy does not fit, and the weights
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
        try:
            assert f"cannot write {tmp_path / str(size)} (" in reported(good, tmp_path / str(size))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    (good / "adapter_config.json").write_text("{}")
    assert "adapter_config.json" in reported(good, tmp_path / "out")
    (good / "adapter_config.json").unlink()
    (good / "source.spm").unlink()
    assert "has no source.spm" in reported(good, tmp_path / "out")
    (good / "source.spm").write_bytes(b"no pieces")
    assert "source.spm is not a SentencePiece model" in reported(good, tmp_path / "out")
    (good / "source.spm").unlink()
    (good / "source.spm").symlink_to(opus.folder / "source.spm")
    weights = safetensors.torch.load_file(opus.folder / "model.safetensors")
    (good / "model.safetensors").unlink()
    safetensors.torch.save_file(
        {**weights, "model.encoder.layers.0.fc1.lora_A.weight": torch.ones(2)},
        good / "model.safetensors",
    )
    assert "fc1.lora_A.weight" in reported(good, tmp_path / "out")
    # with tie_word_embeddings=False a file has them besides
    for name in ("lm_head.weight", "model.encoder.embed_tokens.weight"):
        table = weights["model.shared.weight"]
        safetensors.torch.save_file({**weights, name: table.clone()}, good / "model.safetensors")
        assert main(["hf", str(good), str(tmp_path / f"same {name}")]) == 0
        safetensors.torch.save_file({**weights, name: table + 1}, good / "model.safetensors")
        assert f"has the weight {name.removeprefix('model.')} and another word table" in reported(
            good, tmp_path / "out"
        )
    whole = (opus.folder / "model.safetensors").read_bytes()
    for damaged in (b"no weights", whole[:100], whole[:-100]):
        (good / "model.safetensors").write_bytes(damaged)
        assert "model.safetensors cannot be read" in reported(good, tmp_path / "out")
    (good / "model.safetensors").unlink()
    assert "has no model.safetensors or pytorch_model.bin" in reported(good, tmp_path / "out")
    for listed, said in (
        ('{"weight_map": 3}', "has no weight_map"),
        ('{"weight_map": {"a": "second"}}', "has no second: copy"),
    ):
        (good / "model.safetensors.index.json").write_text(listed)
        assert said in reported(good, tmp_path / "out")
    (good / "model.safetensors.index.json").unlink()
    torch.save({"x": Runs(str(tmp_path / "run"))}, good / "pytorch_model.bin")
    assert (
        "pytorch_model.bin holds more than weights" in reported(good, tmp_path / "out")
        and not (tmp_path / "run").exists()
    )
    (good / "vocab.json").unlink()
    (good / "vocab.json").write_text('{"</s>": 0, "<unk>": 0, "<pad>": 1}')
    assert "the same number" in reported(good, tmp_path / "out")
    assert not (tmp_path / "out").exists()
