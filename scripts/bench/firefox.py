"""How fast is ours next to Bergamot, the translator that Firefox has: both in 8 bits, both with a
lexical shortlist?

    python scripts/bench/firefox.py --bergamot PYTHON --out results/firefox

N. Bogoychev et al., TranslateLocally: Blazing-fast translation running on the local CPU,
EMNLP 2021, https://aclanthology.org/2021.emnlp-demo.20/

PYTHON: that of an environment with `pip install bergamot` (Python 3.10). The model has the size of
Firefox's (6 + 2 layers of 256, 32,000 words) and self-attention in its decoder, where Firefox's has
a simpler recurrence that fairseq lacks. Its weights are random, and it has Marian's positions and
start, so that translations can be compared. Both get the same lines, beam, length and table: up to
50 translations of a source word, next to the 50 most frequent words; the n-th word is as frequent
as 1 / (n + 10). Bergamot's model holds what its activations are multiplied by, as Firefox's does.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from arguments import command_line, run_script, timing_arguments
from contenders import load, ours, stock
from default_vs_stock import CLOCKS, MODES, TITLES, instructions
from equality import Outputs
from firefox_model import BEST, FIREFOX, FIRST, LINE, WORDS, add_multipliers, make
from harness import Contender, compare
from report import markdown, write
from rival_process import Rival
from text import Text, prepare


def bergamot(
    python: str, folder: Path, text: Text, flags: Sequence[str], name: str, clock: str
) -> Contender:
    """The same beam and length; name: "bergamot", precision, "lexical" for the shortlist."""
    loaded = load([*text.flags, *flags])
    generation, dictionary = loaded.cfg.generation, loaded.task.target_dictionary
    file = text.folder / f"test.{text.source}-{text.target}.{text.source}"
    lines = file.read_text(encoding="utf-8").splitlines()
    kind, *lexical = name.split()[1:]
    config = {
        "models": [str(folder / "bergamot.npz")],
        "vocabs": [str(folder / "vocab.spm")] * 2,
        "gemm-precision": kind,
        "beam-size": generation.beam,
        "skip-cost": generation.beam == 1,
        "normalize": generation.lenpen,
        "word-penalty": 0,
        # the first length at which a translation is too long
        "max-length-factor": (generation.max_len_b - 0.01) / (LINE + 1),
        "max-length-break": 2 * LINE,
        "mini-batch-words": 1000,
        "workspace": 128,
        "ssplit-mode": "sentence",
        "quiet": True,
        "quiet-translation": True,
    }
    if lexical:
        config["shortlist"] = [str(folder / "shortlist.bin"), False]
    rival = Rival(name, python, {"engine": "bergamot", "config": config}, clock)
    bulk = loaded.cfg.dataset.batch_size != 1

    def read(found: list[str]) -> Outputs:
        translations = [line for each in found for line in each.split("\n")]
        return [
            [([dictionary.index(word) for word in line.split()] + [dictionary.eos()], 0.0)]
            for line in translations
        ]

    return Contender(
        name,
        # a text of many lines is cut into batches by length; texts are not waited for
        lambda: rival(lines=["\n".join(lines)] if bulk else lines, bulk=bulk),
        read,
        exact=False,
        signature=f"{rival.version}|{kind}|threads=1 ({' '.join(flags)})",
        taken=lambda _: rival.seconds,
    )


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    comparisons = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "model")
        make(folder, args.words, FIREFOX)
        for mode in MODES:
            limit = args.limit if mode == "bulk" else args.limit_one
            (at := Path(place, mode)).mkdir()
            text = prepare(at, folder, str(folder / "text"), "de", "en", limit)
            if mode == "bulk":
                add_multipliers(folder, text, ["--cpu", "--beam", "1", "--max-len-b", "5"])
            for beam in args.beams:
                flags = ["--cpu", "--beam", str(beam), "--max-len-b", str(args.tokens)]
                flags += MODES[mode]
                lexicon = ["--softmax", "lexical", "--shortlist-file", str(folder / "lexicon")]
                # fairseq's <s> and <pad> are among its most frequent words
                lexicon += ["--shortlist-top", str(FIRST + 2), "--shortlist-words", str(BEST)]
                lexicon += ["--shortlist-share", "sentence"]
                contenders = [
                    stock(text, flags),
                    ours(text, [*flags, "--int8"], "ours --int8", exact=False),
                    ours(
                        text,
                        [*flags, *lexicon, "--int8"],
                        "ours --softmax lexical --shortlist-share sentence --int8",
                        exact=False,
                    ),
                ]
                for each, int8 in zip(contenders, (False, True, True), strict=True):
                    each.instructions = instructions(each.name.split()[0], int8)
                contenders += [
                    bergamot(args.bergamot, folder, text, flags, name, args.clock)
                    for name in args.contenders
                ]
                title = f"beam {beam}, {TITLES[mode]}"
                comparisons.append(
                    compare(
                        contenders, args.repeats, threads=1, title=title, clock=CLOCKS[args.clock]
                    )
                )
                print(markdown(comparisons[-1], OVER), flush=True)
                if args.out:
                    write(
                        args.out, comparisons, OVER, f"{args.words:,} words, clock: {args.clock}."
                    )
    return 0


def parser() -> argparse.ArgumentParser:
    parse = command_line(__doc__)
    parse.add_argument("--bergamot", required=True, metavar="PYTHON", help="that has bergamot")
    parse.add_argument("--words", type=int, default=WORDS, help="of the vocabulary (32000)")
    parse.add_argument("--tokens", type=int, default=25, help="target tokens of every line (25)")
    parse.add_argument("--beams", type=int, nargs="+", default=[1, 5], help="beam sizes (1 5)")
    parse.add_argument("--limit", type=int, default=64, help="lines in bulk (64)")
    parse.add_argument("--limit-one", type=int, default=16, help="lines one at a time (16)")
    names = ["bergamot int8shiftAlphaAll", "bergamot int8shiftAlphaAll lexical"]
    parse.add_argument("--contenders", nargs="+", default=names, help=f"Bergamot's ({names})")
    parse.add_argument("--clock", choices=CLOCKS, default="cpu", help="what is measured (cpu)")
    timing_arguments(parse)
    return parse


OVER = ["stock", "bergamot int8shiftAlphaAll lexical"]

if __name__ == "__main__":
    run_script(main)
