"""Lemmas of words, and the forms of lemmas, from `simplemma` (offline, 54 languages).

simplemma's table of a language in memory takes 1 to 2 s to read and 110 MB (German, 1.1 million
forms), and turned round twice that. So the first use of a language writes it as an SQLite file in
the cache, which all others only open.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import cache_folder, replace, untrusted_reason
from fairseq_ext.core.language_codes import two_letters

# subtle: a child that is forked while another thread is in SQLite could wait for ever
in_use = threading.Lock()
os.register_at_fork(
    before=in_use.acquire, after_in_parent=in_use.release, after_in_child=in_use.release
)

Lemmatizer = Callable[[str], str]
ENDING = 2  # letters by which similar lemmas are found
CACHED = 1 << 16  # answers
LEMMA_CACHE_SIZE = 1 << 17  # words
SCHEMA = """
create table words (id integer primary key, form text, lemma text);
create table inflected (id integer primary key, lemma text, ending text);
"""
INDEXES = """
create index of_form on words (form);
create index of_lemma on words (lemma);
create index of_ending on inflected (ending);
"""


class WordForms:
    """Word forms by lemma, and lemmas by word form, in the order of the table.

    connect: opens the database; each process calls it, as connections are not to be forked.
    rebuild: makes it in memory, if it is damaged.
    """

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], rebuild: Callable[[], sqlite3.Connection]
    ):
        self.connect, self.rebuild = connect, rebuild
        self.process, self.database = os.getpid(), connect()
        self.lemma = lru_cache(maxsize=CACHED)(self.lemma_of)
        self.forms = lru_cache(maxsize=CACHED)(self.forms_of)

    def words(self, query: str, word: str) -> list[str]:
        """Return the words that a query finds."""
        with in_use:
            if self.process != os.getpid():
                self.process, self.database = os.getpid(), self.connect()
            try:
                return [found for (found,) in self.database.execute(query, (word,))]
            except sqlite3.DatabaseError:
                self.connect, self.database = self.rebuild, self.rebuild()
                return [found for (found,) in self.database.execute(query, (word,))]

    def lemma_of(self, form: str) -> str | None:
        """Return the lemma of a form; None if it is not known."""
        return next(iter(self.words("select lemma from words where form = ?", form)), None)

    def forms_of(self, lemma: str) -> tuple[str, ...]:
        """Return the forms of a lemma; none if it is none."""
        return tuple(self.words("select form from words where lemma = ? order by id", lemma))

    def similar(self, word: str) -> list[str]:
        """Return the lemmas with several forms that end like a word."""
        query = "select lemma from inflected where ending = ? order by id"
        return self.words(query, word[-ENDING:])


def in_memory(lemma_of: Mapping[str, str]) -> WordForms:
    """Return the forms of a table of lemmas by their forms."""
    database = filled(lemma_of)
    return WordForms(lambda: database, lambda: database)


def filled(lemma_of: Mapping[str, str]) -> sqlite3.Connection:
    """Return a database in memory with a table of lemmas by their forms."""
    database = sqlite3.connect(":memory:", check_same_thread=False)
    fill(database, lemma_of)
    return database


def fill(database: sqlite3.Connection, lemma_of: Mapping[str, str]) -> None:
    """Write a table of lemmas by their forms into an empty database."""
    database.executescript(SCHEMA)
    database.executemany("insert into words (form, lemma) values (?, ?)", lemma_of.items())
    inflected = (each for each, number in Counter(lemma_of.values()).items() if number > 1)
    database.executemany(
        "insert into inflected (lemma, ending) values (?, ?)",
        ((lemma, lemma[-ENDING:]) for lemma in inflected),
    )
    database.executescript(INDEXES)
    database.commit()


@lru_cache(maxsize=4)
def word_forms(language: str) -> WordForms:
    """Return the table of a language (its code, one that simplemma has). It stays in memory where
    the cache cannot be written, or others can write it."""
    path = cache_folder().absolute() / f"forms-{language}-{version()}.sqlite"
    try:
        if not is_whole(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as folder:
                part = Path(folder, path.name)
                with closing(sqlite3.connect(part)) as database:
                    fill(database, table(language))
                replace(path, [part.read_bytes()])
            path.chmod(0o644)
        if untrusted_reason(path) is None:
            return WordForms(lambda: opened(path), lambda: filled(table(language)))
    except (OSError, sqlite3.Error):
        pass
    return in_memory(table(language))


def opened(path: Path) -> sqlite3.Connection:
    """Open a file that is not written any more."""
    name = f"{path.as_uri()}?mode=ro&immutable=1"
    return sqlite3.connect(name, uri=True, check_same_thread=False)


def is_whole(path: Path) -> bool:
    """Return whether there is a file of ours with all of its pages."""
    if not path.is_file():
        return False
    try:
        with closing(opened(path)) as database:
            database.execute("select form, lemma from words limit 1").fetchone()
            database.execute("select lemma, ending from inflected limit 1").fetchone()
            pages, size = (
                database.execute(f"pragma page_{each}").fetchone()[0] for each in ("count", "size")
            )
    except sqlite3.Error:
        return False
    return path.stat().st_size == pages * size


def table(language: str) -> Mapping[str, str]:
    """Return simplemma's lemmas by word forms."""
    from simplemma.strategies.dictionaries.dictionary_factory import DefaultDictionaryFactory

    return DefaultDictionaryFactory().get_dictionary(language)


class Lemmas(Mapping[str, str]):
    """The lemmas of a table by its word forms, as simplemma reads them."""

    def __init__(self, forms: WordForms):
        self.forms = forms

    def __getitem__(self, word: str) -> str:
        if (found := self.forms.lemma(word)) is None:
            raise KeyError(word)
        return found

    def __iter__(self) -> Iterator[str]:
        return (form for (form,) in self.forms.database.execute("select form from words"))

    def __len__(self) -> int:
        return self.forms.database.execute("select count(*) from words").fetchone()[0]


class Dictionaries:
    """simplemma's source of tables: ours."""

    def get_dictionary(self, language: str) -> Mapping[str, str]:
        """Return the lemmas of a language."""
        return Lemmas(word_forms(language))


def lemmatizer(language: str, flag: str) -> Lemmatizer:
    """Return a function from a word to its lemma.

    language: its code (`de`, `de-AT`, `deu_Latn`). flag: for messages.
    Errors: UsageError if simplemma does not support the language.
    """
    from simplemma.strategies import DefaultStrategy, ToLowercaseFallbackStrategy

    if not has_lemmas(language):
        raise UsageError(
            f"{flag}: simplemma has no lemmas for the language '{language}': use another language, "
            "or leave lemmas out"
        )
    code = two_letters(language)
    strategy = DefaultStrategy(dictionary_factory=Dictionaries())
    fallback = ToLowercaseFallbackStrategy()

    @lru_cache(maxsize=LEMMA_CACHE_SIZE)
    def lemma(word: str) -> str:
        # the same as simplemma.lemmatize, without its cache
        return strategy.get_lemma(word, code) or fallback.get_lemma(word, code)

    return lemma


def has_lemmas(language: str | None) -> bool:
    """Return whether simplemma has lemmas for a language."""
    from simplemma.strategies.dictionaries.dictionary_factory import SUPPORTED_LANGUAGES

    return two_letters(language or "") in SUPPORTED_LANGUAGES


def version() -> str:
    """Return the tool and its version, for signatures."""
    from importlib.metadata import version as installed

    return f"simplemma-{installed('simplemma')}"
