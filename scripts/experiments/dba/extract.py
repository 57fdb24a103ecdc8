"""Constraints taken from references, as in Section 5 of the paper: rand1..rand4 are one to four
random words, phr4 a random phrase of four.

A word or phrase is drawn among those that `usable` takes (the target dictionary can write them);
a short line gives what it has.
"""

import random
from collections.abc import Callable, Sequence

# (phrases, words of each)
SETS = {"rand1": (1, 1), "rand2": (2, 1), "rand3": (3, 1), "rand4": (4, 1), "phr4": (1, 4)}
MORE_SETS = SETS | {"phr2": (1, 2), "phr3": (1, 3)}  # phr3: Figure 7; phr2: not in the paper


def extract(
    references: Sequence[str],
    name: str,
    seed: int,
    usable: Callable[[str], bool] = lambda phrase: True,
) -> list[list[str]]:
    """The phrases of each line, in the order in which the reference has them; each
    set draws on its own."""
    count, length = MORE_SETS[name]
    draw = random.Random(f"{name} {seed}")
    out = []
    for line in references:
        words = line.split()
        n = min(length, len(words))
        starts = [i for i in range(len(words) - n + 1) if n and usable(" ".join(words[i : i + n]))]
        out.append(
            [
                " ".join(words[i : i + n])
                for i in sorted(draw.sample(starts, min(count, len(starts))))
            ]
        )
    return out
