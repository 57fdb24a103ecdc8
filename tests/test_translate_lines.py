"""`python -m fairseq_ext.translate`: the lines of the stock command, at the first start and from
what it has kept at the second."""

import os
import shutil
import sys

import forked
import pytest
from conftest import ran
from demo_model import MODEL, STOCK
from serving import FLAGS
from sizes import part_of

from fairseq_ext import translate as state
from fairseq_ext.core.files import cache_folder
from fairseq_ext.kernels import library
from fairseq_ext.plugin.loading.settings import as_arguments
from fairseq_ext.translator import Translator

pytestmark = pytest.mark.skipif(library.library() is None, reason="there is no compiled library")
LINES = [
    "Der alte Hund schläft.",
    "",
    "Die Ärztin öffnet den Ordner, und das Kind liest ein Buch.",
    "  ",
    "Ein Ωж <unk>  Wort",
    "Ja" + " und ja" * 30,
]
FLAGS_GIVEN = ["--data", str(MODEL), "--cpu", "--beam", "4", "-s", "de", "-t", "en"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of its own, which has the compiled library."""
    folder = tmp_path / "cache" / "fairseq_ext"
    kept = cache_folder()
    shutil.copytree(
        kept, folder, ignore=shutil.ignore_patterns("model-*")
    ) if kept.is_dir() else folder.mkdir(parents=True)
    folder.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent))
    return folder


def translate(given, *flags, python=()):
    """The command on these lines."""
    words = [sys.executable, *python, "-m", "fairseq_ext.translate", *FLAGS_GIVEN, *flags]
    return ran(*words, stdin=given, check=False)


def stock(lines):
    """fairseq-interactive's translations."""
    how = (MODEL, *STOCK, "--beam", 4, "--max-tokens", 4000, "--buffer-size", 10)
    said = forked.interactive_forked("\n".join(lines) + "\n", *how).stdout
    return [line.split("\t")[2] for line in said.splitlines() if line.startswith("D-")]


def test_both_starts_write_stocks_translations_and_the_second_one_without_torch(cache):
    """A line that cannot be used costs no other line its translation, and is named; so is one with
    two sentences."""
    *expected, last = stock([line for line in (*LINES, "Die Frau.") if line.strip()])
    # of empty lines, for which the stock command makes something up
    expected[1:1], expected[3:3] = [""], [""]
    good, bad = "\n".join(LINES).encode() + b"\n", b"ein \xff Wort\n" + b"Hund " * 2000
    flags = ("--max-tokens", "600")
    first = translate(good + bad + b"\nDie Frau.\n", *flags)
    assert first.returncode == 3, first.stderr
    assert first.stdout.split("\n") == [*expected, "", "", last, ""]
    for said in ("error: line 7 is not valid Unicode", "error: line 8 has"):
        assert said in first.stderr and "Traceback" not in first.stderr
    second = translate(good + b"Der Hund. Die Frau.", *flags, python=("-X", "importtime"))
    assert second.returncode == 0, second.stderr
    assert second.stdout.split("\n")[:-2] == expected
    assert "line 7 holds 2 sentences" in second.stderr and " numpy" in second.stderr
    assert " torch" not in second.stderr and " fairseq\n" not in second.stderr
    alone = translate(b"Die Frau.\nDas Kind. Die Frau.", "--buffer-size", "1")
    assert alone.stdout.startswith(last + "\n") and "line 2 holds 2 sentences" in alone.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--buffer-size 0", "--buffer-size is 0"),
        ("--beem 3", "--beem"),
        ("--path none.pt", "none.pt"),
        ("--input a.de", "this command reads standard input: write < a.de"),
    ][: len(part_of(4, 1))],
)
def test_wrong_flags_end_in_one_sentence(cache, flags, said):
    done = translate(b"Der Hund.\n", *flags.split())
    assert done.returncode == 1 and not done.stdout
    assert said in done.stderr and "Traceback" not in done.stderr


# what is kept translates as a Translator: rows of tests/contract with `twice`


def test_other_flags_and_changed_files_are_not_taken_for_what_was_kept(
    cache, tmp_path, monkeypatch
):
    shutil.copytree(MODEL, tmp_path / "model", copy_function=shutil.copyfile)
    model = tmp_path / "model"
    flags = {**FLAGS, "data": str(model), "path": str(model / "checkpoint.pt"), "stop": None}
    del flags["stream_width"]
    arguments, translator = as_arguments(flags), Translator(**flags)
    state.keep(arguments, {**flags, "mbr": "chrf"}, translator)  # which nothing that is kept knows
    assert state.find(arguments) is None
    state.keep(arguments, flags, translator)
    kept = state.find(arguments)
    assert kept is not None and state.find([*arguments, "--beam", "7"]) is None
    # the command then translates them as at its first start
    assert kept(["Der Hund.", "ein \udcff Wort"]) is None and kept(["Hund " * 2000]) is None
    shorter = [word.removeprefix(f"{tmp_path}/") for word in arguments]
    for folder, kept in ((tmp_path, True), (cache, False)):  # paths count from the working folder
        monkeypatch.chdir(folder)
        assert (state.find(shorter) is not None) == kept
    [file] = cache.glob("model-*")
    for i in range(9):  # the oldest of too many go
        (cache / f"model-{i}").touch()
        os.utime(cache / f"model-{i}", (i, i))
    state.keep(arguments, flags, translator)
    left = {f"model-{i}" for i in range(2, 9)}
    assert {each.name for each in cache.glob("model-*")} == {file.name, *left}
    for name in left:
        (cache / name).unlink()
    content = file.read_bytes()
    for damaged in (content[:-1], content[:-1000] + b"x" + content[-999:], b""):
        file.write_bytes(damaged)
        assert state.find(arguments) is None
    file.write_bytes(content)
    assert state.find(arguments) is not None
    for name in ("checkpoint.pt", "dict.en.txt"):
        os.utime(tmp_path / "model" / name, (1, 1))
        assert state.find(arguments) is None
        state.keep(arguments, flags, translator)
        assert state.find(arguments) is not None
    cache.chmod(0o777)  # others may have written it
    assert library.private_folder() == cache and not [*cache.glob("model-*")]


def test_a_model_that_is_replaced_while_it_is_loaded_is_not_kept(cache, tmp_path, monkeypatch):
    """It would answer with the old weights for as long as the new file stays."""
    import fairseq_ext.translator

    shutil.copytree(MODEL, tmp_path / "model", copy_function=shutil.copyfile)
    arguments = ["--data", str(tmp_path / "model"), "--cpu", "--beam", "2"]

    class Replaced(Translator):
        def __init__(self, *given, **flags):
            super().__init__(*given, **flags)
            shutil.copyfile(MODEL / "checkpoint.pt", tmp_path / "new")
            os.replace(tmp_path / "new", tmp_path / "model" / "checkpoint.pt")

    with monkeypatch.context() as patch:
        patch.setattr(fairseq_ext.translator, "Translator", Replaced)
        state.load(arguments)
    assert state.find(arguments) is None
    state.load(arguments)
    assert state.find(arguments) is not None
