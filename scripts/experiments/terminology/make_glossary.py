"""A glossary as a customer may hand it in: nouns of the training text, each with a translation that
the text prefers another one to.

    python scripts/lexical_table.py --source train.de --target train.en --out there
    python scripts/lexical_table.py --source train.en --target train.de --out back
    python scripts/experiments/terminology/make_glossary.py --text train.de --there there
        --back back --out glossary.tsv [--entries 26]

The text is in words, separated by spaces. An entry is a capitalised word of the source side that
stands inside sentences, with the likeliest
of its translations that is another word than the usual one and that is translated back often enough
to be a synonym, not a neighbour ("Hund": not "dog", but "puppy"). The most frequent such words come
first. Made for German, whose nouns are capitalised.

    --text FILE     the source side of the training text (required)
    --there FILE    lexical table (required)
    --back FILE     of the other direction (required)
    --entries N     (26)
    --usual         the usual translations, for run.py --proper
    --out FILE      (required)
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from text import command_line  # noqa: E402

LEAST = 25  # occurrences of a source word
SECOND, BACK = 0.01, 0.15  # least probability of the other translation, and of its way back
Table = dict[str, dict[str, float]]  # translations of a word, likeliest first


def read(file: Path) -> Table:
    """A lexical table."""
    found: Table = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        word, other, p = line.split(" ")
        found.setdefault(word, {})[other] = float(p)
    return found


def related(one: str, other: str) -> bool:
    """Whether two words look like forms of one."""
    one, other = one.casefold(), other.casefold()
    return one[:4] == other[:4] or one in other or other in one


def entries(
    inside: Counter[str], there: Table, back: Table, wanted: int, of_usual: bool
) -> list[tuple[str, str]]:
    """The glossary; inside: how often words stand inside sentences; of_usual: the usual
    translations are the entries."""
    out: list[tuple[str, str]] = []
    taken: set[str] = set()
    for word, n in inside.most_common():
        if n < LEAST or len(out) == wanted:
            break
        if len(word) < 4 or not word[0].isupper() or not word[1:].islower() or word not in there:
            continue
        found = list(there[word].items())
        usual = "" if of_usual else found[0][0]
        for other, p in found[0 if of_usual else 1 :]:
            is_word = len(other) > 3 and other.isalpha() and other.islower()
            if p < SECOND or not is_word or (usual and related(usual, other)) or other in taken:
                continue
            if back.get(other, {}).get(word, 0.0) >= BACK:
                out.append((word, other))
                taken |= {usual, other}
                break
    return out


def main() -> None:
    args = command_line(__doc__).parse_args()
    lines = args.text.read_text(encoding="utf-8").splitlines()
    inside = Counter(word for line in lines for word in line.split()[1:])
    found = entries(inside, read(args.there), read(args.back), args.entries, args.usual)
    args.out.write_text("".join(f"{word}\t{other}\n" for word, other in found), encoding="utf-8")


if __name__ == "__main__":
    main()
