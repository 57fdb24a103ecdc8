"""Strategies by name, and the capabilities by which strategies and options exclude each other.

A strategy declares its flags, what it needs and what it denies to others. It is one file:
`search/strategies/<point>/<name>.py`, or one outside the package that the environment variable
FAIRSEQ_EXT_STRATEGIES names (several are separated by colons). No other file names it.
docs/strategy.md has a complete example and its parts: the strategy (search/protocols.py), its
flags, the arguments of its builder and its check, and each word of its register line.

`plugin/flags_dataclass.py` collects the flags, `search/checks.py` derives refusals,
`plugin/search_setup.py` builds the strategies of the flags. `tests/test_neutral.py` runs every
neutral setting, `tests/search/strategies/test_outside.py` every example, and
`tests/test_random_flags.py` random compositions of them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.settings import DEFAULT, POINTS, Choices, NoFlags, Settings, Value

# folders whose files register themselves; that of strategies has a folder for each extension point
FOLDERS = ("constraints", "strategies")
FILES = ("mbr",)  # other files of this folder that do
# selections that fairseq's flags choose
STOCKS = {"sampling": "--sampling", "diverse": "--diverse-beam-groups"}
# what flags give that restrict the whole output, and not phrases of it, with every selection
OUTPUTS = "allowed outputs"
OUTSIDE = "FAIRSEQ_EXT_STRATEGIES"
OUTSIDE_MODULE = "fairseq_ext_outside_"  # prefix of the names of their modules
# names of fairseq's own flags, which a file from outside may not use (plugin/flags_dataclass.py)
STOCK_FLAG_NAMES: set[str] = set()
Setting = Mapping[str, Value]  # values of flags by field name, ours and stock's


@dataclass(frozen=True)
class Feature:
    """A group of flags that does not depend on a strategy: a source of constraints, a choice among
    hypotheses, a file of results.

    A field of its flags may declare, as metadata: what it `needs` and `denies` when it is given
    (CAPABILITIES, or those of each value), that it `gives` constraints, the phrases that it
    `applies_to`, a `range`, that it names a `file`, which is `written`; that results are the same
    (`same_results`); why an `engine` or a `corpus` run refuses it; its own `page`; the file where
    it is `implemented`, if that is another one.
    """

    name: str
    flags: type  # dataclass
    check: Callable[[Settings], None] | None = None  # raises UsageError with one sentence
    # its part of the signature, or ""
    signature: Callable[[Settings], str] | None = None
    constrains: bool = False  # strategies with constraints read its flags
    page: str = ""  # documentation of its flags
    # its flags are a group of the help with this title; "": they belong to another one
    title: str = ""
    example: str = ""  # flags of a command to which the others can be added


FEATURES: dict[str, Feature] = {}


def register_feature(name: str, flags: type, **declared: Any) -> None:
    """Register a feature. declared: other fields of `Feature`."""
    FEATURES[name] = Feature(name, flags, **declared)


def features() -> list[Feature]:
    """Return all registered features by name, whatever the order of imports."""
    return [FEATURES[name] for name in sorted(FEATURES)]


@dataclass(frozen=True)
class Strategy:
    """One value of an extension point's flag, or a pruner, which its own flags switch on."""

    point: str
    name: str
    build: Callable  # (its flags, Setup) -> the strategy
    flags: type = NoFlags  # dataclass of its flags; several strategies may share one
    # (its flags, Generation) -> None; raises UsageError with one sentence
    check: Callable | None = None
    # (its flags, Generation) -> text for the signature in addition to its name and flags
    signature_part: Callable | None = None
    needs: frozenset[str] = frozenset()  # of CAPABILITIES
    denies: frozenset[str] = frozenset()
    neutral: tuple[Setting, ...] = ()  # settings at which it equals fairseq
    example: tuple[Setting, ...] = ()  # settings at which it has an effect
    paper: str = ""
    constrained: bool = False  # whether it takes required and banned phrases
    samples: bool = False  # select: whether it samples, by the numbers of sentences
    # schedule: whether sentences start while others are live, so that it needs large batches
    refills: bool = False

    @property
    def flag(self) -> str:
        """The flag as a user writes it."""
        return f"--prune-{self.name}" if self.point == "prune" else f"--{self.point} {self.name}"

    @property
    def is_outside(self) -> bool:
        """Whether its file is outside the package."""
        return self.build.__module__.startswith(OUTSIDE_MODULE)

    @property
    def file(self) -> str:
        """The file that registers it."""
        return file_of(self.build.__module__)


def file_of(module: str) -> str:
    """Return the file of a module, below the package if it lies there."""
    file, package = Path(sys.modules[module].__file__ or ""), Path(__file__).parents[1]
    return file.relative_to(package).as_posix() if file.is_relative_to(package) else str(file)


STRATEGIES: dict[str, dict[str, Strategy]] = {point: {} for point in POINTS}
PRUNERS: dict[str, Strategy] = {}  # pruning is on when its flags are set, not by name


def register(
    point: Literal["select", "stop", "schedule", "softmax", "decoding", "prune"],
    name: str,
    flags: type = NoFlags,
    *,
    needs: tuple[str, ...] = (),
    denies: tuple[str, ...] = (),
    **declared: Any,
) -> Callable:
    """Register a builder under an extension point ("prune" for one that its flags switch on).
    declared: other fields of `Strategy`.

    Errors: UsageError for a name that another strategy, or for flags one of fairseq's, has, and for
    an unknown capability.
    """
    table = PRUNERS if point == "prune" else STRATEGIES[point]
    if unknown := {*needs, *denies} - CAPABILITIES.keys():
        raise UsageError(
            f"the register line of {point} {name} needs or denies {min(unknown)!r}: use words of "
            "the table in docs/strategy.md"
        )
    if point == "select" and name != DEFAULT[point] and not declared.get("constrained"):
        needs = (*needs, "no constraints")

    def add(build: Callable) -> Callable:
        if name in table:
            raise UsageError(
                f"--{point} {name} is registered twice, by {table[name].file} and "
                f"{build.__module__}: choose another name"
            )
        made = Strategy(
            point, name, build, flags, needs=frozenset(needs), denies=frozenset(denies), **declared
        )
        # flags of its own: it may read those of a strategy of the package
        own = fields_of([flags] if flags.__module__ == build.__module__ else [])
        if made.is_outside and (again := STOCK_FLAG_NAMES & own.keys()):
            raise UsageError(
                f"{made.file}: fairseq has a flag {typed(min(again))} already: choose another name"
            )
        table[name] = made
        return build

    return add


@functools.cache
def load_own() -> None:
    """Import every file of FOLDERS and FILES, so that strategies and features register themselves.

    A name with a leading underscore is shared code.
    """
    for file in FILES:
        importlib.import_module(f"{__package__}.{file}")
    for folder in FOLDERS:
        package = importlib.import_module(f"{__package__}.{folder}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.ispkg and not module.name.rpartition(".")[2].startswith("_"):
                importlib.import_module(module.name)


def load_strategies() -> None:
    """Make all strategies and features register themselves, also those from outside the package."""
    load_own()
    for file in filter(None, os.environ.get(OUTSIDE, "").split(os.pathsep)):
        load_outside(Path(file))


def load_outside(file: Path) -> None:
    """Import one strategy file from outside the package, once.

    Errors: UsageError if it does not exist.
    """
    name = OUTSIDE_MODULE + file.stem
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, file) if file.is_file() else None
    if spec is None or spec.loader is None:
        raise UsageError(
            f"{OUTSIDE} names {file}, which is not a Python file (.py): correct the path"
        )
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def all_strategies() -> list[Strategy]:
    """Return all registered strategies, fairseq's own first at each point, pruners last."""
    load_strategies()
    named = [STRATEGIES[point][name] for point in POINTS for name in names_of(point)]
    return [*named, *PRUNERS.values()]


def names_of(point: str) -> list[str]:
    """Return the names of an extension point's strategies, fairseq's own first."""
    return sorted(STRATEGIES[point], key=lambda name: name != DEFAULT[point])


def chosen(settings: Settings, point: str) -> Strategy:
    """Return the strategy of an extension point."""
    return STRATEGIES[point][settings.choice(point)]


def refills(settings: Settings) -> bool:
    """Return whether the schedule starts sentences while others are live."""
    return chosen(settings, "schedule").refills


def samples(settings: Settings) -> bool:
    """Return whether the select strategy samples, by the numbers of sentences."""
    return chosen(settings, "select").samples


def strategies_in_use(settings: Settings) -> list[Strategy]:
    """Return the strategy of every extension point, fairseq's own included, and the pruners that
    their flags switch on."""
    pruners = [s for s in PRUNERS.values() if changed(settings, s)]
    return [chosen(settings, point) for point in POINTS] + pruners


def non_default_strategies(settings: Settings) -> list[Strategy]:
    """Return the strategies that the flags switch on, without fairseq's own."""
    return [s for s in strategies_in_use(settings) if s.name != DEFAULT.get(s.point)]


def flags_of(strategy: Strategy) -> dict[str, dataclasses.Field]:
    """Return the flags that a strategy reads, by name; a strategy with constraints also reads those
    of their sources."""
    kinds = [f.flags for f in features() if f.constrains and strategy.constrained]
    return fields_of([*kinds, strategy.flags])


def fields_of(kinds: Iterable[type]) -> dict[str, dataclasses.Field]:
    """Return the fields of dataclasses of flags, by name."""
    fields = (field for kind in kinds for field in dataclasses.fields(kind))
    return {field.name: field for field in fields if field.name != "_name"}


def changed(settings: Settings, strategy: Strategy) -> dict[str, Value]:
    """Return the strategy's flags that differ from their defaults."""
    return changed_fields(settings, flags_of(strategy).values())


def changed_fields(settings: Settings, fields: Iterable[dataclasses.Field]) -> dict[str, Value]:
    """Return those of some flags that differ from their defaults."""
    values = ((field, settings.value(field)) for field in fields)
    return {field.name: value for field, value in values if value != field.default}


# ---- Declarations of flags


def typed(name: str) -> str:
    """Return a flag as a user types it."""
    return "--" + name.replace("_", "-")


def flag_kinds() -> list[type]:
    """Return the dataclasses of all flags, each once: of the extension points, the strategies and
    the features."""
    strategies = all_strategies()
    kinds = (*(s.flags for s in strategies), *(f.flags for f in features()))
    return list(dict.fromkeys((Choices, *kinds)))


def all_fields() -> dict[str, dataclasses.Field]:
    """Return all flags, by name."""
    return fields_of(flag_kinds())


def is_given(settings: Settings, field: dataclasses.Field) -> bool:
    """Return whether a flag differs from its default."""
    return settings.value(field) not in (field.default, None, "")


def declared(key: str, settings: Settings | None = None) -> dict[str, Any]:
    """Return what flags declare under a key of their metadata, by name. settings: only of those
    that are given there."""
    return {
        name: field.metadata[key]
        for name, field in all_fields().items()
        if key in field.metadata and (settings is None or is_given(settings, field))
    }


def gives_constraints(settings: Settings) -> str | None:
    """Return our first flag by which the command gives phrases; None if there is none."""
    given = declared("gives", settings).items()
    return next((typed(name) for name, kind in given if kind != OUTPUTS), None)


def constraint_flag(settings: Settings) -> str | None:
    """Return a flag by which the command gives constraints of any kind; None if there is none."""
    # ours first: if there are any, the task has set the stock flag itself
    stock = "--constraints" if settings.generation.constraints else None
    return gives_constraints(settings) or stock


def ways(flag: str) -> str:
    """Return the way out for a flag that applies to no phrases of the command."""
    applies_to = all_fields()[flag[2:].replace("-", "_")].metadata.get("applies_to", "phrases")
    files = [
        typed(name)
        for name, kind in declared("gives").items()
        if applies_to == kind or (applies_to == "phrases" and kind != OUTPUTS)
    ]
    return (
        f"add {' or '.join(filter(None, (', '.join(files[:-1]), files[-1])))}, or leave {flag} out"
    )


# ---- Capabilities: what excludes what
#
# The capabilities that strategies and options need or deny, with the sentence for one that needs it
# and one that denies it. The register lines declare those of strategies, checks.py those of
# options. The way out is added to each sentence.
CAPABILITIES = {
    "search loop": "{denier} replaces beam search, so {needer} cannot work with it",
    "beam": "{needer} belongs to beam search, and {denier} has no beam",
    "greedy": "{needer} gives greedy decoding's output (--beam 1 --nbest 1), and {denier} asks for "
    "more than one hypothesis",
    "rows of a beam": "{needer} works on the rows of a beam search, and {denier} reads drafts",
    "one order": "{needer} compares all hypotheses of a sentence, and {denier} has banks, whose "
    "scores cannot be compared",
    "scores of at most 0": "{denier} can make a token's score positive, so {needer} proves nothing",
    "softmax's own order": "{denier} can raise words that {needer} has ruled out",
    "attention": "{needer} reads the attention of every token, which {denier} does not keep",
    "several tokens a call": "{denier} reads one token a call, and {needer} reads several",
    "repeatable calls": "{denier} draws again at every call, so {needer} cannot verify drafts",
    "one process": "{needer} is written by one process, and {denier} starts several",
    "output layer": "{needer} reads the output layer of a plain Transformer or LSTM decoder, "
    "and {denier} has none",
    "one model": "{needer} reads one output layer, and {denier} has several",
    "compiled linear layers": "{needer} is for the transformer backend, and {denier} is another",
    "source sentence": "{needer} works from the words of a source sentence, and {denier} has none",
    "source tokens": "{needer} works from source tokens, and {denier} has none",
    "divisible batches": "{needer} divides batches, and the results of {denier} depend on them",
    "free ends": "{needer} says where a free translation ends, and {denier} gives whole outputs",
    "no constraints": "{needer} takes no constraints (--select dba does), and {denier} gives some",
}


@dataclass(frozen=True)
class Part:
    """A part of a run that can exclude others: a strategy, or an option of ours or of stock."""

    flag: str
    needs: frozenset[str] = frozenset()
    denies: frozenset[str] = frozenset()


def refusal(parts: list[Part]) -> str | None:
    """Return the sentence for the first two parts that exclude each other; None if none do."""
    for needer in parts:
        for denier in parts:
            for capability in sorted(needer.needs & denier.denies):
                sentence = CAPABILITIES[capability].format(needer=needer.flag, denier=denier.flag)
                return f"{sentence}: leave one of the two out"
    return None
