"""Which --length-reward and --length-ratio suit this model? Tunes them on your dev set and prints the flags to use.

    python scripts/tune_length_reward.py --model DIR --dev PREFIX --src de --tgt en --beam 10
    python scripts/tune_length_reward.py --path model.pt --data DIR --dev PREFIX --src de --tgt en --flags "--bpe subword_nmt --bpe-codes F"

DIR holds checkpoint.pt, dict.*.txt and, for SentencePiece, spm.model; PREFIX.de and PREFIX.en are plain text, a sentence a line.
Without arguments the demo model is tuned. --flags takes any other flags of fairseq-interactive.

One search with the largest reward and wanted length holds the answers of all smaller ones, so the whole sweep, coarse and then fine,
costs one decoding of the dev set. The paper rewards tokens up to the measured length ratio; often more is better, so multiples of it are
tried as well (--stretches 1 leaves that out). fairseq's own search at the same beam is shown beside it (--no-stock leaves it out).
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "experiments" / "optimal_ending"))

from searches import (  # noqa: E402
    BATCH,
    BenchError,
    Measure,
    Search,
    bounded,
    length_ratio,
    measure,
    model_flags,
    normalised,
    quiet,
    read_text,
    search,
)
from sweep import add_model_arguments  # noqa: E402

from fairseq_ext.errors import UsageError  # noqa: E402
from fairseq_ext.translator import Translator  # noqa: E402

COARSE, FINE = 0.2, 0.05  # nats


def main() -> None:
    args = parser().parse_args()
    sources, references = read_text(args.dev, args.src, args.tgt, args.limit)
    flags = dict(beam=args.beam, cpu=args.cpu, batch_size=args.batch_size, **where(args), **as_keywords(args.flags))
    quiet()
    ratio = round(length_ratio(Translator(**flags), sources, references), 3)
    print(f"{len(sources)} sentences, {ratio:g} target subwords for each source subword; decoding at beam {args.beam} ...", flush=True)
    most, ratios = args.max_reward, sorted(round(x * ratio, 3) for x in args.stretches)
    found = search(sources, stop="optimal", unnormalized=True, length_reward=most, length_ratio=ratios[-1], **flags)
    tried = sweep(found, ratios, references, most)
    best, best_ratio = best_of(tried)
    print("\n      r  --length-ratio    BLEU   length of output / reference")
    for (r, wanted), quality in sorted(tried.items(), key=lambda item: (item[0][1], item[0][0])):
        mark = "  <- best" if (r, wanted) == (best, best_ratio) else ""
        print(f"{r:7.2f} {wanted:15g} {quality.bleu:7.2f} {quality.ratio:10.3f}{mark}")
    if not args.no_stock:
        stock = measure(search(sources, **flags).answers(normalised(1.0)), references)
        print(f"{'fairseq, no flag':>23} {stock.bleu:7.2f} {stock.ratio:10.3f}")
    if best == most:
        print(f"\nThe largest reward is the best so far: try --max-reward {2 * most:g}.")
    reward = f" --length-reward {best:g} --length-ratio {best_ratio:g}" if best else ""
    print(f"\nBLEU {tried[best, best_ratio].bleu:.2f}, with these flags:")
    print(f"  --beam {args.beam} --stop optimal --prune-bound --unnormalized{reward}")


Tried = dict[tuple[float, float], Measure]  # by reward and length ratio


def sweep(found: Search, ratios: list[float], references: list[str], most: float) -> Tried:
    """BLEU and length ratio for rewards in steps of 0.2 at each length ratio, then of 0.05 on either side of the best."""
    tried: Tried = {}

    def at(rewards: list[float], ratio: float) -> None:
        for r in rewards:
            if (r, ratio) not in tried and 0 <= r <= most:
                tried[r, ratio] = measure(found.answers(bounded(r), ratio), references)

    steps = int(most / COARSE + 1e-9)
    for ratio in ratios:
        at([round(i * COARSE, 2) for i in range(steps + 1)] + [most], ratio)
    centre, ratio = best_of(tried)
    at([round(centre + i * FINE, 2) for i in range(-3, 4)], ratio)
    return tried


def best_of(tried: Tried) -> tuple[float, float]:
    """The reward and length ratio of the highest BLEU; of equals the smallest, which stop earliest."""
    return min(tried, key=lambda setting: (-tried[setting].bleu, setting))


def where(args: argparse.Namespace) -> dict[str, Any]:
    """The model: --path and --data, or a folder."""
    if bool(args.path) != bool(args.data):
        raise BenchError("--path and --data belong together: the checkpoint, and the folder with its dictionaries")
    if args.path:
        return dict(path=args.path, data=args.data, source_lang=args.src, target_lang=args.tgt)
    return model_flags(args.model, args.src, args.tgt)


def as_keywords(text: str) -> dict[str, Any]:
    """'--lenpen 1.0 --fp16' as {'lenpen': '1.0', 'fp16': True}."""
    out: dict[str, Any] = {}
    name = ""
    for word in shlex.split(text):
        if word.startswith("--"):
            name, _, value = word[2:].replace("-", "_").partition("=")
            out[name] = value or True
        elif not name:
            raise BenchError(f"--flags should begin with a flag, not with {word!r}")
        else:
            out[name] = word if out[name] is True else [*([out[name]] if isinstance(out[name], str) else out[name]), word]
    return out


def positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add_model_arguments(parse)
    parse.add_argument("--path", help="checkpoint, or several joined by colons (instead of --model)")
    parse.add_argument("--data", help="folder with dict.SRC.txt and dict.TGT.txt (with --path)")
    parse.add_argument("--beam", type=int, default=10, help="beam to tune for (10)")
    parse.add_argument("--max-reward", type=positive, default=1.6, help="largest reward to try, in nats a token (1.6)")
    parse.add_argument("--stretches", type=positive, nargs="+", default=[1.0, 1.1, 1.2, 1.3], help="times the length ratio (1 1.1 1.2 1.3)")
    parse.add_argument("--batch-size", type=int, default=BATCH, help=f"sentences decoded together ({BATCH})")
    parse.add_argument("--flags", default="", help='more flags of fairseq-interactive, as in --flags "--bpe subword_nmt --bpe-codes FILE"')
    parse.add_argument("--cpu", action="store_true", help="no GPU even if there is one")
    parse.add_argument("--no-stock", action="store_true", help="do not decode with fairseq's own search for comparison")
    return parse


if __name__ == "__main__":
    try:
        main()
    except (BenchError, UsageError) as error:
        sys.exit(f"error: {error}")
