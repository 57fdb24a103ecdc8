"""The formats of constraints: those of `--constraints-file`, and fairseq's packed tensors.

- Tab-separated: one line a sentence in corpus order, phrases separated by tabs; an empty line for
  none. A phrase that starts with the word `<s>` is the beginning of the translation.
- JSONL (a name in .jsonl or .json; or any name but .tsv and a first line that starts with "{"): an
  object a line, or an empty line. `{"constraints": [["two", "words"], "two words"], "any_of":
  [["x", "y z"]], "avoid": ["w"], "prefix": "p", "allowed": ["a b", "c"]}`: a phrase is a string or
  its list of words; an entry of any_of is one constraint, met by any one of its phrases; allowed:
  the output is one of these strings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.core.files import Lines
from fairseq_ext.search.phrases.sentence import (
    EMPTY,
    Constraint,
    Dictionary,
    Phrase,
    SentenceConstraints,
    merge,
    unusable_reason,
    within_limits,
)
from fairseq_ext.search.request import TextConstraints

Read = TypeVar("Read")
KEYS = ("constraints", "any_of", "avoid", "prefix", "allowed")
NO_CONSTRAINTS = ", an empty one for no constraints"  # how such a line is written
DEEPEST = 100  # nested lists and objects; Python's own limit depends on the caller
TOO_DEEP = f"has lists and objects nested more than {DEEPEST} deep: make it flat"


def is_json(lines: Lines) -> bool:
    """Return whether a constraints file is JSONL: by its name, else by its first character."""
    suffix = Path(lines.path).suffix.lower()
    if suffix in (".jsonl", ".json", ".tsv"):
        return suffix != ".tsv"
    for number in range(len(lines)):
        try:
            line = lines[number].strip()
        except UsageError:  # invalid text is an error of its line alone
            continue
        if line:
            return line.startswith("{")
    return False


def parse_tabs(line: str, where: str) -> TextConstraints:
    """Parse a line of phrases separated by tabs."""
    phrases = [text.strip() for text in line.split("\t")]
    if not all(phrases):
        raise UsageError(f"{where} has an empty phrase: remove one of the tabs around it")
    return TextConstraints(tuple(phrases))


def parse_json(line: str, where: str) -> TextConstraints:
    """Parse a JSON line."""
    value = json_object(line, where)
    unknown = [key for key in value if key not in KEYS]
    if unknown:
        raise UsageError(
            f"{where} has the unknown key '{unknown[0]}': the keys are {', '.join(KEYS)}"
        )
    return text_constraints(value, where)


def refuse_duplicate_keys(where: str) -> Callable[[list[tuple[str, object]]], dict[str, object]]:
    """Return an `object_pairs_hook` that raises UsageError for a key given twice; where: for the
    message."""

    def object_of_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise UsageError(f"{where} has a key twice: join their values")
        return found

    return object_of_pairs


def json_object(line: str, where: str, keys: Sequence[str] = KEYS) -> dict[str, object]:
    """Return the object of a JSON line (raises UsageError for anything else, and for a key given
    twice)."""
    try:
        value = json.loads(line, object_pairs_hook=refuse_duplicate_keys(where))
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{where} is not valid JSON ({error}): write an object with the keys {', '.join(keys)}"
        ) from None
    if not isinstance(value, dict):
        raise UsageError(f"{where} is not a JSON object: write one with the keys {', '.join(keys)}")
    if (found := json_error(value)) is not None:
        raise UsageError(f"{where} {found}")
    return value


def json_error(value: object) -> str | None:
    """Return why a JSON value cannot be written again, as the end of a sentence; None if it can."""
    level = [value]
    for _ in range(DEEPEST + 1):
        following: list[object] = []
        for each in level:
            if isinstance(each, (dict, list)):
                following += each.values() if isinstance(each, dict) else each
            elif isinstance(each, float) and not math.isfinite(each):
                return (
                    "has a number that JSON has no form for (NaN or Infinity): write a finite one"
                )
        if not following:
            return None
        level = following
    return TOO_DEEP


def shown(value: object) -> str:
    """Return a value as a message quotes it: in JSON, or as Python writes it."""
    return cut(json.dumps(value, default=repr))


def text_constraints(value: dict[str, Any], where: str) -> TextConstraints:
    """Return the constraints of an object, checked; null counts as none, and other
    keys are ignored."""

    def phrase(item: object, key: str) -> str:
        words = [item] if isinstance(item, str) else item
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UsageError(
                f'{where} has {shown(item)} for a phrase in "{key}": write a string '
                "or a list of words"
            )
        if not all(word.strip() for word in words) or not words:
            raise UsageError(f'{where} has an empty phrase in "{key}": remove it')
        return " ".join(word.strip() for word in words)

    def listed(key: str, read: Callable[[object, str], Read]) -> tuple[Read, ...]:
        items = [] if value.get(key) is None else value[key]
        if not isinstance(items, list):
            raise UsageError(f'{where} has {shown(items)} for "{key}": write a list of phrases')
        return tuple(read(item, key) for item in items)

    def alternatives(item: object, key: str) -> tuple[str, ...]:
        if not isinstance(item, list) or not item:
            raise UsageError(
                f'{where} has {shown(item)} for a constraint in "{key}": write a list of phrases'
            )
        return tuple(phrase(alternative, key) for alternative in item)

    if value.get("allowed") == []:
        raise UsageError(
            f'{where} has no string in "allowed", so no output would be allowed: write one, or '
            "leave it out"
        )
    return TextConstraints(
        listed("constraints", phrase),
        listed("any_of", alternatives),
        listed("avoid", phrase),
        (phrase(value["prefix"], "prefix"),) if value.get("prefix") is not None else (),
        listed("allowed", phrase),
    )


# ---- Constraints in the tensors of fairseq's commands, where a program that is not ours makes them


def from_packed(row: Tensor, dictionary: Dictionary, number: int) -> SentenceConstraints:
    """Return the constraints of one row (W,) of fairseq's packed constraints; number: of the
    sentence, from 0, for messages.

    Errors: UsageError for empty phrases, `<unk>`, `</s>`, `<pad>`, and more than the limits allow.
    """
    where = f"line {number + 1} of the input"
    found = EMPTY
    for phrase in unpack(row, dictionary.bos(), where):
        is_prefix = phrase[0] == dictionary.bos()
        phrase = phrase[is_prefix:]
        pieces = [dictionary[token] for token in phrase]
        text = " ".join(pieces)
        if wrong := unusable_reason(phrase, pieces, dictionary):
            raise UsageError(f"in {where}, the phrase '{text}' {wrong}")
        if is_prefix:
            found = merge(found, SentenceConstraints(prefix=(Constraint(text, (phrase,)),)))
        else:
            found = replace(found, required=(*found.required, Constraint(text, (phrase,))))
    return within_limits(found, where)


def unpack(row: Tensor, bos: int, where: str) -> list[Phrase]:
    """Return the phrases of a packed row (W,), also those with `<s>`, which fairseq's
    `unpack_constraints` omits.

    subtle: `<s>` is token 0, which also ends a phrase. No phrase may be empty, so a 0 at the start
    of a phrase is `<s>`; if it was an empty phrase, the number of phrases is wrong.
    """
    values, at, phrases = row.tolist(), 1, []
    for _ in range(values[0]):
        starts = at < len(values) and values[at] == 0 == bos
        try:
            end = values.index(0, at + starts)
        except ValueError:
            end = at
        phrase = tuple(values[at:end])
        if len(phrase) <= starts:
            raise UsageError(f"{where} has an empty phrase: remove one of the tabs around it")
        phrases.append(phrase)
        at = end + 1
    return phrases
