"""What pages say that the code says as well: flag tables, the table of strategies, results.

A generated part of a page stands between `<!-- generated: NAME ARGUMENTS -->` and `<!-- end -->`;
`PARTS` names the functions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

from documents import ages, gains

PART = re.compile(
    r"(<!-- generated: (?P<name>[\w-]+)(?P<arguments>[^\n]*?) -->\n)(?P<body>.*?)(<!-- end -->)",
    re.DOTALL,
)
ROOT = Path(__file__).resolve().parents[2]


def fill(text: str) -> str:
    """Return a page's text with every generated part made again; a part whose function returns None
    stays. Errors: KeyError for a part that nothing makes."""

    def made(m: re.Match[str]) -> str:
        body = PARTS[m["name"]](*m["arguments"].split())
        return m[0] if body is None else f"{m[1]}{body}\n{m[5]}"

    return PART.sub(made, text)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |"
        for line in lines
    )


def flag_rows(fields: list[dataclasses.Field]) -> list[tuple[str, str, str]]:
    """Return flag, values and meaning of dataclass fields."""
    rows = []
    for field in fields:
        if field.name == "_name":
            continue
        rows.append(
            (
                f"`--{field.name.replace('_', '-')}`",
                values_of(field),
                str(field.metadata.get("help", "")),
            )
        )
    return rows


def values_of(field: dataclasses.Field) -> str:
    """Return what a flag takes: its choices, or the kind of value."""
    kind = field.type
    for inner in (kind, *getattr(kind, "__args__", ())):
        if isinstance(inner, type) and hasattr(inner, "__members__"):
            return " ".join(f"`{member.value}`" for member in inner)
    text = str(kind)
    for name, said in (
        ("bool", "on or off"),
        ("int", "integer"),
        ("float", "number"),
        ("str", "text"),
    ):
        if name in text:
            return said
    return text


def flags_of(*names: str) -> str:
    """Return the table of flags of the named strategies (`stop.optimal`), each flag once;
    bare names are single flags."""
    from fairseq_ext.plugin.tasks import Flags
    from fairseq_ext.search import registry
    from fairseq_ext.search.registry import PRUNERS, STRATEGIES

    registry.load_strategies()
    own = {field.name: field for field in dataclasses.fields(Flags)}
    found: dict[str, dataclasses.Field] = {}
    for name in names:
        point, _, strategy = name.partition(".")
        if not strategy:
            found[name.replace("-", "_")] = own[name.replace("-", "_")]
            continue
        read = registry.flags_of((PRUNERS if point == "prune" else STRATEGIES[point])[strategy])
        found |= {each: own[each] for each in read if each in own}
    return table(("flag", "takes", "what it does"), flag_rows(list(found.values())))


def all_flags() -> str:
    """Return the table of every flag of ours."""
    from fairseq_ext.plugin.tasks import Flags

    return table(
        ("flag", "takes", "what it does"), sorted(flag_rows(list(dataclasses.fields(Flags))))
    )


def strategies() -> str:
    """Return the table of strategies: flag, paper, file."""
    from fairseq_ext.search.registry import all_strategies

    rows = [
        (f"`{s.flag}`", s.paper, f"[{s.file}](../fairseq_ext/{s.file})") for s in all_strategies()
    ]
    return table(("flag", "paper", "file"), rows)


def flag_files() -> str:
    """Return the table of all flags: the file that declares each, and the file that acts on it."""
    from fairseq_ext.plugin.flag_help import (
        all_flags,
        declaring_file,
        files_of_values,
        implementing_file,
    )

    flags: dict[tuple[str, ...], list[str]] = {}
    for name in all_flags():
        flag, declared = f"--{name.replace('_', '-')}", declaring_file(name)
        flags.setdefault((declared, implementing_file(name)), []).append(f"`{flag}`")
        for value, file in files_of_values(name).items():
            flags.setdefault((declared, file), []).append(f"`{flag} {value}`")
    rows = [
        (", ".join(names), *(f"[{file}](../fairseq_ext/{file})" for file in files))
        for files, names in flags.items()
    ]
    return table(("flag", "declared in", "acted on in"), rows)


IMAGE = re.compile(r"(!\[[^\]]*\]\()(?!\w+:)([^)]+\))")


def results(path: str, *but: str) -> str:
    """Return a results file as the script that measured it wrote it, below the title of the page's
    section; its pictures, and those next to it, are linked from docs/results.

    but: "without TITLE; TITLE", the beginnings of titles: their sections are left out."""
    file = ROOT / path
    folder = f"../../{file.parent.relative_to(ROOT).as_posix()}"
    text = IMAGE.sub(lambda m: f"{m[1]}{folder}/{m[2]}", file.read_text().strip())
    for title in " ".join(but[1:]).split("; ") if but else ():
        # up to the next heading of its level, or of one above
        section = rf"^(#+) {re.escape(title)}.*\n(?:(?!#+ ).*\n|\1#+ .*\n)*"
        text, found = re.subn(section, "", text + "\n", flags=re.MULTILINE)
        if not found:
            raise KeyError(f"{title} of {path}")
        text = text.strip()
    if "experiments" in file.parts:  # a page of a paper has a section for each results file
        levels = [len(level) for level in re.findall("^(#+) ", text, flags=re.MULTILINE)]
        lower = "#" * (3 - min(levels, default=3))
        text = re.sub("^(?=#+ )", lower, text, flags=re.MULTILINE)
    pictures = [p.name for p in sorted(file.parent.glob("*.svg")) if f"/{p.name})" not in text]
    return "\n\n".join([text, *(f"![{Path(name).stem}]({folder}/{name})" for name in pictures)])


def table_of(path: str, *title: str) -> str:
    """Return the table of a results file below the heading that begins with a title."""
    heading = rf"^#+ {re.escape(' '.join(title))}.*\n\n((?:\|.*\n)+)"
    found = re.search(heading, (ROOT / path).read_text(), re.MULTILINE)
    if found is None:
        raise KeyError(f"{' '.join(title)} of {path}")
    return found[1].strip()


def other_metrics(*paths: str) -> str:
    """Return, for each results file of MBR, how many of its rows gain or lose beyond chance in each
    metric that the row does not optimise (no asterisk)."""
    names, rows = ("BLEU", "chrF", "TER"), []
    for path in paths:
        text = (ROOT / path).read_text()
        lines = [line.split(" | ")[1:4] for line in text.splitlines() if line.startswith("| MBR")]
        cells = []
        for name, column in zip(names, zip(*lines, strict=True), strict=True):
            spans = [re.search(r"\d \((.*) to (.*)\)", cell) for cell in column]
            pairs = [(float(m[1]), float(m[2])) for m in spans if m]
            up, down = sum(low > 0 for low, _ in pairs), sum(high < 0 for _, high in pairs)
            better, worse = (down, up) if name == "TER" else (up, down)
            cells.append(f"{better} better, {worse} worse of {len(pairs)}")
        title = re.search(r"^#+ (.*)$", text, flags=re.MULTILINE)
        rows.append((title[1] if title else path, *cells))
    return table(("rows of MBR, metric not optimised", *names), rows)


PARTS: dict[str, Callable[..., str]] = {
    "flags": flags_of,
    "all-flags": all_flags,
    "strategies": strategies,
    "flag-files": flag_files,
    "results": results,
    "table-of": table_of,
    "age": ages.age,
    "other-metrics": other_metrics,
    "gains": gains.gains,
    "constraints": gains.constraints,
    "optimal-ending": gains.optimal_ending,
    "streaming": gains.streaming,
    "parallel-decoding": gains.parallel_decoding,
    "large-vocabularies": gains.large_vocabularies,
}
