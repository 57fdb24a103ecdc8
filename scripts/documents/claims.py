"""The table at the top of a paper's page: claims_quality.py and claims_speed.py have the rows."""

from __future__ import annotations

from documents import claims_quality, claims_speed

PAGES = {
    "dba": claims_quality.dba,
    "optimal-ending": claims_quality.optimal_ending,
    "streaming": claims_speed.streaming,
    "lsh": claims_speed.lsh,
    "jacobi": claims_speed.jacobi,
}


def claims(paper: str) -> str:
    """Return the table of a paper: its claim, its figure, ours, the verdict and the reason."""
    head = ("the paper's claim", "there", "here", "reproduced", "why")
    lines = [head, ("---",) * len(head), *PAGES[paper]()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
