"""`python -m fairseq_ext.text translate IN OUT --data DATA [--path MODEL.pt] [-s de -t en]
[any decoding flag]`"""

from __future__ import annotations

import itertools
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tqdm import tqdm

from fairseq_ext.core.command_line import has_help_flag
from fairseq_ext.core.errors import UsageError, counted, cut, report
from fairseq_ext.core.files import refuse_shared
from fairseq_ext.plugin.loading.model import add_model, flags_of
from fairseq_ext.text import MAX_UNPACKED

if TYPE_CHECKING:
    from fairseq_ext.text.files import TranslateText
    from fairseq_ext.translator import Translator

SHOWN = 5  # segments that are named of those that stay as they are


def parser() -> ArgumentParser:
    """Return the parser of our part of the command line; all other flags are decoding flags."""
    parse = ArgumentParser(
        "python -m fairseq_ext.text",
        description="Translate texts and files as they are: sentence by sentence, with what stands "
        "around and between them.",
        epilog="Every other flag is one of fairseq-interactive's or of this package (python -m "
        "fairseq_ext). exit codes: 0 all is translated; 1 an error, reported in one sentence; "
        "3 some of it stays as it was, as standard error says",
        allow_abbrev=False,
    )
    commands = parse.add_subparsers(required=True, metavar="translate")
    translate = commands.add_parser("translate", help="translate a file", allow_abbrev=False)
    translate.add_argument("input", metavar="IN", help="the file; its ending says what it is")
    translate.add_argument("output", metavar="OUT", help="the translation")
    add_model(translate)
    add = translate.add_argument
    add(
        "--protect",
        action="append",
        default=[],
        metavar="REGEX",
        help="text that this matches stays as it is; may be given several times",
    )
    add(
        "--max-unpacked",
        type=int,
        default=MAX_UNPACKED,
        metavar="BYTES",
        help="most bytes to which the text of a docx, pptx, odt or epub may unpack (default: "
        f"{MAX_UNPACKED})",
    )
    return parse


def through_translator(
    translator: Translator, protect: Sequence[str], left: list[tuple[str, str]]
) -> TranslateText:
    """Translate by a translator, with a bar for each text; segments that stay as they are go to
    `left`."""
    from fairseq_ext.text.files import counted as counting
    from fairseq_ext.text.in_lines import translated

    translate, numbers = translator.of_segments, itertools.count()

    def translate_text(text: str, format: str) -> Iterator[str]:
        *before, last = translator.passes(format, protect, numbers)
        for items in before:
            text = "".join(translated(items(text), translate, left))
        with tqdm(total=len(text), unit=" characters", unit_scale=True, dynamic_ncols=True) as bar:
            yield from translated(counting(bar, last(text)), translate, left)

    return translate_text


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit code."""
    try:
        argv = sys.argv[1:] if argv is None else argv
        if not has_help_flag() and any(word.startswith("--") for word in argv[1:3]):
            raise UsageError("write IN and OUT first: translate IN OUT --data FOLDER")
        args, others = parser().parse_known_args(argv)
        from fairseq_ext.text.files import translate
        from fairseq_ext.text.reading import pattern
        from fairseq_ext.translator import Translator

        if args.max_unpacked <= 0:
            raise UsageError(
                f"--max-unpacked {args.max_unpacked} allows nothing: use a number above 0"
            )
        refuse_shared([("OUT", args.output)], [("IN", args.input)])
        pattern(tuple(args.protect), False)  # before the model is loaded
        translator, left = Translator(**flags_of(args, others)), list[tuple[str, str]]()
        try:
            found = translate(
                args.input,
                args.output,
                through_translator(translator, args.protect, left),
                max_unpacked=args.max_unpacked,
            )
        except OSError as error:
            raise UsageError(
                f"cannot write {args.output} ({error.strerror or error}): name a file in a folder "
                "that can be written"
            ) from None
    except UsageError as error:
        report(type(error), error, error.__traceback__)
        return 1
    for source, reason in left[:SHOWN]:
        print(f"left as it was: '{cut(source)}' ({reason})", file=sys.stderr)
    if found.kinds:
        print(
            f"{args.input} holds text that is not read: {', '.join(found.kinds)}", file=sys.stderr
        )
    for part, reason in found.parts:
        print(f"left as it was: {part} of {args.input} ({reason})", file=sys.stderr)
    if left:
        print(f"{counted(len(left), 'segment')} of {args.input} left as it was", file=sys.stderr)
    return 3 if left or found.parts else 0


if __name__ == "__main__":
    sys.exit(main())
