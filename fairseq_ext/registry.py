"""Strategies by name: what each plug point offers, the flags it brings, what it needs and what it denies to others.

A strategy is one file of `strategies/<point>/`. It ends in a register line:

    @register("stop", "first", paper="Huang, Zhao and Ma 2017", needs=("own loop", "beam"), example=({"stop": "first"},))
    def build(flags, context) -> First: ...

It returns a plug: a subclass of its point's base class in search/protocols.py, where each method is described (for "decoding": a
function from the search's `Engine` to its driver). flags: this package's, as the command has them; context: config.py, Context. What a
stop plug is given and returns is in search/candidates.py; its flags extend those of strategies/stop/_length_reward.py. A flag is a field
of a FairseqDataclass; its metadata has the `help` (which tells the default), and for a number may have its `range` (least, most, what it
is), for a file's name `file`: True.

Nothing else names the strategy. `config.py` gathers the flags, `validate.py` derives refusals from `needs` and `denies`, `generator.py`
builds what the flags name; `tests/test_neutral.py`, `tests/test_compose.py` and `tests/test_strategies_cli.py` run every `neutral` and
`example` setting (`pytest tests/test_strategies_cli.py -k first` runs one strategy's).

Files outside the package are loaded as well where the environment variable FAIRSEQ_EXT_STRATEGIES names them, separated by colons.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_ext.errors import UsageError

DEFAULT = {"select": "topk", "stop": "count", "schedule": "batch", "softmax": "full", "decoding": "beam"}  # fairseq's own behaviour
POINTS = tuple(DEFAULT)
OUTSIDE = "FAIRSEQ_EXT_STRATEGIES"

# What a strategy or an option can need, and the sentence for one that denies it. Each sentence goes on with the way out.
CAPABILITIES = {
    "own loop": "{denier} replaces beam search, so {needer} cannot work with it",
    "beam": "{needer} belongs to beam search, and {denier} has no beam",
    "greedy": "{needer} gives greedy decoding's output (--beam 1 --nbest 1), and {denier} asks for more than one hypothesis",
    "rows of a beam": "{needer} scores what the rows of a beam search need, and {denier} reads drafts",
    "one order": "{needer} compares all hypotheses of a sentence, and {denier} has banks, between which scores do not compare",
    "scores of at most 0": "{denier} can make a token's score positive, so {needer} proves nothing",
    "softmax's own order": "{denier} can raise words that {needer} has ruled out",
    "attention": "{needer} reads the attention of every token, which {denier} does not keep",
    "several tokens a call": "{denier} reads one token a call, and {needer} several",
    "repeatable calls": "{denier} draws anew at every call, so {needer} cannot verify drafts",
    "one process": "{needer} is written by one process, and {denier} starts several",
    "random numbers of its own": "{needer} draws random numbers, which every process of {denier} would draw alike",
    "output layer": "{needer} reads the output layer of a plain Transformer decoder, and {denier} has none",
    "one model": "{needer} reads one output layer, and {denier} has several",
    "compiled linear layers": "{needer} is for the transformer backend, and {denier} is another",
    "no constraints": "{needer} knows no constraints, as --select dba does, and {denier} gives some",
}

Setting = Mapping[str, Any]  # values of flags by field name, ours and stock's


@dataclass(frozen=True)
class Strategy:
    """One value of a plug point's flag, or a pruner, which its own flags switch on."""

    point: str
    name: str
    build: Callable  # (flags, Context) -> the plug
    flags: type | None = None  # dataclass of its flags; several strategies may share one
    check: Callable | None = None  # (flags, generation config) -> None; raises UsageError with one sentence
    tell: Callable | None = None  # (flags, generation config) -> what the signature says of it besides its name and flags
    needs: frozenset[str] = frozenset()  # of CAPABILITIES
    denies: frozenset[str] = frozenset()
    neutral: tuple[Setting, ...] = ()  # settings at which it equals fairseq
    example: tuple[Setting, ...] = ()  # settings at which it does its work
    paper: str = ""
    constrained: bool = False  # whether it takes required and banned phrases

    @property
    def flag(self) -> str:
        """How a user writes it."""
        return f"--prune-{self.name}" if self.point == "prune" else f"--{self.point} {self.name}"

    @property
    def file(self) -> str:
        """The file that registers it, below the package where it lies there."""
        file = Path(sys.modules[self.build.__module__].__file__ or "")
        package = Path(__file__).parent
        return file.relative_to(package).as_posix() if file.is_relative_to(package) else str(file)


STRATEGIES: dict[str, dict[str, Strategy]] = {point: {} for point in POINTS}
PRUNERS: dict[str, Strategy] = {}  # pruning is on when its flags are set, not by name


def register(
    point: str,
    name: str,
    flags: type | None = None,
    *,
    check: Callable | None = None,
    tell: Callable | None = None,
    needs: tuple[str, ...] = (),
    denies: tuple[str, ...] = (),
    neutral: tuple[Setting, ...] = (),
    example: tuple[Setting, ...] = (),
    paper: str = "",
    constrained: bool = False,
) -> Callable:
    """Register a builder under a plug point ("prune" for one that its flags switch on). The fields are those of `Strategy`.

    Errors: UsageError for a name that is taken, an unknown point or an unknown capability.
    """
    table = PRUNERS if point == "prune" else STRATEGIES.get(point)
    if table is None:
        raise UsageError(f"a strategy is registered at the plug point {point!r}, which there is not: use one of {', '.join(POINTS)}, prune")
    unknown = [c for c in (*needs, *denies) if c not in CAPABILITIES]
    if unknown:
        raise UsageError(f"{point} {name} names an unknown capability {unknown[0]!r}: add a sentence for it to registry.py")

    def add(build: Callable) -> Callable:
        if name in table:
            raise UsageError(f"--{point} {name} is registered twice, by {table[name].file} and {build.__module__}: choose another name")
        table[name] = Strategy(
            point, name, build, flags, check, tell, frozenset(needs), frozenset(denies), neutral, example, paper, constrained
        )
        return build

    return add


def load_strategies() -> None:
    """Import every strategy file, one folder a plug point, so that each registers itself. A name with a leading underscore is shared
    code."""
    package = importlib.import_module("fairseq_ext.strategies")
    names = [m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.") if not m.ispkg]
    for name in names:
        if not name.rpartition(".")[2].startswith("_"):
            importlib.import_module(name)
    for file in filter(None, os.environ.get(OUTSIDE, "").split(os.pathsep)):
        load_outside(Path(file))


def load_outside(file: Path) -> None:
    """Import one strategy file from outside the package, once. Errors: UsageError where it is not there."""
    name = f"fairseq_ext_outside_{file.stem}"
    if name in sys.modules:
        return
    if not file.is_file():
        raise UsageError(f"{OUTSIDE} names {file}, which is no file: correct the path")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def all_strategies() -> list[Strategy]:
    """Every registered strategy, fairseq's own first at each plug point; pruners last."""
    load_strategies()
    return [STRATEGIES[point][name] for point in POINTS for name in names_of(point)] + list(PRUNERS.values())


def names_of(point: str) -> list[str]:
    """The names of a plug point's strategies, fairseq's own first."""
    return sorted(STRATEGIES[point], key=lambda name: name != DEFAULT[point])


def choice(flags: Any, point: str) -> str:
    """The name of the strategy that the flags choose at a plug point."""
    return str(getattr(flags, point) or DEFAULT[point])


def in_use(flags: Any) -> list[Strategy]:
    """The strategy of every plug point, fairseq's own included, and the pruners that their flags switch on."""
    return [STRATEGIES[point][choice(flags, point)] for point in POINTS] + [s for s in PRUNERS.values() if changed(flags, s)]


def chosen(flags: Any) -> list[Strategy]:
    """The strategies that the flags switch on, fairseq's own left out."""
    return [s for s in in_use(flags) if s.name != DEFAULT.get(s.point)]


def changed(flags: Any, strategy: Strategy) -> dict[str, Any]:
    """The strategy's flags that differ from their defaults."""
    if strategy.flags is None:
        return {}
    defaults = {f.name: f.default for f in dataclasses.fields(strategy.flags) if f.name != "_name"}
    return {name: getattr(flags, name) for name, default in defaults.items() if getattr(flags, name) != default}


@dataclass(frozen=True)
class Part:
    """What takes part in a run and can rule others out: a strategy, or an option of ours or of stock."""

    flag: str
    needs: frozenset[str] = frozenset()
    denies: frozenset[str] = frozenset()


def refusal(parts: list[Part]) -> str | None:
    """The sentence for the first two parts that cannot work together; None where all can."""
    for needer in parts:
        for denier in parts:
            for capability in sorted(needer.needs & denier.denies):
                sentence = CAPABILITIES[capability].format(needer=needer.flag, denier=denier.flag)
                return f"{sentence}: leave one of the two out"
    return None
