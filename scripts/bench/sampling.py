"""Sampling in bulk: CPU seconds of stock, ours and CTranslate2, by the number of
samples a sentence.

    python scripts/bench/sampling.py --model MODEL --text TEXT --lines 200 --samples 1 10
        --cut topk=10

All decode the same batches, one thread each, in turn (A B C A B C), ours and CTranslate2 in 8 bits
too; ratios are of the medians. Their samples differ, as their noise does; mean length, mean score
and distinct n-grams of tokens say that they sample the same distribution.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from contenders import ours, stock
from ct2 import ctranslate2
from text import prepare


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        type=Path,
        required=True,
        help="folder with checkpoint.pt, dict.*.txt and spm.model",
    )
    parser.add_argument("--text", required=True, help="TEXT.de and TEXT.en")
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--samples", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--cut", default="", help="topk=10, topp=0.9 or nothing, for all words")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cut = (
        [f"--sampling-{name}" if i == 0 else name for i, name in enumerate(args.cut.split("="))]
        if args.cut
        else []
    )
    with tempfile.TemporaryDirectory() as folder:
        text = prepare(Path(folder), args.model, args.text, "de", "en", args.lines)
        for n in args.samples:
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
                            n: len(
                                {
                                    tuple(t[i : i + n])
                                    for t, _ in every
                                    for i in range(len(t) - n + 1)
                                }
                            )
                            for n in (1, 2, 4)
                        }
                        reported = ", ".join(
                            f"{count} distinct {n}-grams" for n, count in grams.items()
                        )
                        print(
                            f"{contender.name}: {len(every)} samples, {means[0]:.2f} tokens, score "
                            f"{means[1]:.3f}, {reported}"
                        )
            middle = [statistics.median(took) for took in seconds]
            reported = ", ".join(
                f"{c.name} {m:.2f} s ({min(t):.2f}-{max(t):.2f})"
                for c, m, t in zip(contenders, middle, seconds, strict=True)
            )
            pairs = (middle[1:3], middle[3:])
            ratios = ", in 8 bits ".join(
                f"{middle[0] / own:.2f}x stock, {other / own:.2f}x CTranslate2"
                for own, other in pairs
            )
            print(f"{n} samples, {args.cut or 'all words'}: {reported}; {ratios}")


if __name__ == "__main__":
    main()
