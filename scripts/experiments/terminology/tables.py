"""What each method makes of each set of terms, as Markdown from DIR/runs.json (runs.py makes it).

python scripts/experiments/terminology/tables.py --out DIR        writes DIR/tables.md and prints it
"""

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from write_up import made_by, table, write_tables  # noqa: E402

HEAD = [
    "method",
    "BLEU",
    "chrF2++",
    "terms met",
    "behind the end",
    "overlap 2",
    "overlap 3",
    "rows",
    "time",
]
HEAD += ["p BLEU", "p chrF"]
NOTE = (
    "terms met: share that stands as words; behind the end: share of those that stand behind "
    "final punctuation; rows and time are over unconstrained search; p: paired bootstrap against "
    "dba, {draws} draws."
)


def number(value: float | None, form: str) -> str:
    """A cell; empty where there is nothing to count."""
    return "" if value is None else format(value, form)


def row(run: dict[str, Any]) -> list[str]:
    """A method on a set."""
    overlap = run["window_overlap"]
    return [
        run["method"],
        number(run["bleu"], ".2f"),
        number(run["chrf2pp"], ".2f"),
        number(run["term_success_words"], ".1%"),
        number(run["after_final_punctuation"], ".1%"),
        *(number(overlap[n], ".3f") for n in ("2", "3")),
        number(run["rows"], ".3f"),
        number(run["time"], ".2f"),
        *(number(run["p"][key], ".3f") for key in ("bleu", "chrf2pp")),
    ]


def markdown(runs: dict[str, Any]) -> str:
    """The page."""
    parts = []
    for name in dict.fromkeys(run["set"] for run in runs["rows"]):
        of_set = [run for run in runs["rows"] if run["set"] == name]
        title = (
            f"### {name}: {of_set[0]['terms']} terms in {of_set[0]['sentences']} sentences, "
            f"beam {runs['beam']}"
        )
        parts.append(f"{title}\n\n{table(HEAD, [row(run) for run in of_set])}")
    signatures = {run["method"]: run["signature"] for run in runs["rows"]}
    parts.append(
        "".join(f"- {method}: `{signature}`\n" for method, signature in signatures.items())
    )
    about = (
        f"{runs['text']}, model {runs['model']}, {'-'.join(runs['languages'])}, extraction "
        f"seed {runs['seed']}. "
    )
    return "\n".join(
        [*parts, about + NOTE.format(draws=runs["draws"]), made_by(runs["machine"]), ""]
    )


if __name__ == "__main__":
    write_tables(__doc__, "runs.py", markdown)
