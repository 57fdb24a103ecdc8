"""The paper's Tables 2 and 3, and Figures 4 and 6 to 9 in numbers, as Markdown from
DIR/runs.json (runs.py makes it).

python scripts/experiments/dba/tables.py --out DIR        writes DIR/tables.md and prints it
"""

import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from write_up import difference_cell, made_by, table, with_interval, write_tables  # noqa: E402

MOST = 16  # constraint tokens: larger numbers share a column


def table_2(runs: dict[str, Any]) -> str:
    """How many tokens the constraints have once they are segmented."""
    counts = {
        name: Counter(min(n, MOST) for n in tokens) for name, tokens in runs["tokens"].items()
    }
    columns = range(min(map(min, counts.values())), max(map(max, counts.values())) + 1)
    head = ["set", *(f"{n}+" if n == MOST else str(n) for n in columns), "mean"]
    rows = []
    for name, count in counts.items():
        mean = sum(runs["tokens"][name]) / len(runs["tokens"][name])
        rows.append([name, *(str(count[n] or "") for n in columns), f"{mean:.2f}"])
    return "### Table 2: sentences by number of constraint tokens, after segmentation\n\n" + table(
        head, rows
    )


def table_3(runs: dict[str, Any]) -> str:
    """BLEU and decoder rows at every threshold."""
    beam = runs["table_beam"]
    unpruned = {run["set"]: run for run in runs["grid"] if run["beam"] == beam}
    thresholds = list(dict.fromkeys(run["prune"] for run in runs["pruned"]))
    bleu, cost = [], []
    for name, run in unpruned.items():
        across = [
            run,
            *(r for x in thresholds for r in runs["pruned"] if (r["set"], r["prune"]) == (name, x)),
        ]
        bleu.append([name, *(with_interval(r) for r in across)])
        cost.append(
            [name, *(f"{r['decoder_rows'] / unpruned['none']['decoder_rows']:.2f}" for r in across)]
        )
    head = ["set", "off", *(f"{x:g}" for x in thresholds)]
    return (
        f"### Table 3: BLEU by pruning threshold, beam {beam}\n\n"
        f"{table(head, bleu)}\n"
        "### Decoder rows by pruning threshold, over those of unconstrained search\n\n"
        f"{table(head, cost)}"
    )


def search(runs: dict[str, Any]) -> str:
    """Everything at every beam: what Figures 5 and 8 show."""
    rows = [
        [
            run["set"],
            str(run["beam"]),
            with_interval(run),
            f"{run['total']:.0f}",
            f"{run['ratio']:.3f}",
            f"{run['met']} of {run['given']}",
        ]
        for run in runs["grid"]
    ]
    if (reference := runs.get("reference_score")) is not None:
        rows.append(["references", "", "", f"{reference:.0f}", "", ""])
    head = ["set", "beam", "BLEU", "model score", "length ratio", "constraints met"]
    return "### BLEU and model score (sum of log-probabilities)\n\n" + table(head, rows)


def present(runs: dict[str, Any]) -> str:
    """Appendix A.1: how many of the phrases the search without words writes by itself."""
    if "present" not in runs:  # results of old
        return ""
    title = (
        f"### Appendix A.1: phrases that the output without words has, beam {runs['table_beam']}"
    )
    return f"{title}\n\n" + table(
        ["set", "per cent"], [[name, f"{share:.0f}"] for name, share in runs["present"].items()]
    )


def differences(runs: dict[str, Any]) -> str:
    """BLEU less that of the search without words, with a word fewer, at the table's beam,
    and without pruning."""
    beam = runs["table_beam"]
    words = [
        [
            r["set"],
            str(r["beam"]),
            *(difference_cell(r["over"].get(kind)) for kind in ("none", "fewer", "beam")),
        ]
        for r in runs["grid"]
    ]
    pruned = [
        [r["set"], f"{r['prune']:g}", difference_cell(r["over"]["off"])] for r in runs["pruned"]
    ]
    parts = ["### Differences of BLEU on the same resamples, with 95 % intervals", ""]
    parts += ["Each set is drawn again: the words of rand2 are not those of rand3.", ""]
    parts.append(
        table(
            [
                "set",
                "beam",
                "over no words",
                "over the set with one word fewer",
                f"over beam {beam}",
            ],
            words,
        )
    )
    if pruned:
        parts.append(table(["set", f"--prune-finished, beam {beam}", "over off"], pruned))
    return "\n".join(parts)


def times(runs: dict[str, Any]) -> str:
    """Figure 4 in numbers; nothing where nothing was timed."""
    if not runs["times"]:
        return ""
    columns = sorted({time["tokens"] for time in runs["times"]})
    rows = []
    for method in dict.fromkeys(time["method"] for time in runs["times"]):
        at = {time["tokens"]: time for time in runs["times"] if time["method"] == method}
        rows.append(
            [
                method,
                *(
                    (
                        f"{1000 * at[n]['seconds']:.0f} ({1000 * at[n]['low']:.0f}"
                        f"-{1000 * at[n]['high']:.0f})"
                    )
                    for n in columns
                ),
            ]
        )
    title = (
        "### Figure 4: milliseconds of processor time a sentence by number of constraint tokens, "
    )
    title += f"{runs['timed']}, --prune-finished {runs['time_prune']:g}\n\n"
    title += f"Median of {runs['times'][0]['rounds']} alternating round(s), and their range."
    rows.append(["sentences", *(str(at[n]["sentences"]) for n in columns)])
    return title + "\n\n" + table(["search", *map(str, columns)], rows)


def pearson(placement: list[tuple[float, float]]) -> float:
    """Correlation of the places in reference and output; NaN where one of the two
    is always the same."""
    reference, output = zip(*placement, strict=True)
    return (
        statistics.correlation(reference, output)
        if len(set(reference)) > 1 and len(set(output)) > 1
        else float("nan")
    )


def placement(runs: dict[str, Any]) -> str:
    """Figure 7 in one number."""
    if not runs["placement"]:
        return ""
    r, many = pearson(runs["placement"]), len(runs["placement"])
    return (
        f"### Figure 7: place of the first word of {runs['placed']} in reference and output\n\n"
        f"Pearson r = {r:.2f}, {many} constraints\n"
    )


# ---- The paper's own search (paper.py)


def paper_figure_4(found: dict[str, Any]) -> str:
    """BLEU by number of tokens."""
    sizes = found["sizes"]
    rows = [
        [
            row["method"],
            with_interval(row),
            difference_cell(row["over"]),
            f"{row['decoder_rows'] / found['sentences']:.0f}",
            *(f"{row['by'][n]:.1f}" for n in sizes),
        ]
        for row in found["rows"]
    ]
    rows.append(["sentences", str(found["sentences"]), "", "", *map(str, sizes.values())])
    head = ["search", "BLEU", f"over {found['base']}", "rows a sentence", *sizes]
    return (
        f"### Figure 4: BLEU by number of constraint tokens, {found['set']}\n\n"
        "DBA and none: our search; of the paper, and GBS: --stop ranked --prune-finished 20.\n\n"
        + table(head, rows)
    )


def paper_table_3(found: list[dict[str, Any]]) -> str:
    thresholds = list(dict.fromkeys(row["prune"] for row in found))
    at = {(row["set"], row["prune"]): row for row in found}
    names = list(dict.fromkeys(row["set"] for row in found))
    head = ["set", *("off" if x is None else f"{x:g}" for x in thresholds)]
    bleu = [[name, *(with_interval(at[name, x]) for x in thresholds)] for name in names]
    cost = [
        [
            name,
            *(
                f"{at[name, x]['decoder_rows'] / at[name, None]['decoder_rows']:.2f}"
                for x in thresholds
            ),
        ]
        for name in names
    ]
    return (
        f"### Table 3 in the paper's search: BLEU by pruning threshold\n\n{table(head, bleu)}\n"
        f"### Its decoder rows, over those without pruning\n\n{table(head, cost)}"
    )


def paper_stops(found: list[dict[str, Any]]) -> str:
    rows = [
        [
            row["set"],
            row["stop"],
            with_interval(row),
            difference_cell(row["over"]),
            f"{row['ratio']:.3f}",
            f"{row['decoder_rows']:,}",
        ]
        for row in found
    ]
    head = ["set", "stop", "BLEU", "over the paper's stop", "length ratio", "decoder rows"]
    return "### Section 6.4: when to stop\n\n" + table(head, rows)


def paper_figure_6(found: dict[str, Any]) -> str:
    rows = [
        ["source", "", found["source"]],
        *(
            [", ".join(row["words"]) or "none", f"{row['score']:.3f}", row["text"]]
            for row in found["rows"]
        ),
        ["reference", "", found["reference"]],
    ]
    return "### Figure 6: one sentence, other words\n\n" + table(
        ["words", "score", "output"], [[cell.replace("|", "\\|") for cell in row] for row in rows]
    )


def paper_figure_9(found: dict[str, Any]) -> str:
    """The beam at the end; long texts are cut in their middle."""
    rows = [
        [
            f"{row['score']:.2f}",
            "finished" if kind == "ended" else "live",
            str(row["tokens"]),
            cut(row["text"]).replace("|", "\\|"),
        ]
        for kind in ("ended", "live")
        for row in found[kind]
    ]
    return (
        f"### Figure 9: the beam of an unpruned search at its end, with {', '.join(found['words'])}"
        f"\n\n{found['source']}\n\nScores of finished hypotheses are normalised, of live ones "
        "sums of log-probabilities.\n\n" + table(["score", "", "tokens", "text"], rows)
    )


def cut(text: str, most: int = 110) -> str:
    return text if len(text) <= most else f"{text[: most - 40]} ... {text[-30:]}"


PAPER_PARTS = {
    "figure4": paper_figure_4,
    "table3": paper_table_3,
    "stops": paper_stops,
    "figure6": paper_figure_6,
    "figure9": paper_figure_9,
}


def markdown(runs: dict[str, Any]) -> str:
    facts = runs["machine"]
    note = (
        f"Model {runs['model']}; {runs['text']}, {runs['sentences']} sentences, "
        f"{'-'.join(runs['languages'])}, extraction seed {runs['seed']}, batches of "
        f"{runs['batch_size']}, at most {runs['max_len'][0]:g} x source + "
        f"{runs['max_len'][1]:g} tokens. "
        f"BLEU ± half of its 95 % interval, bootstrap of 1,000 resamples. {facts['torch_threads']} "
        f"threads, {made_by(facts)}\n"
    )
    parts = [
        note,
        table_2(runs),
        present(runs),
        table_3(runs),
        search(runs),
        differences(runs),
        times(runs),
        placement(runs),
        *(PAPER_PARTS[name](found) for name, found in runs.get("paper", {}).items() if found),
    ]
    return "\n".join(part for part in parts if part)


if __name__ == "__main__":
    write_tables(__doc__, "runs.py", markdown)
