"""What parallel decoding gains on short and on long sentences, from measure.py's results with
batches of one on one thread.

    python scripts/experiments/jacobi/by_length.py --out DIR RESULT.json [RESULT.json ...]

DIR gets by_length.md and, of the first result, by_length.svg. Lengths are tokens of
greedy's output, EOS counted. A gain is greedy's sum over a method's, of the sentences of those
lengths; its interval is the middle 95 per cent of 1,000 resamples of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

from figure_style import FULL, label_lines, level, of, panel, save  # noqa: E402
from intervals import RESAMPLES, SEED, interval  # noqa: E402
from write_up import command_line, table  # noqa: E402

GREEDY, STOCK = "our greedy", "fairseq greedy"
ENDS = (10, 20, 30, 45)  # the last length of each class but the last, which has no end
LEAST = 5  # sentences that a class must have
DRAWN = {  # methods of the figure, and their lines
    "PJ": "-",
    "PGJ b=3": "-",
    "HGJ b=3": "-",
    "window, output of an edited source": "--",
}
Gain = tuple[float, float, float]  # the gain, and its interval


def classes(tokens: list[int]) -> dict[str, np.ndarray]:
    """The sentences of each class of lengths, by its name; classes of few
    sentences are left out."""
    found = np.searchsorted(ENDS, tokens)
    names = [f"{low + 1}-{high}" for low, high in zip((0, *ENDS), ENDS, strict=False)] + [
        f"{ENDS[-1] + 1} and more"
    ]
    return {
        name: places
        for i, name in enumerate(names)
        if len(places := np.flatnonzero(found == i)) >= LEAST
    }


def gain(greedy: list[float], method: list[float], places: np.ndarray) -> Gain:
    """How many times greedy's sum is the method's, over these sentences."""
    a, b = (np.asarray(values, dtype=float)[places] for values in (greedy, method))
    n = len(places)
    times = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    return float(a.sum() / b.sum()), *interval((times @ a) / (times @ b))


def gains(rows: dict[str, Any], what: str) -> dict[str, dict[str, Gain]]:
    """The gain of each method in each class; what: "calls" or "seconds"."""
    greedy = rows[GREEDY]["each"]
    others = [
        name
        for name, row in rows.items()
        if row["each"] and name not in (GREEDY, STOCK) and sum(row["each"]["calls"])
    ]
    found = classes(greedy["tokens"])
    return {
        name: {
            of_class: gain(greedy[what], rows[name]["each"][what], found[of_class])
            for of_class in found
        }
        for name in others
    }


def markdown(result: dict[str, Any]) -> str:
    """Two tables: calls and time."""
    rows, about = result["rows"], result["about"]
    found = classes(rows[GREEDY]["each"]["tokens"])
    many = ["sentences", *(str(len(places)) for places in found.values())]
    text = (
        f"## By length: {about['pair']}, {about['text']}, {about['sentences']} sentences, tokens "
        "of greedy's output\n"
    )
    for what, title in (
        ("calls", "Greedy's calls over the method's"),
        ("seconds", "Greedy's time over the method's (CPU time)"),
    ):
        lines = [many]
        for name, by_class in gains(rows, what).items():
            lines.append(
                [
                    name,
                    *(
                        f"{middle:.2f}x ({low:.2f}-{high:.2f})"
                        for middle, low, high in by_class.values()
                    ),
                ]
            )
        text += f"\n### {title}, with 95 % intervals\n\n{table(['method', *found], lines)}"
    return text


def draw(result: dict[str, Any], file: Path) -> Path:
    """FILE.svg: time over greedy's by length, with intervals."""
    figure, axes = panel(width=FULL)
    every = gains(result["rows"], "seconds")
    found = {name: every[name] for name in DRAWN if name in every} or every
    names = list(next(iter(found.values())))
    for i, (method, by_class) in enumerate(found.items()):
        middle, low, high = (np.array(values) for values in zip(*by_class.values(), strict=True))
        places = [j + 0.03 * (i - len(found) / 2) for j in range(len(names))]
        line = {
            "linestyle": DRAWN.get(method, "-"),
            "label": method,
            "elinewidth": 0.8,
            **of(method, i),
        }
        axes.errorbar(places, middle, yerr=[middle - low, high - middle], **line)
    level(axes, 1.0)
    axes.set_xticks(range(len(names)), names)
    axes.set(xlabel="tokens of greedy's output", ylabel="times faster than greedy, 95 % interval")
    about = result["about"]
    axes.set_title(f"{about['text']}, {about['sentences']} sentences, one at a time")
    label_lines(axes, room=0.33)
    return save(figure, file)


def main() -> None:
    parse = command_line(__doc__)
    parse.add_argument("results", nargs="+", type=Path)
    parse.add_argument("--out", type=Path, required=True, help="folder")
    args = parse.parse_args()
    results = [json.loads(file.read_text(encoding="utf-8")) for file in args.results]
    timed = [
        result
        for result in results
        if (each := result["rows"][GREEDY].get("each")) and classes(each["tokens"])
    ]
    if not timed:  # or no length has enough sentences
        return
    (args.out / "by_length.md").write_text("\n".join(map(markdown, timed)), encoding="utf-8")
    draw(timed[0], args.out / "by_length")


if __name__ == "__main__":
    main()
