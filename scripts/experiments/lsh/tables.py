"""tables.md from OUT/runs.json: Tables 1, 4, 7 and 8 of Shi, Xu and Knight 2018 on this
model, and all searches.

python scripts/experiments/lsh/tables.py --out DIR

BLEU is that of lines of words (sacrebleu, tokenize none), with the interval of a bootstrap over
sentences. A loss is taken on the same resamples as the full softmax.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from intervals import RESAMPLES, bleu, counts_of, half, interval, resampled  # noqa: E402
from write_up import difference_cell, folder, read_results, table  # noqa: E402

BEST = "lsh T=6000 t=2"
PARTS = ("source side", "decoder layers", "softmax", "beam expansion", "hidden states reorder")


def ratio(runs: dict[str, Any], base: str, other: str) -> str:
    """How many times faster the other is over all sentences, and the range of the rounds."""
    rounds = [a / b for a, b in zip(runs[base]["rounds"], runs[other]["rounds"], strict=True)]
    return (
        f"{runs[base]['seconds'] / runs[other]['seconds']:.2f} ({min(rounds):.2f}"
        f"-{max(rounds):.2f})"
    )


def part_ratio(runs: dict[str, Any], base: str, other: str, part: str) -> str:
    """How many times faster a part of the other is, each by its own decoder calls."""
    a, b = (runs[name]["parts"][part] / runs[name]["calls"] for name in (base, other))
    return f"{a / b:.2f}"


def scored(runs: dict[str, Any]) -> None:
    """Give every search its `bleu` with the `interval` around it, and the resamples."""
    for run in runs.values():
        counts = counts_of(run["texts"], run["references"], "none")
        run["bleu"], run["resampled"] = float(bleu(counts.sum(0))), resampled(counts)
        run["interval"] = interval(run["resampled"])


def quality(run: dict[str, Any]) -> str:
    return f"{run['bleu']:.2f} {half(*run['interval'])}"


def loss(full: dict[str, Any], run: dict[str, Any]) -> str:
    """BLEU of the full softmax less that of the search."""
    ends = interval(full["resampled"] - run["resampled"])
    return difference_cell([full["bleu"] - run["bleu"], *ends])


def stages(runs: dict[str, Any]) -> list[str]:
    """Table 4: at the paper's beam of 12 where that was searched."""
    beam = 12 if {"full beam=12", "lsh beam=12"} <= runs.keys() else 5
    full, lsh = (
        (runs["full beam=12"], runs["lsh beam=12"]) if beam == 12 else (runs["full"], runs[BEST])
    )
    columns = [lsh["stages"]]
    parts = full["parts"]
    if "normalise" in parts:  # results of old lack it
        rest = parts["softmax"] - parts["normalise"]
        columns.insert(0, {"matmul": rest, "normalise": parts["normalise"]})
    rows = []
    for stage in lsh["stages"]:
        row = [stage]
        for run, column in zip([full, lsh][-len(columns) :], columns, strict=True):
            row += (
                [
                    f"{1e3 * column[stage] / run['calls']:.3f}",
                    f"{100 * column[stage] / sum(column.values()):.0f} %",
                ]
                if stage in column
                else ["", ""]
            )
        rows.append(row)
    head = ["stage", *(["full, ms", "share"] if len(columns) > 1 else []), "LSH, ms", "share"]
    title = f"## Table 4: stages of the softmax, milliseconds a call, beam {beam}"
    return [title, table(head, rows)]


def main() -> None:
    out = folder(__doc__)
    runs = read_results(out, "runs.py")
    scored(runs)
    full, best = runs["full"], runs[BEST]
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in best["flags"].items())
    text = [
        (
            f"One sentence at a time, beam 5 unless stated, {full['sentences']} sentences; CPU "
            f"seconds of one thread, in turns: {len(full['rounds'])} rounds, each over its share "
            "of the sentences; a ratio is that of all, with the range of the rounds. BLEU with "
            f"half of its 95 % interval, bootstrap of {RESAMPLES:,} resamples; losses with theirs. "
            f"LSH: `{flags}`. Compiled code runs the whole search of the full softmax; its parts "
            "are those of the same search in the loop."
        ),
        "## Table 1: time breakdown",
    ]
    rows = [
        ["total", f"{full['seconds']:.2f}", f"{best['seconds']:.2f}", ratio(runs, "full", BEST)]
    ]
    rows += [
        [
            p,
            f"{full['parts'][p]:.2f}",
            f"{best['parts'][p]:.2f}",
            f"{full['parts'][p] / best['parts'][p]:.2f}",
        ]
        for p in PARTS
    ]
    rows += [["words scored", "all", f"{best['words'] / best['calls']:.0f}", ""]]
    rows += [["BLEU", quality(full), quality(best), ""]]
    text.append(table(["part", "full", "LSH", "speed-up"], rows))
    text += stages(runs)
    text.append("## Table 7: speed-up and loss")
    rows = [
        [
            name,
            part_ratio(runs, "full", name, "softmax"),
            ratio(runs, "full", name),
            loss(full, run),
        ]
        for name, run in runs.items()
        if "beam=" not in name and name != "full"
    ]
    text.append(table(["search", "softmax", "overall", "BLEU loss"], rows))
    text.append("## Table 8: larger beams")
    rows = []
    for beam in (12, 24, 36, 48):
        a, b = f"full beam={beam}", f"lsh beam={beam}"
        if a in runs and b in runs:
            rows.append(
                [str(beam), str(runs[a]["sentences"]), ratio(runs, a, b), loss(runs[a], runs[b])]
            )
    text.append(table(["beam", "sentences", "speed-up", "BLEU loss"], rows))
    text.append("## All searches")
    rows = []
    for name, run in runs.items():
        recall = (
            [f"{run['recall'][k]:.4f}" for k in ("at_1", "at_k")] if "recall" in run else ["", ""]
        )
        words = f"{run['words'] / run['calls']:.0f}" if run["words"] else "all"
        softmax = f"{1e3 * run['parts']['softmax'] / run['calls']:.2f}"
        rows.append(
            [
                name,
                str(run["sentences"]),
                quality(run),
                f"{run['seconds']:.2f}",
                softmax,
                words,
                *recall,
            ]
        )
    text.append(
        table(
            [
                "search",
                "sentences",
                "BLEU",
                "seconds",
                "softmax, ms a call",
                "words",
                "recall at 1",
                "recall at k",
            ],
            rows,
        )
    )
    (out / "tables.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
