"""Allowed outputs: the output is one of a list of strings, or matches a pattern
(`--allowed-file`, `--allowed-file-per-line`, `--allowed-regex`, `--allowed-automaton`).

The way of a set: allowed_strings.py makes an automaton over target tokens of it
(search/phrases/token_automaton.py), a sentence has it in `SentenceConstraints.allowed`, and
allowed_product.py joins it with the sentence's other constraints and keeps the search to it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import Lines, fingerprint_of_dictionary
from fairseq_ext.search.constraints.allowed_strings import (
    automaton_of_json,
    automaton_of_regex,
    automaton_of_strings,
)
from fairseq_ext.search.constraints.lines import is_json
from fairseq_ext.search.phrases.segmenter import Segmenter
from fairseq_ext.search.phrases.token_automaton import TokenAutomaton, is_automaton_file, opened
from fairseq_ext.search.registry import (
    OUTPUTS,
    changed_fields,
    declared,
    register_feature,
    typed,
)
from fairseq_ext.search.settings import Settings

logger = logging.getLogger("fairseq_ext")
CACHE_SIZE = 256  # sets of lines and requests in memory
NEEDS: dict[str, object] = {
    "gives": OUTPUTS,
    "needs": ("search loop", "rows of a beam"),
    "denies": ("free ends",),
}


@dataclass
class AllowedFlags:
    allowed_file: str | None = field(
        default=None,
        metadata={
            "help": "the output is one of the strings of this file, one a line, or of an automaton "
            "that python -m fairseq_ext.allowed build wrote (default: any output)",
            "file": True,
            **NEEDS,
        },
    )
    allowed_file_per_line: str | None = field(
        default=None,
        metadata={
            "help": "the allowed outputs of each sentence, one line a sentence in corpus order: "
            "strings separated by tabs, or a JSON list; an empty line for those of the other flags "
            "(default: none)",
            "file": True,
            "engine": "gives line n its outputs, and requests have no numbers: give them with each "
            "request (allowed)",
            "corpus": "gives line n its outputs, and a corpus has many files: give them in the "
            "records (allowed)",
            **NEEDS,
        },
    )
    allowed_regex: str | None = field(
        default=None,
        metadata={
            "help": "the output matches this regular expression as a whole, in any segmentation "
            "(default: any output)",
            **NEEDS,
        },
    )
    allowed_automaton: str | None = field(
        default=None,
        metadata={
            "help": "the output is allowed by the automaton of this JSON file, in any segmentation "
            "(default: any output)",
            "file": True,
            **NEEDS,
        },
    )
    allowed_segmentation: Literal["canonical", "any"] | None = field(
        default=None,
        metadata={
            "help": "in which segmentation allowed strings are searched: the model's own "
            "(canonical), or any that the vocabulary allows (default: canonical)",
            "applies_to": OUTPUTS,
        },
    )


def restricts_outputs(settings: Settings) -> bool:
    """Return whether the command gives the allowed outputs of sentences."""
    return OUTPUTS in declared("gives", settings).values()


SETS = ("allowed_file", "allowed_regex", "allowed_automaton")


def check(settings: Settings) -> None:
    """Raise UsageError for two sets for all lines, and for canonical patterns."""
    given = [typed(name) for name in SETS if settings.values.get(name)]
    segmentation = settings.get(AllowedFlags).allowed_segmentation
    if len(given) > 1:
        raise UsageError(
            f"{given[0]} and {given[1]} both give the allowed outputs of every sentence: leave one "
            "of the two out"
        )
    if given and given[0] != "--allowed-file" and segmentation == "canonical":
        raise UsageError(
            f"{given[0]} allows texts, which have no canonical segmentation of their own: leave "
            "--allowed-segmentation canonical out"
        )


def signature(settings: Settings) -> str:
    """Return the part of the signature: which flag gives the outputs, and their segmentation."""
    changed = changed_fields(settings, fields(AllowedFlags)).items()
    parts = [f"{name.removeprefix('allowed_')}={value}" for name, value in changed]
    return f"allowed:{','.join(parts)}" if restricts_outputs(settings) else ""


register_feature(
    "constraints: allowed outputs",
    AllowedFlags,
    check=check,
    signature=signature,
    page="allowed.md",
    title="which outputs are allowed",
    example="--allowed-file names.txt",
)


class AllowedOutputs:
    """The allowed outputs of every sentence of a run, by its flags and by lines and requests.

    segmenter: of the target side. Errors: UsageError for a file or a pattern that cannot be used.
    """

    def __init__(self, flags: AllowedFlags, segmenter: Segmenter):
        self.segmenter = segmenter
        self.segmentation = flags.allowed_segmentation or "canonical"
        self.cache: dict[tuple[str, ...], TokenAutomaton] = {}
        self.lines: Lines | None = None
        if flags.allowed_file_per_line:
            self.lines = Lines(flags.allowed_file_per_line, "--allowed-file-per-line")
        lines = (line.strip() for line in self.lines or ())
        self.is_json = self.lines is not None and (
            is_json(self.lines) or next(filter(None, lines), "").startswith("[")
        )
        self.common: TokenAutomaton | None = None  # of every sentence without its own
        if flags.allowed_file:
            self.common = self.of_file(flags.allowed_file)
        elif flags.allowed_regex:
            self.common = automaton_of_regex(flags.allowed_regex, segmenter, "--allowed-regex")
        elif flags.allowed_automaton:
            path = flags.allowed_automaton
            text = "\n".join(Lines(path, "--allowed-automaton"))
            self.common = automaton_of_json(text, segmenter, f"--allowed-automaton {path}")

    def __bool__(self) -> bool:
        return self.common is not None or self.lines is not None

    def check_size(self, sentences: int) -> None:
        """Raise UsageError unless --allowed-file-per-line, if it is given, has as many lines as
        there are sentences."""
        if self.lines is not None and len(self.lines) != sentences:
            self.lines.refuse_number(sentences, ", an empty one for no outputs of its own")

    def of_file(self, path: str) -> TokenAutomaton:
        """Return the automaton of --allowed-file: of its strings, or built before."""
        where = f"--allowed-file {path}"
        if not is_automaton_file(path):
            return self.of_strings(list(Lines(path, "--allowed-file")), where)
        found = opened(path)
        words = fingerprint_of_dictionary(self.segmenter.dictionary)
        if found.notes.get("dictionary") not in (None, words):
            raise UsageError(
                f"{where} was built for another target dictionary: build it again with this one"
            )
        return found

    def of_strings(self, texts: Sequence[str], where: str) -> TokenAutomaton:
        """Return the automaton of strings; the log says which are left out (raises UsageError)."""
        found, said = automaton_of_strings(texts, self.segmenter, self.segmentation, where)
        if said:
            logger.warning("%s", said)
        return found

    def of_list(self, texts: Sequence[str], where: str) -> TokenAutomaton:
        """Return the automaton of the strings of a line or a request, cached."""
        key = tuple(texts)
        if key not in self.cache:
            if len(self.cache) == CACHE_SIZE:
                self.cache.clear()
            self.cache[key] = self.of_strings(texts, where)
        return self.cache[key]

    def of_number(self, number: int) -> TokenAutomaton | None:
        """Return the allowed outputs of sentence `number`, None if all are (raises UsageError)."""
        if self.lines is None:
            return self.common
        if number >= len(self.lines):
            self.lines.refuse_number(number + 1, has="the input has at least")
        line, where = self.lines[number], self.lines.where(number)
        if not line.strip():
            return self.common
        return self.of_list(self.strings(line, where), where)

    def strings(self, line: str, where: str) -> list[str]:
        """Return the strings of a line of --allowed-file-per-line (raises UsageError)."""
        if not self.is_json:
            return line.split("\t")
        way = 'write ["one", "two"], or {"allowed": ["one", "two"]}'
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where} is not valid JSON ({error}): {way}") from None
        value = value.get("allowed") if isinstance(value, dict) else value
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise UsageError(f"{where} is not a list of strings: {way}")
        return value
