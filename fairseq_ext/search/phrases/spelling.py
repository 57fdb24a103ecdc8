"""The nearest spelling of a phrase that a dictionary can write, for messages."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Callable, Iterable, Sequence

from fairseq_ext.search.phrases.pieces import SEPARATOR

TYPED = str.maketrans(
    {
        **dict.fromkeys("’‘‛", "'"),
        **dict.fromkeys("“”„«»", '"'),
        **dict.fromkeys("–—‑", "-"),
        "‚": ",",
        "…": "...",
    }
)
MIN_SIMILARITY = 0.6  # smallest similarity of a replacing word (difflib)
WORDS = 3  # replacing words that are tried
# characters: a longer text is not a phrase, and the comparison would take seconds
LONGEST = 500


def nearest_spelling(
    text: str, writable: Callable[[str], bool], symbols: Iterable[str]
) -> str | None:
    """Return the most similar spelling of `text` that is writable; None if none of those tried is,
    or if the text is too long.

    Tried are the text in NFKC, with typewriter punctuation, without accents, in other case, and two
    of these together; then, for each word that cannot be written, the most similar symbols of the
    dictionary.
    """
    if len(text) > LONGEST:
        return None
    tried = list(dict.fromkeys(second(first(text)) for first in CHANGES for second in CHANGES))
    tried.sort(key=lambda each: -similarity(text, each))
    found = next((each for each in tried if each != text and each.strip() and writable(each)), None)
    return found or with_other_words(text, writable, symbols)


def with_other_words(
    text: str, writable: Callable[[str], bool], symbols: Iterable[str]
) -> str | None:
    """Return the text with its unwritable words replaced by similar ones of the dictionary; None if
    one has none."""
    known: Sequence[str] | None = None
    words = []
    for word in text.split():
        if not writable(word):
            # sentencepiece and subword-nmt mark the start or the continuation of a word: a symbol
            # that is a whole word is compared without the mark
            known = known or list(
                dict.fromkeys(
                    symbol.removeprefix("▁") for symbol in symbols if not symbol.endswith(SEPARATOR)
                )
            )
            similar = difflib.get_close_matches(word, known, n=WORDS, cutoff=MIN_SIMILARITY)
            replaced = next((each for each in similar if writable(each)), None)
            if replaced is None:
                return None
            word = replaced
        words.append(word)
    return " ".join(words) if writable(" ".join(words)) else None


def similarity(one: str, other: str) -> float:
    """Return 1 for equal texts, 0 for texts without common parts."""
    return difflib.SequenceMatcher(None, one, other).ratio()


def without_accents(text: str) -> str:
    """Return the text without combining marks."""
    return "".join(
        character
        for character in unicodedata.normalize("NFKD", text)
        if not unicodedata.combining(character)
    )


CHANGES: tuple[Callable[[str], str], ...] = (
    str,
    lambda text: unicodedata.normalize("NFKC", text),
    lambda text: text.translate(TYPED),
    without_accents,
    lambda text: text.replace("ß", "ss"),
    str.lower,
    lambda text: text[:1].upper() + text[1:],
    str.title,
)
