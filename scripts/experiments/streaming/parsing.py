"""The searches behind the paper's Tables 2, 6 and 7: semantic parsing, every method with at
most N rows a step.

    python scripts/experiments/streaming/parsing.py --out DIR --raw DIR [--models DIR]
        [--sets atis geo]

MODELS/SET/model is what train_parsing.py made; its questions and queries are RAW/SET.test.{nl,sql}.
Each set becomes a file of OUT/parsing, which is not made again.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

from methods import (
    Setting,
    Text,
    add_timing_arguments,
    cached,
    command_line,
    measure,
    methods,
    prepare,
    run_script,
    timing,
)
from train_parsing import SETS


def exact_match(text: Text, outputs: list) -> dict[str, float]:
    """Per cent of queries that the best hypothesis equals word by word, and that any
    of the n-best does."""
    from fairseq.data import Dictionary

    words = Dictionary.load(str(text.folder / f"dict.{text.target}.txt"))
    best = oracle = 0
    for nbest, reference in zip(outputs, text.references, strict=True):
        found = [
            " ".join(words[token] for token in tokens if token != words.eos())
            for tokens, _ in nbest
        ]
        wanted = " ".join(reference.split())
        best += found[:1] == [wanted]
        oracle += wanted in found
    assert best <= oracle <= len(outputs)
    return {"exact match": 100 * best / len(outputs), "oracle": 100 * oracle / len(outputs)}


def run(args: argparse.Namespace, text: Text, wanted: dict[str, list[str]]) -> list[dict]:
    return measure(text, wanted, partial(exact_match, text), args)


def main() -> None:
    parse = command_line(__doc__)
    parse.add_argument(
        "--raw", type=Path, required=True, help="folder with SET.{train,test}.{nl,sql}"
    )
    parse.add_argument("--models", type=Path, help="folder with SET/model (the one of --out)")
    parse.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parse.add_argument("--limit", type=int, help="first questions only (all)")
    parse.add_argument(
        "--k", type=int, default=10, help="beam, sentences of a batch, and delta (10)"
    )
    parse.add_argument(
        "--children", type=int, default=3, help="--prune-children, the paper's M (3)"
    )
    parse.add_argument("--rows", type=int, default=100, help="rows of a step (100)")
    add_timing_arguments(parse)
    parse.add_argument("--out", type=Path, required=True, help="folder for the results")
    args = parse.parse_args()
    setting = Setting(args.k, args.k, args.k, args.children, rows=args.rows)
    for name in args.sets:
        with tempfile.TemporaryDirectory() as folder:
            model = (args.models or args.out) / name / "model"
            text = prepare(
                Path(folder), model, str(args.raw / f"{name}.test"), "nl", "sql", args.limit
            )
            longest = max(
                len(line.split())
                for line in (args.raw / f"{name}.train.sql").open(encoding="utf-8")
            )
            shared = ["--max-len-b", str(longest), "--unnormalized"]
            wanted = {
                method: [*flags, *shared, "--nbest", flags[flags.index("--beam") + 1]]
                for method, flags in methods(setting).items()
            }
            key = [
                name,
                (model / "checkpoint.pt").stat().st_size,
                text.references,
                wanted,
                timing(args),
            ]
            about = (
                f"{len(text.references)} questions, n = k = delta = {args.k}, M = {args.children}, "
                f"at most {args.rows} rows a step, "
            )
            cached(
                args.out / "parsing" / f"{name}.json",
                key,
                partial(run, args, text, wanted),
                about + timing(args),
            )


if __name__ == "__main__":
    run_script(main)
