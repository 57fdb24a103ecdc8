"""Many tables of results files in one: a row for each table, a column for each contender."""

from __future__ import annotations

import re

from documents.gains import ROOT, table, tables_in

OPTION = re.compile(r"(?:^| )(by|keys|show|of|named): ")


def short(title: str) -> str:
    """Return a title without what stands behind a colon or in brackets."""
    return re.split(r"[:(]", title)[0].strip()


def pivot(*words: str) -> str:
    """Return one table of all tables of results files that have these columns.

    words: files, then "by: COLUMN", whose values become columns, or "by: file"; "keys: COLUMN;
    COLUMN", whose values name the rows, by default headings and all columns before it; "show:
    COLUMN; COLUMN", what a cell has, without the extremes of rounds; "of: REGEX", the rows or
    headings that are meant; "named: NAME; NAME", a name for each file. Errors: KeyError where no
    table fits."""
    first, *parts = OPTION.split(" ".join(words))
    given = dict(zip(parts[::2], parts[1::2], strict=True))
    paths = first.split()
    shown, by = given["show"].split("; "), given["by"]
    called = given["named"].split("; ") if "named" in given else [""] * len(paths)
    rows: dict[str, dict[str, str]] = {}
    for path, name in zip(paths, called, strict=True):
        for titles, head, lines in tables_in((ROOT / path).read_text(encoding="utf-8")):
            if (by not in head and by != "file") or not set(shown) <= set(head):
                continue
            place = 1 if by == "file" else head.index(by)
            for line in lines:
                if by != "file" and not line[place]:
                    continue
                if "keys" in given:
                    own = [line[head.index(each)] for each in given["keys"].split("; ")]
                    own = [] if given["keys"] == by else own
                else:
                    own = [*titles, *line[:place]]
                label = ", ".join(filter(None, [name if by != "file" else "", *map(short, own)]))
                if not re.search(given.get("of", ""), " ".join([label, *titles])):
                    continue
                cells = [line[head.index(each)] for each in shown]
                text = " / ".join(
                    re.sub(r"(?<=[\dx]) \([\d.]+-[\d.]+\)", "", each) for each in cells
                )
                rows.setdefault(label, {})[name if by == "file" else line[place]] = text
    if not rows:
        raise KeyError(f"a table with {by!r} and {shown} in {first}")
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    named = [(label, *(row.get(x, "") for x in columns)) for label, row in rows.items()]
    return table((" / ".join(shown), *columns), named)


def gather(path: str, *words: str) -> str:
    """Return one table of the tables of a results file: of each the rows whose first cell a regular
    expression finds, named by the table's heading. words: "rows: REGEX", and "show: COLUMN;
    COLUMN", by default all. Errors: KeyError where it finds none."""
    of, _, shown = " ".join(words).partition(" show: ")
    regex = of.removeprefix("rows: ")
    found: list[tuple[str, dict[str, str]]] = []
    for titles, head, rows in tables_in((ROOT / path).read_text(encoding="utf-8")):
        for row in rows:
            if re.search(regex, row[0]):
                cells = dict(zip(head[1:], row[1:], strict=True))
                found.append((f"{short(titles[-1])}: {row[0]}" if titles else row[0], cells))
    columns = (
        shown.split("; ") if shown else list(dict.fromkeys(c for _, each in found for c in each))
    )
    kept = [(name, each) for name, each in found if any(column in each for column in columns)]
    if not kept:
        raise KeyError(f"a row {regex} of {path}")
    return table(
        ("", *columns), [(name, *(each.get(x, "") for x in columns)) for name, each in kept]
    )
