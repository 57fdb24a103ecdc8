"""How much of a heavy test runs: a part of its cases by default, all of them with `--all` (also
`scripts/test.sh --all`).

`@covering(n)` keeps of a test's cases a part in which each value of each of its parameters comes
n times or more, drawn by the test's name, so that it is the same part in every run. `@drawn(n)`
keeps n cases, drawn in the same way: 0 of a test that is long and has one case. `part_of` does the
same for loops within a test, `examples` for what Hypothesis draws.
"""

import os
import random
from collections import Counter

import pytest

# the environment variable that --all sets, for a pytest that a test starts too
ALL = "FAIRSEQ_EXT_TEST_ALL"
covering, drawn = pytest.mark.covering, pytest.mark.drawn


def part_of(count, part):
    """The numbers of a loop's cases: count of them, or the first few."""
    return range(count if os.environ.get(ALL) else part)


def examples(count):
    """How many examples Hypothesis draws: all of them, or a fifth."""
    return len(part_of(count, (count + 4) // 5))


def part(items, least):
    """The items of one test that cover each value of each parameter so often, where there are
    enough: always the next one that covers the most of what is left."""
    cells = {
        item: [
            (name, value if isinstance(value, str) else id(value))
            for name, value in item.callspec.params.items()
        ]
        for item in random.Random(items[0].originalname).sample(items, len(items))
    }
    missing = Counter({cell: least for of_item in cells.values() for cell in of_item})
    kept = set()
    while cells:
        item = max(cells, key=lambda each: sum(missing[cell] > 0 for cell in cells[each]))
        if all(missing[cell] <= 0 for cell in cells[item]):
            break
        kept.add(item)
        missing.subtract(cells.pop(item))
    return kept


def draw(items, count):
    """`count` items of one test, or all where it has fewer."""
    return set(random.Random(items[0].originalname).sample(items, min(count, len(items))))
