"""What each method makes of each set of terms, as Markdown from DIR/runs.json (run.py makes it).

python scripts/experiments/terminology/tables.py --out DIR
    writes DIR/tables.md, which it prints
"""

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from write_up import made_by, table, write_tables  # noqa: E402

HEAD = (
    """method|BLEU|chrF2++|terms met|behind the end|overlap 2|overlap 3|rows|time|p BLEU|p chrF"""
)
NOTE = (
    "terms met: share that stands as words; behind the end: share of those that stand behind "
    "final punctuation; rows and time are over unconstrained search; p: paired bootstrap against "
    "dba, {draws} draws."
)
Runs = dict[str, Any]


def row(run: Runs) -> list[str]:
    """A method on a set; a cell is empty where there is nothing to count."""
    cells = [(run[key], ".2f") for key in ("bleu", "chrf2pp")]
    cells += [(run[key], ".1%") for key in ("term_success_words", "after_final_punctuation")]
    cells += [(run["window_overlap"][n], ".3f") for n in ("2", "3")]
    cells += [(run["rows"], ".3f"), (run["time"], ".2f")]
    cells += [(run["p"].get(key), ".3f") for key in ("bleu", "chrf2pp")]
    return [run["method"], *("" if x is None else format(x, form) for x, form in cells)]


def by_set(runs: Runs) -> dict[str, list[Runs]]:
    found: dict[str, list[Runs]] = {}
    for run in runs["rows"]:
        found.setdefault(run["set"], []).append(run)
    return found


def markdown(runs: Runs) -> str:
    """The page."""
    parts = []
    for name, found in by_set(runs).items():
        title = f"{name}: {found[0]['terms']} terms in {found[0]['sentences']} sentences, "
        parts.append(table(HEAD.split("|"), [*map(row, found)], f"{title}beam {runs['beam']}"))
    signatures = {run["method"]: run["signature"] for run in runs["rows"]}
    parts.append("".join(f"- {name}: `{signature}`\n" for name, signature in signatures.items()))
    about = f"{runs['text']}, model {runs['model']}, {'-'.join(runs['languages'])}, extraction "
    about += f"seed {runs['seed']}. {NOTE.format(draws=runs['draws'])}"
    return "\n".join([*parts, about, made_by(runs["machine"]), ""])


if __name__ == "__main__":
    write_tables(__doc__, "run.py", markdown)
