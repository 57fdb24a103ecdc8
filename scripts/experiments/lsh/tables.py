"""tables.md from OUT/runs.json: Tables 1, 4, 7 and 8 of Shi, Xu and Knight 2018 on this model, and all searches.

python scripts/experiments/lsh/tables.py --out DIR
"""

import argparse
import json
from pathlib import Path
from typing import Any

BEST = "lsh T=6000 t=2"
PARTS = ("source side", "decoder layers", "softmax", "beam expansion", "hidden states reorder")


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ratio(runs: dict[str, Any], base: str, other: str, part: str | None = None) -> str:
    """How many times faster the other is, each by its own decoder calls where a part is asked for."""
    a, b = runs[base], runs[other]
    if part is None:
        return f"{a['seconds'] / b['seconds']:.2f}"
    return f"{a['parts'][part] / a['calls'] / (b['parts'][part] / b['calls']):.2f}"


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--out", type=Path, required=True)
    out = parse.parse_args().out
    runs = json.loads((out / "runs.json").read_text(encoding="utf-8"))
    full, best = runs["full"], runs[BEST]
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in best["flags"].items())
    text = [
        f"One sentence at a time, beam 5 unless told, {full['sentences']} sentences; CPU seconds of one thread. LSH: `{flags}`. "
        "Compiled code runs the whole search of the full softmax; its parts are those of the same search in the loop.",
        "## Table 1: time breakdown",
    ]
    rows = [["total", f"{full['seconds']:.2f}", f"{best['seconds']:.2f}", ratio(runs, "full", BEST)]]
    rows += [[p, f"{full['parts'][p]:.2f}", f"{best['parts'][p]:.2f}", f"{full['parts'][p] / best['parts'][p]:.2f}"] for p in PARTS]
    rows += [["words scored", "all", f"{best['softmax']['vocab_mean']:.0f}", ""]]
    rows += [["BLEU", f"{full['bleu']:.2f}", f"{best['bleu']:.2f}", ""]]
    text.append(table(["part", "full", "LSH", "speed-up"], rows))
    text.append("## Table 4: stages of the LSH softmax, milliseconds a call")
    stages = best["softmax"]["seconds"]
    total = sum(stages.values())
    text.append(
        table(["stage", "ms", "share"], [[s, f"{1e3 * v / best['calls']:.3f}", f"{100 * v / total:.0f} %"] for s, v in stages.items()])
    )
    text.append("## Table 7: speed-up and loss")
    rows = [[name, ratio(runs, "full", name, "softmax"), ratio(runs, "full", name), f"{full['bleu'] - run['bleu']:+.2f}"]
            for name, run in runs.items() if "beam=" not in name and name != "full"]  # fmt: skip
    text.append(table(["search", "softmax", "overall", "BLEU loss"], rows))
    text.append("## Table 8: larger beams")
    rows = []
    for beam in (12, 24, 36, 48):
        a, b = f"full beam={beam}", f"lsh beam={beam}"
        if a in runs and b in runs:
            loss = runs[a]["bleu"] - runs[b]["bleu"]
            rows.append([str(beam), str(runs[a]["sentences"]), ratio(runs, a, b), f"{loss:+.2f}"])
    text.append(table(["beam", "sentences", "speed-up", "BLEU loss"], rows))
    text.append("## All searches")
    rows = []
    for name, run in runs.items():
        recall = run.get("recall", {})
        words = run["softmax"].get("vocab_mean")
        rows.append([name, f"{run['bleu']:.2f}", f"{run['seconds']:.2f}", f"{1e3 * run['parts']['softmax'] / run['calls']:.2f}",
                     f"{words:.0f}" if words else "all",
                     *(f"{recall[k]:.4f}" if recall.get(k) is not None else "" for k in ("recall_at_1", "recall_at_k"))])  # fmt: skip
    text.append(table(["search", "BLEU", "seconds", "softmax, ms a call", "words", "recall at 1", "recall at k"], rows))
    (out / "tables.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
