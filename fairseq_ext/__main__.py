"""`python -m fairseq_ext`: this package's flags with their help, which fairseq's own --help cannot show (it prints before it has
read --task). With `--user-dir fairseq_ext`, the commands' --help prints them first, too."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter

import fairseq_ext


def print_flags() -> None:
    """Print every flag of the *_ext tasks with its values, unit and neutral value."""
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    from fairseq_ext.tasks import Flags

    parser = ArgumentParser(
        prog="fairseq-generate ... --user-dir fairseq_ext --task translation_ext",
        description=fairseq_ext.__doc__,
        formatter_class=RawDescriptionHelpFormatter,
        add_help=False,
        usage="%(prog)s [flags below]",
    )
    gen_parser_from_dataclass(parser, Flags())
    print(parser.format_help(), flush=True)


if __name__ == "__main__":
    print_flags()
