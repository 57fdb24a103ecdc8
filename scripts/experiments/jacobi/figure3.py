"""The paper's Figure 3: speed over greedy against resources, from measure.py's results with different --threads.

    python scripts/experiments/jacobi/figure3.py --out figure3.png RESULT.json [RESULT.json ...]

Threads that this machine does not have are not simulated. The dashed lines are each method's calls, what it would gain if a wider call
cost nothing: the paper's 1.99x at 122 cores is time on its way from the one to the other.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

METHODS = ("PJ", "PGJ b=3", "HGJ b=3", "window, target-side table", "window, drafts with source")
GREEDY = "our greedy"


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("results", nargs="+", type=Path)
    parse.add_argument("--out", type=Path, required=True)
    args = parse.parse_args()
    results = sorted((json.loads(file.read_text(encoding="utf-8")) for file in args.results), key=lambda r: r["about"]["threads"])
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    threads = [r["about"]["threads"] for r in results]
    for i, method in enumerate(m for m in METHODS if all(m in r["rows"] for r in results)):
        speed = [r["rows"][method]["speed"][GREEDY] for r in results]
        middle = [s[0] for s in speed]
        errors = [[s[0] - s[1] for s in speed], [s[2] - s[0] for s in speed]]
        axes.errorbar(range(len(threads)), middle, yerr=errors, marker="o", markersize=4, capsize=3, color=f"C{i}", label=method)
        gain = results[0]["rows"][GREEDY]["decoder_calls"] / results[0]["rows"][method]["decoder_calls"]
        axes.axhline(gain, color=f"C{i}", linestyle="--", linewidth=0.8)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(threads)), [str(t) for t in threads])
    axes.set_xlim(-0.3, len(threads) - 0.7)
    axes.set_xlabel("threads")
    axes.set_ylabel("speed over our greedy; dashed: fewer calls")
    about = results[0]["about"]
    axes.set_title(f"{about['size']['name']}, {about['text']}, one sentence at a time", fontsize=10)
    axes.legend(fontsize=8)
    figure.savefig(args.out, dpi=110)


if __name__ == "__main__":
    main()
