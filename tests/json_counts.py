"""What tests of JSON share: an object without times, and whether two values are equal."""

from __future__ import annotations

from typing import Any

TIMES = ("seconds",)


def untimed(found: dict[str, Any]) -> dict[str, Any]:
    """A JSON object without what a clock says, at any depth."""
    return {k: untimed(v) if isinstance(v, dict) else v for k, v in found.items() if k not in TIMES}


def close(a: Any, b: Any, tolerance: float = 1e-9) -> bool:
    """Whether two values are equal, numbers within the tolerance."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(close(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[name], b[name], tolerance) for name in a)
    if float in (type(a), type(b)) and {type(a), type(b)} <= {int, float}:
        return abs(a - b) <= tolerance or a == b
    return bool(a == b)
