"""`python -m fairseq_ext.convert hf MODEL_DIR OUT_DIR`: converts a model in Hugging Face's format
into a folder that fairseq reads.

No code of the model runs, and the network is not used. OUT_DIR/README.md has the command to type.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable

from fairseq_ext.convert import families
from fairseq_ext.convert.source import HuggingFaceFolder
from fairseq_ext.convert.transformer import Folder
from fairseq_ext.core.errors import UsageError, cut, report

CLASSES: dict[str, Callable[[HuggingFaceFolder], Folder]] = {  # config.json's "architectures"
    "MarianMTModel": families.convert_marian,
    "M2M100ForConditionalGeneration": families.convert_m2m100,
    "MBartForConditionalGeneration": families.convert_mbart,
    "FSMTForConditionalGeneration": families.convert_fsmt,
    "BartForConditionalGeneration": families.convert_bart,
}


def parser() -> ArgumentParser:
    """Return the parser of the command line."""
    top = ArgumentParser(
        "python -m fairseq_ext.convert",
        description=__doc__,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = top.add_subparsers(dest="command", required=True)
    parse = commands.add_parser(
        "hf", help=f"from Hugging Face: {', '.join(CLASSES)}", allow_abbrev=False
    )
    parse.add_argument(
        "model",
        metavar="MODEL_DIR",
        help="config.json, model.safetensors or pytorch_model.bin, and the tokenizer's files",
    )
    parse.add_argument("out", metavar="OUT_DIR", help="a folder that is new or empty")
    return top


def convert(model: str, out: str) -> list[str]:
    """Convert one model; return the names of the written files (raises UsageError)."""
    source = HuggingFaceFolder(model)
    if os.path.exists(out) and (not os.path.isdir(out) or os.listdir(out)):
        raise UsageError(f"{out} is not an empty folder: name one that is new")
    if source.name not in CLASSES:
        raise source.field_error("architectures", f"{', '.join(CLASSES)} can be converted")
    folder = CLASSES[source.name](source)
    try:
        return folder.write(source, out)
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError if the disk is full
        raise UsageError(
            f"cannot write {out} ({cut(str(error))}): remove it, and name a folder on a disk with "
            "free space"
        ) from None


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit code: 0, or 1 after an error, which is reported in one
    sentence."""
    given = parser().parse_args(argv)
    try:
        print(f"{given.out}: {', '.join(convert(given.model, given.out))}")
    except (UsageError, OSError) as error:
        report(type(error), error, error.__traceback__)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
