"""The paper's Figure 3: speed over greedy against resources, from measure.py's results
with different --threads.

    python scripts/experiments/jacobi/figure3.py --out figure3 RESULT.json [RESULT.json ...]

Threads that this machine does not have are not simulated. The hollow points, after a gap, are
greedy's calls over each method's: what it would gain if a wider call cost nothing. The paper's
1.99x of HGJ at 122 cores is time, over greedy on as many cores; its gain in iterations on the same
pair is 1.04x (Table 6, Opus en-de), so calls do not explain it.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from figure_style import FULL, label_lines, level, of, panel, save  # noqa: E402

METHODS = ("PJ", "PGJ b=3", "HGJ b=3", "window, output of an edited source")
GREEDY = "our greedy"
GAP = 1.0  # between the last number of threads and the calls


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("results", nargs="+", type=Path)
    parse.add_argument(
        "--out", type=Path, required=True, help="file without its ending: SVG and PNG are written"
    )
    args = parse.parse_args()
    results = sorted(
        (json.loads(file.read_text(encoding="utf-8")) for file in args.results),
        key=lambda r: r["about"]["threads"],
    )
    figure, axes = panel(width=FULL)
    threads = [str(r["about"]["threads"]) for r in results]
    calls = len(threads) - 1 + GAP
    for i, method in enumerate(m for m in METHODS if all(m in r["rows"] for r in results)):
        style = of(method, i)
        speed = [r["rows"][method]["speed"][GREEDY] for r in results]
        middle = [s[0] for s in speed]
        errors = [[s[0] - s[1] for s in speed], [s[2] - s[0] for s in speed]]
        places = [j + 0.03 * (i - 2) for j in range(len(threads))]
        axes.errorbar(places, middle, yerr=errors, **style)
        gain = (
            results[0]["rows"][GREEDY]["decoder_calls"]
            / results[0]["rows"][method]["decoder_calls"]
        )
        end = calls + 0.03 * (i - 2)
        axes.plot(
            [places[-1], end],
            [middle[-1], gain],
            linestyle=":",
            linewidth=0.8,
            color=style["color"],
        )
        axes.plot(
            [end],
            [gain],
            linestyle="none",
            markerfacecolor="white",
            label=f"{method} {gain:.2f}x",
            **style,
        )
    level(axes, 1.0)
    axes.annotate("greedy", (-0.28, 1), va="center", fontsize=8)
    axes.set_xticks(
        [*range(len(threads)), calls],
        [*(f"{t} thread{'s' * (t != '1')}" for t in threads), "calls alone"],
    )
    axes.set_xlim(-0.3, calls + 0.1)
    axes.set_ylabel("times faster than greedy")
    about = results[0]["about"]
    axes.set_title(f"{about['size']['name']}, {about['text']}, one sentence at a time")
    label_lines(axes, room=0.33)
    print(save(figure, args.out))


if __name__ == "__main__":
    main()
