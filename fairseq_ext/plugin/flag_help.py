"""Help for each flag of this package: `python -m fairseq_ext`, `flags NAME` and a command's
--help."""

from __future__ import annotations

import difflib
import inspect
import textwrap
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from copy import copy
from dataclasses import Field, dataclass, field, fields, make_dataclass
from pathlib import Path

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.registry import (
    Strategy,
    all_strategies,
    features,
    fields_of,
    file_of,
    flag_kinds,
    flags_of,
    typed,
)
from fairseq_ext.search.settings import DEFAULT, POINTS

PACKAGE = Path(__file__).resolve().parents[1]


@dataclass
class Group:
    """Flags with a common title. example: a command with some of them; page: of their method."""

    title: str
    example: str
    page: str
    note: str = ""  # on fairseq's own flags
    fields: list[Field] = field(default_factory=list)

    @property
    def about(self) -> str:
        """What the help says below the title."""
        example = f"for example: {self.example}   (docs/{self.page})"
        return "\n".join([example, *textwrap.wrap(self.note, 80)])


def groups_of_points() -> dict[str, Group]:
    """Return the empty group of the flags of each extension point's strategies."""
    return {
        "select": Group(
            "required and banned phrases",
            "--constraints-file terms.tsv",
            "constraints.md",
            "fairseq's own --constraints: fairseq-interactive takes phrases typed after a "
            "sentence, each after a tab. Bare it means ordered, as in stock: they come in the "
            "order typed; --constraints unordered: in any order. Phrases of our files and of "
            "Python are unordered unless it says ordered.",
        ),
        "stop": Group(
            "when a sentence ends",
            "--unnormalized --stop optimal --prune-bound",
            "optimal-ending.md",
        ),
        "prune": Group(
            "which hypotheses are dropped",
            "--prune-threshold 1.5 --prune-children 5",
            "streaming.md",
        ),
        "schedule": Group(
            "when sentences start", "--schedule stream --stream-width 64", "streaming.md"
        ),
        "softmax": Group("which words are scored", "--softmax screened", "large-vocabularies.md"),
        "decoding": Group(
            "several tokens a call", "--beam 1 --decoding window", "parallel-decoding.md"
        ),
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


def all_flags() -> dict[str, Field]:
    """Return the fields of every flag of the *_ext tasks, by name."""
    from fairseq_ext.plugin.tasks import Flags

    return {each.name: each for each in fields(Flags) if each.name != "_name"}


def declaring_file(name: str) -> str:
    """Return the file that declares a flag of the *_ext tasks, below the package if it lies
    there."""
    classes = (each for kind in flag_kinds() for each in kind.__mro__)
    return file_of(next(c.__module__ for c in classes if name in inspect.get_annotations(c)))


def flag_groups() -> list[Group]:
    """Return the groups of flags; each flag is in one."""
    own = groups_of_points()
    of_name = {name: own[s.point] for s in reversed(all_strategies()) for name in flags_of(s)}
    of_name |= {point: own[point] for point in POINTS}
    features_with_title = [feature for feature in features() if feature.title]
    of_features = [Group(f.title, f.example, f.page) for f in features_with_title]
    for feature, group in zip(features_with_title, of_features, strict=True):
        of_name |= dict.fromkeys(fields_of([feature.flags]), group)
    run = Group("the run", "--results-file results.jsonl --stats-file run.json", "flags.md")
    for name, each in all_flags().items():
        of_name.get(name, run).fields.append(each)
    return [*own.values(), *of_features, run]


def print_flags() -> None:
    """Print every strategy with its paper and file, and every flag of the *_ext tasks with its
    values, unit and default."""
    import fairseq_ext

    parser = ArgumentParser(
        prog="fairseq-generate ... --task translation_ext",
        description=f"{fairseq_ext.__doc__}\n{strategy_table()}",
        formatter_class=RawDescriptionHelpFormatter,
        add_help=False,
        usage="%(prog)s [flags below]",
    )
    for group in flag_groups():
        kind = make_dataclass(
            "Group", [(f.name, f.type, copy(f)) for f in group.fields], bases=(FairseqDataclass,)
        )
        part = parser.add_argument_group(group.title, group.about)
        gen_parser_from_dataclass(part, kind())  # type: ignore[arg-type]
    print(parser.format_help(), flush=True)


def is_default(strategy: Strategy) -> bool:
    """Return whether a strategy is in use without a flag that names it."""
    return strategy.point == "prune" or DEFAULT[strategy.point] == strategy.name


def explain(name: str) -> str:
    """Return the help, the owners and the page of a flag.

    Errors: UsageError for a name that is no flag of ours.
    """
    plain, flags = name.removeprefix("--").replace("-", "_"), all_flags()
    if plain not in flags:
        near = [each for each in flags if plain in each] or difflib.get_close_matches(plain, flags)
        names = ", ".join(map(typed, near[:5]))
        raise UsageError(
            f"{name} is not a flag of fairseq_ext"
            f"{f' (did you mean {names}?)' if near else ''}: python -m fairseq_ext lists them"
        )
    flag, strategies = flags[plain], all_strategies()
    group = next(each for each in flag_groups() if flag in each.fields)
    pages = {name: f.page for f in features() for name in fields_of([f.flags])}
    owners = ", ".join(s.flag for s in strategies if plain in flags_of(s))
    lines = [
        f"{typed(plain)}: {flag.metadata.get('help', '')}.",
        *(
            f"  {s.flag}: {s.paper} ({s.file}){' [default]' if is_default(s) else ''}"
            for s in strategies
            if s.point == plain
        ),
        *([f"It is read by {owners}."] if owners else []),
        f"It is declared in {in_checkout(declaring_file(plain))}.",
        f"It is implemented in {in_checkout(implementing_file(plain))}.",
        *(
            f"Its value {value} is implemented in {in_checkout(file)}."
            for value, file in files_of_values(plain).items()
        ),
        f"For example: {group.example}",
        f"More: docs/{flag.metadata.get('page') or pages.get(plain) or group.page}",
    ]
    return "\n".join(textwrap.fill(line, 120, subsequent_indent="  ") for line in lines)
