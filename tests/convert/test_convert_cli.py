"""`python -m fairseq_ext.convert hf`, and what users then type: the commands of the README that it
writes, constraints. Folders as transformers 5 saves them; tokens that users have added; what
is refused."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import sys
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from conftest import command, limited, ran
from sizes import ALL, drawn

pytest.importorskip("transformers", reason="the oracle is not installed")

import transformers  # noqa: E402
from hf_models import linked, numbers  # noqa: E402
from test_hf_models import checkpoint, lines  # noqa: E402

from fairseq_ext import Translator  # noqa: E402
from fairseq_ext.convert import families  # noqa: E402
from fairseq_ext.convert.__main__ import convert, main  # noqa: E402


@pytest.fixture(scope="module")
def opus(made):
    return made("OPUS-MT")


def sentences(done):
    return [line.split("\t")[2] for line in done.stdout.splitlines() if line.startswith("D-")]


@drawn(0)  # long
def test_the_commands_of_its_readme_give_transformers_words(opus, tmp_path, monkeypatch):
    text = ["der Verband wird geprüft", ">>fra<< der Verband wird geprüft", "никто не знает почему"]
    expected = []
    for line in text:
        pad = opus.model.config.pad_token_id
        how = dict(num_beams=1, do_sample=False, max_length=20, bad_words_ids=[[pad]])
        found = opus.model.generate(**opus.batch([line]), **how)
        expected.append(opus.tokenizer.decode(found[0], skip_special_tokens=True))
    # from here on none is installed
    for library in ("transformers", "tokenizers", "huggingface_hub"):
        lacking = "raise ModuleNotFoundError(f'No module named {__name__}')"
        (tmp_path / f"{library}.py").write_text(lacking)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    monkeypatch.setenv("PYTHONPATH", path)
    assert ran(sys.executable, "-c", "import transformers", check=False).returncode == 1
    words = [sys.executable, "-m", "fairseq_ext.convert", "hf", opus.folder, tmp_path / "again"]
    assert "checkpoint.pt" in ran(*words).stdout
    same = checkpoint(opus.out), checkpoint(tmp_path / "again")
    torch.testing.assert_close(*same, rtol=0, atol=0)
    name, *flags = opus.typed()
    flags += ["--beam", 1, "--min-len", 0, "--max-len-b", 18]
    if os.environ.get(ALL):  # else their commands' translations are compared in Python alone
        done = command(name, *flags, stdin="".join(f"{line}\n" for line in text), cwd=opus.out)
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
    from fairseq_ext.text.__main__ import main as text_command

    text = ["Der Verband wird geprüft.", "Niemand weiß, warum {name} fehlt.", "Die Brücke bleibt."]
    flags = {"cpu": True, "beam": 2, "max_len_b": 15}
    plain = Translator.from_folder(opus.out, **flags)
    french = Translator.from_folder(opus.out, target_lang="fra", **flags)
    assert "`--target-lang` may name one of fra, deu; " in (opus.out / "README.md").read_text()

    def best(translator, *sources):
        return [nbest[0] for nbest in translator.translate(list(sources))]

    alone = best(plain, *(f">>fra<< {line}" for line in text))
    assert best(french, *text) == alone != best(plain, *text)
    whole = french.translate_text(" ".join(text)).text
    assert "{name}" in whole and whole == plain.translate_text(f">>fra<< {' '.join(text)}").text
    there, out = tmp_path / "in.txt", tmp_path / "out.txt"
    given = ["translate", str(there), str(out), "--data", str(opus.out), "--cpu"]
    given += ["--beam", "2", "--max-len-b", "15"]
    for lead, more in ((">>fra<< ", []), ("", ["-t", "fra"])):
        there.write_text(f"{lead}{' '.join(text)}\n", encoding="utf-8")
        assert text_command([*given, *more]) == 0
        assert out.read_text(encoding="utf-8") == f"{whole}\n"
    capsys.readouterr()
    assert text_command([*given, "-t", "spa"]) == 1
    assert capsys.readouterr().err.endswith("has no target language spa: use one of fra, deu\n")
    if os.environ.get(ALL):  # typed phrases, which the command segments as source text
        name, *flags = opus.typed()
        flags += ["--target-lang", "fra", "--constraints", "--beam", 2]
        done = command(name, *flags, stdin=f"{text[0]}\tмост\n", cwd=opus.out)
        pieces = " ".join(opus.tokenizer.spm_target.encode("мост", out_type=str))
        assert "мост" in sentences(done)[0] and f"C-0\t{pieces}" in done.stdout


# ---- what transformers saves

MANY = ["M2M-100", "NLLB-200", "mBART-50", "mBART-25"]
ODD = ["  der Verband  wird geprüft", "der\tVerband\u00a0wird\u2003geprüft", "ﬁne x² \u200b½ ｗ"]
PIECES = "sentencepiece.bpe.model"


def languages(of):
    return (of.out / "languages.txt").read_text().split()


def saved(of, folder, *added):
    """The model as transformers saves it, with these tokens added by a user, and converted.

    subtle: transformers 5 gives a token that is added to M2M-100 the number of a language, and
    transformers 4 one of its own, in a file of its own.
    """
    there = folder / "saved"
    of.tokenizer.save_pretrained(there)
    model, tokenizer = of.model, of.tokenizer
    if added:
        numbers = {word: model.config.vocab_size + i for i, word in enumerate(added)}
        (there / "added_tokens.json").write_text(json.dumps(numbers))
    if added and (there / "tokenizer.json").exists():
        (there / "added_tokens.json").unlink()
        tokenizer = type(tokenizer).from_pretrained(there, src_lang=of.source)
        tokenizer.add_tokens(list(added))
        tokenizer.save_pretrained(there)
    if added:
        config = model.config.to_dict() | {"vocab_size": model.config.vocab_size + len(added)}
        model = type(model)(type(model.config)(**config)).double()
    model.save_pretrained(there)
    shutil.copy(of.folder / PIECES, there)  # transformers 5 saves tokenizer.json in its place
    convert(str(there), str(folder / "out"))
    return replace(of, model=model, tokenizer=tokenizer, folder=there, out=folder / "out")


@pytest.mark.parametrize("kind", MANY)
def test_what_transformers_5_saves_has_its_tokens(made, tmp_path, kind):
    of = saved(made(kind), tmp_path)
    found, seen = of.translator(), set()
    # mBART-25 in transformers 5 parts words at any white space
    for line in [*lines(40, seed=8), *(ODD if kind != "mBART-25" else ())]:
        ours = numbers(found, line)
        assert ours == of.tokenizer([line])["input_ids"][0], line
        seen.update(ours)
    assert len(seen) > 60
    assert languages(of) == languages(made(kind))


@pytest.mark.parametrize("kind", MANY)
def test_a_token_that_a_user_added_is_a_word_and_no_language(made, tmp_path, kind):
    end = f"</{'term' * 40}>"
    of = saved(made(kind), tmp_path, "<term>", end)
    assert languages(of) == languages(made(kind))
    found, line = of.translator(), f"der <term> Verband {end} wird"
    ours = numbers(found, line)
    wanted = [found.task.source_dictionary.index(word) for word in ("<term>", end)]
    if kind != "M2M-100":
        assert wanted == of.tokenizer.convert_tokens_to_ids(["<term>", end])
    assert [number for number in ours if number in wanted] == wanted
    assert len({*wanted, found.task.source_dictionary.unk()}) == 3


# ---- what is refused


def refused(folder, there, capsys, changes):
    """The one sentence for a folder with these files changed: JSON or bytes; None: without."""
    linked(folder, there, *changes)
    for name, content in changes.items():
        if content is not None:
            as_bytes = content if isinstance(content, bytes) else json.dumps(content).encode()
            (there / name).write_bytes(as_bytes)
    return reported(capsys, there, there / "out")


def reported(capsys, *arguments):
    capsys.readouterr()
    assert main(["hf", *map(str, arguments)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1, said
    return said


MOE = ["NllbMoeForConditionalGeneration"]
CONFIGS = {  # what of config.json is another
    "has quantization_config": {"quantization_config": {"bits": 4}},
    f"architectures={MOE}": {"architectures": MOE},
    "architectures=None": {"architectures": None},
    "activation_function='mish'": {"activation_function": "mish"},
    "d_model='wide'": {"d_model": "wide"},
    "of width 64": {"d_model": 64},
    "decoder.layers.2.": {"decoder_layers": 3},
    "decoder.layers.1.": {"decoder_layers": 1},
    "and the model has 100 words": {"vocab_size": 100},
}


@pytest.mark.parametrize("said", CONFIGS)
def test_what_cannot_be_converted_is_refused_by_its_field(opus, tmp_path, capsys, said):
    config = json.loads((opus.folder / "config.json").read_text()) | CONFIGS[said]
    assert said in refused(opus.folder, tmp_path, capsys, {"config.json": config})


class Runs:
    """Pickled, it makes a folder where it is loaded."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (self.place,)


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def test_a_wrong_file_is_reported_in_a_sentence(opus, tmp_path, capsys):
    whole = (opus.folder / WEIGHTS).read_bytes()
    weights, pickled = safetensors.torch.load(whole), io.BytesIO()
    torch.save({"x": Runs(str(tmp_path / "run"))}, pickled)
    table = weights["model.shared.weight"]

    def having(name, weight):
        return {WEIGHTS: safetensors.torch.save({**weights, name: weight})}

    changes = [
        ({"adapter_config.json": {}}, "adapter_config.json"),
        ({"source.spm": None}, "has no source.spm"),
        ({"source.spm": b"no pieces"}, "source.spm is not a SentencePiece model"),
        ({"vocab.json": {"</s>": 0, "<unk>": 0, "<pad>": 1}}, "the same number"),
        (having("model.encoder.layers.0.fc1.lora_A.weight", torch.ones(2)), "fc1.lora_A.weight"),
        *(
            ({WEIGHTS: damaged}, f"{WEIGHTS} cannot be read")
            for damaged in (b"no weights", whole[:100], whole[:-100])
        ),
        ({WEIGHTS: None}, "has no model.safetensors or pytorch_model.bin"),
        ({WEIGHTS: None, INDEX: {"weight_map": 3}}, "has no weight_map"),
        ({WEIGHTS: None, INDEX: {"weight_map": {"a": "second"}}}, "has no second: copy"),
        ({WEIGHTS: None, "pytorch_model.bin": pickled.getvalue()}, "holds more than weights"),
    ]
    # with tie_word_embeddings=False a file has them besides
    for name in ("lm_head.weight", "model.encoder.embed_tokens.weight"):
        said = f"has the weight {name.removeprefix('model.')} and another word table"
        changes.append((having(name, table + 1), said))
        same = linked(opus.folder, tmp_path / name, WEIGHTS)
        (same / WEIGHTS).write_bytes(having(name, table.clone())[WEIGHTS])  # type: ignore
        assert main(["hf", str(same), str(same / "out")]) == 0
    # of M2M-100 too, whose vocab.json has all words
    vocabulary = {"vocab.json": {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}}
    pieces, cut = "sentencepiece.bpe.model", (opus.folder / "source.spm").read_bytes()[:-1]
    for kind in ("M2M100", "MBart"):
        config = {"architectures": [f"{kind}ForConditionalGeneration"]}
        for content in (b"", b"no pieces", cut):
            given = {"config.json": config, pieces: content, **vocabulary}
            changes.append((given, f"{pieces} is not a SentencePiece model: copy it again"))
    for i, (change, said) in enumerate(changes):
        assert said in refused(opus.folder, tmp_path / str(i), capsys, change)
        assert not (tmp_path / str(i) / "out").exists()
    assert not (tmp_path / "run").exists()


def test_a_wrong_folder_is_reported_in_a_sentence(opus, tmp_path, capsys):
    assert "is not a folder" in reported(capsys, tmp_path / "none", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in reported(capsys, tmp_path / "empty", tmp_path / "out")
    # without config.json, as adapters are kept
    (tmp_path / "empty" / "adapter_config.json").write_text("{}")
    assert "adapter_config.json" in reported(capsys, tmp_path / "empty", tmp_path / "out")
    for full in (opus.out, opus.folder / "config.json"):
        assert "is not an empty folder" in reported(capsys, opus.folder, full)
    for size in (100, 300_000):  # of files: a copy does not fit, and the weights
        out = tmp_path / str(size)
        with limited(resource.RLIMIT_FSIZE, size):
            assert f"cannot write {out} (" in reported(capsys, opus.folder, out)
    assert not (tmp_path / "out").exists()


def test_an_added_token_with_the_number_of_a_language_is_refused(made, tmp_path, capsys):
    """As transformers 5 adds one to M2M-100."""
    of = saved(made("M2M-100"), tmp_path)
    tokenizer = type(of.tokenizer).from_pretrained(of.folder)
    tokenizer.add_tokens(["<term>"])
    assert tokenizer.convert_tokens_to_ids("<term>") == tokenizer.get_lang_id("af")
    tokenizer.save_pretrained(of.folder)
    said = "gives the added token '<term>' the number of the language af"
    assert said in reported(capsys, of.folder, tmp_path / "again")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (families.MARIAN, "Marian"),
        (families.BART, "Bart"),
        (families.M2M100, "M2M100"),
        (families.MBART, "MBart"),
        (families.FSMT, "FSMT"),
    ],
)
def test_fields_that_are_not_there_have_transformers_defaults(kind, name):
    default = getattr(transformers, f"{name}Config")()
    assert (kind.activation, kind.scales) == (default.activation_function, default.scale_embedding)
