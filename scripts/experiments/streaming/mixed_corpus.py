"""A length-mixed corpus from a parallel text: every line is 1 to LONGEST consecutive sentences
joined, how many drawn by seed.

`mix` writes OUT.src and OUT.tgt, source and reference joined alike. Without `lines` every sentence
is used once; with it the text is gone through again as often as needed.
"""

import random
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from harness import BenchError  # noqa: E402


def groups(sentences: int, longest: int, seed: int, lines: int | None = None) -> list[list[int]]:
    """The sentences of each line; the last line of a run through the text may be
    cut short by its end."""
    draw = random.Random(seed)
    out: list[list[int]] = []
    while lines is None or len(out) < lines:
        start = 0
        while start < sentences:
            size = draw.randint(1, longest)
            out.append(list(range(start, min(start + size, sentences))))
            start += size
        if lines is None:
            return out
    return out[:lines]


def mix(
    text: str,
    languages: list[str],
    out: Path,
    longest: int = 8,
    seed: int = 1,
    lines: int | None = None,
    limit: int | None = None,
) -> int:
    """Write OUT.language for each language from the first `limit` sentences; returns
    the number of lines."""
    sides = []
    for language in languages:
        try:
            sides.append(
                Path(f"{text}.{language}")
                .read_text(encoding="utf-8")
                .removesuffix("\n")
                .split("\n")[:limit]
            )
        except OSError as error:
            raise BenchError(f"cannot read {text}.{language}: {error.strerror}") from error
    if len({len(side) for side in sides}) > 1:
        raise BenchError(
            f"{text} has {' and '.join(str(len(side)) for side in sides)} lines: the languages "
            "are not parallel"
        )
    made = groups(len(sides[0]), longest, seed, lines)
    used = [i for group in made for i in group]
    assert lines or used == [*range(len(sides[0]))], "every sentence once, in order"
    out.parent.mkdir(parents=True, exist_ok=True)
    for language, side in zip(languages, sides, strict=True):
        joined = (" ".join(side[i] for i in group) for group in made)
        Path(f"{out}.{language}").write_text(
            "".join(f"{line}\n" for line in joined), encoding="utf-8"
        )
    return len(made)
