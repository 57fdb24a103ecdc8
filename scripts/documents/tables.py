"""What pages say that the code says as well: flag tables, the table of strategies, results.

A generated part of a page stands between `<!-- generated: NAME ARGUMENTS -->` and `<!-- end -->`;
`PARTS` names the functions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

from documents import ages, claims_quality, claims_speed, gains, pivots

PART = re.compile(
    r"(<!-- generated: (?P<name>[\w-]+)(?P<arguments>[^\n]*?) -->\n)(?P<body>.*?)(<!-- end -->)",
    re.DOTALL,
)
ROOT = Path(__file__).resolve().parents[2]


def fill(text: str, up: str = "../..") -> str:
    """Return a page's text with every generated part made again; a part whose function returns None
    stays. up: from the page's folder to the project's. Errors: KeyError for a part that nothing
    makes."""

    def made(m: re.Match[str]) -> str:
        arguments = m["arguments"].split() or (sources(text) if m["name"] == "age" else [])
        body = PARTS[m["name"]](*arguments)
        if body is None:
            return m[0]
        return f"{m[1]}{body.replace('](../../scripts/', f']({up}/scripts/')}\n{m[5]}"

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


SIGNATURES = re.compile(r"<details>.*?</details>\n*", re.DOTALL)


FILE = re.compile(r"(?<!\S)scripts/\S+/results/\S+\.md\b")


def sources(text: str) -> list[str]:
    """Return the results files that the parts of a page name, each once."""
    parts = PART.finditer(text)
    return list(dict.fromkeys(file for m in parts for file in FILE.findall(m["arguments"])))


WANTED = re.compile(r"(?:^| )(only|without|rows:|drop:|pictures:) ")


def results(path: str, *words: str) -> str:
    """Return a results file as the script that measured it wrote it, below the title of the page's
    section.

    words: "only TITLE; TITLE" or "without TITLE; TITLE", the beginnings of titles: these sections
    alone, or all others; "rows: REGEX": of their tables the rows that it finds; "drop: COLUMN;
    COLUMN": without these columns; "pictures: NAME NAME": those of its folder that stand below.
    The file has what is left out, and its signatures."""
    file = ROOT / path
    folder = f"../../{file.parent.relative_to(ROOT).as_posix()}"
    text = IMAGE.sub(lambda m: f"{m[1]}{folder}/{m[2]}", file.read_text().strip())
    _, *parts = WANTED.split(" ".join(words))
    wanted = dict(zip(parts[::2], parts[1::2], strict=True))
    pictures = wanted.pop("pictures:", "").split()
    short = SIGNATURES.sub("", text)
    for how in ("only", "without"):
        if how in wanted:
            short = part_of(short, wanted[how].split("; "), how == "only")
    if "rows:" in wanted:
        short = rows_of(short, wanted["rows:"])
    if "drop:" in wanted:
        short = without_columns(short, wanted["drop:"].split("; "))
    if short != text:
        more = "More of it is" if wanted else "The signatures are"
        short += f"\n\n{more} in [{file.name}]({folder}/{file.name})."
    text = short
    if "experiments" in file.parts:  # a page of a paper has a section for each results file
        levels = [len(level) for level in re.findall("^(#+) ", text, flags=re.MULTILINE)]
        lower = "#" * (3 - min(levels, default=3))
        text = re.sub("^(?=#+ )", lower, text, flags=re.MULTILINE)
    return "\n\n".join([text, *(f"![{name}]({folder}/{name}.svg)" for name in pictures)])


TABLE = re.compile(r"(?:^\|.*(?:\n|\Z))+", re.MULTILINE)


def without_columns(text: str, names: list[str]) -> str:
    """Return a text whose tables lack these columns."""

    def fewer(found: re.Match[str]) -> str:
        lines = [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in found[0].splitlines()
        ]
        kept = [place for place, name in enumerate(lines[0]) if name not in names]
        return "".join(f"| {' | '.join(line[place] for place in kept)} |\n" for line in lines)

    return TABLE.sub(fewer, text)


def rows_of(text: str, regex: str) -> str:
    """Return a text whose tables have the rows alone that a regular expression finds; a table
    without any is left out. Errors: KeyError where it finds none."""

    def some(table: re.Match[str]) -> str:
        head, rule, *rows = table[0].splitlines()
        rows = [row for row in rows if re.search(regex, row)]
        return "".join(f"{line}\n" for line in (head, rule, *rows)) if rows else ""

    kept = TABLE.sub(some, text)
    if not re.search(regex, kept, re.MULTILINE):
        raise KeyError(f"no row {regex}")
    return re.sub(r"\n{3,}", "\n\n", kept).strip()


def part_of(text: str, titles: list[str], only: bool) -> str:
    """Return the sections of a text whose titles begin so, and what comes before the first one, or
    all other sections. Errors: KeyError for a title that no section has."""
    kept, seen = [], set[str]()
    level, has_headings = 0, False  # level: of the named section that a line is in, 0 for none
    for line in text.splitlines():
        if heading := re.match("#+", line):
            title = line.lstrip("# ")
            named = next((each for each in titles if title.startswith(each)), None)
            if named is not None:
                seen.add(named)
            if level == 0 or len(heading[0]) <= level:
                level = len(heading[0]) if named is not None else 0
        has_headings = has_headings or heading is not None
        if (level > 0) == only or not has_headings:
            kept.append(line)
    if missing := set(titles) - seen:
        raise KeyError(f"no section {missing}")
    return "\n".join(kept).strip()


def table_of(path: str, *words: str) -> str:
    """Return the first table of a results file below the heading that begins with a title; words:
    the title, none for the file's first table, and "rows:" and "drop:" as in `results`."""
    title, *parts = WANTED.split(" ".join(words))
    wanted = dict(zip(parts[::2], parts[1::2], strict=True))
    above = rf"^#+ {re.escape(title)}.*\n+(?:[^|#\n].*\n+)*" if title else "^"
    heading = rf"{above}((?:\|.*\n)+)"
    match = re.search(heading, (ROOT / path).read_text() + "\n", re.MULTILINE)
    if match is None:
        raise KeyError(f"{title} of {path}")
    found = rows_of(match[1], wanted["rows:"]) if "rows:" in wanted else match[1]
    return without_columns(found, wanted.get("drop:", "").split("; ")).strip()


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


PAPERS = {
    "dba": claims_quality.dba,
    "optimal-ending": claims_quality.optimal_ending,
    "streaming": claims_speed.streaming,
    "lsh": claims_speed.lsh,
    "jacobi": claims_speed.jacobi,
}


def claims(paper: str) -> str:
    """Return the table of a paper: its claim, its figure, ours, the verdict and the reason."""
    head = ("the paper's claim", "there", "here", "reproduced", "why")
    return table(head, PAPERS[paper]())


PARTS: dict[str, Callable[..., str]] = {
    "flags": flags_of,
    "all-flags": all_flags,
    "strategies": strategies,
    "flag-files": flag_files,
    "results": results,
    "pivot": pivots.pivot,
    "gather": pivots.gather,
    "claims": claims,
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
