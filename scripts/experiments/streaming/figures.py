"""The paper's Figure 2 from DIR/translation/steps.json (translation.py makes it): time of a step against the tokens decoded before it.

python scripts/experiments/streaming/figures.py --out DIR       writes DIR/figure2.png
"""

import argparse
import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from methods import BenchError  # noqa: E402
from tables import Rows, read_rows  # noqa: E402


def figure_2(steps: Rows, least: int, file: Path) -> None:
    """Median milliseconds of the steps at each length, and per hundred rows, where at least so many steps are known."""
    known = [step for step in steps if len(step["seconds"]) >= least]
    if not known:
        raise BenchError(f"no length has {least} steps: take a longer text or a smaller --least")
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


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parse.add_argument("--out", type=Path, required=True, help="folder of the results")
    parse.add_argument("--least", type=int, default=2, help="steps that a length must have (2)")
    args = parse.parse_args()
    steps = args.out / "translation" / "steps.json"
    if not steps.exists():
        raise BenchError(f"{steps} is missing: run translation.py --out {args.out} first")
    figure_2(read_rows(steps), args.least, args.out / "figure2.png")
    print(args.out / "figure2.png")


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        sys.exit(f"error: {error}")
