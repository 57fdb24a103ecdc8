"""Builds the table of `--draft ngram` from text in the model's own segmentation, and stores it beside the checkpoint.

    python scripts/build_drafts.py --data DATA -s de -t en --path checkpoint.pt --target train.spm.en [--source train.spm.de]

`--target` is target-side text, one segmented sentence a line (what the model was trained on, or its own translations); with
`--source`, the lines that it translates, drafts also look at the source sentence, which is worth much. DATA holds the dictionaries.
The table is written to checkpoint.drafts.npz, where decoding finds it (`--output` names another place, for --draft-table).
With `--spm spm.model` the text is plain and is segmented first.
"""

import argparse
import sys
import time
from pathlib import Path

from fairseq.data import Dictionary

import fairseq_ext  # noqa: F401  lets fairseq be imported
from fairseq_ext.parallel.drafts.estimate import estimate
from fairseq_ext.parallel.drafts.table import Table


def read(path: Path, dictionary: Dictionary, spm: Path | None, limit: int | None) -> list[list[int]]:
    """Lines as token ids with EOS."""
    encode = str.split
    if spm is not None:
        import sentencepiece

        pieces = sentencepiece.SentencePieceProcessor(model_file=str(spm))
        encode = lambda line: pieces.encode(line, out_type=str)  # noqa: E731
    with path.open(encoding="utf-8") as lines:
        taken = (line for line, _ in zip(lines, range(limit or sys.maxsize), strict=False))
        return [[*map(dictionary.index, encode(line)), dictionary.eos()] for line in taken]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory with dict.SOURCE.txt and dict.TARGET.txt")
    parser.add_argument("-s", "--source-lang", required=True)
    parser.add_argument("-t", "--target-lang", required=True)
    parser.add_argument("--path", type=Path, help="checkpoint beside which the table is stored")
    parser.add_argument("--output", type=Path, help="where to store it instead")
    parser.add_argument("--target", type=Path, required=True, metavar="FILE")
    parser.add_argument("--source", type=Path, metavar="FILE")
    parser.add_argument("--spm", type=Path, metavar="MODEL", help="SentencePiece model, when the text is not segmented")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N lines only")
    args = parser.parse_args()
    if (args.path is None) == (args.output is None):
        parser.error("one of --path and --output is needed")
    start = time.perf_counter()
    dictionaries = {}
    for language in (args.source_lang, args.target_lang):
        file = args.data / f"dict.{language}.txt"
        if not file.is_file():
            parser.error(f"no dictionary at {file}")
        dictionaries[language] = Dictionary.load(str(file))
    for file in (args.target, args.source):
        if file is not None and not file.is_file():
            parser.error(f"no text at {file}")
    target = read(args.target, dictionaries[args.target_lang], args.spm, args.limit)
    source = read(args.source, dictionaries[args.source_lang], args.spm, args.limit) if args.source else None
    if not target:
        parser.error(f"{args.target} is empty")
    if source is not None and len(source) != len(target):
        parser.error(f"{args.source} has {len(source)} lines and {args.target} {len(target)}: they must be parallel")
    for file, text, language in ((args.target, target, args.target_lang), (args.source, source, args.source_lang)):
        words = [token for line in text or () for token in line[:-1]]
        unknown = words.count(dictionaries[language].unk())
        if 2 * unknown > len(words):
            parser.error(f"{unknown:,} of {len(words):,} words of {file} are unknown to the model: segment the text as it does (--spm)")
    table = estimate(target, source, dictionaries[args.target_lang], dictionaries[args.source_lang])
    output = args.output or args.path.with_suffix(".drafts.npz")
    table.save(str(output))
    loaded = Table.load(str(output))
    print(
        f"{output}: {len(loaded.key):,} histories and {len(loaded.lexical_token):,} word translations from {len(target):,} lines, "
        f"{output.stat().st_size / 1e6:.1f} MB, {time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
