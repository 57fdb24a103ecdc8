"""Refilling on text as it comes: streams next to batches of n lines in the order of the corpus
and in the order of length.

    python scripts/experiments/streaming/natural.py --out DIR [--model DIR] [--text PREFIX]
        [--limit 160] [--k 5 20] [--n 16 8]

Default: batches and a stream of n sentences that stop as fairseq does. Fixed width: the same
with the paper's stopping criterion. Variable width (delta 1.5, M 5): batches and a stream of at
most n x k rows, so that the
sentences that pruning has narrowed leave room for others. A stream has the whole text before it,
in either order, and gives what batches give. fairseq sorts every batch by length, and the lines
of a corpus before it makes batches; here it does the latter for `by length` only. --count: what the
searches do, and no times: for a machine with other work on it. OUT gets natural.md and a file for
each k and n, which is not measured again.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from methods import (
    SAME_AS,
    Decoding,
    Setting,
    Text,
    add_text_arguments,
    check,
    command_line,
    compare,
    defaults,
    machine,
    made_by,
    methods,
    named,
    prepare,
    run_script,
)
from write_up import kept

ORDERS = ("corpus order", "by length")
METHODS = {  # name -> the method, and the order of its batches
    **{f"default batches, {order}": ("DEFAULT", order) for order in ORDERS},
    "default stream": ("DEFAULT-STREAM", ORDERS[1]),
    **{f"fixed batches, {order}": ("FIXED-OURS", order) for order in ORDERS},
    "fixed stream": ("FIXED-STREAM", ORDERS[1]),
    **{f"variable batches, {order}": ("VAR-BATCH", order) for order in ORDERS},
    "variable stream": ("VAR-STREAM", ORDERS[1]),
}


def in_corpus_order(decoding: Decoding, n: int) -> None:
    """Give the decoding batches of n neighbouring lines."""
    lines = decoding.loaded.task.dataset(decoding.loaded.cfg.dataset.gen_subset)
    places = range(len(lines))
    decoding.loaded.batches = [
        lines.collater([lines[i] for i in places[at : at + n]]) for at in places[::n]
    ]


def decodings(text: Text, k: int, n: int, args: argparse.Namespace) -> dict[str, Decoding]:
    """The methods, ready to run."""
    out = {}
    for name, (method, order) in METHODS.items():
        setting = Setting(
            k, n, args.delta, args.children, args.eps, n * k if method.startswith("VAR") else None
        )
        fifo = ["--stream-order", "fifo"] if "STREAM" in method else []
        out[name] = Decoding(
            name, ["--cpu", *(methods(setting) | defaults(setting))[method], *fifo], text
        )
        if order == ORDERS[0]:
            in_corpus_order(out[name], n)
    return out


def measure(text: Text, k: int, n: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run every method; a row of each."""
    found = decodings(text, k, n, args)
    seconds: dict[str, list[float]] = {name: [] for name in found}
    if args.count:
        for decoding in found.values():
            decoding.contender().read(decoding.run())
    else:
        done = compare(
            [d.contender() for d in found.values()],
            args.repeats,
            warmup=0,
            threads=1,
            clock=time.process_time,
        )
        seconds = {name: done[name].seconds for name in found}
    rows = []
    for name, decoding in found.items():
        method = METHODS[name][0]
        same = next(
            other for other, (known, _) in METHODS.items() if known == SAME_AS.get(method, method)
        )
        counts = {key: getattr(decoding, key) for key in ("timesteps", "rows", "expansions")}
        facts = {
            "method": name,
            "seconds": seconds[name],
            **counts,
            "bleu": text.bleu(decoding.outputs),
            "signature": decoding.signature,
        }
        rows.append(
            facts
            | {"outputs": "" if same == name else f"{check(decoding.outputs, found[same].outputs)}"}
        )
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """A line a method: over default batches in either order, and over the sorted
    batches of either width."""
    over = [f"default batches, {order}" for order in ORDERS] + [
        f"{width} batches, {ORDERS[1]}" for width in ("fixed", "variable")
    ]
    timed = bool(rows[0]["seconds"])
    head = ["method", *(["seconds", *(f"over {name}" for name in over)] if timed else [])]
    head += ["calls", "rows a call", "expansions", "BLEU", "n-best"]
    by_name = {row["method"]: row for row in rows}
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 2) + " --- |"]
    for row in rows:
        cells = [row["method"]]
        if timed:
            s = sorted(row["seconds"])
            cells.append(f"{statistics.median(s):.2f} ({s[0]:.2f}-{s[-1]:.2f})")
            for name in over:
                ratios = sorted(
                    a / b for a, b in zip(by_name[name]["seconds"], row["seconds"], strict=True)
                )
                cells.append(f"{sum(ratios) / len(ratios):.2f}x ({ratios[0]:.2f}-{ratios[-1]:.2f})")
        calls = row["timesteps"]
        cells += [
            f"{calls:,}",
            f"{row['rows'] / calls:.1f}",
            f"{row['expansions']:,}",
            f"{row['bleu']:.2f}",
            row["outputs"],
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parse = command_line(__doc__)
    add_text_arguments(parse, 160)
    parse.add_argument("--k", type=int, nargs="+", default=[5, 20], help="beams (5 20)")
    parse.add_argument(
        "--n", type=int, nargs="+", default=[16, 8], help="sentences of a batch, for each k (16 8)"
    )
    parse.add_argument("--eps", type=float, default=1 / 2, help="--refill-threshold (1/2)")
    parse.add_argument("--delta", type=float, default=1.5, help="--prune-threshold (1.5)")
    parse.add_argument("--children", type=int, default=5, help="--prune-children (5)")
    parse.add_argument("--repeats", type=int, default=2, help="timed rounds (2)")
    parse.add_argument("--count", action="store_true", help="no times")
    parse.add_argument("--out", type=Path, required=True, help="folder for the results")
    args = parse.parse_args()
    if len(args.n) != len(args.k):
        parse.error("--n needs a value for each of --k")
    args.out.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        text = prepare(Path(folder), args.model, args.text, args.src, args.tgt, args.limit)
        names = ("limit", "eps", "delta", "children", "count")
        for k, n in zip(args.k, args.n, strict=True):
            file = args.out / f"k{k}.n{n}.json"
            size = (args.model / "checkpoint.pt").stat().st_size
            key = [
                named(args.model),
                size,
                named(args.text),
                *(getattr(args, name) for name in names),
            ]
            make = lambda: {"rows": measure(text, k, n, args), "machine": machine()}  # noqa: E731, B023
            saved = kept(file, key, make)
            rounds = len(saved["rows"][0]["seconds"])
            timed = (
                f"processor time of one thread, {rounds} alternating round{'s' * (rounds != 1)}; "
                if rounds
                else ""
            )
            about = (
                f"Model {named(args.model)}, first {len(text.references)} lines of "
                f"{named(args.text)}; "
            )
            lines += [
                f"### Beam {k}, {n} sentences",
                "",
                *table(saved["rows"]),
                "",
                about + timed + made_by(saved["machine"]),
                "",
            ]
    made = "\n".join(lines)
    (args.out / "natural.md").write_text(made, encoding="utf-8")
    print(made)


if __name__ == "__main__":
    run_script(main)
