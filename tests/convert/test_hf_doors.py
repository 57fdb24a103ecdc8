"""Converted models through fairseq's commands: a data set made with the converted dictionaries;
required words in each script."""

from __future__ import annotations

import itertools
import os
import re
import unicodedata

import pytest
import torch
from conftest import command
from sizes import ALL

pytest.importorskip("transformers", reason="the oracle is not installed")

from hf_models import KINDS, Made, make  # noqa: E402

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


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model of each kind, made once."""
    known: dict[str, Made] = {}
    return lambda kind: (
        known[kind]
        if kind in known
        else known.setdefault(kind, make(kind, tmp_path_factory.mktemp("hf"), 2))
    )


def kinds(*short: str):
    return pytest.mark.parametrize("kind", KINDS if os.environ.get(ALL) else short)


def flags_of(made: Made) -> list[str]:
    """The flags of the README's command, for the model's languages."""
    text = (
        (made.out / "README.md")
        .read_text(encoding="utf-8")
        .split("fairseq-interactive . ")[1]
        .split("\n```")[0]
        .replace("\\\n", " ")
    )
    words = text.split()
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
    of = made(kind)
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
    of = made(kind)
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
    of = made(kind)
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
