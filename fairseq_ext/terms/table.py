"""The scores as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def table(scores: Mapping[str, Any]) -> str:
    """One score a line, its name in the first column; the signature is the last line."""
    rows = list(flat({name: value for name, value in scores.items() if name not in ("signature", "bootstrap")}))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {shown(value)}" for name, value in rows]
    if "bootstrap" in scores:
        lines += ["", f"{'paired bootstrap':<{width}}  {'score':>9} {'baseline':>9} {'difference':>10} {'p':>7}"]
        for name, of_score in scores["bootstrap"].items():
            numbers = (shown(of_score[key]) for key in ("score", "baseline", "difference", "p"))
            lines.append(f"{name:<{width}}  " + "{:>9} {:>9} {:>10} {:>7}".format(*numbers))
    return "\n".join([*lines, "", scores["signature"]])


def flat(scores: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, Any]]:
    """(name, value) of all scores, nested names joined by spaces."""
    for key, value in scores.items():
        full = f"{name} {key}".strip()
        if isinstance(value, Mapping):
            yield from flat(value, full)
        else:
            yield full, value


def shown(value: Any) -> str:
    """A value as text: numbers with four digits behind the point, a bar where there is nothing to count."""
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
