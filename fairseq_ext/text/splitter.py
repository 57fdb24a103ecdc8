"""Where the sentences of a line end: by Moses' rules for its language (the package
sentence-splitter), else by a plain rule."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from itertools import accumulate

import regex

from fairseq_ext.text.language_codes import two_letters
from fairseq_ext.text.several_sentences import BREAK

logger = logging.getLogger("fairseq_ext")
# what Moses' rules pass over: a sentence that begins with a quotation mark such as „, and one that
# a space is missing before
MORE = regex.compile(
    r"(?<=[.!?…][\p{Pe}\p{Pf}\"'“]*)\s+(?=[„‚«»]\p{Lu})|(?<=\p{Ll}{3}[.!?])(?=\p{Lu}\p{Ll}+\s)"
)
AT_ONCE = 20_000  # characters; sentence-splitter takes time by the square of a text's length


@cache
def splitter(language: str | None) -> Callable[[str], list[int]]:
    """From a line to the ends of its sentences, in characters, white space behind them included;
    the last is the line's."""
    code = two_letters(language or "")
    try:
        from sentence_splitter import SentenceSplitter, SentenceSplitterException
    except ImportError:
        logger.warning(
            "sentences are told apart by a plain rule, which knows few abbreviations: pip install "
            "'fairseq_ext[text]'"
        )
        return plain_ends
    try:
        split = SentenceSplitter(language=code or "none").split
    except SentenceSplitterException:
        logger.warning(
            "no rules for sentences in '%s': they are told apart by a plain rule, which knows "
            "few abbreviations",
            language,
        )
        return plain_ends
    return lambda line: ends_of(line, split)


def plain_ends(line: str) -> list[int]:
    """By full stops and the like in front of a capital letter."""
    return [*(match.end() for match in BREAK.finditer(line)), len(line)]


def ends_of(line: str, split: Callable[[str], list[str]]) -> list[int]:
    """By a function that gives sentences whose spaces may differ from the line's."""
    found: list[int] = []
    for start in range(0, len(line), AT_ONCE):
        part = line[start : start + AT_ONCE]
        letters = [place for place, character in enumerate(part, start) if not character.isspace()]
        counts = list(
            accumulate(
                sum(not character.isspace() for character in sentence) for sentence in split(part)
            )
        )
        # subtle: else it has changed more than spaces, and its sentences stand nowhere
        if counts and counts[-1] == len(letters):
            found += [letters[count] for count in counts[:-1]]
    return [
        *sorted({*found, *(match.end() for match in MORE.finditer(line))} - {len(line)}),
        len(line),
    ]
