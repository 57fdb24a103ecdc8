"""The lines of `--constraints-file`, which users write in one of two formats.

- Tab-separated: one line a sentence in corpus order, phrases parted by tabs; an empty line for none. A phrase
  that starts with the word `<s>` is what the translation must start with.
- JSONL (a name in .jsonl or .json; or any name but .tsv and a first line that starts with "{"): an object a
  line, or an empty line. `{"constraints": [["two", "words"], "two words"], "any_of": [["x", "y z"]], "avoid": ["w"], "prefix": "p"}`:
  a phrase is a string or its list of words; an entry of any_of is one constraint, met by any one of its phrases.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.core.files import Lines

KEYS = ("constraints", "any_of", "avoid", "prefix")
DEEPEST = 100  # lists and objects in one another, which Python's own limit would end somewhere else
TOO_DEEP = f"has lists and objects nested more than {DEEPEST} deep: make it flat"


def is_json(lines: Lines) -> bool:
    """Whether a constraints file is JSONL: by its name, else by its first character."""
    suffix = Path(lines.path).suffix.lower()
    if suffix in (".jsonl", ".json", ".tsv"):
        return suffix != ".tsv"
    for number in range(len(lines)):
        try:
            line = lines[number].strip()
        except UsageError:  # not text: that line's fault alone
            continue
        if line:
            return line.startswith("{")
    return False


def parse_tabs(line: str, where: str) -> dict[str, Any]:
    """A line of phrases parted by tabs, in the form of `parse_json`."""
    phrases = [text.strip() for text in line.split("\t")]
    if not all(phrases):
        raise UsageError(f"{where} has an empty phrase: remove one of the tabs around it")
    return {"constraints": phrases, "any_of": [], "avoid": [], "prefix": []}


def parse_json(line: str, where: str) -> dict[str, Any]:
    """A JSON line: constraints, avoid and prefix as lists of phrases, any_of as a list of lists; a phrase as one string."""
    value = json_object(line, where)
    unknown = [key for key in value if key not in KEYS]
    if unknown:
        raise UsageError(f"{where} has the unknown key '{unknown[0]}': the keys are {', '.join(KEYS)}")
    return fields_of(value, where)


def no_key_twice(where: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """What makes an object of its pairs as JSON is read, and raises UsageError for a key given twice; where: of what, for the message."""

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise UsageError(f"{where} has a key twice: join their values")
        return found

    return made


def json_object(line: str, where: str, keys: Sequence[str] = KEYS) -> dict[str, Any]:
    """The object of a JSON line; UsageError for anything else, and for a key given twice."""
    try:
        value = json.loads(line, object_pairs_hook=no_key_twice(where))
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not valid JSON ({error}): write an object with the keys {', '.join(keys)}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{where} is not a JSON object: write one with the keys {', '.join(keys)}")
    if (found := flaw(value)) is not None:
        raise UsageError(f"{where} {found}")
    return value


def flaw(value: Any) -> str | None:
    """What keeps a JSON value from being written again, as the end of a sentence; None where nothing does."""
    level = [value]
    for _ in range(DEEPEST + 1):
        following: list[Any] = []
        for each in level:
            if isinstance(each, (dict, list)):
                following += each.values() if isinstance(each, dict) else each
            elif isinstance(each, float) and not math.isfinite(each):
                return "has a number that JSON has no form for (NaN or Infinity): write a finite one"
        if not following:
            return None
        level = following
    return TOO_DEEP


def fields_of(value: dict[str, Any], where: str) -> dict[str, Any]:
    """The constraint fields of an object, checked, in the form of `parse_json`; other keys are not looked at."""

    def phrase(item: Any, key: str) -> str:
        words = [item] if isinstance(item, str) else item
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UsageError(f"{where} has {cut(json.dumps(item))} for a phrase in \"{key}\": write a string or a list of words")
        if not all(word.strip() for word in words) or not words:
            raise UsageError(f"{where} has an empty phrase in \"{key}\": remove it")
        return " ".join(word.strip() for word in words)

    def listed(key: str, read: Callable[[Any, str], Any]) -> list[Any]:
        items = value.get(key, [])
        if not isinstance(items, list):
            raise UsageError(f"{where} has {cut(json.dumps(items))} for \"{key}\": write a list of phrases")
        return [read(item, key) for item in items]

    def alternatives(item: Any, key: str) -> list[str]:
        if not isinstance(item, list) or not item:
            raise UsageError(f"{where} has {cut(json.dumps(item))} for a constraint in \"{key}\": write a list of phrases")
        return [phrase(alternative, key) for alternative in item]

    return {
        "constraints": listed("constraints", phrase),
        "any_of": listed("any_of", alternatives),
        "avoid": listed("avoid", phrase),
        "prefix": [phrase(value["prefix"], "prefix")] if "prefix" in value else [],
    }
