"""Sources that hold several sentences are named: in Python, and in a server's
answers (tests/serve)."""

import warnings
from pathlib import Path

import pytest

from fairseq_ext import Translator
from fairseq_ext.text.several_sentences import warning

DEMO = Path(__file__).parents[2] / "checkpoints" / "demo"
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
    translator = Translator(
        str(DEMO / "checkpoint.pt"),
        str(DEMO),
        source_lang="de",
        target_lang="en",
        cpu=True,
        bpe="sentencepiece",
        sentencepiece_model=str(DEMO / "spm.model"),
        beam=1,
    )
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
