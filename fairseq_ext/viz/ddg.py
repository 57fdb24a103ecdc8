"""DDGviz: the decoding dependency graph of a sentence, from the iterations of parallel decoding (Santilli et al. 2023, section 3.5).

    fairseq-generate ... --beam 1 --decoding jacobi --draft pad --ddg-dir DIR
    python -m fairseq_ext.viz.ddg --out DIR DIR/0.json ...                                   draws what was written
    python -m fairseq_ext.viz.ddg --out DIR --path MODEL.pt --data DATA -s de -t en --bpe sentencepiece --spm spm.model "Ein Hund."

A run writes N.json of each sentence; this command makes N.png, N.svg and N.html of it, the last one with everything inside. In the table a
column is a position, a row is an iteration, a cell what the model put there and how sure it was; the frame marks the iteration from which
the position was right for good. In the graph a token hangs on the nearest token to its left that became right one iteration earlier: what
it had to wait for. Tokens without such a token need none of the translation, only the source; tokens of one colour were found together.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_ext.search.parallel.graph import Graph
from fairseq_ext.viz.files import write


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    parse = argparse.ArgumentParser(
        prog="python -m fairseq_ext.viz.ddg", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("what", nargs="+", metavar="FILE.json|LINE", help="graphs to draw, or with --path lines to translate")
    parse.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the pictures, which is made")
    parse.add_argument("--path", help="checkpoint that translates the lines (default: none, graphs are drawn)")
    parse.add_argument("--data", help="folder with the dictionaries (default: the checkpoint's)")
    parse.add_argument("-s", "--source-lang", help="source language (default: as the dictionaries say)")
    parse.add_argument("-t", "--target-lang", help="target language (default: the other dictionary's)")
    parse.add_argument("--bpe", help="segmentation, as of fairseq-interactive (default: the lines are segmented)")
    parse.add_argument("--spm", help="the model of --bpe sentencepiece (default: none)")
    methods = ["jacobi", "gs-jacobi", "hybrid-jacobi", "window"]
    parse.add_argument("--decoding", default="jacobi", choices=methods, help="the method that is drawn (default: jacobi)")
    parse.add_argument("--draft", default="pad", help="first guess of a block, as of the other commands (default: pad)")
    return parse


def main(argv: list[str] | None = None) -> None:
    """Run the command: draw graphs from their JSON, or translate lines and draw theirs."""
    args = parser().parse_args(argv)
    if args.path is None:
        for file in args.what:
            write(Graph.load(Path(file)), args.out)
        return
    from fairseq_ext import Translator

    flags = {"source_lang": args.source_lang, "target_lang": args.target_lang, "bpe": args.bpe, "sentencepiece_model": args.spm}
    flags |= {"beam": 1, "decoding": args.decoding, "draft": args.draft, "ddg_dir": str(args.out), "cpu": True}
    translator = Translator(args.path, args.data or str(Path(args.path).parent), **flags)
    for number, (line, found) in enumerate(zip(args.what, translator.translate(args.what), strict=True)):
        print(f"{line}\n  {found[0].text}")
        write(Graph.load(args.out / f"{number}.json"), args.out)


if __name__ == "__main__":
    main()
