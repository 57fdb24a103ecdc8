"""The paper's Figures 4, 5, 7 and 8 from DIR/runs.json (runs.py makes it).

python scripts/experiments/dba/figures.py --out DIR       writes DIR/figure4.png, figure5.png, figure7.png, figure8.png
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
sys.path.append(str(Path(__file__).resolve().parents[1]))

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import LogLocator, NullFormatter  # noqa: E402
from tables import pearson  # noqa: E402
from write_up import MARKERS, draw_figures  # noqa: E402

LINES = {"DBA": "-", "GBS": "--", "CBS": ":"}


def about(runs: dict[str, Any]) -> str:
    return f"{runs['text']}, {runs['sentences']} sentences"


def finish(axes: Any, x: str, y: str, title: str, file: Path, which: str = "major") -> None:
    """Labels, grid and the legend beside the axes; written to the file."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title)
    axes.grid(alpha=0.3, which=which)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    axes.figure.savefig(file, dpi=150)


def figure_4(runs: dict[str, Any], file: Path) -> None:
    """Time against the number of constraint tokens."""
    _, axes = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    for method, marker in zip(dict.fromkeys(time["method"] for time in runs["times"]), MARKERS, strict=False):
        points = [(time["tokens"], 1000 * time["seconds"]) for time in runs["times"] if time["method"] == method]
        axes.plot(*zip(*points, strict=True), LINES[method[:3]], marker=marker, markersize=5, label=method)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(sorted({time["tokens"] for time in runs["times"]}))
    finish(axes, "constraint tokens", "milliseconds a sentence", f"Time by number of constraints, {runs['timed']}", file, which="both")


def figure_5(runs: dict[str, Any], file: Path) -> None:
    """BLEU against the beam."""
    _, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    beams = sorted({run["beam"] for run in runs["grid"]})
    for name, marker in zip(dict.fromkeys(run["set"] for run in runs["grid"]), MARKERS, strict=False):
        bleu = {run["beam"]: run["bleu"] for run in runs["grid"] if run["set"] == name}
        style = {"none": ":", "phr4": "--"}.get(name, "-")
        axes.plot(range(len(beams)), [bleu[beam] for beam in beams], style, marker=marker, markersize=5, label=name)
    axes.set_xticks(range(len(beams)), [str(beam) for beam in beams])
    finish(axes, "beam", "BLEU", f"BLEU by beam, {about(runs)}", file)


def figure_7(runs: dict[str, Any], file: Path) -> None:
    """Where constraints stand."""
    figure, axes = plt.subplots(figsize=(4.6, 4.6), layout="constrained")
    reference, output = zip(*runs["placement"], strict=True)
    axes.plot([0, 100], [0, 100], color="black", linewidth=0.8, linestyle=":")
    axes.scatter(reference, output, s=9, alpha=0.4)
    axes.set_xlabel("place in the reference, % of its words")
    axes.set_ylabel("place in the output, % of its words")
    axes.set_aspect("equal")
    axes.set_title(f"First word of {runs['placed']}: Pearson r = {pearson(runs['placement']):.2f}")
    figure.savefig(file, dpi=150)


def figure_8(runs: dict[str, Any], file: Path) -> None:
    """Model score against BLEU; of each set a line over the beams, the smallest marked."""
    _, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, marker in zip(dict.fromkeys(run["set"] for run in runs["grid"]), MARKERS, strict=False):
        points = sorted((run["beam"], run["total"], run["bleu"]) for run in runs["grid"] if run["set"] == name)
        axes.plot([total for _, total, _ in points], [bleu for *_, bleu in points], marker=marker, markersize=5, label=name)
        axes.annotate(f"k = {points[0][0]}", points[0][1:], textcoords="offset points", xytext=(5, -9), fontsize="x-small")
    finish(axes, "model score (sum of log-probabilities)", "BLEU", f"BLEU by model score, {about(runs)}", file)


FIGURES = {"figure4.png": figure_4, "figure5.png": figure_5, "figure7.png": figure_7, "figure8.png": figure_8}

if __name__ == "__main__":
    draw_figures(__doc__, "runs.py", FIGURES)
