"""`python -m fairseq_ext`: this package's flags with their help, which fairseq's own --help cannot show (it prints before it has
read --task). With `--user-dir fairseq_ext`, the commands' --help prints them first, too."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter

import fairseq_ext
from fairseq_ext.registry import all_strategies


def strategy_table() -> str:
    """Return a line for each registered strategy: flag, paper, file."""
    rows = [(s.flag, s.paper, s.file) for s in all_strategies()]
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    return "\n".join(f"{flag:{first}}  {paper:{second}}  {file}" for flag, paper, file in rows)


def print_flags() -> None:
    """Print every strategy with its paper and file, and every flag of the *_ext tasks with its values, unit and default."""
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    from fairseq_ext.tasks import Flags

    parser = ArgumentParser(
        prog="fairseq-generate ... --user-dir fairseq_ext --task translation_ext",
        description=f"{fairseq_ext.__doc__}\n{strategy_table()}",
        formatter_class=RawDescriptionHelpFormatter,
        add_help=False,
        usage="%(prog)s [flags below]",
    )
    gen_parser_from_dataclass(parser, Flags())
    print(parser.format_help(), flush=True)


if __name__ == "__main__":
    print_flags()
