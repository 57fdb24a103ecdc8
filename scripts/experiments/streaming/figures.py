"""The paper's Figure 2 from DIR/translation/steps.json (translation.py makes it): time of a step against the tokens decoded before it.

python scripts/experiments/streaming/figures.py --out DIR       writes DIR/figure2.png
"""

import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from methods import BenchError  # noqa: E402
from tables import folder, read_rows, with_message  # noqa: E402

LEAST = 3  # steps that a length must have


def figure_2(out: Path, file: Path) -> None:
    """Median milliseconds of the steps at each length, and per hundred rows, where enough steps are known."""
    steps = out / "translation" / "steps.json"
    if not steps.exists():
        raise BenchError(f"{steps} is missing: run translation.py --out {out} first")
    known = [step for step in read_rows(steps) if len(step["seconds"]) >= LEAST]
    if not known:
        raise BenchError(f"no length has {LEAST} steps: take a longer text")
    lengths = [step["length"] for step in known]
    medians = [1000 * statistics.median(step["seconds"]) for step in known]
    figure, (above, below) = plt.subplots(2, 1, figsize=(6, 6), sharex=True, layout="constrained")
    above.plot(lengths, medians, marker=".")
    above.set_ylabel("median milliseconds a step")
    below.plot(lengths, [100 * ms / step["rows"] for ms, step in zip(medians, known, strict=True)], marker=".", color="C1")
    below.set_ylabel("... per 100 rows")
    below.set_xlabel("tokens decoded before")
    for axes in (above, below):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    out = folder(__doc__)
    with_message(lambda: figure_2(out, out / "figure2.png"))
    print(out / "figure2.png")
