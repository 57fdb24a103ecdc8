"""Help for each flag of this package: `python -m fairseq_ext`, `flags NAME` and a command's
--help."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import textwrap
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable
from pathlib import Path

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.registry import (
    DEFAULT,
    POINTS,
    PRUNERS,
    STRATEGIES,
    Strategy,
    all_strategies,
    features,
    fields_of,
    file_of,
    flag_kinds,
    flags_of,
)

PACKAGE = Path(__file__).resolve().parents[1]

# A group of flags of an extension point's strategies: its title, the point, an example, and its
# page. Features that have a title are groups as well.
GROUPS = (
    ("required and banned phrases", "select", "--constraints-file terms.tsv", "constraints.md"),
    (
        "when a sentence ends",
        "stop",
        "--unnormalized --stop optimal --prune-bound",
        "optimal-ending.md",
    ),
    (
        "which hypotheses are dropped",
        "prune",
        "--prune-threshold 1.5 --prune-children 5",
        "streaming.md",
    ),
    ("when sentences start", "schedule", "--schedule stream --stream-width 64", "streaming.md"),
    ("which words are scored", "softmax", "--softmax screened", "large-vocabularies.md"),
    ("several tokens a call", "decoding", "--beam 1 --decoding window", "parallel-decoding.md"),
)
# of the flags that are left
RUN = ("the run", "--results-file results.jsonl --stats-file run.json", "flags.md")


NEEDED = (  # a flag, or the beginning of flags: what a command has before them
    ("length_reward", "--unnormalized "),
    ("length_", "--unnormalized --length-reward X "),
    ("glossary_", "--glossary FILE "),
    ("avoid_case", "--avoid-file FILE "),
    ("constraint_", "--constraints-file FILE "),
    ("dba_", "--constraints-file FILE "),
    ("gbs_", "--select gbs --constraints-file FILE "),
    ("sampling_", "--sampling "),
    ("mbr_", "--beam 10 --mbr chrf "),
    ("print_utility", "--beam 10 --mbr chrf "),
    ("parallel_length", "--decoding jacobi "),
    ("draft_", "--decoding window "),
    ("shortlist_file", "--softmax lexical "),
    ("shortlist_", "--softmax lexical --shortlist-file FILE "),
    ("resume", "--results-file FILE "),
)
NOTES = {  # notes of a group on fairseq's own flags
    "select": "fairseq's own --constraints: fairseq-interactive takes phrases typed after a "
    "sentence, each after a tab. Bare it means ordered, as in stock: they come in the order typed; "
    "--constraints unordered: in any order. Phrases of our files and of Python are unordered "
    "unless it says ordered."
}


def implementing_file(name: str) -> str:
    """Return the file that implements a flag, below the package if it lies there; for an extension
    point, the folder."""
    if name in POINTS:
        file = f"search/strategies/{name}"
        return f"{file}.py" if name == "schedule" else file
    return all_flags()[name].metadata.get("implemented") or declaring_file(name)


def files_of_values(name: str) -> dict[str, str]:
    """Return the files of those values of a flag that have one of their own."""
    files: dict[str, str] = all_flags()[name].metadata.get("implemented_by_value", {})
    return files


def in_checkout(file: str) -> str:
    """Return the path of a file of the package in a checkout; another file as it is."""
    return f"fairseq_ext/{file}" if (PACKAGE / file).exists() else file


def strategy_table() -> str:
    """Return a line for each registered strategy: flag, paper, file."""
    rows = [(s.flag, s.paper, s.file) for s in all_strategies()]
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    return "\n".join(f"{flag:{first}}  {paper:{second}}  {file}" for flag, paper, file in rows)


def all_flags() -> dict[str, dataclasses.Field]:
    """Return the fields of every flag of the *_ext tasks, by name."""
    from fairseq_ext.plugin.tasks import Flags

    return {field.name: field for field in dataclasses.fields(Flags) if field.name != "_name"}


def declaring_file(name: str) -> str:
    """Return the file that declares a flag of the *_ext tasks, below the package if it lies
    there."""
    classes = (each for kind in flag_kinds() for each in kind.__mro__)
    return file_of(next(c.__module__ for c in classes if name in inspect.get_annotations(c)))


def strategies_of(point: str) -> list[Strategy]:
    """Return the strategies of an extension point, or the pruners."""
    return list((PRUNERS if point == "prune" else STRATEGIES[point]).values())


def flag_groups() -> list[tuple[str, str, str, list[dataclasses.Field]]]:
    """Return the groups of flags: title, example, page, fields; each flag once."""
    all_strategies()
    left, groups = all_flags(), []

    def add(title: str, example: str, page: str, names: Iterable[str]) -> None:
        fields = [left.pop(name) for name in dict.fromkeys(names) if name in left]
        groups.append((title, example, page, fields))

    titled = [feature for feature in features() if feature.title]
    own = fields_of([feature.flags for feature in titled])
    for title, point, example, page in GROUPS:
        of_strategies = [f.name for s in strategies_of(point) for f in flags_of(s).values()]
        names = [point] * (point in POINTS) + of_strategies
        add(title, example, page, [name for name in names if name not in own])
    for feature in titled:
        add(feature.title, feature.example, feature.page, fields_of([feature.flags]))
    add(*RUN, list(left))
    return groups


def print_flags() -> None:
    """Print every strategy with its paper and file, and every flag of the *_ext tasks with its
    values, unit and default."""
    from fairseq.dataclass import FairseqDataclass
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    import fairseq_ext

    parser = ArgumentParser(
        prog="fairseq-generate ... --task translation_ext",
        description=f"{fairseq_ext.__doc__}\n{strategy_table()}",
        formatter_class=RawDescriptionHelpFormatter,
        add_help=False,
        usage="%(prog)s [flags below]",
    )
    notes_of = {title: NOTES[point] for title, point, *_ in GROUPS if point in NOTES}
    for title, example, page, fields in flag_groups():
        notes = [textwrap.fill(notes_of[title], 80)] if title in notes_of else []
        group = parser.add_argument_group(
            title, "\n".join([f"for example: {example}   (docs/{page})", *notes])
        )
        specs = [
            (f.name, f.type, dataclasses.field(default=f.default, metadata=f.metadata))
            for f in fields
        ]
        gen_parser_from_dataclass(
            group, dataclasses.make_dataclass("Group", specs, bases=(FairseqDataclass,))()
        )  # type: ignore[arg-type]
    print(parser.format_help(), flush=True)


def example_of(field: dataclasses.Field, owners: list[Strategy], group: str) -> str:
    """Return an example with this flag in it: that of its group, or the flag with a value, after
    the strategy that reads it."""
    from fairseq.dataclass.utils import interpret_dc_type

    flag = "--" + field.name.replace("_", "-")
    if flag in group.split():
        return group
    kind = interpret_dc_type(field.type)
    default = DEFAULT.get(field.name, field.default)
    choices = getattr(kind, "__members__", None)
    if choices is not None:
        value = " " + next(
            str(choice.value) for choice in choices.values() if str(choice.value) != str(default)
        )
    else:
        value = {bool: "", int: " N", float: " X"}.get(
            kind, " FILE" if field.metadata.get("file") else " TEXT"
        )
    chosen = [s for s in owners if s.point == "prune" or DEFAULT.get(s.point) == s.name]
    first = "" if chosen or not owners or owners[0].point == "select" else f"{owners[0].flag} "
    for begin, before in NEEDED:
        if field.name == begin or (begin.endswith("_") and field.name.startswith(begin)):
            first = before
            break
    return f"{'--beam 1 ' if 'decoding' in first else ''}{first}{flag}{value}"


def page_of(field: dataclasses.Field) -> str:
    """Return the page of a flag, or of its feature; "" for that of its group."""
    pages = {name: f.page for f in features() for name in fields_of([f.flags])}
    return field.metadata.get("page") or pages.get(field.name, "")


def explain(name: str) -> str:
    """Return the help, the owners and the page of a flag.

    Errors: UsageError for a name that is no flag of ours.
    """
    plain = name.removeprefix("--").replace("-", "_")
    for _title, example, page, fields in flag_groups():
        for field in fields:
            if field.name == plain:
                owners = [s for s in all_strategies() if plain in flags_of(s)]
                values = [s for s in all_strategies() if s.point == plain]
                said = str(field.metadata.get("help", ""))
                lines = [f"--{plain.replace('_', '-')}: {said}."]
                lines += [
                    (
                        f"  {s.flag}: {s.paper} "
                        f"({s.file}){' [default]' if DEFAULT.get(plain) == s.name else ''}"
                    )
                    for s in values
                ]
                if owners:
                    lines.append(f"It is read by {', '.join(s.flag for s in owners)}.")
                lines.append(f"It is declared in {in_checkout(declaring_file(plain))}.")
                lines.append(f"It is implemented in {in_checkout(implementing_file(plain))}.")
                lines += [
                    f"Its value {value} is implemented in {in_checkout(file)}."
                    for value, file in files_of_values(plain).items()
                ]
                lines.append(f"Add to a command: {example_of(field, owners, example)}")
                lines.append(f"More: docs/{page_of(field) or page}")
                return "\n".join(textwrap.fill(line, 120, subsequent_indent="  ") for line in lines)
    known = [f.name for *_, fields in flag_groups() for f in fields]
    near = [each for each in known if plain in each] or difflib.get_close_matches(plain, known)
    names = ", ".join("--" + each.replace("_", "-") for each in near[:5])
    raise UsageError(
        f"{name} is not a flag of fairseq_ext"
        f"{f' (did you mean {names}?)' if near else ''}: python -m fairseq_ext lists them"
    )
