"""The paper's Figures 1 and 2 from DIR/sweep.json (sweep.py makes it): model score, and BLEU with length ratio, against the beam.

    python scripts/experiments/optimal_ending/figures.py --out DIR       writes DIR/figure1.png and DIR/figure2.png
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
sys.path.append(str(Path(__file__).resolve().parents[1]))

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from tables import label, over_beams  # noqa: E402
from write_up import MARKERS, draw_figures  # noqa: E402

FIGURE_1 = ("optimal, no reward", "first (OpenNMT-py default)", "fairseq (count)")
RAW = 0.0  # of fairseq: no length penalty, so that all of Figure 1 is judged by the same score


def draw(axes: Axes, sweep: dict[str, Any], lines: list[tuple[str, list[dict]]], quality: str, label: str) -> None:
    """One line a decoder over the beams, which stand at equal distances because they grow by factors."""
    beams = sorted({c["beam"] for c in sweep["choices"]})
    for (name, choices), marker in zip(lines, MARKERS, strict=False):
        axes.plot([beams.index(c["beam"]) for c in choices], [c["dev"][quality] for c in choices], marker=marker, markersize=5, label=name)
    axes.set_xticks(range(len(beams)), [str(b) for b in beams])
    axes.set_xlabel("beam")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)


def figure_1(sweep: dict[str, Any], file: Path) -> None:
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    lines = [(name, over_beams(sweep, {"decoder": name, "value": RAW})) for name in FIGURE_1]
    draw(axes, sweep, lines, "model_score", "model score (mean log-probability)")
    axes.legend()
    axes.set_title(f"Search quality, {sweep['dev']}, {sweep['sentences']['dev']} sentences")
    figure.savefig(file, dpi=150)


def figure_2(sweep: dict[str, Any], file: Path) -> None:
    lines = [(label(best), over_beams(sweep, best)) for best in sweep["best"]]
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 8), sharex=True, layout="constrained")
    draw(above, sweep, lines, "bleu", "BLEU")
    draw(below, sweep, lines, "ratio", "length of the output / length of the reference")
    below.axhline(1, color="black", linewidth=0.8, linestyle=":")
    above.set_xlabel("")
    above.set_title(f"{sweep['dev']}, {sweep['sentences']['dev']} sentences")
    figure.legend(*above.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    draw_figures(__doc__, "sweep.py", {"figure1.png": figure_1, "figure2.png": figure_2})
