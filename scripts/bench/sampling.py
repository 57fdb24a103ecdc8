"""Sampling in bulk: CPU seconds of stock, ours and CTranslate2, by the number of
samples a sentence.

    python scripts/bench/sampling.py --model MODEL --text TEXT --lines 200 --samples 1 10
        --cut topk=10 --out scripts/bench/results/sampling

All decode the same batches, one thread each, in turn (A B C A B C), ours and CTranslate2 in 8 bits
too; ratios are of the medians. Their samples differ, as their noise does; mean length, mean score
and distinct n-grams of tokens say that they sample the same distribution.
"""

import itertools
import statistics
import tempfile
import time
from pathlib import Path

import torch
from arguments import command_line
from contenders import ours, stock
from ct2 import ctranslate2
from report import write_page
from text import prepare

HEAD = ["words", "samples a sentence", "stock", "ours", "CTranslate2", "stock / ours"]
HEAD += ["CTranslate2 / ours", "8 bits: stock / ours", "8 bits: CTranslate2 / ours"]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument(
        "--model",
        type=Path,
        required=True,
        help="folder with checkpoint.pt, dict.*.txt and spm.model",
    )
    parser.add_argument("--text", required=True, help="TEXT.de and TEXT.en")
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--samples", type=int, nargs="+", default=[1, 10])
    parser.add_argument(
        "--cut", nargs="+", default=[""], help='topk=10, topp=0.9 or "", for all words'
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write OUT.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        f"| {' | '.join(HEAD)} |",
        "| --- |" + " ---: |" * (len(HEAD) - 1),
    ]
    with tempfile.TemporaryDirectory() as folder:
        text = prepare(Path(folder), args.model, args.text, "de", "en", args.lines)
        for words, n in itertools.product(args.cut, args.samples):
            name, _, most = words.partition("=")
            cut = [f"--sampling-{name}", most] if words else []
            flags = [
                "--cpu",
                "--batch-size",
                "64",
                "--beam",
                str(n),
                "--nbest",
                str(n),
                "--sampling",
                *cut,
            ]
            contenders = [stock(text, flags), ours(text, flags), ctranslate2(text, flags)]
            contenders += [
                ours(text, [*flags, "--int8"], "ours in 8 bits"),
                ctranslate2(text, flags, "int8", name="CTranslate2 in 8 bits"),
            ]
            seconds: list[list[float]] = [[] for _ in contenders]
            for round_ in range(args.rounds + 1):
                for contender, took in zip(contenders, seconds, strict=True):
                    start = time.process_time()
                    found = contender.run()
                    if round_:  # the first one warms up
                        took.append(time.process_time() - start)
                    elif isinstance(found, list):
                        every = [h for nbest in contender.read(found) for h in nbest]
                        means = [
                            sum(each) / len(every)
                            for each in zip(
                                *((len(tokens), score) for tokens, score in every), strict=True
                            )
                        ]
                        grams = {
                            size: len(
                                {
                                    tuple(t[i : i + size])
                                    for t, _ in every
                                    for i in range(len(t) - size + 1)
                                }
                            )
                            for size in (1, 2, 4)
                        }
                        reported = ", ".join(
                            f"{count} distinct {size}-grams" for size, count in grams.items()
                        )
                        print(
                            f"{contender.name}: {len(every)} samples, {means[0]:.2f} tokens, score "
                            f"{means[1]:.3f}, {reported}"
                        )
            middle = [statistics.median(took) for took in seconds]
            cells = [words or "all", str(n), *(f"{each:.2f}" for each in middle[:3])]
            for own, other in (middle[1:3], middle[3:]):
                cells += [f"{middle[0] / own:.1f}", f"{other / own:.1f}"]
            rows.append(f"| {' | '.join(cells)} |")
            print(rows[-1], flush=True)
    write_page(args.out, [*rows, ""])


if __name__ == "__main__":
    main()
