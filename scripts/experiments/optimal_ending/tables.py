"""The paper's Tables 2 and 3, and what each way to stop costs, as Markdown from DIR/sweep.json (sweep.py makes it).

    python scripts/experiments/optimal_ending/tables.py --out DIR        writes DIR/tables.md and prints it
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from searches import BenchError

Row = list[str]


def read_sweep(out: Path) -> dict[str, Any]:
    try:
        return json.loads((out / "sweep.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(f"{out / 'sweep.json'} is missing: run sweep.py --out {out} first") from error


def table(head: Row, rows: list[Row]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def best_by(choices: list[dict], key: str) -> dict[Any, dict]:
    """The best choice on dev for each value of a field; of equals the smaller beam."""
    out: dict[Any, dict] = {}
    for choice in choices:
        held = out.get(choice[key])
        if held is None or (choice["dev"]["bleu"], -choice["beam"]) > (held["dev"]["bleu"], -held["beam"]):
            out[choice[key]] = choice
    return dict(sorted(out.items()))


def label(choice: dict) -> str:
    """A decoder with its numbers."""
    number = f", {choice['what']} = {choice['value']:g}" if choice["what"] else ""
    return choice["decoder"] + number + (f", ratio x {choice['stretch']:g}" if choice["stretch"] != 1 else "")


def over_beams(sweep: dict[str, Any], setting: dict) -> list[dict]:
    """The choices with the decoder and numbers of this one, beam by beam."""
    keys = ("decoder", "value", "stretch")
    return sorted((c for c in sweep["choices"] if all(c[key] == setting[key] for key in keys)), key=lambda c: c["beam"])


def table_2(sweep: dict[str, Any]) -> str:
    """Tuning the bounded reward over all beams."""
    best = best_by([c for c in sweep["choices"] if c["method"] == "optimal" and c["stretch"] == 1], "value")
    columns = [(f"{r:g}", f"{c['dev']['bleu']:.2f}", f"{c['dev']['ratio']:.3f}", str(c["beam"])) for r, c in best.items()]
    names = ("reward r", "BLEU", "length ratio", "best b")
    reward, *rows = ([name, *row] for name, row in zip(names, zip(*columns, strict=True), strict=True))
    return "### Table 2: tuning the length reward for optimal ending (dev)\n\n" + table(reward, rows)


def table_3(sweep: dict[str, Any]) -> str:
    """Every decoder at its best setting on dev."""
    rows = []
    for c in sweep["best"]:
        scores = [f"{c[split]['bleu']:.2f}" for split in ("dev", "test")] + [f"{c[split]['ratio']:.3f}" for split in ("dev", "test")]
        rows.append([label(c), str(c["beam"]), *scores])
    head = ["decoder", "b", "BLEU dev", "BLEU test", "length ratio dev", "length ratio test"]
    return "### Table 3: BLEU at the best settings from dev\n\n" + table(head, rows)


def costs(sweep: dict[str, Any]) -> str:
    """Decoder rows relative to stock fairseq, which decodes k equal rows a sentence at the first step where the plug-in decodes one."""
    sentences, out = sweep["sentences"]["dev"], []
    for beam, stock in next(iter(sweep["costs"].values())).items():
        rows_of_stock = stock["decoder_rows"] + sentences * (int(beam) - 1)
        rows = []
        for name, stats in sweep["costs"].items():
            s = stats[beam]
            proved = s.get("certificates")
            told = f"{proved['proved']} of {proved['proved'] + proved['open']}" if proved else ""
            relative = s["decoder_rows"] / rows_of_stock
            rows.append([name, f"{relative:.3f}", str(s["decoder_calls"]), f"{s['model_score']:.3f}", f"{s['bleu']:.2f}", told])
        head = ["--stop", "rows / stock's", "decoder calls", "mean log-probability", "BLEU", "certificates proved"]
        out.append(f"### Cost at beam {beam} (dev, {sentences} sentences; stock: {rows_of_stock} rows)\n\n" + table(head, rows))
    return "\n".join(out)


def falls(sweep: dict[str, Any]) -> str:
    """What larger beams do to BLEU on dev: the best number of each decoder, beam by beam."""
    beams = sorted({c["beam"] for c in sweep["choices"]})
    rows = []
    for best in sweep["best"]:
        rows.append([label(best), *(f"{c['dev']['bleu']:.2f}" for c in over_beams(sweep, best))])
    return "### BLEU over beams at the best setting (dev)\n\n" + table(["decoder", *(f"b = {b}" for b in beams)], rows)


def markdown(sweep: dict[str, Any]) -> str:
    facts = sweep["machine"]
    sentences = sweep["sentences"]
    note = (
        f"Model {sweep['model']}; dev {sweep['dev']} ({sentences['dev']} sentences), test {sweep['test']} ({sentences['test']}); "
        f"{'-'.join(sweep['languages'])}; length ratio {sweep['ratio']:g} (subwords, dev). "
        f"torch {facts['torch']}, {facts['cpu']}, commit {facts['git_commit'] or 'none'}, {facts['date']}.\n"
    )
    return "\n".join([note, table_2(sweep), table_3(sweep), falls(sweep), *([costs(sweep)] if sweep["costs"] else [])])


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parse.add_argument("--out", type=Path, required=True, help="folder of the sweep")
    out = parse.parse_args().out
    text = markdown(read_sweep(out))
    (out / "tables.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        sys.exit(f"error: {error}")
