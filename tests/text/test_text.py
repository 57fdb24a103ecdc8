"""Whole texts through the demo model, next to its sentences by themselves."""

import os
import random
import re
import subprocess
import sys

import pytest
import sacrebleu
from serving import FLAGS, ROOT
from sizes import ALL

from fairseq_ext import Translator

KINDS = (
    "https://a.example/x?y={}",
    "user{}@example.org",
    "{{name{}}}",
    "%{}$s",
    "&#{};",
    "www.example.org/{}",
)


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(
        **{**FLAGS, "stop": "count", "stream_width": None, "schedule": None, "beam": 2}
    )


def with_placeholders(line: str, draw: random.Random, count: int) -> tuple[str, list[str]]:
    """A line with placeholders between its words, each another one."""
    words, made = (
        line.split(" "),
        [draw.choice(KINDS).format(draw.randrange(100, 99999)) for _ in range(count)],
    )
    for each in made:
        words.insert(draw.randrange(1, len(words)), each)
    return " ".join(words), made


def without(text: str, placeholders: list[str]) -> str:
    for each in placeholders:
        assert text.count(each) == 1, (text, each)
        text = text.replace(each, " ")
    return re.sub(r" +(?=[.,;:!?])", "", re.sub(" +", " ", text)).strip()


def test_sentences_of_a_paragraph_are_translated_as_if_alone(translator, lines):
    expected = [found[0].text for found in translator.translate(lines[:6])]
    text = "  {} {}\n\n\t{}  {}\r\n{} {}\n".format(*lines[:6])
    found = translator.translate_text(text)
    assert (
        found.text == "  {} {}\n\n\t{}  {}\r\n{} {}\n".format(*expected) and not found.untranslated
    )


def test_a_sentence_longer_than_the_model_is_cut_and_none_is_lost(translator, lines):
    long = " ".join(line.rstrip(".?!") + "," for line in lines * 4)
    assert translator.encode(long).numel() > 1024
    found = translator.translate_text(f"{lines[0]}\n{long}\n{'x' * 1500}")
    first, second, third = found.text.split("\n")
    assert (
        first == translator.translate([lines[0]])[0][0].text
        and len(second.split()) > 200
        and third
        and not found.untranslated
    )


def test_placeholders_stand_once_each_and_the_rest_is_as_without(translator, lines):
    draw = random.Random(1)
    made = [with_placeholders(line, draw, 1 + i % 6) for i, line in enumerate(lines)]
    found = translator.translate_text("\n".join(text for text, _ in made)).text.split("\n")
    rest = [
        without(text, placeholders) for text, (_, placeholders) in zip(found, made, strict=True)
    ]
    plain = [h[0].text for h in translator.translate(lines)]
    references = (ROOT / "data" / "demo" / "test.en").read_text(encoding="utf-8").splitlines()
    sources = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()
    expected = [[references[sources.index(line)] for line in lines]]
    assert (
        abs(
            sacrebleu.corpus_bleu(rest, expected).score
            - sacrebleu.corpus_bleu(plain, expected).score
        )
        <= 0.3
    )


@pytest.mark.parametrize("end", ["{a} {b} {c} {d}.", "{a}, {b} {c} {d} .", "${a} {{b}} {c} {d}!"])
def test_placeholders_before_the_last_punctuation_keep_their_order_and_stay_before_it(
    translator, end
):
    found = translator.translate_text(f"Die Ärztin öffnet {end}").text
    assert re.findall(r"(?<=\{)\w(?=\})", found) == list("abcd")
    assert found[-1] in ".!" and found.count(found[-1]) == 1


def test_what_cannot_be_translated_stays_and_is_reported(translator, monkeypatch):
    from fairseq_ext.core.errors import SentenceError

    checked = translator.checked

    def refuse(line, where):
        if "Patient" in line:
            raise SentenceError(f"{where} is refused")
        return checked(line, where)

    monkeypatch.setattr(translator, "checked", refuse)
    found = translator.translate_text(
        "Er ist sehr alt. Der Patient {x} hat einen Port. Er ist sehr alt."
    )
    alone = translator.translate(["Er ist sehr alt."])[0][0].text
    assert found.text == f"{alone} Der Patient {{x}} hat einen Port. {alone}"
    assert found.untranslated == [("Der Patient {x} hat einen Port.", "line 2 is refused")]


def test_a_text_comes_in_parts(translator, lines):
    """The first while the others are still to be translated."""
    calls: list[int] = []
    given = translator.of_segments
    try:
        translator.of_segments = lambda segments, progress=False: (
            calls.append(len(segments)) or given(segments)
        )
        parts = translator.translate_text_iter("\n".join(lines * 3))
        first = next(parts)
        assert len(calls) == 1 and calls[0] < len(lines) * 3 / 2
        whole = first + "".join(parts)
    finally:
        del translator.of_segments
    assert whole == translator.translate_text("\n".join(lines * 3)).text and len(calls) > 1


@pytest.mark.skipif(not os.environ.get(ALL), reason="a minute: --all")
def test_memory_does_not_grow_with_the_text(tmp_path, lines):
    """Peaks of the command on 150 kB and on four times as much."""
    peaks = []
    for times in (1, 4):
        (tmp_path / "in.txt").write_text(
            " ".join(lines) * (times * 150_000 // len(" ".join(lines))), encoding="utf-8"
        )
        command = [
            sys.executable,
            "-m",
            "fairseq_ext.text",
            "translate",
            "in.txt",
            "out.txt",
            "--data",
            FLAGS["data"],
            "--cpu",
        ]
        run = (
            "import os, subprocess, sys; used = os.wait4(subprocess.Popen(sys.argv[1:]).pid, "
            "0)[2]; print(used.ru_maxrss)"
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        words = [sys.executable, "-c", run, *command, "--beam", "1"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=environment)
        assert (tmp_path / "out.txt").stat().st_size > times * 50_000, done.stderr
        peaks.append(int(done.stdout))
    assert peaks[1] < 1.15 * peaks[0], peaks
