"""The paper's Tables 2 and 3, and what each way to stop costs, as Markdown from DIR/runs.json
(run.py makes it); Figures 1 and 2 as SVG: model score, and BLEU with length ratio, against the
beam.

    python scripts/experiments/optimal_ending/tables.py --out DIR
        writes DIR/tables.md, which it prints, DIR/figure1.svg and DIR/figure2.svg
"""

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import figure_style  # noqa: E402, F401  (says so before any work where matplotlib is missing)
from write_up import difference_cell, made_by, table, with_interval, write_tables  # noqa: E402

NO_REWARD = "optimal, no reward"
REWARDED = {"ratio": "optimal, bounded reward", "line": "optimal, bounded reward, line"}
FIGURE_1 = (NO_REWARD, f"{NO_REWARD}, paper's beam", "first (OpenNMT-py default)")
FIGURE_1 += ("fairseq (count)",)
Sweep = dict[str, Any]


def label(choice: Sweep) -> str:
    """A decoder with its number."""
    number = f", {choice['what']} = {choice['value']:g}" if choice["what"] else ""
    return choice["decoder"] + number


def over_beams(sweep: Sweep, decoder: str, value: float) -> list[Sweep]:
    """The choices of a decoder with this number, beam by beam."""
    found = (c for c in sweep["choices"] if (c["decoder"], c["value"]) == (decoder, value))
    return sorted(found, key=lambda c: c["beam"])


def table_2(sweep: Sweep) -> str:
    """Tuning the bounded reward over all beams, for each way to say the wanted length; of equals
    the smaller beam."""
    out = []
    for wanted, decoder in REWARDED.items():
        best: dict[float, Sweep] = {}
        for c in sorted(sweep["choices"], key=lambda c: (-c["dev"]["bleu"], c["beam"])):
            if c["decoder"] in (decoder, NO_REWARD):
                best.setdefault(c["value"], c)
        chosen = [best[r] for r in sorted(best)]
        rows = [
            ["BLEU", *(f"{c['dev']['bleu']:.2f}" for c in chosen)],
            ["length ratio", *(f"{c['dev']['ratio']:.3f}" for c in chosen)],
            ["best b", *(str(c["beam"]) for c in chosen)],
        ]
        title = f"Table 2: tuning the length reward for optimal ending, l = {sweep[wanted]} (dev)"
        out.append(table(["reward r", *(f"{r:g}" for r in sorted(best))], rows, title))
    return "\n".join(out)


def table_3(sweep: Sweep) -> str:
    """Every decoder at its best setting on dev."""
    rows = []
    for c in sweep["best"]:
        both = [c[split] for split in ("dev", "test")]
        paired = difference_cell(c["over_stock"] if c is not sweep["best"][0] else None)
        cells = [label(c), str(c["beam"]), *map(with_interval, both), paired]
        cells.append(difference_cell(c["tuned_over"]))
        rows.append([*cells, *(f"{each['ratio']:.3f}" for each in both)])
    head = ["decoder", "b", "BLEU dev", "BLEU test", "test, over fairseq (count)"]
    head += ["test, tuned optimal over it", "length ratio dev", "length ratio test"]
    return table(head, rows, "Table 3: BLEU at the best settings from dev")


def proved(stats: Sweep) -> str:
    """How many certificates are proofs."""
    found = stats.get("certificates")
    return f"{found['proved']} of {found['proved'] + found['open']}" if found else ""


def costs(sweep: Sweep) -> str:
    """Decoder rows relative to stock fairseq, which decodes k equal rows a sentence at the first
    step where the plug-in decodes one."""
    sentences, out = sweep["cost_sentences"], []
    head = ["--stop", "rows / stock's", "decoder calls", "mean log-probability", "BLEU"]
    for beam, stock in next(iter(sweep["costs"].values()), {}).items():
        rows_of_stock = stock["decoder_rows"] + sentences * (int(beam) - 1)
        rows = []
        for name, s in ((name, stats[beam]) for name, stats in sweep["costs"].items()):
            cells = [name, f"{s['decoder_rows'] / rows_of_stock:.3f}", str(s["decoder_calls"])]
            rows.append([*cells, f"{s['model_score']:.3f}", f"{s['bleu']:.2f}", proved(s)])
        title = f"Cost at beam {beam} (dev, {sentences} sentences; stock: {rows_of_stock} rows)"
        out.append(table([*head, "certificates proved"], rows, title))
    return "\n".join(out)


def steps(sweep: Sweep) -> str:
    """How much earlier than --stop first a sentence ends: the paper has 3 to 5 steps at beam 10."""
    if not sweep["steps"]:
        return ""
    first = sweep["steps"]["first"]
    rows = [
        [name, *(f"{n:.1f} ({first[beam] - n:+.1f})" for beam, n in of_beams.items())]
        for name, of_beams in sweep["steps"].items()
    ]
    title = f"Steps a sentence, and how many earlier than first (dev, {sweep['cost_sentences']} "
    head = ["--stop", *(f"b = {beam}" for beam in first)]
    return table(head, rows, f"{title}sentences, unnormalised scores)")


def steps_by_length(sweep: Sweep) -> str:
    """The same by the length of the source, in words."""
    found = sweep.get("steps_by_length", {})
    names = [name for name in next(iter(found.values()), {}) if name != "sentences"]
    rows = [
        [words, str(row["sentences"])]
        + [f"{row[name]:.1f} ({row['first'] - row[name]:+.1f})" for name in names]
        for words, row in found.items()
    ]
    title = "Steps a sentence by words of the source, and how many earlier than first "
    title += f"({sweep['steps_text']}, {sweep['steps_model']}, beam {sweep['steps_beam']}, "
    title += "unnormalised scores)"
    return table(["words", "sentences", *names], rows, title) if rows else ""


def falls(sweep: Sweep) -> str:
    """What larger beams do to BLEU on dev: the best number of each decoder, beam by beam."""
    beams, rows = sorted({c["beam"] for c in sweep["choices"]}), []
    for best in sweep["best"]:
        found = over_beams(sweep, best["decoder"], best["value"])
        bleu = {c["beam"]: with_interval(c["dev"]) for c in found}
        rows.append([label(best), *(bleu.get(beam, "") for beam in beams)])
    head = ["decoder", *(f"b = {b}" for b in beams)]
    return table(head, rows, "BLEU over beams at the best setting (dev)")


def times(sweep: Sweep) -> str:
    out = []
    head = ["search", "seconds", "over count, same scores", "over fairseq", "decoder calls", "rows"]
    for beam, found in sweep["times"].items():
        rows = []
        for r in found:
            s, stats = sorted(r["seconds"]), r["stats"]
            cells = [r["name"], f"{sum(s) / len(s):.2f} ({s[0]:.2f}-{s[-1]:.2f})", *r["over"]]
            cells += [f"{stats[key]:,}" for key in ("decoder_calls", "decoder_rows")]
            cells.append("" if "r = " in r["name"] else f"{r['score']:.3f}")
            rows.append([*cells, f"{r['bleu']:.2f}", proved(stats)])
        head_of = [*head, "mean log-probability", "BLEU", "proved"]
        out.append(table(head_of, rows, f"Time at beam {beam}"))
    return "\n".join(out)


def markdown(sweep: Sweep) -> str:
    sentences = sweep["sentences"]
    note = (
        f"Model {sweep['model']}; dev {sweep['dev']} ({sentences['dev']} sentences), test "
        f"{sweep['test']} ({sentences['test']}); {'-'.join(sweep['languages'])}; wanted length "
        f"l = {sweep['ratio']} or {sweep['line']} (target subwords by source subwords x, dev; "
        "the second is the least-squares line, EOS counted). BLEU ± half of its 95 % interval, "
        f"bootstrap of 1,000 resamples; differences on the same resamples. "
        f"{made_by(sweep['machine'])}\n"
    )
    parts = [
        part(sweep) for part in (table_2, table_3, falls, costs, steps, steps_by_length, times)
    ]
    return "\n".join([note, *filter(None, parts)])


def figures(sweep: Sweep) -> dict[str, list[dict[str, Any]]]:
    """The beams stand at equal distances because they grow by factors."""
    beams = sorted({c["beam"] for c in sweep["choices"]})
    ticks = [str(b) for b in beams]

    def points(choices: list[Sweep], *names: str) -> list[tuple[float, ...]]:
        return [(beams.index(c["beam"]), *(c["dev"][name] for name in names)) for c in choices]

    best = {label(c): over_beams(sweep, c["decoder"], c["value"]) for c in sweep["best"]}
    raw = {name: points(over_beams(sweep, name, 0.0), "model_score") for name in FIGURE_1}
    about = f"{sweep['dev']}, {sweep['sentences']['dev']} sentences"
    bleu = {name: points(found, "bleu", "low", "high") for name, found in best.items()}
    ratio = {name: points(found, "ratio") for name, found in best.items()}
    mean = "model score, mean sum of log-probabilities"
    shared = {"ticks": ticks, "xlabel": "beam"}
    return {
        "figure1": [
            {**shared, "lines": {n: x for n, x in raw.items() if x}, "ylabel": mean, "title": about}
        ],
        "figure2": [
            {**shared, "lines": bleu, "ylabel": "BLEU, 95 % interval", "title": about},
            {**shared, "lines": ratio, "ylabel": "length of output / of reference", "level": 1.0},
        ],
    }


if __name__ == "__main__":
    write_tables(__doc__, "run.py", markdown, figures)
