"""Tables 1, 4, 7 and 8 of Shi, Xu and Knight 2018, and all searches, as Markdown from
DIR/runs.json (run.py makes it); Figures 6, 7 and 8 as SVG: BLEU against speed.

python scripts/experiments/lsh/tables.py --out DIR

BLEU is that of lines of words (sacrebleu, tokenize none), with the interval of a bootstrap over
sentences. A loss is taken on the same resamples as the full softmax.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import figure_style  # noqa: E402, F401  (says so before any work where matplotlib is missing)
from intervals import RESAMPLES, bleu, counts_of, half, interval, resampled  # noqa: E402
from write_up import difference_cell, table, write_tables  # noqa: E402

BEST = "lsh T=6000 t=2"
PARTS = ("source side", "decoder layers", "softmax", "beam expansion", "hidden states reorder")
TOPS = (2000, 4000, 6000)
FIGURES = {  # the search that others are compared with, and a line's searches by its name
    "figure6": (
        "full",
        {
            "LSH, t = 2": [f"lsh T={T} t=2" for T in TOPS],
            "TOP": [f"top T={T}" for T in (*TOPS, 8000)],
            "lexical": [f"lexical N={N}" for N in (5, 20, 50)],
            "full": ["full"],
            "screened": ["screened"],
        },
    ),
    "figure7": (
        "full beam=12",
        {
            "BEAM": [f"full beam={b}" for b in (12, 6, 3, 1)],
            "BEAM + LSH": [f"lsh beam={b}" for b in (12, 6, 3, 1)],
            "LSH": ["lsh T=2000 beam=12", "lsh T=4000 beam=12", "lsh beam=12"],
        },
    ),
    "figure8": ("full", {f"T = {T:,}": [f"lsh T={T} t={t}" for t in (1, 2, 3)] for T in TOPS}),
}
Runs = dict[str, Any]


def ratio(runs: Runs, base: str, other: str) -> str:
    """How many times faster the other is over all sentences, and the range of the rounds."""
    rounds = [a / b for a, b in zip(runs[base]["rounds"], runs[other]["rounds"], strict=True)]
    whole = runs[base]["seconds"] / runs[other]["seconds"]
    return f"{whole:.2f} ({min(rounds):.2f}-{max(rounds):.2f})"


def scored(runs: Runs) -> None:
    """Give every search its `bleu` with the `interval` around it, and the resamples."""
    for run in runs.values():
        counts = counts_of(run["texts"], run["references"], "none")
        run["bleu"], run["resampled"] = float(bleu(counts.sum(0))), resampled(counts)
        run["interval"] = interval(run["resampled"])


def quality(run: Runs) -> str:
    return f"{run['bleu']:.2f} {half(*run['interval'])}"


def loss(full: Runs, run: Runs) -> list[float]:
    """BLEU of the full softmax less that of the search, and the interval."""
    return [full["bleu"] - run["bleu"], *interval(full["resampled"] - run["resampled"])]


def stages(runs: Runs) -> str:
    """Table 4: at the paper's beam of 12 where that was searched."""
    beam = 12 if {"full beam=12", "lsh beam=12"} <= runs.keys() else 5
    names = ("full beam=12", "lsh beam=12") if beam == 12 else ("full", BEST)
    full, lsh = (runs[name] for name in names)
    parts, rows = full["parts"], []
    rest = parts["softmax"] - parts["normalise"]
    columns = ({"matmul": rest, "normalise": parts["normalise"]}, lsh["stages"])
    for stage in lsh["stages"]:
        row = [stage]
        for run, column in zip((full, lsh), columns, strict=True):
            share = 100 * column.get(stage, 0.0) / sum(column.values())
            cells = [f"{1e3 * column[stage] / run['calls']:.3f}" if stage in column else ""]
            row += [*cells, f"{share:.0f} %" if stage in column else ""]
        rows.append(row)
    title = f"Table 4: stages of the softmax, milliseconds a call, beam {beam}"
    return table(["stage", "full, ms", "share", "LSH, ms", "share"], rows, title, "##")


def breakdown(full: Runs, best: Runs, overall: str) -> str:
    rows = [["total", f"{full['seconds']:.2f}", f"{best['seconds']:.2f}", overall]]
    for p in PARTS:
        a, b = full["parts"][p], best["parts"][p]
        rows.append([p, f"{a:.2f}", f"{b:.2f}", f"{a / b:.2f}"])
    rows += [["words scored", "all", f"{best['words'] / best['calls']:.0f}", ""]]
    rows += [["BLEU", quality(full), quality(best), ""]]
    return table(["part", "full", "LSH", "speed-up"], rows, "Table 1: time breakdown", "##")


def markdown(runs: Runs) -> str:
    scored(runs)
    full, best = runs["full"], runs[BEST]
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in best["flags"].items())
    note = (
        f"One sentence at a time, beam 5 unless stated, {full['sentences']} sentences; CPU "
        f"seconds of one thread, in turns: {len(full['rounds'])} rounds, each over its share "
        "of the sentences; a ratio is that of all, with the range of the rounds. BLEU with "
        f"half of its 95 % interval, bootstrap of {RESAMPLES:,} resamples; losses with theirs. "
        f"LSH: `{flags}`. Compiled code runs the whole search of the full softmax; its parts "
        "are those of the same search in the loop.\n"
    )
    a_call = {name: run["parts"]["softmax"] / run["calls"] for name, run in runs.items()}
    gains, large, every = [], [], []
    for name, run in runs.items():
        if "beam=" not in name and name != "full":
            softmax = f"{a_call['full'] / a_call[name]:.2f}"
            lost = difference_cell(loss(full, run))
            gains.append([name, softmax, ratio(runs, "full", name), lost])
        recall = [f"{run['recall'][k]:.4f}" for k in ("at_1", "at_k")] if "recall" in run else [""]
        words = f"{run['words'] / run['calls']:.0f}" if run["words"] else "all"
        cells = [name, str(run["sentences"]), quality(run), f"{run['seconds']:.2f}"]
        cells += [f"{1e3 * a_call[name]:.2f}", words, *recall]
        every.append([*cells, *[""] * (8 - len(cells))])
    for beam in (12, 24, 36, 48):
        a, b = f"full beam={beam}", f"lsh beam={beam}"
        if a in runs and b in runs:
            cells = [str(beam), str(runs[a]["sentences"]), ratio(runs, a, b)]
            large.append([*cells, difference_cell(loss(runs[a], runs[b]))])
    head = ["search", "sentences", "BLEU", "seconds", "softmax, ms a call", "words"]
    head += ["recall at 1", "recall at k"]
    large_head = ["beam", "sentences", "speed-up", "BLEU loss"]
    gain_head = ["search", "softmax", "overall", "BLEU loss"]
    parts = [note, breakdown(full, best, ratio(runs, "full", BEST)), stages(runs)]
    parts.append(table(gain_head, gains, "Table 7: speed-up and loss", "##"))
    parts.append(table(large_head, large, "Table 8: larger beams", "##"))
    return "\n".join([*parts, table(head, every, "All searches", "##")])


def figures(runs: Runs) -> dict[str, list[dict[str, Any]]]:
    """BLEU less that of the full softmax, with the interval of the difference, against how many
    times faster than it."""
    out = {}
    for name, (base, curves) in FIGURES.items():
        lines = {}
        for label, searches in curves.items():
            points = []
            for run in (runs[each] for each in searches if each in runs and base in runs):
                lost, low, high = loss(runs[base], run)
                speed = runs[base]["seconds"] / run["seconds"]
                points.append((speed, -lost, -high, -low))
            lines |= {label: points} if points else {}
        title = f"{runs['full']['sentences']:,} sentences, one at a time"
        shown = {"xlabel": f"times faster than {base}", "ylabel": "BLEU difference, 95 % interval"}
        out[name] = [{"lines": lines, "title": title, **shown}]
    return out


if __name__ == "__main__":
    write_tables(__doc__, "run.py", markdown, figures)
