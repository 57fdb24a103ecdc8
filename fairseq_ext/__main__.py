"""`python -m fairseq_ext`: this package's flags with their help, which fairseq's own --help cannot
show (it prints before it has read --task). With `--task NAME_ext` in a command, its --help prints
them first, too. `python -m fairseq_ext flags NAME` explains one."""

from __future__ import annotations

from fairseq_ext.core import command_line
from fairseq_ext.core.errors import UsageError
from fairseq_ext.plugin.flag_help import explain, print_flags


def main(arguments: list[str]) -> None:
    """Run the command line: no argument, `flags`, or `flags NAME`."""
    if arguments[:1] not in ([], ["flags"]) or len(arguments) > 2:
        raise UsageError(
            f"python -m fairseq_ext takes no {arguments[0]!r}: use it alone, or with flags NAME"
        )
    if len(arguments) == 2:
        print(explain(arguments[1]))
    else:
        print_flags()


if __name__ == "__main__":
    main(command_line.arguments())
