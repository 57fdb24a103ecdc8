"""DDGviz: the decoding dependency graph of a sentence, from the iterations of parallel decoding (Santilli et al. 2023, section 3.5).

    fairseq-generate ... --beam 1 --decoding jacobi --draft pad --ddg-dir DIR
    python -m fairseq_ext.viz.ddg --out DIR DIR/0.json ...                                   draws the JSON again
    python -m fairseq_ext.viz.ddg --out DIR --path MODEL.pt --data DATA -s de -t en --bpe sentencepiece --spm spm.model "Ein Hund."

Each sentence gives N.json, N.png, N.svg and N.html, the last one with everything inside. In the table a column is a position, a row is
an iteration, a cell what the model put there and how sure it was; the frame marks the iteration from which the position was right
for good. In the graph a token hangs on the nearest token to its left that became right one iteration earlier: what it had to wait
for. Tokens without such a token need none of the translation, only the source; tokens of one colour were found together.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_ext.viz.files import write
from fairseq_ext.viz.graph import Graph


def main(argv: list[str] | None = None) -> None:
    """The command: draw graphs again from their JSON, or translate lines and draw theirs."""
    parse = argparse.ArgumentParser(
        prog="python -m fairseq_ext.viz.ddg", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("what", nargs="+", metavar="FILE.json|LINE", help="graphs to draw, or with --path lines to translate")
    parse.add_argument("--out", type=Path, required=True, metavar="DIR")
    parse.add_argument("--path", help="checkpoint that translates the lines")
    parse.add_argument("--data", help="its dictionaries' directory")
    parse.add_argument("-s", "--source-lang")
    parse.add_argument("-t", "--target-lang")
    parse.add_argument("--bpe")
    parse.add_argument("--spm", help="--sentencepiece-model of --bpe sentencepiece")
    parse.add_argument("--decoding", default="jacobi", choices=["jacobi", "gs-jacobi", "hybrid-jacobi", "window"])
    parse.add_argument("--draft", default="pad")
    args = parse.parse_args(argv)
    if args.path is None:
        for file in args.what:
            write(Graph.load(Path(file)), args.out)
        return
    from fairseq_ext import Translator

    flags = {"source_lang": args.source_lang, "target_lang": args.target_lang, "bpe": args.bpe, "sentencepiece_model": args.spm}
    flags |= {"beam": 1, "decoding": args.decoding, "draft": args.draft, "ddg_dir": str(args.out), "cpu": True}
    translator = Translator(args.path, args.data or str(Path(args.path).parent), **flags)
    for line, found in zip(args.what, translator.translate(args.what), strict=True):
        print(f"{line}\n  {found[0].text}")


if __name__ == "__main__":
    main()
