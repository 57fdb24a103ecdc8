"""Folders as transformers 5 saves them, with tokenizer.json alone; tokens that users have added;
settings that config.json leaves to the class."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the oracle is not installed")

import transformers  # noqa: E402
from hf_models import Made  # noqa: E402
from sizes import covering
from test_hf_models import lines  # noqa: E402

from fairseq_ext.convert import families  # noqa: E402
from fairseq_ext.convert.__main__ import convert, main  # noqa: E402

MANY = ["M2M-100", "NLLB-200", "mBART-50", "mBART-25"]
ODD = ["  der Verband  wird geprüft", "der\tVerband\u00a0wird\u2003geprüft", "ﬁne x² \u200b½ ｗ"]
PIECES = "sentencepiece.bpe.model"


def saved(of: Made, folder: Path, *added: str) -> Made:
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
    convert(str(there), str(folder / "out"))
    return replace(of, model=model, tokenizer=tokenizer, folder=there, out=folder / "out")


def numbers(found, line: str) -> list[int]:
    """The tokens of a line as the model gets them."""
    batch = next(iter(found.batches([found.encode(line)])))
    return batch["net_input"]["src_tokens"][0].tolist()


@pytest.mark.parametrize("kind", MANY)
def test_what_transformers_5_saves_has_its_tokens(made, tmp_path, kind):
    of = saved(made(kind), tmp_path)
    assert (of.folder / PIECES).exists() == (kind == "M2M-100")
    found, seen = of.translator(), set()
    for line in [*lines(40, seed=8), *ODD]:
        ours = numbers(found, line)
        assert ours == of.tokenizer([line])["input_ids"][0], line
        seen.update(ours)
    assert len(seen) > 60
    listed = (of.out / "languages.txt").read_text().split()
    assert listed == (made(kind).out / "languages.txt").read_text().split()


@covering(1)
@pytest.mark.parametrize("kind", MANY)
@pytest.mark.parametrize("form", ["saved", "with SentencePiece's file"])
def test_a_token_that_a_user_added_is_a_word_and_no_language(made, tmp_path, kind, form):
    of = saved(made(kind), tmp_path, "<term>", "</term>")
    if form != "saved":
        shutil.rmtree(of.out)
        shutil.copy(made(kind).folder / PIECES, of.folder)
        convert(str(of.folder), str(of.out))
    listed = (of.out / "languages.txt").read_text().split()
    assert listed == (made(kind).out / "languages.txt").read_text().split()
    found, line = of.translator(), "der <term> Verband </term> wird"
    ours = numbers(found, line)
    wanted = [found.task.source_dictionary.index(word) for word in ("<term>", "</term>")]
    if kind != "M2M-100":
        assert wanted == of.tokenizer.convert_tokens_to_ids(["<term>", "</term>"])
    assert [number for number in ours if number in wanted] == wanted
    assert len({*wanted, found.task.source_dictionary.unk()}) == 3


def test_an_added_token_with_the_number_of_a_language_is_refused(made, tmp_path, capsys):
    """As transformers 5 adds one to M2M-100."""
    of = saved(made("M2M-100"), tmp_path)
    tokenizer = type(of.tokenizer).from_pretrained(of.folder)
    tokenizer.add_tokens(["<term>"])
    assert tokenizer.convert_tokens_to_ids("<term>") == tokenizer.get_lang_id("af")
    tokenizer.save_pretrained(of.folder)
    capsys.readouterr()
    assert main(["hf", str(of.folder), str(tmp_path / "again")]) == 1
    assert "gives the added token '<term>' the number of the language af" in capsys.readouterr().err


REFUSED = {
    "a lowering normaliser": ({"normalizer": {"type": "Lowercase"}}, "has normalizer='Lowercase'"),
    "bytes": ({"pre_tokenizer": {"type": "ByteLevel"}}, "has pre_tokenizer='ByteLevel'"),
    "no pre-tokeniser": ({"pre_tokenizer": None}, "has pre_tokenizer=None"),
    "words": ({"model": {"type": "WordPiece", "vocab": {}}}, "has model='WordPiece'"),
    "no model": ({"model": None}, "has model=None"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tokenizer_that_sentencepiece_cannot_equal_is_refused(made, tmp_path, capsys, name):
    of = saved(made("NLLB-200"), tmp_path)
    capsys.readouterr()
    change, said = REFUSED[name]
    path = of.folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert main(["hf", str(of.folder), str(tmp_path / "again")]) == 1
    reported = capsys.readouterr().err
    assert said in reported and reported.count("\n") == 1 and not (tmp_path / "again").exists()


def test_merges_that_leave_one_out_are_refused(made, tmp_path, capsys):
    """SentencePiece merges whatever makes a piece."""
    of = saved(made("NLLB-200"), tmp_path)
    path = of.folder / "tokenizer.json"
    whole = json.loads(path.read_text())
    merges = whole["model"]["merges"]
    joined = ["".join(pair) for pair in merges]
    merges.pop(next(i for i, each in enumerate(joined) if joined.count(each) > 1))
    path.write_text(json.dumps(whole))
    assert main(["hf", str(of.folder), str(tmp_path / "again")]) == 1
    assert "SentencePiece would merge these two" in capsys.readouterr().err


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
