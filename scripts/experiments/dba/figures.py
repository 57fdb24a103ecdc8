"""The paper's Figures 4, 5, 7 and 8 from DIR/runs.json (runs.py makes it).

python scripts/experiments/dba/figures.py --out DIR
    writes DIR/figure4, figure5, figure7 and figure8, as SVG and PNG
"""

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from figure_style import COLUMN, label_bars, label_lines, of, panel, whiskers  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import LogLocator, NullFormatter  # noqa: E402
from tables import pearson  # noqa: E402
from write_up import draw_figures  # noqa: E402

LINES = {"DBA": "-", "GBS": "--", "CBS": ":"}


def about(runs: dict[str, Any]) -> str:
    return f"{runs['text']}, {runs['sentences']} sentences"


def figure_4(runs: dict[str, Any]) -> Figure | None:
    """Time against the number of constraint tokens, with the range of the rounds; of the paper's
    search alone where it was timed."""
    if not runs["times"]:
        return None
    figure, axes = panel()
    methods = list(dict.fromkeys(time["method"] for time in runs["times"]))
    methods = [method for method in methods if "of the paper" in method] or methods
    for i, method in enumerate(methods):
        found = [time for time in runs["times"] if time["method"] == method]
        bars = whiskers(
            tuple(1000 * time[key] for key in ("seconds", "low", "high")) for time in found
        )
        places, heights = (
            [time["tokens"] for time in found],
            [1000 * time["seconds"] for time in found],
        )
        axes.errorbar(
            places,
            heights,
            yerr=bars,
            linestyle=LINES[method[:3]],
            label=method,
            elinewidth=0.8,
            **of(method, i),
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(sorted({time["tokens"] for time in runs["times"]}))
    axes.set(
        xlabel="constraint tokens",
        ylabel="ms a sentence",
        title=f"Processor time by number of constraints, {runs['timed']}",
    )
    label_lines(axes)
    return figure


def by_set(runs: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The searches of each set of constraints, beam by beam."""
    names = dict.fromkeys(run["set"] for run in runs["grid"])
    return {
        name: sorted((r for r in runs["grid"] if r["set"] == name), key=lambda r: r["beam"])
        for name in names
    }


def spread(found: list[dict[str, Any]]) -> list[list[float]]:
    """From BLEU down and up to the ends of its 95 % interval."""
    return whiskers((r["bleu"], r["low"], r["high"]) for r in found)


def figure_5(runs: dict[str, Any]) -> Figure:
    """BLEU against the beam, with 95 % intervals."""
    figure, axes = panel()
    beams = sorted({run["beam"] for run in runs["grid"]})
    for i, (name, found) in enumerate(by_set(runs).items()):
        # side by side, so that bars do not cover each other
        places = [beams.index(r["beam"]) + 0.03 * (i - 3) for r in found]
        axes.errorbar(
            places,
            [r["bleu"] for r in found],
            yerr=spread(found),
            label=name,
            elinewidth=0.8,
            **of(name, i),
        )
    axes.set_xticks(range(len(beams)), [str(beam) for beam in beams])
    axes.set(xlabel="beam", ylabel="BLEU, 95 % interval", title=f"BLEU by beam, {about(runs)}")
    label_lines(axes, room=0.2)
    return figure


def figure_7(runs: dict[str, Any]) -> Figure | None:
    """Where constraints stand."""
    if not runs["placement"]:
        return None
    figure, axes = panel(width=0.75 * COLUMN, height=0.78 * COLUMN)
    reference, output = zip(*runs["placement"], strict=True)
    axes.plot([0, 100], [0, 100], color="black", linewidth=0.8, linestyle=":")
    axes.scatter(reference, output, s=7, alpha=0.3, color=of("DBA")["color"], linewidths=0)
    axes.set(
        xlabel="place in the reference, % of its words",
        ylabel="place in the output, % of its words",
        aspect="equal",
    )
    r = pearson(runs["placement"])
    axes.set_title(
        f"First word of {runs['placed']}, {len(reference)} constraints: Pearson r = {r:.2f}"
    )
    return figure


def figure_8(runs: dict[str, Any]) -> Figure:
    """BLEU against model score; of each set a line over the beams, the largest
    with the largest mark."""
    figure, axes = panel()
    bars = {}
    for i, (name, found) in enumerate(by_set(runs).items()):
        sentences, style = runs["sentences"], of(name, i)
        x, y = [r["total"] / sentences for r in found], [r["bleu"] for r in found]
        axes.errorbar(x, y, yerr=spread(found), elinewidth=0.6, **style)
        axes.scatter(x[-1:], y[-1:], s=50, color=style["color"], marker=style["marker"], zorder=3)
        bars[name] = [
            (score, r["bleu"], r["low"], r["high"]) for score, r in zip(x, found, strict=True)
        ]
    reference = runs.get("reference_score")
    if reference is not None:
        axes.axvline(reference / runs["sentences"], color="black", linewidth=0.8, linestyle=":")
    beams = sorted({run["beam"] for run in runs["grid"]})
    axes.set(xlabel="model score, mean sum of log-probabilities", ylabel="BLEU, 95 % interval")
    dotted = ", dotted: references" if reference is not None else ""
    axes.set_title(f"{about(runs)}, beam {beams[0]} to {beams[-1]} (large mark){dotted}")
    axes.margins(x=0.12, y=0.1)
    label_bars(axes, bars)
    return figure


FIGURES = {"figure4": figure_4, "figure5": figure_5, "figure7": figure_7, "figure8": figure_8}

if __name__ == "__main__":
    draw_figures(__doc__, "runs.py", FIGURES)
