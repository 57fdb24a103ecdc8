"""figure6, 7 and 8.png from OUT/runs.json: BLEU against speed of Shi, Xu and Knight 2019 on this model.

python scripts/experiments/lsh/figures.py --out DIR
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


def curve(axes: Any, runs: dict[str, Any], base: str, names: list[str], label: str) -> None:
    """BLEU of these searches against how many times faster than `base` they are."""
    points = sorted((runs[base]["seconds"] / runs[n]["seconds"], runs[n]["bleu"]) for n in names if n in runs)
    axes.plot(*zip(*points, strict=True), marker="o", label=label)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--out", type=Path, required=True)
    out = parse.parse_args().out
    runs = json.loads((out / "runs.json").read_text(encoding="utf-8"))
    figures: dict[str, list[tuple[str, list[str], str]]] = {
        "figure6": [
            ("full", [n for n in runs if n.startswith("lsh T=")], "LSH"),
            ("full", [n for n in runs if n.startswith("top T=")], "TOP"),
            ("full", [n for n in runs if n.startswith("lexical")], "lexical"),
            ("full", ["full", "screened"], "full, screened"),
        ],
        "figure7": [(f"full beam={12}", [f"{kind} beam={b}" for b in (12, 6, 3, 1)], label)
                    for kind, label in (("full", "BEAM"), ("lsh", "BEAM + LSH"))],  # fmt: skip
        "figure8": [("full", [f"lsh T={T} t={t}" for t in (1, 2, 3)], f"T = {T}") for T in (2000, 4000, 6000)],
    }
    for name, curves in figures.items():
        figure, axes = pyplot.subplots(figsize=(5, 3.6), layout="constrained")
        for curve_of in curves:
            base, names, label = curve_of
            if base in runs and any(n in runs for n in names):
                curve(axes, runs, base, names, label)
        axes.set(xlabel="speed-up over the full softmax", ylabel="BLEU")
        axes.legend()
        figure.savefig(out / f"{name}.png", dpi=120)
        pyplot.close(figure)


if __name__ == "__main__":
    main()
