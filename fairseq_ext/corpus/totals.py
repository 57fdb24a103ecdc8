"""Statistics of many workers as one: what a unit added, and sums of such."""

from __future__ import annotations

from typing import Any

Counts = dict[str, Any]


def difference(after: Counts, before: Counts) -> Counts:
    """What came between two states of the same counters; text and means as they are after, lists left out."""
    if "gap_mean" in after:
        return certificates(after, before, -1)
    found: Counts = {}
    for key, value in after.items():
        if isinstance(value, dict):
            found[key] = difference(value, before.get(key) or {})
        elif is_count(key, value):
            found[key] = value - (before.get(key) or 0)
        elif not isinstance(value, list):
            found[key] = value
    return found


def total(a: Counts, b: Counts) -> Counts:
    """The sum of two; where they have other things than counts, b's."""
    if "gap_mean" in a and "gap_mean" in b:
        return certificates(a, b, 1)
    found = dict(a)
    for key, value in b.items():
        if isinstance(value, dict):
            found[key] = total(a.get(key) or {}, value)
        else:
            found[key] = value + (a.get(key) or 0) if is_count(key, value) else value
    return found


def is_count(key: str, value: Any) -> bool:
    """Whether it can be added."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and "mean" not in key


def certificates(a: Counts, b: Counts, sign: int) -> Counts:
    """Proved and open ones are counts; the open ones' mean gap is weighted by them."""
    proved, still_open = (a[key] + sign * b.get(key, 0) for key in ("proved", "open"))
    gap = a["gap_mean"] * a["open"] + sign * b.get("gap_mean", 0.0) * b.get("open", 0)
    return {"proved": proved, "open": still_open, "gap_mean": gap / still_open if still_open else 0.0}
