"""Figures 6, 7 and 8 from OUT/runs.json: BLEU against speed of Shi, Xu and Knight
2018 on this model.

python scripts/experiments/lsh/figures.py --out DIR
    writes DIR/figure6, figure7 and figure8, as SVG and PNG
"""

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from figure_style import label_points, of, panel, save, whiskers  # noqa: E402
from intervals import interval  # noqa: E402
from tables import scored  # noqa: E402
from write_up import folder, read_results  # noqa: E402

BEAMS = (12, 6, 3, 1)
TOPS = (2000, 4000, 6000)
DASHES = {"T = 4,000": "--", "T = 6,000": ":"}  # lines of one method
Points = list[tuple[str, str]]  # search, and what its point is called


def curve(
    axes: Any, runs: dict[str, Any], base: str, points: Points, label: str, place: int
) -> list[tuple[str, float, float, str]]:
    """Draw a line through these searches: BLEU less that of `base`, with the interval of the
    difference, against how many times faster than `base` they are, with the range of the rounds.
    Return each point's name, place and colour; the line's name stands before its first."""
    found = [
        (runs[base]["seconds"] / runs[name]["seconds"], runs[name], reported)
        for name, reported in points
        if name in runs
    ]
    rounds = [
        [a / b for a, b in zip(runs[base]["rounds"], run["rounds"], strict=True)]
        for _, run, _ in found
    ]
    style = {"linestyle": DASHES.get(label, "-"), **of(label, place)}
    heights = [run["bleu"] - runs[base]["bleu"] for _, run, _ in found]
    intervals = [interval(run["resampled"] - runs[base]["resampled"]) for _, run, _ in found]
    up = whiskers((y, *each) for y, each in zip(heights, intervals, strict=True))
    across = whiskers(
        (x, min(each), max(each)) for (x, *_), each in zip(found, rounds, strict=True)
    )
    axes.errorbar([x for x, *_ in found], heights, up, across, label=label, elinewidth=0.6, **style)
    names = [
        reported if i or reported == label else f"{label}, {reported}"
        for i, (*_, reported) in enumerate(found)
    ]
    return [
        (name, x, y, style["color"]) for name, (x, *_), y in zip(names, found, heights, strict=True)
    ]


def main() -> None:
    out = folder(__doc__)
    runs = read_results(out, "runs.py")
    scored(runs)
    widest = f"full beam={BEAMS[0]}"
    figures: dict[str, list[tuple[str, Points, str]]] = {
        "figure6": [
            ("full", [(f"lsh T={T} t=2", f"T = {T:,}") for T in TOPS], "LSH, t = 2"),
            ("full", [(f"top T={T}", f"{T:,}") for T in (*TOPS, 8000)], "TOP"),
            ("full", [(f"lexical N={N}", f"N = {N}") for N in (5, 20, 50)], "lexical"),
            ("full", [("full", "full")], "full"),
            ("full", [("screened", "screened")], "screened"),
        ],
        "figure7": [
            *(
                (widest, [(f"{kind} beam={b}", f"k = {b}") for b in BEAMS], label)
                for kind, label in (("full", "BEAM"), ("lsh", "BEAM + LSH"))
            ),
            (
                widest,
                [
                    (
                        f"lsh T={T} beam={BEAMS[0]}" if T < 6000 else f"lsh beam={BEAMS[0]}",
                        f"T = {T:,}",
                    )
                    for T in TOPS
                ],
                "LSH",
            ),
        ],
        "figure8": [
            ("full", [(f"lsh T={T} t={t}", f"t = {t}") for t in (1, 2, 3)], f"T = {T:,}")
            for T in TOPS
        ],
    }
    for name, curves in figures.items():
        figure, axes = panel()
        named = []
        for place, (base, points, label) in enumerate(curves):
            if base in runs and any(search in runs for search, _ in points):
                named += curve(axes, runs, base, points, label, place)
        beam = "beam 12 with " * (name == "figure7")
        axes.set(
            xlabel=f"times faster than {beam}the full softmax, range of the rounds",
            ylabel="BLEU difference, 95 % interval",
        )
        axes.set_title(
            f"{next(iter(runs.values()))['sentences']:,} sentences, one at a time"
            + ", beam 5" * (name != "figure7")
        )
        axes.margins(x=0.18)
        label_points(axes, named)
        print(save(figure, out / name))


if __name__ == "__main__":
    main()
