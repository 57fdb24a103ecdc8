"""Lemmas of words, by `simplemma` (offline, 54 languages; the extra `terms` installs it)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from fairseq_ext.core.errors import UsageError

Lemmatizer = Callable[[str], str]
KEPT = 1 << 17  # words whose lemmas are kept


def lemmatizer(language: str, flag: str) -> Lemmatizer:
    """A function from a word to its lemma.

    language: ISO 639 code, a region behind it is dropped (`de`, `de-AT`); flag: named in messages.
    Errors: UsageError where simplemma is not installed or does not know the language.
    """
    try:
        from simplemma.strategies import DefaultStrategy, ToLowercaseFallbackStrategy
    except ImportError:
        raise UsageError(f"{flag} needs the package simplemma for lemmas: pip install simplemma") from None
    code = language.lower().replace("_", "-").split("-")[0]
    strategy, fallback = DefaultStrategy(), ToLowercaseFallbackStrategy()
    try:
        strategy.get_lemma("a", code)  # loads the dictionary, so that no sentence waits for it
    except ValueError:
        raise UsageError(
            f"{flag}: simplemma has no lemmas for the language '{language}': "
            "use another language, or leave lemmas out"
        ) from None

    @lru_cache(maxsize=KEPT)
    def lemma(word: str) -> str:
        # what simplemma.lemmatize does, without its own cache
        return strategy.get_lemma(word, code) or fallback.get_lemma(word, code)

    return lemma


def version() -> str:
    """The tool and its version, for signatures."""
    from importlib.metadata import version as installed

    return f"simplemma-{installed('simplemma')}"
