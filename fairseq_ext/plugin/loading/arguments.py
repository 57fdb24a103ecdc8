"""Flags given as keywords: `beam=5, cpu=True` is what the command line says as `--beam 5 --cpu`."""

from __future__ import annotations

import contextlib
import io
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from fairseq import options

from fairseq_ext.core.errors import UsageError


def as_arguments(flags: Mapping[str, Any]) -> list[str]:
    """Keyword flags as command-line arguments: True sets a switch, False and None leave it out, a list repeats values."""
    out: list[str] = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        out.append("--" + name.replace("_", "-"))
        if isinstance(value, (list, tuple)):
            out += [str(v) for v in value]
        elif value is not True:
            out.append(str(value))
    return out


def as_keywords(words: list[str]) -> dict[str, Any]:
    """Command-line arguments as keyword flags: ["--beam", "5", "--cpu"] is {"beam": "5", "cpu": True}.

    Errors: UsageError for a value without a flag.
    """
    values: dict[str, list[str]] = {}
    name = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            flag, equals, value = word[2:].partition("=")
            name = flag.replace("-", "_")
            values[name] = [value] if equals else []
        elif name is None:
            raise UsageError(f"'{word}' belongs to no flag: write a flag before its value")
        else:
            values[name].append(word)
    return {name: True if not given else given[0] if len(given) == 1 else given for name, given in values.items()}


def parse(parser: ArgumentParser, argv: list[str]) -> Namespace:
    """fairseq's parsing, with UsageError where a command would end."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return options.parse_args_and_arch(parser, argv)
    except SystemExit as error:
        raise UsageError(said.getvalue().strip().rpartition("error: ")[2] or "these flags cannot be read") from error
