"""Target over source length in subwords, measured on a dev set: the value for --length-ratio.

    python scripts/experiments/optimal_ending/length_ratio.py [--model DIR] [--dev PREFIX] [--src de] [--tgt en]
"""

import argparse
import sys

from searches import BenchError, length_ratio, model_flags, quiet, read_text
from sweep import add_model_arguments

from fairseq_ext.translator import Translator


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add_model_arguments(parse)
    args = parse.parse_args()
    sources, references = read_text(args.dev, args.src, args.tgt, args.limit)
    quiet()
    translator = Translator(cpu=True, **model_flags(args.model, args.src, args.tgt))
    print(f"{length_ratio(translator, sources, references):.3f}")


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        sys.exit(f"error: {error}")
