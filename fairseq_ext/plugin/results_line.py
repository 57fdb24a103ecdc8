"""One line of a results file: a JSON object with a digest of its content.

Everything that is read is checked, as other programs may have written it: `--resume` prints these lines as translations.
"""

from __future__ import annotations

import json
from typing import Any

from fairseq_ext.core.files import sealed, unsealed

FORMAT = {"format": "fairseq_ext results", "version": 2}
START = json.dumps(FORMAT)[:-1].encode()  # of the first line


def line_of(record: dict[str, Any]) -> bytes:
    """The line of a record, its end included."""
    return json.dumps(sealed(record), ensure_ascii=False).encode() + b"\n"


def may_begin(line: bytes) -> bool:
    """Whether a first line that was cut short can be ours."""
    return START.startswith(line[: len(START)])


def header(line: bytes) -> dict[str, str]:
    """What the results were made from. Errors: ValueError, whose text fits behind "because"."""
    record = unsealed(line)
    made_from = record.get("made_from")
    if (
        {name: record.get(name) for name in FORMAT} != FORMAT
        or not isinstance(made_from, dict)
        or not all(isinstance(value, str) for value in made_from.values())
    ):
        raise ValueError("it is not the beginning of a results file")
    return made_from


def sentence(line: bytes, words: int) -> dict[str, Any]:
    """A sentence's record, whose tokens are of a dictionary of so many words. Errors: ValueError, whose text fits behind "because"."""
    record = unsealed(line)
    if not (whole(record.get("id")) and isinstance(record.get("source"), str) and isinstance(record.get("text"), str)):
        raise ValueError("it has no number, source or text of a sentence")
    hypotheses = record.get("hypotheses")
    if not isinstance(hypotheses, list) or not hypotheses:
        raise ValueError("it has no hypotheses")
    for hypothesis in hypotheses:
        check(hypothesis, words)
    return record


def check(hypothesis: Any, words: int) -> None:
    """Errors: ValueError for what is no hypothesis over so many words."""
    if not isinstance(hypothesis, dict):
        raise ValueError("it has a hypothesis that is not an object")
    tokens, scores, unmet = (hypothesis.get(name) for name in ("tokens", "positional_scores", "unmet"))
    if not isinstance(tokens, list) or not tokens or not all(whole(token) and token < words for token in tokens):
        raise ValueError(f"it has a token outside the dictionary's {words} words")
    given = [hypothesis.get("score"), hypothesis.get("utility", 0.0)]
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(map(number, [*given, *scores])):
        raise ValueError("it has a score that is not a number, or not one for each token")
    if "unmet" in hypothesis and not (isinstance(unmet, list) and all(pair_of_texts(pair) for pair in unmet)):
        raise ValueError("it has constraints that are not pairs of phrase and reason")


def whole(value: Any) -> bool:
    """Whether it is a whole number from 0."""
    return type(value) is int and value >= 0


def number(value: Any) -> bool:
    """Whether it is a number; a sentence whose every word was forbidden has -Infinity."""
    return type(value) in (int, float) and value == value


def pair_of_texts(value: Any) -> bool:
    """Whether it is [phrase, reason]."""
    return isinstance(value, list) and len(value) == 2 and all(isinstance(text, str) for text in value)
