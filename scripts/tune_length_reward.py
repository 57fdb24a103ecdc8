"""Which --length-reward and --length-ratio suit this model? Tunes them on your dev set and
prints the flags to use.

    python scripts/tune_length_reward.py --model DIR --dev PREFIX --src de --tgt en --beam 10
    python scripts/tune_length_reward.py --path model.pt --data DIR --dev PREFIX --src de --tgt en
        --flags "--bpe subword_nmt --bpe-codes F"

DIR holds checkpoint.pt, dict.*.txt and, for SentencePiece, spm.model; PREFIX.de and PREFIX.en are
plain text, a sentence a line. Without arguments the demo model is tuned. --flags takes any other
flags of fairseq-interactive.

Every reward is a search with the flags that are printed at the end: 17 decodings of the dev set
in steps of 0.2, and up to 6 in steps of 0.05 around the best. The paper rewards tokens up to a
constant times the source length; a least-squares line through the dev set's lengths is tried as
well (--no-line leaves it out, which halves the work). fairseq's own search at the same beam is
shown next to it (--no-stock). Take a dev set of 1,000 sentences or so: on 200 the reward that wins
is often far from the one that wins on the rest.

    --path FILE       checkpoint, or several joined by colons, instead of --model
    --data DIR        with dict.SRC.txt and dict.TGT.txt, with --path
    --beam N          to tune for (10)
    --max-reward X    largest to try, in nats a token (1.6)
    --no-line         only the paper's wanted length, a constant times the source length
    --batch-size N    sentences decoded together (64)
    --flags FLAGS     more of fairseq-interactive, as in --flags "--bpe subword_nmt"
    --cpu             no GPU even if there is one
    --no-stock        do not decode with fairseq's own search for comparison
"""

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "experiments" / "optimal_ending"))

from searches import (  # noqa: E402
    BenchError,
    Measure,
    Wanted,
    bounded,
    measure,
    model_flags,
    normalised,
    quiet,
    read_text,
    reward_flags,
    search,
    wanted_lengths,
)
from text import command_line, text_arguments  # noqa: E402

from fairseq_ext.core.errors import UsageError  # noqa: E402
from fairseq_ext.translator import Translator  # noqa: E402

COARSE, FINE = 0.2, 0.05  # nats


def main() -> None:
    parse = command_line(__doc__, flags="")
    text_arguments(parse, "--dev")
    args = parse.parse_args()
    if args.max_reward <= 0:
        raise BenchError("--max-reward wants a number above 0")
    sources, references = read_text(args.dev, args.src, args.tgt, args.limit)
    flags = dict(
        beam=args.beam,
        cpu=args.cpu,
        batch_size=args.batch_size,
        **where(args),
        **as_keywords(args.flags),
    )
    quiet()
    ratio, line = wanted_lengths(Translator(**flags), sources, references)
    print(
        f"{len(sources)} sentences, {ratio.ratio:g} target subwords for each source one; decoding "
        f"at beam {args.beam} ...",
        flush=True,
    )
    most, lengths = args.max_reward, [ratio] if args.no_line else list(dict.fromkeys([ratio, line]))

    decided = dict(stop="optimal", prune_bound=True, unnormalized=True)

    def with_reward(r: float, wanted: Wanted) -> Measure:
        found = search(sources, **flags, **decided, **reward_flags(r, wanted))
        return measure(found.answers(bounded(r), wanted), references)

    tried = sweep(with_reward, lengths, most)
    best, wanted = best_of(tried)
    print("\n      r     wanted length    BLEU   length of output / reference")
    for (r, length), quality in sorted(
        tried.items(), key=lambda item: (lengths.index(item[0][1]), item[0][0])
    ):
        mark = "  <- best" if (r, length) == (best, wanted) else ""
        print(f"{r:7.2f} {str(length):>17} {quality.bleu:7.2f} {quality.ratio:10.3f}{mark}")
    if not args.no_stock:
        stock = measure(search(sources, **flags).answers(normalised(1.0)), references)
        print(f"{'fairseq, no flag':>25} {stock.bleu:7.2f} {stock.ratio:10.3f}")
        if tried[best, wanted].bleu <= stock.bleu:
            print("\nNo gain over fairseq on these sentences: keep its own search.")
    if best == most:
        print(f"\nThe largest reward is the best so far: try --max-reward {2 * most:g}.")
    reward = f" --length-reward {best:g} --length-ratio {wanted.ratio:g}" if best else ""
    reward += f" --length-offset {wanted.offset:g}" if best and wanted.offset else ""
    print(f"\nBLEU {tried[best, wanted].bleu:.2f}, with these flags:")
    print(f"  --beam {args.beam} --stop optimal --prune-bound --unnormalized{reward}")


Tried = dict[tuple[float, Wanted], Measure]  # by reward and wanted length


def sweep(quality: Callable[[float, Wanted], Measure], lengths: list[Wanted], most: float) -> Tried:
    """BLEU and length ratio for rewards in steps of 0.2 at each wanted length, then of 0.05 on
    either side of the best."""
    tried: Tried = {}

    def at(rewards: list[float], wanted: Wanted) -> None:
        for r in rewards:
            if (r, wanted) not in tried and 0 <= r <= most:
                tried[r, wanted] = (
                    tried[0, lengths[0]]
                    if r == 0 and (0, lengths[0]) in tried
                    else quality(r, wanted)
                )

    steps = int(most / COARSE + 1e-9)
    for wanted in lengths:
        at([round(i * COARSE, 2) for i in range(steps + 1)] + [most], wanted)
    centre, wanted = best_of(tried)
    at([round(centre + i * FINE, 2) for i in range(-3, 4)], wanted)
    return tried


def best_of(tried: Tried) -> tuple[float, Wanted]:
    """The reward and wanted length of the highest BLEU; of equals the smallest reward, which stops
    earliest, at the first length."""
    return min(tried, key=lambda setting: (-tried[setting].bleu, setting[0]))


def where(args: argparse.Namespace) -> dict[str, Any]:
    """The model: --path and --data, or a folder."""
    if bool(args.path) != bool(args.data):
        raise BenchError(
            "--path and --data belong together: the checkpoint, and the folder with "
            "its dictionaries"
        )
    if args.path:
        return dict(
            path=str(args.path), data=str(args.data), source_lang=args.src, target_lang=args.tgt
        )
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
            out[name] = (
                word
                if out[name] is True
                else [*([out[name]] if isinstance(out[name], str) else out[name]), word]
            )
    return out


if __name__ == "__main__":
    try:
        main()
    except (BenchError, UsageError) as error:
        sys.exit(f"error: {error}")
