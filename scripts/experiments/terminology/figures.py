"""Term success against chrF2++, as the WMT 2025 terminology task draws it, from DIR/runs.json (runs.py makes it).

python scripts/experiments/terminology/figures.py --out DIR       writes DIR/success.png, a panel for each set of terms
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
sys.path.append(str(Path(__file__).resolve().parents[1]))

import matplotlib.pyplot as plt  # noqa: E402
from write_up import MARKERS, draw_figures  # noqa: E402

COLUMNS = 3


def success(runs: dict[str, Any], file: Path) -> None:
    """One point a method; up and to the right is better."""
    sets = list(dict.fromkeys(run["set"] for run in runs["rows"]))
    methods = list(dict.fromkeys(run["method"] for run in runs["rows"]))
    columns = min(COLUMNS, len(sets))
    lines = -(-len(sets) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(3.6 * columns + 1.8, 3.4 * lines), layout="constrained", squeeze=False)
    for axes in grid.flat[len(sets) :]:
        axes.set_axis_off()
    for axes, name in zip(grid.flat, sets, strict=False):
        for i, method in enumerate(methods):
            found = [run for run in runs["rows"] if (run["set"], run["method"]) == (name, method)]
            points = [(run["chrf2pp"], 100 * run["term_success_words"]) for run in found]
            style = {"color": f"C{i % 10}", "marker": MARKERS[i % len(MARKERS)]}
            axes.plot([x for x, _ in points], [y for _, y in points], linestyle="none", label=method, **style)
        axes.set_title(name)
        axes.set_xlabel("chrF2++")
        axes.set_ylabel("terms met as words, %")
        axes.grid(alpha=0.3)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize="small")
    figure.suptitle(f"{runs['text']}, {runs['sentences']} sentences, beam {runs['beam']}")
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    draw_figures(__doc__, "runs.py", {"success.png": success})
