"""`python -m fairseq_ext.allowed build OUT --data DATA [--path MODEL.pt] --allowed-file STRINGS`:
the automaton of a set of allowed outputs as a file, which --allowed-file opens at once.

The other flags are those of the command that will read it: --bpe and --tokenizer decide how
strings become tokens.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from fairseq_ext.core.errors import UsageError, counted, report
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


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit code."""
    try:
        args, others = parser().parse_known_args(argv)
        import fairseq_ext.plugin.tasks  # noqa: F401  registers the tasks
        from fairseq_ext.plugin.loading.model import flags_of
        from fairseq_ext.translator import Translator

        flags = flags_of(args, others)
        given = [name for name in ("allowed_file", "allowed_regex", "allowed_automaton")]
        inputs = [(f"--{name.replace('_', '-')}", flags.get(name)) for name in given]
        if not any(value for _, value in inputs):
            raise UsageError(
                "no set of outputs is given: add --allowed-file, --allowed-regex or "
                "--allowed-automaton"
            )
        named = [(flag, str(path)) for flag, path in inputs if path and flag != "--allowed-regex"]
        refuse_shared([("OUT", args.output)], named)
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
    except UsageError as error:
        report(type(error), error, error.__traceback__)
        return 1
    strings = automaton.notes.get("strings")
    what = "a pattern" if strings is None else counted(int(str(strings)), "string")
    print(
        f"{args.output}: {what}, "
        f"{counted(len(automaton), 'state')}, {counted(len(automaton.token), 'arc')}, "
        f"{counted(automaton.nbytes, 'byte')}",
        file=sys.stderr,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
