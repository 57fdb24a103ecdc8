"""The paper's Figures 1 and 2 from DIR/sweep.json (sweep.py makes it): model score, and BLEU with
length ratio, against the beam.

    python scripts/experiments/optimal_ending/figures.py --out DIR
        writes DIR/figure1 and DIR/figure2, as SVG and PNG
"""

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from figure_style import COLUMN, FULL, label_lines, level, of, panel, whiskers  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from tables import label, over_beams  # noqa: E402
from write_up import draw_figures  # noqa: E402

FIGURE_1 = (
    "optimal, no reward",
    "optimal, no reward, paper's beam",
    "first (OpenNMT-py default)",
    "fairseq (count)",
)
RAW = 0.0  # of fairseq: no length penalty, so that all of Figure 1 is judged by the same score
# decoders of one method
DASHES = {
    "optimal, no reward": ":",
    "optimal, no reward, paper's beam": "-.",
    "optimal, bounded reward": "--",
    "shrink, length norm.": "--",
}


def draw(
    axes: Axes, sweep: dict[str, Any], lines: list[tuple[str, list[dict]]], quality: str, label: str
) -> None:
    """One line a decoder over the beams, which stand at equal distances because they grow by
    factors, and apart; BLEU with its 95 % interval."""
    beams = sorted({c["beam"] for c in sweep["choices"]})
    for i, (name, choices) in enumerate(lines):
        x = [beams.index(c["beam"]) + 0.04 * (i - len(lines) / 2) for c in choices]
        y = [c["dev"][quality] for c in choices]
        errors = whiskers((c["dev"]["bleu"], c["dev"]["low"], c["dev"]["high"]) for c in choices)
        style = {"linestyle": DASHES.get(choices[0]["decoder"], "-"), **of(name, i)}
        if quality == "bleu":
            axes.errorbar(x, y, yerr=errors, elinewidth=0.6, label=name, **style)
        else:
            axes.plot(x, y, label=name, **style)
    axes.set_xticks(range(len(beams)), [str(b) for b in beams])
    axes.set_xlabel("beam")
    axes.set_ylabel(label)
    axes.margins(y=0.08)


def figure_1(sweep: dict[str, Any]) -> Figure:
    figure, axes = panel(width=COLUMN)
    lines = [(name, over_beams(sweep, {"decoder": name, "value": RAW})) for name in FIGURE_1]
    draw(axes, sweep, lines, "model_score", "model score, mean sum of log-probabilities")
    axes.set_title(f"Search quality, {sweep['dev']}, {sweep['sentences']['dev']} sentences")
    label_lines(axes, room=0.38)
    return figure


def figure_2(sweep: dict[str, Any]) -> Figure:
    lines = [(label(best), over_beams(sweep, best)) for best in sweep["best"]]
    figure, (above, below) = panel(2, 1, width=FULL, height=6.4, sharex=True)
    draw(above, sweep, lines, "bleu", "BLEU, 95 % interval")
    draw(below, sweep, lines, "ratio", "length of output / of reference")
    level(below, 1.0)
    above.set_xlabel("")
    above.set_title(f"{sweep['dev']}, {sweep['sentences']['dev']} sentences")
    for axes in (above, below):
        label_lines(axes, room=0.36 if axes is above else 0.0)
    return figure


if __name__ == "__main__":
    draw_figures(__doc__, "sweep.py", {"figure1": figure_1, "figure2": figure_2})
