"""The paper's Tables 2 and 3, and Figures 4 and 6 to 9 in numbers, as Markdown from
DIR/runs.json (run.py makes it); Figures 4, 5, 7 and 8 as SVG.

python scripts/experiments/dba/tables.py --out DIR        writes DIR/tables.md and prints it
"""

import statistics
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import figure_style  # noqa: E402, F401  (says so before any work where matplotlib is missing)
from write_up import difference_cell, made_by, table, with_interval, write_tables  # noqa: E402

MOST = 16  # constraint tokens: larger numbers share a column
Runs = dict[str, Any]


def table_2(runs: Runs) -> str:
    """How many tokens the constraints have once they are segmented."""
    counts = {name: Counter(min(n, MOST) for n in found) for name, found in runs["tokens"].items()}
    columns = range(min(map(min, counts.values())), max(map(max, counts.values())) + 1)
    head = ["set", *(f"{n}+" if n == MOST else str(n) for n in columns), "mean"]
    rows = [
        [name, *(str(of[n] or "") for n in columns), f"{statistics.mean(runs['tokens'][name]):.2f}"]
        for name, of in counts.items()
    ]
    return table(
        head, rows, "Table 2: sentences by number of constraint tokens, after segmentation"
    )


def by_threshold(rows: list[Runs], titles: tuple[str, str], base: Callable[[Runs], float]) -> str:
    """BLEU, and decoder rows over those of `base`, of each set at every threshold."""
    names, thresholds = (list(dict.fromkeys(row[key] for row in rows)) for key in ("set", "prune"))
    at = {(row["set"], row["prune"]): row for row in rows}
    head = ["set", *("off" if x is None else f"{x:g}" for x in thresholds)]
    bleu = [[name, *(with_interval(at[name, x]) for x in thresholds)] for name in names]
    cost = [
        [name, *(f"{at[name, x]['decoder_rows'] / base(at[name, None]):.2f}" for x in thresholds)]
        for name in names
    ]
    return table(head, bleu, titles[0]) + "\n" + table(head, cost, titles[1])


def table_3(runs: Runs) -> str:
    beam = runs["table_beam"]
    unpruned = [run for run in runs["grid"] if run["beam"] == beam]
    free = unpruned[0]["decoder_rows"]
    cost = "Decoder rows by pruning threshold, over those of unconstrained search"
    titles = (f"Table 3: BLEU by pruning threshold, beam {beam}", cost)
    return by_threshold([*unpruned, *runs["pruned"]], titles, lambda _: free)


def search(runs: Runs) -> str:
    """Everything at every beam: what Figures 5 and 8 show."""
    rows = []
    for run in runs["grid"]:
        cells = [run["set"], str(run["beam"]), with_interval(run), f"{run['total']:.0f}"]
        rows.append([*cells, f"{run['ratio']:.3f}", f"{run['met']} of {run['given']}"])
    if (reference := runs.get("reference_score")) is not None:
        rows.append(["references", "", "", f"{reference:.0f}", "", ""])
    head = ["set", "beam", "BLEU", "model score", "length ratio", "constraints met"]
    return table(head, rows, "BLEU and model score (sum of log-probabilities)")


def present(runs: Runs) -> str:
    """Appendix A.1: how many of the phrases the search without words writes by itself."""
    title = f"Appendix A.1: phrases that the output without words has, beam {runs['table_beam']}"
    rows = [[name, f"{share:.0f}"] for name, share in runs.get("present", {}).items()]
    return table(["set", "per cent"], rows, title) if rows else ""


def differences(runs: Runs) -> str:
    """BLEU less that of the search without words, with a word fewer, at the table's beam,
    and without pruning."""
    beam, kinds = runs["table_beam"], ("none", "fewer", "beam")
    words = [
        [r["set"], str(r["beam"]), *(difference_cell(r["over"].get(kind)) for kind in kinds)]
        for r in runs["grid"]
    ]
    pruned = [
        [r["set"], f"{r['prune']:g}", difference_cell(r["over"]["off"])] for r in runs["pruned"]
    ]
    parts = ["### Differences of BLEU on the same resamples, with 95 % intervals", ""]
    parts += ["Each set is drawn again: the words of rand2 are not those of rand3.", ""]
    over = ["over no words", "over the set with one word fewer", f"over beam {beam}"]
    parts.append(table(["set", "beam", *over], words))
    if pruned:
        parts.append(table(["set", f"--prune-finished, beam {beam}", "over off"], pruned))
    return "\n".join(parts)


def times(runs: Runs) -> str:
    """Figure 4 in numbers; nothing where nothing was timed."""
    at = {(time["method"], time["tokens"]): time for time in runs["times"]}
    if not at:
        return ""
    columns = sorted({tokens for _, tokens in at})

    def ms(each: dict[str, Any]) -> list[str]:
        return [f"{1000 * each[key]:.0f}" for key in ("seconds", "low", "high")]

    methods = list(dict.fromkeys(method for method, _ in at))
    cells = lambda m, shown: [shown(at[m, n]) if (m, n) in at else "" for n in columns]  # noqa: E731
    rows = [[m, *cells(m, lambda each: "{} ({}-{})".format(*ms(each)))] for m in methods]
    title = "Figure 4: milliseconds of processor time a sentence by number of constraint tokens, "
    title += f"--prune-finished {runs['time_prune']:g}\n\nThe same {runs['times'][0]['sentences']}"
    title += f" sentences. Median of {runs['times'][0]['rounds']} alternating round(s), and their "
    title += "range."
    head = ["search", *map(str, columns)]
    decoded = [[m, *cells(m, lambda each: f"{each['rows']:.0f}")] for m in methods]
    return table(head, rows, title) + table(head, decoded, "Decoder rows a sentence in Figure 4")


def pearson(placement: list[tuple[float, float]]) -> float:
    """Correlation of the places in reference and output; NaN where one of the two
    is always the same."""
    reference, output = zip(*placement, strict=True)
    varied = min(len(set(reference)), len(set(output))) > 1
    return statistics.correlation(reference, output) if varied else float("nan")


def placement(runs: Runs) -> str:
    """Figure 7 in one number."""
    if not (found := runs["placement"]):
        return ""
    return (
        f"### Figure 7: place of the first word of {runs['placed']} in reference and output\n\n"
        f"Pearson r = {pearson(found):.2f}, {len(found)} constraints\n"
    )


# ---- The paper's own search (paper.py)


def paper_figure_4(found: list[Runs]) -> str:
    """BLEU by number of tokens, a table for each set."""
    return "\n".join(map(of_methods, found))


def of_methods(found: Runs) -> str:
    sizes, rows = found["sizes"], []
    for row in found["rows"]:
        cells = [row["method"], with_interval(row), difference_cell(row["over"])]
        cells += [f"{row['ratio']:.3f}", f"{row['decoder_rows'] / found['sentences']:.0f}"]
        rows.append([*cells, *(f"{row['by'][n]:.1f}" for n in sizes)])
    rows.append(["sentences", str(found["sentences"]), "", "", "", *map(str, sizes.values())])
    head = ["search", "BLEU", f"over {found['base']}", "length ratio", "rows a sentence", *sizes]
    title = f"Figure 4: BLEU by number of constraint tokens, {found['set']}\n\nDBA and none: our "
    title += "search; of the paper, and GBS: --stop ranked --prune-finished 20, unless they say "
    title += "--stop early."
    return table(head, rows, title)


def paper_table_3(found: list[Runs]) -> str:
    titles = "Table 3 in the paper's search: BLEU by pruning threshold"
    over = "Its decoder rows, over those without pruning"
    return by_threshold(found, (titles, over), lambda unpruned: unpruned["decoder_rows"])


def paper_stops(found: list[Runs]) -> str:
    rows = []
    for row in found:
        cells = [row["set"], row["stop"], with_interval(row), difference_cell(row["over"])]
        rows.append([*cells, f"{row['ratio']:.3f}", f"{row['decoder_rows']:,}"])
    head = ["set", "stop", "BLEU", "over the paper's stop", "length ratio", "decoder rows"]
    return table(head, rows, "Section 6.4: when to stop")


def paper_figure_6(found: Runs) -> str:
    rows = [
        [", ".join(r["words"]) or "none", f"{r['score']:.3f}", r["text"]] for r in found["rows"]
    ]
    rows = [["source", "", found["source"]], *rows, ["reference", "", found["reference"]]]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return table(["words", "score", "output"], cells, "Figure 6: one sentence, other words")


def paper_figure_9(found: Runs) -> str:
    """The beam at the end; long texts are cut in their middle."""
    rows = []
    for kind, name in (("ended", "finished"), ("live", "live")):
        for row in found[kind]:
            text = cut(row["text"]).replace("|", "\\|")
            rows.append([f"{row['score']:.2f}", name, str(row["tokens"]), text])
    title = "Figure 9: the beam of an unpruned search at its end, with "
    title += f"{', '.join(found['words'])}\n\n{found['source']}\n\nScores of finished hypotheses "
    title += "are normalised, of live ones sums of log-probabilities."
    return table(["score", "", "tokens", "text"], rows, title)


def cut(text: str, most: int = 110) -> str:
    return text if len(text) <= most else f"{text[: most - 40]} ... {text[-30:]}"


PAPER_PARTS = {
    "figure4": paper_figure_4,
    "table3": paper_table_3,
    "stops": paper_stops,
    "figure6": paper_figure_6,
    "figure9": paper_figure_9,
}


def markdown(runs: Runs) -> str:
    facts, (a, b) = runs["machine"], runs["max_len"]
    note = (
        f"Model {runs['model']}; {runs['text']}, {runs['sentences']} sentences, "
        f"{'-'.join(runs['languages'])}, extraction seed {runs['seed']}, batches of "
        f"{runs['batch_size']}, at most {a:g} x source + {b:g} tokens. "
        f"BLEU ± half of its 95 % interval, bootstrap of 1,000 resamples. {facts['torch_threads']} "
        f"threads, {made_by(facts)}\n"
    )
    own = (table_2, present, table_3, search, differences, times, placement)
    parts = [note, *(part(runs) for part in own)]
    parts += [PAPER_PARTS[name](found) for name, found in runs.get("paper", {}).items() if found]
    return "\n".join(part for part in parts if part)


def figures(runs: Runs) -> dict[str, list[dict[str, Any]]]:
    """Figure 4: the paper's search alone where it was timed. Figure 8: of each set a line over the
    beams."""
    beams = sorted({run["beam"] for run in runs["grid"]})
    sets: dict[str, list[Runs]] = {}
    for run in sorted(runs["grid"], key=lambda run: run["beam"]):
        sets.setdefault(run["set"], []).append(run)
    about, n = f"{runs['text']}, {runs['sentences']} sentences", runs["sentences"]
    bleu = "BLEU, 95 % interval"

    def spread(place: Callable[[Runs], float]) -> dict[str, list[tuple[float, ...]]]:
        return {
            name: [(place(r), r["bleu"], r["low"], r["high"]) for r in of]
            for name, of in sets.items()
        }

    out = {
        "figure5": [
            {
                "lines": spread(lambda r: beams.index(r["beam"])),
                "xlabel": "beam",
                "ticks": [str(k) for k in beams],
                "ylabel": bleu,
                "title": f"BLEU by beam, {about}",
            }
        ],
        "figure8": [
            {
                "lines": spread(lambda r: r["total"] / n),
                "ylabel": bleu,
                "title": about,
                "xlabel": "model score, mean sum of log-probabilities, by beam",
            }
        ],
    }
    timed = dict.fromkeys(time["method"] for time in runs["times"])
    paper = [method for method in timed if "of the paper" in method]
    if timed:
        lines = {
            method: [
                (time["tokens"], *(1000 * time[key] for key in ("seconds", "low", "high")))
                for time in runs["times"]
                if time["method"] == method
            ]
            for method in paper or timed
        }
        title = "Processor time by number of constraints"
        out["figure4"] = [
            {
                "lines": lines,
                "yscale": "log",
                "xlabel": "constraint tokens",
                "ylabel": "ms a sentence",
                "title": title,
            }
        ]
    if found := runs["placement"]:
        lines = {"equal": [(0, 0), (100, 100)], runs["placed"]: found}
        title = f"{len(found)} constraints: Pearson r = {pearson(found):.2f}"
        out["figure7"] = [
            {
                "lines": lines,
                "single": [runs["placed"]],
                "title": title,
                "xlabel": "place of the first word in the reference, % of its words",
                "ylabel": "in the output",
            }
        ]
    return out


if __name__ == "__main__":
    write_tables(__doc__, "run.py", markdown, figures)
