"""Term success against chrF2++, as the WMT 2025 terminology task draws it, from DIR/runs.json
(runs.py makes it).

python scripts/experiments/terminology/figures.py --out DIR
    writes DIR/success.svg, a panel for each set of terms
"""

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from figure_style import FULL, of, panel  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from write_up import draw_figures  # noqa: E402

COLUMNS = 2


def success(runs: dict[str, Any]) -> Figure:
    """One point a method; up and to the right is better."""
    sets = list(dict.fromkeys(run["set"] for run in runs["rows"]))
    methods = list(dict.fromkeys(run["method"] for run in runs["rows"]))
    columns = min(COLUMNS, len(sets))
    lines = -(-len(sets) // columns)
    figure, grid = panel(lines, columns, width=FULL, height=2.3 * lines + 1, squeeze=False)
    for axes in grid.flat[len(sets) :]:
        axes.set_axis_off()
    for axes, name in zip(grid.flat, sets, strict=False):
        for i, method in enumerate(methods):
            found = [run for run in runs["rows"] if (run["set"], run["method"]) == (name, method)]
            points = [(run["chrf2pp"], 100 * run["term_success_words"]) for run in found]
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                linestyle="none",
                label=method,
                alpha=0.8,
                **of(method, i),
            )
        axes.set_title(name)
        axes.set_xlabel("chrF2++")
        axes.set_ylabel("terms met as words, %")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(f"{runs['text']}, {runs['sentences']} sentences, beam {runs['beam']}")
    return figure


if __name__ == "__main__":
    draw_figures(__doc__, "runs.py", {"success": success})
