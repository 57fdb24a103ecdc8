"""The paper's Tables 1, 2, 6 and 7 from measure.py's results, as Markdown.

python scripts/experiments/jacobi/tables.py --out tables.md RESULT.json [RESULT.json ...]
"""

import argparse
import json
from pathlib import Path

# Opus, de-en and en-de: time (16 cores) and BLEU of Table 1, time and iterations of Table 6 (a
# desktop CPU)
PAPER = {
    "greedy": ("1.00x", "33.10", "1.00x", "1.00x", "1.00x", "28.24", "1.00x", "1.00x"),
    "beam 5": ("0.72x", "33.92", "0.71x", "1.00x", "0.71x", "28.68", "0.71x", "1.00x"),
    "PJ": ("0.75x", "33.10", "0.74x", "1.04x", "0.73x", "28.24", "0.72x", "1.03x"),
    "PGJ b=5": ("1.32x", "33.10", "", "", "1.28x", "28.24", "", ""),
    "PGJ b=3": ("1.37x", "33.10", "1.19x", "1.07x", "1.34x", "28.24", "1.16x", "1.04x"),
    "HGJ b=3": ("1.37x", "33.10", "1.19x", "1.06x", "1.34x", "28.24", "1.16x", "1.04x"),
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
    timed = about["clock"] != "not measured"
    rounds = (
        f"median (extremes) over {len(rows[GREEDY]['seconds'])} rounds; load average at the end "
        f"{about['load']:.1f}."
    )
    lines = [
        f"## {about['pair']}, {about['size']['name']}: {text}",
        "",
        f"Time is {about['clock']}; {rounds}" if timed else "Times were not measured.",
        "",
    ]
    over = "time over our greedy | time over fairseq greedy"
    lines.append(f"| method | calls | iterations | tokens a call | positions | {over} | BLEU |")
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, row in rows.items():
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
        lines.append(f"| {' | '.join([name, *counts, *speeds, format(row['bleu'], '.2f')])} |")
    return [*lines, ""]


def quoted() -> list[str]:
    """The paper's own gains, which no run here repeats: other model, text and machines."""
    rows = [f"| {name} | {' | '.join(cells)} |" for name, cells in PAPER.items()]
    columns = ("Table 1: time", "BLEU", "Table 6: time", "iterations")
    head = [f"{pair}, {column}" for pair in ("de-en", "en-de") for column in columns]
    return [
        "## From the paper: Opus, WMT14, over greedy (Table 1, 16 cores; Table 6, a desktop CPU)",
        "",
        f"| method | {' | '.join(head)} |",
        f"| --- |{' ---: |' * 8}",
        *rows,
        "",
    ]


def data(results: list[dict]) -> list[str]:
    """The paper's Table 4 for the texts here."""
    rows = [
        f"| {a['text']}, {a['pair']} | {a['sentences']:,} | {a['source_tokens']:,} |"
        for a in dict.fromkeys(
            (r["about"]["text"], r["about"]["pair"], i) for i, r in enumerate(results)
        )
        for a in [results[a[2]]["about"]]
    ]
    return [
        "## Table 4: data",
        "",
        "| text | sentences | source tokens |",
        "| --- | ---: | ---: |",
        *dict.fromkeys(rows),
        "",
    ]


def shown(result: dict) -> list[str]:
    """Single sentences, as in the paper's second Table 7."""
    lines = []
    for example in result.get("examples", []):
        lines += [
            f"## Example: {result['about']['pair']}",
            "",
            "| method | output | ms | BLEU |",
            "| --- | --- | ---: | ---: |",
            f"| source | {cell(example['source'])} |  |  |",
            f"| reference | {cell(example['reference'])} |  |  |",
        ]
        lines += [
            f"| {name} | {cell(row['text'])} | {1000 * row['seconds']:.1f} | {row['bleu']:.2f} |"
            for name, row in example["rows"].items()
        ]
        lines.append("")
    return lines


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("results", nargs="+", type=Path)
    parse.add_argument("--out", type=Path, required=True)
    args = parse.parse_args()
    lines = ["# Parallel decoding: calls, time and BLEU (the paper's Tables 1, 2, 6 and 7)", ""]
    lines += [ABOUT, ""]
    results = [json.loads(file.read_text(encoding="utf-8")) for file in args.results]
    for result in results:
        lines += table(result)
    lines += [*quoted(), *data(results), *(line for result in results for line in shown(result))]
    args.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
