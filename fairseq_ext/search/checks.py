"""Refuses flags that cannot work before anything runs, in one sentence with the flags and the way
out.

Strategies and flags declare what they need and deny (registry.py); refused pairs follow from that.
Our flags declare their ranges and which of them name files; the ranges of fairseq's flags are here.
A strategy or a feature may have a check of its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.registry import (
    DEFAULT,
    STOCKS,
    Part,
    Strategy,
    all_fields,
    all_strategies,
    changed,
    changed_fields,
    constraint_flag,
    declared,
    features,
    flags_of,
    is_given,
    load_strategies,
    non_default_strategies,
    refusal,
    strategies_in_use,
    typed,
    ways,
)
from fairseq_ext.search.settings import Generation, Settings

LARGEST = 3.0e38  # of a float32
FINITE = (-LARGEST, LARGEST)
# fairseq's flags: minimum, maximum and meaning
RANGES: dict[str, tuple[float, float, str]] = {
    "beam": (1, 10_000, "number of hypotheses"),
    "nbest": (1, 10_000, "number of hypotheses"),
    "max_len_a": (0, 1000, "ratio of target to source tokens"),
    "max_len_b": (0, 1_000_000, "number of target tokens"),
    "min_len": (0, 1_000_000, "number of target tokens"),
    "lenpen": (-10, 10, "length penalty"),  # float32 holds the tenth power of 7,000 tokens
    "unkpen": (*FINITE, "penalty"),
    "temperature": (1e-6, 1e6, "temperature"),
    "sampling_topk": (-1, 10**9, "number of words, -1: all"),
    "sampling_topp": (-1, 1, "probability, -1: all words"),
    "diverse_beam_strength": (*FINITE, "penalty"),
    "lm_weight": (*FINITE, "weight"),
    "prefix_size": (0, 1_000_000, "number of target tokens"),
    "no_repeat_ngram_size": (0, 1_000_000, "number of tokens"),
}

# why an engine or a corpus run refuses fairseq's flags
ENGINE = {
    "print_alignment": "reads attention over a whole batch, and an engine has none",
    "prefix_size": "takes prefixes from a data set, and here each request has its own",
}
CORPUS = {"print_alignment": "has no place in the records of a corpus run"}

# fairseq's: when they are on, by its configuration, what they need and what they deny. The first
# two replace fairseq's beam search by another search of its own.
OPTIONS: tuple[tuple[str, Callable[[Generation], bool], tuple[str, ...], tuple[str, ...]], ...] = (
    ("--diversity-rate", lambda given: given.diversity_rate != -1.0, (), ("search loop",)),
    ("--match-source-len", lambda given: given.match_source_len, (), ("search loop",)),
    ("--unkpen below 0", lambda given: given.unkpen < 0, (), ("scores of at most 0",)),
    (
        "--lm-path",
        lambda given: given.lm_path is not None,
        (),
        ("scores of at most 0", "softmax's own order", "several tokens a call"),
    ),
    ("--retain-dropout", lambda given: given.retain_dropout, (), ("repeatable calls",)),
    (
        "--print-alignment",
        lambda given: given.print_alignment is not None,
        ("attention", "source sentence"),
        (),
    ),
    ("--beam above 1", lambda given: given.beam > 1, (), ("greedy",)),
    ("--nbest above 1", lambda given: given.nbest > 1, (), ("greedy",)),
)


def stock_search(generation: Generation) -> str | None:
    """Return the stock flag that replaces fairseq's beam search by another search of its own, if
    one is set."""
    return next((flag for flag, is_on, *_ in OPTIONS[:2] if is_on(generation)), None)


def refuse_stock_search(flag: str, generation: Generation) -> None:
    """Refuse a stock search together with a flag of our search (raises UsageError)."""
    own_loop = frozenset({"search loop"})
    if (other := stock_search(generation)) and (
        sentence := refusal([Part(flag, own_loop), Part(other, denies=own_loop)])
    ):
        raise UsageError(sentence)


def options(settings: Settings) -> dict[Part, bool]:
    """Return fairseq's options, and those of our flags that declare needs or denials; whether they
    are on."""
    generation = settings.generation
    found = {
        Part(flag, frozenset(needs), frozenset(denies)): is_on(generation)
        for flag, is_on, needs, denies in OPTIONS
    }
    for name, field in all_fields().items():
        sides = [of_values(field, key) for key in ("needs", "denies")]
        for value in dict.fromkeys([*sides[0], *sides[1]]):
            is_on = is_given(settings, field) if value is None else settings.value(field) == value
            flag = typed(name) if value is None else f"{typed(name)} {value}"
            found[Part(flag, *(frozenset(side.get(value, ())) for side in sides))] = is_on
    return found


def of_values(field: dataclasses.Field, key: str) -> dict[str | None, tuple[str, ...]]:
    """Return what a flag needs or denies, by its value; None: every value but the default."""
    found = field.metadata.get(key, ())
    return found if isinstance(found, dict) else {None: found} if found else {}


def select_flag(settings: Settings) -> str:
    """Return the flag by which the user chose the selection: constraints alone choose dba."""
    name = settings.choice("select")
    own = STOCKS.get(name, f"--select {name}")
    return constraint_flag(settings) or own if name == "dba" else own


def parts(settings: Settings) -> list[Part]:
    """Return the parts of this run: the strategies that the flags choose, and the options that are
    on."""
    named = strategies_in_use(settings)
    found = [
        Part(select_flag(settings) if s.point == "select" else s.flag, s.needs, s.denies)
        for s in named
    ]
    # fairseq's own strategy works everywhere; the flags that it has here belong to the beam search
    # of this project
    for s in named:
        if s.name == DEFAULT.get(s.point) and (given_flags := changed(settings, s)):
            needs = frozenset({"search loop", "beam"})
            found.append(Part(typed(next(iter(given_flags))), needs))
    if (given := constraint_flag(settings)) is not None:
        found.append(Part(given, denies=frozenset({"no constraints"})))
    return found + [option for option, is_on in options(settings).items() if is_on]


def refuse_reference(settings: Settings) -> None:
    """Refuse flags that --score-reference would ignore, as it does not search (raises
    UsageError)."""
    load_strategies()
    named = [s.flag for s in non_default_strategies(settings)]
    named += map(typed, changed_fields(settings, all_fields().values()))
    if named:
        given = "--score-reference scores given translations"
        raise UsageError(f"{given}, so {named[0]} has nothing to do: leave one of the two out")


def refuse_unused(settings: Settings, strategies: list[Strategy]) -> None:
    """Refuse a flag whose strategy is not chosen (raises UsageError)."""
    read = {name for s in strategies for name in flags_of(s)}
    for strategy in all_strategies():
        unused = [name for name in changed(settings, strategy) if name not in read]
        if unused:
            flag = typed(unused[0])
            owners = [s for s in all_strategies() if unused[0] in flags_of(s)]
            if all(s.constrained for s in owners) and not any(s.constrained for s in strategies):
                raise UsageError(
                    f"{flag} applies to phrases, and the command has none: {ways(flag)}"
                )
            named = " or ".join(s.flag for s in owners)
            raise UsageError(
                f"{flag} belongs to {named}, which is not switched on: add it or leave {flag} out"
            )


def short(number: float) -> str:
    """Return a bound as a user types it."""
    return f"{number:.0f}" if float(number).is_integer() else f"{number:g}"


def refuse_values(settings: Settings) -> None:
    """Refuse numbers outside their range, NaN and empty file names (raises UsageError)."""
    for name in all_fields():
        value = settings.values.get(name)
        if isinstance(value, float) and math.isnan(value):
            raise UsageError(f"{typed(name)} is not a number: give one, or leave it out")
    for name, (least, most, meaning) in (RANGES | declared("range")).items():
        value = settings.values.get(name)
        if isinstance(value, (int, float)) and not least <= value <= most:
            bounds = f"{short(least)} to {short(most)}"
            if most == math.inf:
                bounds = f"{short(least)} or more"
            elif (least, most) == FINITE:
                bounds = "a finite number"
            raise UsageError(f"{typed(name)} ({meaning}) must be {bounds}, not {value}")
    for name in declared("file"):
        if settings.values.get(name) == "":
            raise UsageError(f"{typed(name)} is given without a name: name a file, or leave it out")


def refused_by_engine() -> dict[str, str]:
    """Return why an engine refuses flags, by name."""
    return ENGINE | declared("engine")


def refused_by_corpus() -> dict[str, str]:
    """Return why a corpus run refuses flags, by name."""
    return CORPUS | declared("corpus")


def validate(settings: Settings, *more: Part) -> None:
    """Refuse flags that cannot work, in one sentence with the flags and the way out (raises
    UsageError). more: parts of the run other than strategies and flags, such as the task."""
    refuse_values(settings)
    load_strategies()
    if sentence := refusal([*parts(settings), *more]):
        raise UsageError(sentence)
    strategies, generation = strategies_in_use(settings), settings.generation
    refuse_unused(settings, strategies)
    for name in ("print_step", "retain_iter_history"):
        if settings.values.get(name):
            raise UsageError(
                f"{typed(name)} shows the steps of iterative refinement, which no search here "
                "has: leave it out"
            )
    for feature in features():
        if feature.check is not None:
            feature.check(settings)
    for strategy in strategies:
        if strategy.check is not None and not stock_search(generation):
            strategy.check(settings.get(strategy.flags), generation)
