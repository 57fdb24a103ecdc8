"""The paper's Tables 2 and 3, and what each way to stop costs, as Markdown from DIR/sweep.json
(sweep.py makes it).

    python scripts/experiments/optimal_ending/tables.py --out DIR
        writes DIR/tables.md and prints it
"""

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from write_up import difference_cell, made_by, table, with_interval, write_tables  # noqa: E402

NO_REWARD, PAPER, LINE = (
    "optimal, no reward",
    "optimal, bounded reward",
    "optimal, bounded reward, line",
)


def best_by(choices: list[dict], key: str) -> dict[Any, dict]:
    """The best choice on dev for each value of a field; of equals the smaller beam."""
    out: dict[Any, dict] = {}
    for choice in choices:
        held = out.get(choice[key])
        if held is None or (choice["dev"]["bleu"], -choice["beam"]) > (
            held["dev"]["bleu"],
            -held["beam"],
        ):
            out[choice[key]] = choice
    return dict(sorted(out.items()))


def label(choice: dict) -> str:
    """A decoder with its number."""
    return choice["decoder"] + (
        f", {choice['what']} = {choice['value']:g}" if choice["what"] else ""
    )


def over_beams(sweep: dict[str, Any], setting: dict) -> list[dict]:
    """The choices with the decoder and number of this one, beam by beam."""
    keys = ("decoder", "value")
    return sorted(
        (c for c in sweep["choices"] if all(c[key] == setting[key] for key in keys)),
        key=lambda c: c["beam"],
    )


def table_2(sweep: dict[str, Any]) -> str:
    """Tuning the bounded reward over all beams, for each way to say the wanted length."""
    out = []
    for decoder, wanted in ((PAPER, sweep["ratio"]), (LINE, sweep["line"])):
        best = best_by(
            [c for c in sweep["choices"] if c["decoder"] in (decoder, NO_REWARD)], "value"
        )
        columns = [
            (f"{r:g}", f"{c['dev']['bleu']:.2f}", f"{c['dev']['ratio']:.3f}", str(c["beam"]))
            for r, c in best.items()
        ]
        names = ("reward r", "BLEU", "length ratio", "best b")
        reward, *rows = (
            [name, *row] for name, row in zip(names, zip(*columns, strict=True), strict=True)
        )
        out.append(
            f"### Table 2: tuning the length reward for optimal ending, l = {wanted} (dev)\n\n"
            + table(reward, rows)
        )
    return "\n".join(out)


def table_3(sweep: dict[str, Any]) -> str:
    """Every decoder at its best setting on dev."""
    rows = []
    for c in sweep["best"]:
        scores = [with_interval(c[split]) for split in ("dev", "test")] + [
            f"{c[split]['ratio']:.3f}" for split in ("dev", "test")
        ]
        paired = difference_cell(c["over_stock"] if c is not sweep["best"][0] else None)
        rows.append([label(c), str(c["beam"]), *scores[:2], paired, *scores[2:]])
    head = [
        "decoder",
        "b",
        "BLEU dev",
        "BLEU test",
        "test, over fairseq (count)",
        "length ratio dev",
        "length ratio test",
    ]
    return "### Table 3: BLEU at the best settings from dev\n\n" + table(head, rows)


def costs(sweep: dict[str, Any]) -> str:
    """Decoder rows relative to stock fairseq, which decodes k equal rows a sentence at the first
    step where the plug-in decodes one."""
    sentences, out = sweep["cost_sentences"], []
    for beam, stock in next(iter(sweep["costs"].values())).items():
        rows_of_stock = stock["decoder_rows"] + sentences * (int(beam) - 1)
        rows = []
        for name, stats in sweep["costs"].items():
            s = stats[beam]
            proved = s.get("certificates")
            reported = (
                f"{proved['proved']} of {proved['proved'] + proved['open']}" if proved else ""
            )
            relative = s["decoder_rows"] / rows_of_stock
            rows.append(
                [
                    name,
                    f"{relative:.3f}",
                    str(s["decoder_calls"]),
                    f"{s['model_score']:.3f}",
                    f"{s['bleu']:.2f}",
                    reported,
                ]
            )
        head = [
            "--stop",
            "rows / stock's",
            "decoder calls",
            "mean log-probability",
            "BLEU",
            "certificates proved",
        ]
        out.append(
            f"### Cost at beam {beam} (dev, {sentences} sentences; stock: {rows_of_stock} rows)\n\n"
            + table(head, rows)
        )
    return "\n".join(out)


def steps(sweep: dict[str, Any]) -> str:
    """How much earlier than --stop first a sentence ends: the paper has 3 to 5 steps at beam 10."""
    first = sweep["steps"]["first"]
    rows = [
        [name, *(f"{n:.1f} ({first[beam] - n:+.1f})" for beam, n in of_beams.items())]
        for name, of_beams in sweep["steps"].items()
    ]
    return (
        f"### Steps a sentence, and how many earlier than first (dev, {sweep['cost_sentences']} "
        "sentences, unnormalised scores)\n\n"
        + table(["--stop", *(f"b = {beam}" for beam in first)], rows)
    )


def falls(sweep: dict[str, Any]) -> str:
    """What larger beams do to BLEU on dev: the best number of each decoder, beam by beam."""
    beams = sorted({c["beam"] for c in sweep["choices"]})
    rows = []
    for best in sweep["best"]:
        bleu = {c["beam"]: with_interval(c["dev"]) for c in over_beams(sweep, best)}
        rows.append([label(best), *(bleu.get(beam, "") for beam in beams)])
    return "### BLEU over beams at the best setting (dev)\n\n" + table(
        ["decoder", *(f"b = {b}" for b in beams)], rows
    )


def markdown(sweep: dict[str, Any]) -> str:
    facts = sweep["machine"]
    sentences = sweep["sentences"]
    note = (
        f"Model {sweep['model']}; dev {sweep['dev']} ({sentences['dev']} sentences), test "
        f"{sweep['test']} ({sentences['test']}); {'-'.join(sweep['languages'])}; wanted length "
        f"l = {sweep['ratio']} or {sweep['line']} (target subwords by source subwords x, dev; "
        "the second is the least-squares line, EOS counted). BLEU ± half of its 95 % interval, "
        f"bootstrap of 1,000 resamples; differences on the same resamples. {made_by(facts)}\n"
    )
    return "\n".join(
        [
            note,
            table_2(sweep),
            table_3(sweep),
            falls(sweep),
            *([costs(sweep)] if sweep["costs"] else []),
            *([steps(sweep)] if sweep.get("steps") else []),
        ]
    )


if __name__ == "__main__":
    write_tables(__doc__, "sweep.py", markdown)
