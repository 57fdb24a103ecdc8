"""`python -m fairseq_ext.allowed build OUT --data DATA [--path MODEL.pt] --allowed-file STRINGS`:
the automaton of a set of allowed outputs as a file, which --allowed-file opens at once.

The other flags are those of the command that will read it: --bpe and --tokenizer decide how
strings become tokens.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.files import fingerprint_of_dictionary, refuse_shared


def parser() -> ArgumentParser:
    """Return the parser of the command line."""
    from fairseq_ext.plugin.loading.model import add_model

    top = ArgumentParser(
        "python -m fairseq_ext.allowed",
        description="Sets of allowed outputs as files.",
        allow_abbrev=False,
    )
    commands = top.add_subparsers(dest="command", required=True)
    parse = commands.add_parser(
        "build",
        help="write the automaton of a set",
        description="Writes the automaton of --allowed-file, --allowed-regex or "
        "--allowed-automaton; every other flag is one of fairseq-interactive's or of this package.",
        allow_abbrev=False,
    )
    parse.add_argument("output", metavar="OUT", help="the file to write (default: none)")
    add_model(parse)
    return top


def main(argv: list[str] | None = None) -> None:
    """Run the command (raises UsageError for arguments or files that cannot be used)."""
    args, others = parser().parse_known_args(argv)
    import fairseq_ext.plugin.tasks  # noqa: F401  registers the tasks
    from fairseq_ext.plugin.loading.model import flags_of
    from fairseq_ext.search.constraints.allowed import SETS
    from fairseq_ext.search.registry import typed
    from fairseq_ext.translator import Translator

    flags = flags_of(args, others)
    given = [(typed(name), flags[name]) for name in SETS if flags.get(name)]
    if not given:
        raise UsageError(
            "no set of outputs is given: add --allowed-file, --allowed-regex or --allowed-automaton"
        )
    refuse_shared([("OUT", args.output)], [each for each in given if each[0] != "--allowed-regex"])
    source = Translator(**flags).sentences.constraint_source()
    assert source.allowed is not None and source.allowed.common is not None
    automaton = source.allowed.common
    automaton.notes["dictionary"] = fingerprint_of_dictionary(source.segmenter.dictionary)
    try:
        automaton.write(args.output)
    except OSError as error:
        raise UsageError(
            f"{args.output} cannot be written ({error.strerror}): name another file"
        ) from None
    strings = automaton.notes.get("strings")
    what = "a pattern" if strings is None else counted(int(str(strings)), "string")
    print(
        f"{args.output}: {what}, "
        f"{counted(len(automaton), 'state')}, {counted(len(automaton.token), 'arc')}, "
        f"{counted(automaton.nbytes, 'byte')}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
