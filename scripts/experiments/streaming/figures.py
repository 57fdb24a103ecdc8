"""The paper's Figure 2 from DIR/translation/steps.json (translation.py makes it): time of a step
against the tokens decoded before it.

python scripts/experiments/streaming/figures.py --out DIR       writes DIR/figure2.svg
"""

import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from figure_style import ORANGE, panel, save  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from methods import BenchError  # noqa: E402
from tables import folder, read_rows, with_message  # noqa: E402

LEAST = 3  # steps that a length must have


def figure_2(out: Path) -> Figure | None:
    """Milliseconds of the steps at each length and for a hundred rows (medians and middle halves),
    and the rows; None where no length has enough steps."""
    steps = out / "translation" / "steps.json"
    if not steps.exists():
        raise BenchError(f"{steps} is missing: run translation.py --out {out} first")
    known = [step for step in read_rows(steps) if len(step["seconds"]) >= LEAST]
    if not known:
        return None
    lengths = [step["length"] for step in known]
    per_100 = [
        [100 * s / r for s, r in zip(step["seconds"], step["rows"], strict=True)] for step in known
    ]
    figure, (time, each, count) = panel(3, 1, height=5.4, sharex=True)
    for axes, seconds in ((time, [step["seconds"] for step in known]), (each, per_100)):
        quarters = [
            [1000 * q for q in statistics.quantiles(of_length, n=4)] for of_length in seconds
        ]
        axes.fill_between(
            lengths,
            [q[0] for q in quarters],
            [q[2] for q in quarters],
            color=ORANGE,
            alpha=0.25,
            linewidth=0,
        )
        axes.plot(lengths, [q[1] for q in quarters], color=ORANGE)
    time.set_ylabel("ms a step")
    time.set_title("VAR-STREAM: median and middle half of the steps at each length")
    each.set_ylabel("ms for 100 rows")
    rows = [statistics.fmean(step["rows"]) for step in known]
    count.plot(lengths, rows, color=ORANGE)
    count.set(ylabel="rows a step, mean", xlabel="tokens decoded before the step")
    for axes in (time, each, count):
        axes.set_ylim(bottom=0)
    return figure


if __name__ == "__main__":
    out = folder(__doc__)
    figure = with_message(lambda: figure_2(out))
    if figure is None:
        print(f"no Figure 2: no length has {LEAST} steps, take a longer text", file=sys.stderr)
    else:
        print(save(figure, out / "figure2"))
