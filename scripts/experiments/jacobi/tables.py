"""The paper's Tables 1, 2, 6 and 7 from measure.py's results, as Markdown.

python scripts/experiments/jacobi/tables.py --out tables.md RESULT.json [RESULT.json ...]
"""

import argparse
import json
from pathlib import Path

PAPER = {  # Table 6, Opus on a desktop CPU, de-en: time, iterations
    "fairseq beam 5": (0.71, 1.00),
    "PJ": (0.74, 1.04),
    "PGJ b=3": (1.19, 1.07),
    "HGJ b=3": (1.19, 1.06),
}
ABOUT = """Every method gives greedy's output, sentence for sentence (a \
beam does not). `iterations` is greedy's calls over the
method's, each call counted; PJ's and HGJ's lengths are 1.25 x \
source tokens, never the reference's. `our greedy` is the same driver
with single tokens. `previous output` is a second run over the same \
text; `output of an edited source` has as drafts the translations of
the text without the middle word of each line."""
STOCK, GREEDY = "fairseq greedy", "our greedy"


def spread(speed: list[float] | None) -> str:
    return "-" if speed is None else f"{speed[0]:.2f}x ({speed[1]:.2f}-{speed[2]:.2f})"


def table(result: dict) -> list[str]:
    about, rows = result["about"], result["rows"]
    calls = rows[GREEDY]["decoder_calls"]
    text = (
        f"{about['text']}, {about['sentences']} sentences, batch {about['batch']}, "
        f"{about['threads']} thread(s)"
    )
    rounds = (
        f"median (extremes) over {len(rows[GREEDY]['seconds'])} rounds; load average at the end "
        f"{about['load']:.1f}."
    )
    lines = [
        f"## {about['pair']}, {about['size']['name']}: {text}",
        "",
        f"Time is {about['clock']}; {rounds}",
        "",
    ]
    over = "time over our greedy | time over fairseq greedy"
    lines.append(
        f"| method | calls | iterations | tokens a call | positions | {over} | BLEU | paper: "
        "time, iterations |"
    )
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, row in rows.items():
        paper = (
            "{:.2f}x, {:.2f}x".format(*PAPER[name]) if name in PAPER and about["batch"] == 1 else ""
        )
        counts = [""] * 4
        if "decoder_calls" in row:
            a_call = f"{row['target_tokens'] / row['decoder_rows']:.2f}"
            counts = [
                f"{row['decoder_calls']:,}",
                f"{calls / row['decoder_calls']:.2f}x",
                a_call,
                f"{row['decoder_positions']:,}",
            ]
        speeds = [spread(row["speed"][over]) for over in (GREEDY, STOCK)]
        lines.append(
            f"| {' | '.join([name, *counts, *speeds, format(row['bleu'], '.2f'), paper])} |"
        )
    return [*lines, ""]


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("results", nargs="+", type=Path)
    parse.add_argument("--out", type=Path, required=True)
    args = parse.parse_args()
    lines = ["# Parallel decoding: calls, time and BLEU (the paper's Tables 1, 2, 6 and 7)", ""]
    lines += [ABOUT, ""]
    for file in args.results:
        lines += table(json.loads(file.read_text(encoding="utf-8")))
    args.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
