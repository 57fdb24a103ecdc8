"""The table at the top of a paper's page: what the paper claims, what is measured here, whether
that reproduces it, and why. The paper's figures are quoted; ours are read off the results.

Reproduced: "yes" where the effect is at least three quarters of the paper's and, of a difference
with an interval, beyond chance; "direction" where it has the paper's sign and is smaller or within
chance; else, and below a tenth of it, "no".
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

Row = tuple[str, str, str, str, str]
YES, DIRECTION, NO = "yes", "direction", "**no**"
DIFFERENCE = re.compile(r"([-+][\d.]+) \(([-+][\d.]+) to ([-+][\d.]+)\)")


def judged(here: float, there: float, sure: bool = True) -> str:
    """Return the verdict on an effect of 0 without the method, from ours and the paper's."""
    if here * there <= 0 or abs(here) < 0.1 * abs(there):
        return NO
    return YES if sure and abs(here) >= 0.75 * abs(there) else DIRECTION


def of_ratio(here: float, there: float) -> str:
    """Return the verdict on a speed; level, within 3 %, is no effect."""
    return NO if abs(here - 1) < 0.03 else judged(math.log(here), math.log(there))


def differences(cells: Sequence[str]) -> list[tuple[float, float, float]]:
    """Return the differences of cells, with their intervals."""
    found = [DIFFERENCE.search(cell) for cell in cells]
    return [(float(m[1]), float(m[2]), float(m[3])) for m in found if m]


def signed(value: tuple[float, float, float], turn: bool = False) -> str:
    """Return a difference as tables have it; turn: of the second over the first."""
    mid, low, high = (-value[0], -value[2], -value[1]) if turn else value
    return f"{mid:+.2f} ({low:+.2f} to {high:+.2f})"


def of_all(values: Sequence[tuple[float, float, float]], there: float, sign: int = 1) -> str:
    """Return the verdict on the same difference on several texts."""
    middle = sum(sign * mid for mid, _, _ in values) / len(values)
    return judged(middle, there, all(low > 0 or high < 0 for _, low, high in values))
