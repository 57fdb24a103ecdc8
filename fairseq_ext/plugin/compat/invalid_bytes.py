"""Lets fairseq-interactive read bytes that are not valid UTF-8, so that they are their line's fault and not the session's."""

from __future__ import annotations

import fileinput
import functools
import io
import logging
import sys
from types import SimpleNamespace

COMMAND = "fairseq_cli.interactive"


def is_loaded(command: str) -> bool:
    """Whether a module of fairseq's commands is loaded here, also as the main program."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return command in sys.modules or (main is not None and main.name == command)


def keep_invalid_bytes() -> None:
    """Have the command's reading keep them as lone surrogates, from standard input and from --input."""
    logging.getLogger(COMMAND).addFilter(holds_here)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    hook = functools.partial(fileinput.hook_encoded, errors="surrogateescape")
    for name in (COMMAND, "__main__"):
        if getattr(sys.modules.get(name), "fileinput", None) is fileinput:
            sys.modules[name].fileinput = SimpleNamespace(input=fileinput.input, hook_encoded=hook)  # type: ignore[attr-defined]


def are_kept() -> bool:
    """Whether this process keeps them, for the doctor."""
    return holds_here in logging.getLogger(COMMAND).filters


def holds_here(record: logging.LogRecord) -> bool:
    """Whether a line of the command's log is true: our phrases are segmented for the target side, and need no shared vocabulary."""
    return "assumes a shared subword vocabulary" not in str(record.msg)
