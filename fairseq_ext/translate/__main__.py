"""`python -m fairseq_ext.translate --data DATA [--path MODEL.pt] [-s de -t en] [any decoding flag] < LINES > TRANSLATIONS`"""

from __future__ import annotations

import itertools
import re
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from fairseq_ext.core import command_line
from fairseq_ext.core.errors import UsageError
from fairseq_ext.translate.state import find, keep

BUFFER, BAD = 1000, 3  # lines that are translated together, unless they are typed; the status where one of them could not be
INSIDE = re.compile(r"[.?!。！？].*\S")  # where a line may hold several sentences


def load(arguments: list[str]) -> Any:
    """The model as every command loads it, kept for the next start. Errors: UsageError; those of fairseq's loading."""
    import fairseq_ext.plugin.tasks  # noqa: F401  which it registers
    from fairseq_ext.plugin.loading.model_folder import add_model, flags_of
    from fairseq_ext.translator import Translator

    parse = ArgumentParser(
        "python -m fairseq_ext.translate",
        description="Translate the lines of standard input, each by itself. The prepared model is kept in the cache folder, so that the "
        "next start with the same flags needs no torch.",
        epilog="Every other flag is one of fairseq-interactive's or of this package (python -m fairseq_ext). exit codes: 0 all is "
        "translated; 1 an error, which is told in one sentence; 3 some lines are empty because of what standard error says of them",
        allow_abbrev=False,
    )
    add_model(parse)
    parse.add_argument("--buffer-size", metavar="N", help=f"lines that are translated together (default: {BUFFER}; 1 on a terminal)")
    flags = flags_of(*parse.parse_known_args(arguments))
    translator = Translator(**flags)
    keep(arguments, flags, translator)
    return translator


def main(arguments: list[str]) -> int:
    """The exit code."""
    given = (command_line.values_of("--buffer-size", arguments) or [str(BUFFER)])[-1]
    if not given.isdecimal() or not int(given):
        raise UsageError(f"--buffer-size is {given}: give the number of lines that are translated together, 1 or more")
    if (files := command_line.values_of("--input", arguments)) and files[-1] != "-":
        raise UsageError(f"--input {files[-1]}: this command reads standard input: write < {files[-1]}")
    if sys.stdin is None:
        raise UsageError("standard input is closed: give lines there")
    size = 1 if sys.stdin.isatty() else int(given)
    model = None if command_line.asks_for_help() else find(arguments)
    translator = None if model else load(arguments)
    status = first = 0
    while raw := list(itertools.islice(sys.stdin.buffer, size)):
        lines = [line.rstrip(b"\r\n").decode("utf-8", "surrogateescape") for line in raw]
        found: Sequence[str] | None = model(lines) if model else None
        for i, line in enumerate(lines if found is not None and any(map(INSIDE.search, lines)) else ()):
            from fairseq_ext.text.several_sentences import warning

            if said := warning(line, f"line {first + i + 1}"):
                print(f"warning: {said}", file=sys.stderr)
        if found is None:
            from fairseq_ext.search.constraints.from_python import Given

            translator = translator or load(arguments)
            nbest = translator.translate_part(lines, 1, Given(first=first), "return", None)
            for error in (each for each in nbest if isinstance(each, UsageError)):
                status = BAD
                print(f"error: {error}", file=sys.stderr)
            found = ["" if isinstance(each, UsageError) else each[0].text for each in nbest]
        print(*found, sep="\n", flush=True)
        first += len(lines)
    return status


if __name__ == "__main__":
    sys.exit(main(command_line.arguments()))
