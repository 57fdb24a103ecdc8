"""`python -m fairseq_ext.translate --data DATA [--path MODEL.pt] [-s de -t en] [--buffer-size N] [any decoding flag] < LINES > TRANSLATIONS`"""

from __future__ import annotations

import itertools
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from fairseq_ext.compat import own_process
from fairseq_ext.errors import UsageError
from fairseq_ext.translate.state import find, keep

BUFFER, BAD = 1000, 3  # lines that are translated together, unless they are typed; the status where one of them could not be


def load(arguments: list[str]) -> Any:
    """The model as every command loads it, kept for the next start. Errors: UsageError; those of fairseq's loading."""
    import fairseq_ext.tasks  # noqa: F401  which it registers
    from fairseq_ext.loading.model_folder import add_model, flags_of
    from fairseq_ext.translator import Translator

    parse = ArgumentParser(
        "python -m fairseq_ext.translate",
        description="Translate the lines of standard input, each by itself. What the model and these flags come to is kept in the cache "
        "folder, so that the next start needs no torch.",
        epilog="Every other flag is one of fairseq-interactive's or of this package (python -m fairseq_ext). exit codes: 0 all is "
        "translated; 1 an error, which is told in one sentence; 3 some lines are empty because of what standard error says of them",
        allow_abbrev=False,
    )
    add_model(parse)
    parse.add_argument("--buffer-size", type=int, help=f"lines that are translated together (default: {BUFFER}; 1 on a terminal)")
    flags = flags_of(*parse.parse_known_args(arguments))
    translator = Translator(**flags)
    keep(arguments, flags, translator)
    return translator


def translated(translator: Any, lines: Sequence[str], first: int) -> list[str | UsageError]:
    """The best translation of each line, or why it has none. first: the number of the first line, from 0."""
    from fairseq_ext.constraints.from_python import Given

    found = translator.translate_part(lines, 1, Given(first=first), "return", None)
    return [each if isinstance(each, UsageError) else each[0].text for each in found]


def main(arguments: list[str]) -> int:
    """The exit code."""
    given = own_process.values_of("--buffer-size", arguments)
    if given and not (given[-1].isdecimal() and int(given[-1])):
        raise UsageError(f"--buffer-size is {given[-1]}: give the number of lines that are translated together, 1 or more")
    size = int(given[-1]) if given else 1 if sys.stdin.isatty() else BUFFER
    model = None if own_process.asks_for_help() else find(arguments)
    translator = None if model else load(arguments)
    status = first = 0
    while raw := list(itertools.islice(sys.stdin.buffer, size)):
        lines = [line.rstrip(b"\r\n").decode("utf-8", "surrogateescape") for line in raw]
        found: Sequence[str | UsageError] | None = model(lines, first) if model else None
        if found is None:
            model, translator = None, translator or load(arguments)
            found = translated(translator, lines, first)
        for number, each in enumerate(found, first + 1):
            if isinstance(each, UsageError):
                status = BAD
                print(f"error: {each}", file=sys.stderr)
            print("" if isinstance(each, UsageError) else each)
        sys.stdout.flush()
        first += len(lines)
    return status


if __name__ == "__main__":
    sys.exit(main(own_process.arguments()))
