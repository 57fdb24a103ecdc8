"""Lemmas and their forms come from a file in the cache, which is made once."""

import os
import signal
import sqlite3
import threading
from multiprocessing import get_context
from pathlib import Path

import pytest
import simplemma

from fairseq_ext.core.lemmas import lemmatizer, word_forms

WORDS = "Katze Katzen ging gehe Häusern Haus-Katzen Donaudampfschiffe qwrtz GEHEN Am".split()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    word_forms.cache_clear()
    yield tmp_path / "fairseq_ext"
    word_forms.cache_clear()


@pytest.mark.parametrize(("language", "code"), [("et", "et"), ("de-AT", "de"), ("deu_Latn", "de")])
def test_lemmas_are_those_of_simplemma(language, code):
    lemma = lemmatizer(language, "--flag")
    assert [lemma(word) for word in WORDS] == [simplemma.lemmatize(w, code) for w in WORDS]


def answers(_=None):
    table = word_forms("et")
    return table.lemma("kassid"), table.forms("kass")[:3], table.lemma("qwrtz")


@pytest.mark.parametrize(
    "wrong",
    ["", "no folder", "open to others", "cut", "empty", "of others", "damaged inside", "a folder"],
)
def test_a_cache_that_cannot_be_used_changes_nothing(cache, wrong):
    expected = answers()
    (file,) = cache.iterdir()
    word_forms.cache_clear()
    if wrong == "no folder":
        file.unlink()
        cache.rmdir()
        cache.write_text("")
    elif wrong == "open to others":
        with sqlite3.connect(file) as database:  # what another user would have written
            database.execute("update words set lemma = 'x'")
        file.chmod(0o666)
    elif wrong == "cut":
        file.write_bytes(file.read_bytes()[:20_000])
    elif wrong == "empty":
        file.write_bytes(b"")
    elif wrong == "of others":
        file.unlink()
        with sqlite3.connect(file) as database:
            database.execute("create table words (x)")
    elif wrong == "damaged inside":
        content = file.read_bytes()
        file.write_bytes(content[:8192] + b"\xff" * (len(content) - 8192))
    elif wrong == "a folder":
        file.unlink()
        file.mkdir()
    assert answers() == expected and expected[0] == "kass" and expected[2] is None
    if wrong in ("cut", "empty", "of others"):  # it is written again
        assert sqlite3.connect(file).execute("select count(*) from words").fetchone()[0] > 1000


def test_a_relative_cache_and_odd_characters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("here", "a?b#c%41 d"):
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        word_forms.cache_clear()
        assert answers()[0] == "kass" and len(list(Path(folder, "fairseq_ext").iterdir())) == 1
    word_forms.cache_clear()


def test_a_fork_while_threads_look_words_up_does_not_wait(cache):
    table, stop = word_forms("et"), threading.Event()

    def look_up() -> None:
        while not stop.is_set():
            table.words("select form from words where lemma = ? order by id", "kass")

    threads = [threading.Thread(target=look_up) for _ in range(3)]
    for each in threads:
        each.start()
    try:
        for _ in range(20):
            if (child := os.fork()) == 0:
                signal.alarm(20)
                os._exit(0 if word_forms("et").lemma("kassid") == "kass" else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for each in threads:
            each.join()


def test_processes_that_start_together_and_forked_ones_share_it(cache):
    with get_context("fork").Pool(3) as pool:
        assert len(set(pool.map(answers, range(3), 1))) == 1
    parent = answers()  # opens it, and so does each child
    with get_context("fork").Pool(2) as pool:
        assert set(pool.map(answers, range(4), 1)) == {parent}
    assert len(os.listdir(cache)) == 1
