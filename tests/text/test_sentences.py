"""Where sentences end (sentences.tsv: 200 cases and more in ten languages and some others), and
sources that hold several, which are named: in Python, and in a server's answers (tests/serve).

A bar stands where a sentence ends; behind it, the white space is the sentence's before it. § is a
placeholder.
"""

import warnings
from pathlib import Path

import pytest
from demo_model import FLAGS

from fairseq_ext import Translator
from fairseq_ext.text.several_sentences import warning
from fairseq_ext.text.splitter import PLACEHOLDER, splitter

LINES = [
    tuple(line.split("\t"))
    for line in Path(__file__).with_name("sentences.tsv").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize(("language", "line"), LINES)
def test_sentence_ends(language, line):
    text = line.replace("§", PLACEHOLDER)
    plain = text.replace("|", "")
    ends = splitter(language)(plain)
    assert "|".join(plain[a:b] for a, b in zip([0, *ends], ends, strict=False)) == text


def test_no_character_is_lost_where_a_long_line_is_read_in_parts():
    line = "Ein Hund rennt. " * 3000
    assert splitter("de")(line) == list(range(16, len(line) + 1, 16))
    letters = "x" * 300_000
    assert splitter("de")(letters) == [300_000]


ONE = [
    "Ein Mann.",
    "Dr. Smith kam um 3 Uhr.",
    "Am 3. Mai kam er.",
    "z. B. Hunde",
    "Prof. Müller usw. Das",
    'Er sagte: "Nein."',
    "J. R. R. Tolkien",
    "Das kostet 3.50 Euro.",
    "the U.S. Army",
    "Nr. 5 ist da",
    "Warten... Er kam",
    "",
    " ",
]
TWO = [
    "Er kam. Sie ging.",
    "Wer ist das? Ich war es.",
    "A\n\nB",
    "これはペンです。あれは本です。",
    "Halt! (Nein.)",
    'Er rief: "Halt!" Sie hielt.',
]


@pytest.mark.parametrize("text", [*ONE, *TWO])
def test_what_counts_as_several(text):
    assert bool(warning(text, "it")) == (text in TWO)


def test_a_translator_warns_where_it_is_called():
    translator = Translator(**FLAGS, beam=1)
    with pytest.warns(
        UserWarning,
        match=r"line 2 holds 3 sentences, and the model may merge .* \(1 more such line\)",
    ) as reported:
        translator.translate(["Ein Mann.", "Er kam. Sie ging. Er auch.", "Er kam. Sie ging."])
    assert reported[0].filename == __file__
    with pytest.warns(UserWarning, match="line 3 holds 2 sentences"):
        list(translator.translate_iter(["Ein Mann."] * 2 + ["Er kam. Sie ging."], buffer=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        translator.translate(["Ein Mann."])
