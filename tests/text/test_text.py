"""Whole texts through the demo model, next to its sentences by themselves; the command, and files
that another program reads before and after."""

import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import warm
from conftest import ran
from office.make import made
from office_files import PARAGRAPHS, archive, docx, parts_of
from serving import FLAGS, ROOT
from sizes import ALL
from texts import capitals, through

from fairseq_ext.core.errors import SentenceError
from fairseq_ext.text.files import translate

COMMAND = ["-m", "fairseq_ext.text", "translate"]
MODEL = ["--data", FLAGS["data"], "--cpu", "--beam", "2"]
KINDS = (
    "https://a.example/x?y={}",
    "user{}@example.org",
    "{{name{}}}",
    "%{}$s",
    "&#{};",
    "www.example.org/{}",
)


def with_placeholders(line: str, draw: random.Random, count: int) -> tuple[str, list[str]]:
    """A line with placeholders between its words, each another one."""
    words = line.split(" ")
    those = [draw.choice(KINDS).format(draw.randrange(100, 99999)) for _ in range(count)]
    for each in those:
        words.insert(draw.randrange(1, len(words)), each)
    return " ".join(words), those


def without(text: str, placeholders: list[str]) -> str:
    for each in placeholders:
        assert text.count(each) == 1, (text, each)
        text = text.replace(each, " ")
    return re.sub(r" +(?=[.,;:!?])", "", re.sub(" +", " ", text)).strip()


def test_sentences_of_a_paragraph_are_translated_as_if_alone(translator, lines):
    expected = [found[0].text for found in translator.translate(lines[:6])]
    text = "  {} {}\n\n\t{}  {}\r\n{} {}\n"
    found = translator.translate_text(text.format(*lines[:6]))
    assert found.text == text.format(*expected) and not found.untranslated


def test_a_sentence_longer_than_the_model_is_cut_and_none_is_lost(translator, lines):
    long = " ".join(line.rstrip(".?!") + "," for line in lines * 4)
    assert translator.encode(long).numel() > 1024
    found = translator.translate_text(f"{lines[0]}\n{long}\n{'x' * 1500}")
    first, second, third = found.text.split("\n")
    assert first == translator.translate([lines[0]])[0][0].text and len(second.split()) > 200
    assert third and not found.untranslated


def test_placeholders_stand_once_each(translator, lines):
    draw = random.Random(1)
    texts, placeholders = zip(
        *(with_placeholders(line, draw, 1 + i % 6) for i, line in enumerate(lines)), strict=True
    )
    found = translator.translate_text("\n".join(texts)).text.split("\n")
    for text, those in zip(found, placeholders, strict=True):
        assert [text.count(each) for each in those] == [1] * len(those), text


MESSAGES = r"""
%d Dateien wurden gelöscht. | ^%d (files|records) .*deleted
{name} hat die Datei gelöscht. | ^{name} (has )?deleted the file
Möchten Sie %s wirklich löschen? | (delete|remove) %s\?$
Bitte warten Sie %d Sekunden. | ^Please wait (for )?%d seconds
%s konnte nicht geöffnet werden. | ^%s (could not|couldn't|cannot) be opened
%s: Zugriff verweigert | ^%s: (Access|access) .*denied
Von %1$s an %2$s übermittelt | %1\$s .*%2\$s
Siehe https://a.example/b für weitere Informationen. | https://a\.example/b for (more|further)
Die Passwörter werden gespeichert | ^[A-Z]
"""


@pytest.mark.parametrize("row", MESSAGES.strip().splitlines())
def test_a_placeholder_is_a_word_of_its_sentence(translator, row):
    """The patterns say where it stands in English."""
    text, pattern = row.split(" | ")
    found = translator.translate_text(text).text
    assert re.search(pattern, found), found


def test_code_is_a_word_of_its_sentence(translator):
    found = translator.translate_text("Öffnen Sie den Ordner `bin` mit `ls`.", format="markdown")
    assert re.search("folder `bin`|`bin` folder", found.text) and "`ls`" in found.text


def test_a_translation_without_what_stands_for_a_placeholder_is_made_again(translator, monkeypatch):
    """Then the model does not see the placeholder."""
    given, seen = translator.of_segments, list[str]()

    def without_numbers(segments, progress=False):
        seen.extend(segment.plain for segment in segments)
        found = given(segments)
        return [replace(each, text=re.sub(r"\d+", "", each.text)) for each in found]

    monkeypatch.setattr(translator, "of_segments", without_numbers)
    found = translator.translate_text("Die Ärztin öffnet den Ordner {x} von {y}.")
    assert found.text.count("{x}") == found.text.count("{y}") == 1 and not found.untranslated
    assert "Ordner 17 von 30" in seen[0] and seen[-1] == "Die Ärztin öffnet den Ordner von."


@pytest.mark.parametrize("end", ["{a} {b} {c} {d}.", "{a}, {b} {c} {d} .", "${a} {{b}} {c} {d}!"])
def test_placeholders_before_the_last_punctuation_keep_their_order_and_stay_before_it(
    translator, end
):
    found = translator.translate_text(f"Die Ärztin öffnet {end}").text
    assert re.findall(r"(?<=\{)\w(?=\})", found) == list("abcd")
    assert found[-1] in ".!" and found.count(found[-1]) == 1


def test_what_cannot_be_translated_stays_and_is_reported(translator, monkeypatch):
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


def test_a_text_comes_in_parts(translator, lines, monkeypatch):
    """The first while the others are still to be translated."""
    calls, given = list[int](), translator.of_segments

    def counted(segments, progress=False):
        calls.append(len(segments))
        return given(segments)

    monkeypatch.setattr(translator, "of_segments", counted)
    parts = translator.translate_text_iter("\n".join(lines * 3))
    first = next(parts)
    assert len(calls) == 1 and calls[0] < len(lines) * 3 / 2
    whole = first + "".join(parts)
    assert whole == translator.translate_text("\n".join(lines * 3)).text and len(calls) > 1


@pytest.mark.skipif(not os.environ.get(ALL), reason="a minute: --all")
def test_memory_does_not_grow_with_the_text(tmp_path, lines):
    """Peaks of the command on 150 kB and on four times as much."""
    peaks = []
    for times in (1, 4):
        (tmp_path / "in.txt").write_text(
            " ".join(lines) * (times * 150_000 // len(" ".join(lines))), encoding="utf-8"
        )
        run = (
            "import os, subprocess, sys; used = os.wait4(subprocess.Popen(sys.argv[1:]).pid, "
            "0)[2]; print(used.ru_maxrss)"
        )
        words = [sys.executable, "-c", run, sys.executable, *COMMAND, "in.txt", "out.txt"]
        done = ran(*words, *MODEL, cwd=tmp_path, check=False, PYTHONPATH=str(ROOT))
        assert (tmp_path / "out.txt").stat().st_size > times * 50_000, done.stderr
        peaks.append(int(done.stdout))
    assert peaks[1] < 1.15 * peaks[0], peaks


def command(folder: Path, *words: str) -> subprocess.CompletedProcess:
    """The command, its flags last."""
    return ran(warm.python(), *COMMAND, *words, cwd=folder, check=False)


def test_the_command(tmp_path):
    (tmp_path / "a.md").write_text(
        "# Der Patient hat einen Port.\n\nEr ist *sehr* alt. {x}\n", encoding="utf-8"
    )
    ran = command(tmp_path, "--beam", "2", "a.md", "b.md", *MODEL)
    assert (ran.returncode, ran.stderr) == (
        1,
        "error: write IN and OUT first: translate IN OUT --data FOLDER\n",
    )
    ran = command(tmp_path, "a.md", "b.md", *MODEL)
    assert ran.returncode == 0 and "characters" in ran.stderr, ran.stderr
    head, _, text = (tmp_path / "b.md").read_text(encoding="utf-8").splitlines()
    assert head.startswith("# The patient") and text.count("*") == 2 and text.count("{x}") == 1
    same = command(tmp_path, "a.md", "a.md", *MODEL)
    assert same.returncode == 1 and "Traceback" not in same.stderr
    assert same.stderr.startswith("error: OUT would be written over")
    ran = command(tmp_path, "a.md", "c.md", *MODEL, "--max-unpacked", "0")
    said = "error: --max-unpacked 0 allows nothing: use a number above 0\n"
    assert (ran.returncode, ran.stderr) == (1, said) and not (tmp_path / "c.md").exists()


def test_the_command_says_what_of_a_file_is_not_translated(tmp_path):
    """Parts that are never, with status 0; parts that cannot be read, with status 3."""
    parts = parts_of(docx(PARAGRAPHS["runs"]))
    for more, status in (({}, 0), ({"word/header1.xml": "<w:p>"}, 3)):
        (tmp_path / "a.docx").write_bytes(archive(parts | more))
        ran = command(tmp_path, "a.docx", "b.docx", *MODEL)
        assert ran.returncode == status, ran.stderr
        assert ran.stderr.count("a.docx holds text that is not read: charts\n") == 1
        left = "left as it was: word/header1.xml of a.docx (it is not " in ran.stderr
        assert left == bool(more)
        out = parts_of((tmp_path / "b.docx").read_bytes())
        assert b"alter" not in out["word/document.xml"]
        assert not more or out["word/header1.xml"] == b"<w:p>"


@pytest.mark.skipif(
    shutil.which("soffice") is None,
    reason="no LibreOffice: apt-get install libreoffice-writer libreoffice-impress",
)
@pytest.mark.skipif(not os.environ.get(ALL), reason="LibreOffice takes 30 seconds: --all")
@pytest.mark.parametrize("name", ["text.docx", "text.odt", "slides.pptx"])
def test_files_open_again_in_libreoffice(tmp_path, name):
    """With all their text."""
    there, out = Path(__file__).parent / "office" / name, tmp_path / name
    translate(str(there), str(out), through(capitals))
    if name == "slides.pptx":
        assert made(tmp_path, out, "pdf").stat().st_size > 5000
        return
    before, after = (
        made(tmp_path, file, "txt").read_text(encoding="utf-8") for file in (there, out)
    )
    assert after.lower() == before.lower() and before != after
