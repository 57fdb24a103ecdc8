"""What tests of statistics share: the JSON object without times, and whether two are equal."""

from __future__ import annotations

from typing import Any

import pytest

TIMES = ("seconds", "probe")


def untimed(found: dict[str, Any]) -> dict[str, Any]:
    """A JSON object without what a clock says, at any depth."""
    return {k: untimed(v) if isinstance(v, dict) else v for k, v in found.items() if k not in TIMES}


def close(found: Any, expected: Any) -> bool:
    """Equal JSON, numbers nearly so."""
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(close(found[k], v) for k, v in expected.items())
        )
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(map(close, found, expected))
        )
    return found == (
        pytest.approx(expected, abs=1e-9) if isinstance(expected, (int, float)) else expected
    )
