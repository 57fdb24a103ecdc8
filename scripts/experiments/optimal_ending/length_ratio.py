"""The wanted target length, measured on a dev set: the paper's ratio, and a least-squares
line, as flags.

    python scripts/experiments/optimal_ending/length_ratio.py [--model DIR] [--dev PREFIX]
        [--src de] [--tgt en]
"""

import argparse
import sys

from searches import BenchError, model_flags, quiet, read_text, wanted_lengths
from sweep import add_model_arguments

from fairseq_ext.translator import Translator


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_model_arguments(parse)
    args = parse.parse_args()
    sources, references = read_text(args.dev, args.src, args.tgt, args.limit)
    quiet()
    translator = Translator(cpu=True, **model_flags(args.model, args.src, args.tgt))
    ratio, line = wanted_lengths(translator, sources, references)
    print(f"ratio: --length-ratio {ratio.ratio:g}")
    print(f"line:  --length-ratio {line.ratio:g} --length-offset {line.offset:g}")


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        sys.exit(f"error: {error}")
