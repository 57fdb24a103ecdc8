"""Flags: the strategies' dataclasses gathered into one, checked together, and told in one line (the signature)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from fairseq_ext.constraints.flags import constraint_flag, select_flag
from fairseq_ext.errors import UsageError
from fairseq_ext.registry import (
    DEFAULT,
    POINTS,
    PRUNERS,
    STRATEGIES,
    Part,
    Strategy,
    all_strategies,
    changed,
    choice,
    chosen,
    load_strategies,
    names_of,
    refusal,
)
from fairseq_ext.session import cpu_workers

if TYPE_CHECKING:
    from fairseq.data import Dictionary

    from fairseq_ext.search.scoring import Scoring
    from fairseq_ext.stats import Stats

VERSION = "0.1"
Text = Optional[str]  # noqa: UP045  (fairseq reads this form only)
BACKENDS = ("auto", "transformer", "fairseq")
HELP = {
    "select": "how continuations are chosen (default: dba where there are constraints, else topk, as fairseq)",
    "stop": "when a sentence is final (default: count, as fairseq: beam-many finished hypotheses)",
    "schedule": "when sentences start (default: batch, as fairseq: all together)",
    "softmax": "which words are scored (default: full, all of them)",
    "decoding": "what drives the decoder (default: beam, beam search)",
}


@dataclass
class Context:
    """What a strategy's builder may need besides its flags."""

    k: int  # beam
    nbest: int
    pad: int
    unk: int
    eos: int
    dictionary: Dictionary  # target side
    scoring: Scoring
    generation: Any  # fairseq's GenerationConfig
    models: list
    stats: Stats
    children: int | None = None  # most continuations of one row; None: no limit
    task: Any = None  # fairseq's task, for the source dictionary and the checkpoint's place

    @property
    def source_dictionary(self) -> Dictionary | None:
        return getattr(self.task, "source_dictionary", None)

    @property
    def checkpoint(self) -> str | None:
        """The model's file, where that is known and one file."""
        path = self.task.checkpoint_path() if hasattr(self.task, "checkpoint_path") else None
        return path if path and os.path.isfile(path) else None

    @property
    def joined_dictionary(self) -> bool:
        """Whether source and target side share their words, and so their counts."""
        return self.source_dictionary is not None and self.source_dictionary == self.dictionary


# ---- the flags


def flag_bases() -> list[type]:
    """The strategies' flag dataclasses, each once, those that another one extends left out."""
    classes = list(dict.fromkeys(s.flags for s in all_strategies() if s.flags is not None))
    return [c for c in classes if not any(issubclass(other, c) and other is not c for other in classes)]


def option(name: str, kind: Any, default: Any, text: str) -> tuple[str, Any, Any]:
    """A flag that belongs to no strategy, as make_dataclass takes it."""
    return name, kind, field(default=default, metadata={"help": text})


def flags_dataclass() -> type:
    """All our flags as one dataclass, ready to be mixed into a task's."""
    bases = flag_bases()  # loads the strategies, so that the choices below are complete
    own: list = [option(point, ChoiceEnum(names_of(point)), DEFAULT[point], HELP[point]) for point in POINTS]
    # where nobody names a selection, constraints decide; so its default must differ from every name
    own[0] = option("select", Optional[own[0][1]], None, HELP["select"])  # noqa: UP045
    own += [
        option(
            "decoder_backend",
            ChoiceEnum(list(BACKENDS)),
            "auto",
            "the decoder (same results): the fastest that supports the model, or fairseq's own modules (default: auto)",
        ),
        option("cpu_workers", int, 1, "processes of one thread that share each batch's sentences on a CPU (default: 1)"),
        option("int8", bool, False, "products rounded to 8 bits: faster on a CPU, other results (default: off)"),
        option(
            "cuda_graphs",
            ChoiceEnum(["auto", "off"]),
            "auto",
            "decoder steps on a GPU: one launch each, or many (off; same results; default: auto)",
        ),
        option("results_file", Text, None, "also write each sentence's results to this JSONL file as it finishes (default: none)"),
        option("resume", bool, False, "sentences that --results-file has already are not decoded again (default: off)"),
        option("stats_file", Text, None, "write counts and times of the run to this JSON file (default: none)"),
    ]
    return make_dataclass("DecodingFlags", own, bases=(*bases, FairseqDataclass))


def task_dataclass(stock: type, flags: type) -> type:
    """A stock task's dataclass with our flags."""
    return make_dataclass(f"{stock.__name__}Ext", [], bases=(flags, stock))


# ---- what cannot work together

STOCK_SEARCHES = {
    "sampling": ("--sampling", False),
    "diverse_beam_groups": ("--diverse-beam-groups", -1),
    "diversity_rate": ("--diversity-rate", -1.0),
    "match_source_len": ("--match-source-len", False),
}


def stock_search(generation: Any) -> str | None:
    """The stock flag that replaces fairseq's beam search by another search of its own, if one is set."""
    for name, (flag, off) in STOCK_SEARCHES.items():
        if getattr(generation, name, off) != off:
            return flag
    return None


@dataclass(frozen=True)
class Option:
    """A flag outside the strategies that needs or denies something while it is on."""

    flag: str
    on: Callable[[Any, Any], bool]  # (our flags, fairseq's GenerationConfig)
    needs: frozenset[str] = frozenset()
    denies: frozenset[str] = frozenset()


def stock(name: str, off: Any = False) -> Callable[[Any, Any], bool]:
    """Whether a stock flag is on."""
    return lambda flags, generation: getattr(generation, name, off) not in (off, None)


OPTIONS = (
    *(Option(flag, stock(name, off), denies=frozenset({"own loop"})) for name, (flag, off) in STOCK_SEARCHES.items()),
    Option("--sampling", stock("sampling"), needs=frozenset({"random numbers of its own"})),
    Option("--unkpen below 0", lambda flags, generation: getattr(generation, "unkpen", 0) < 0, denies=frozenset({"scores of at most 0"})),
    Option(
        "--lm-path",
        stock("lm_path", None),
        denies=frozenset({"scores of at most 0", "softmax's own order", "several tokens a call"}),
    ),
    Option("--retain-dropout", stock("retain_dropout"), denies=frozenset({"repeatable calls"})),
    Option("--print-alignment", stock("print_alignment", None), needs=frozenset({"attention"})),
    Option("--beam above 1", lambda flags, generation: getattr(generation, "beam", 5) > 1, denies=frozenset({"greedy"})),
    Option("--nbest above 1", lambda flags, generation: getattr(generation, "nbest", 1) > 1, denies=frozenset({"greedy"})),
    Option(
        "--int8", lambda flags, generation: flags.int8, needs=frozenset({"own loop", "compiled products"}), denies=frozenset({"attention"})
    ),
    Option(
        "--decoder-backend fairseq",
        lambda flags, generation: str(flags.decoder_backend) == "fairseq",
        denies=frozenset({"compiled products"}),
    ),
    Option(
        "--results-file",
        lambda flags, generation: bool(flags.results_file),
        needs=frozenset({"own loop", "one process"}),
        denies=frozenset({"attention"}),
    ),
    Option(
        "--cpu-workers",
        lambda flags, generation: flags.cpu_workers > 1,
        denies=frozenset({"one process", "random numbers of its own"}),
    ),
)


def parts(flags: Any, generation: Any) -> list[Part]:
    """What takes part in this run: the strategies that the flags choose, and the options that are on."""
    named = [STRATEGIES[point][choice(flags, point)] for point in POINTS] + [s for s in PRUNERS.values() if changed(flags, s)]
    found = [Part(select_flag(flags, generation) if s.point == "select" else s.flag, s.needs, s.denies) for s in named]
    for s in named:  # fairseq's own strategy works everywhere, the flags that it has here belong to the beam search of this project
        if s.name == DEFAULT.get(s.point) and (given_flags := changed(flags, s)):
            found.append(Part("--" + next(iter(given_flags)).replace("_", "-"), needs=frozenset({"own loop", "beam"})))
    if (given := constraint_flag(flags, generation)) is not None:
        found.append(Part(given, denies=frozenset({"no constraints"})))
    return found + [Part(o.flag, o.needs, o.denies) for o in OPTIONS if o.on(flags, generation)]


UNUSED_BY_REFERENCE = ("constraints_file", "avoid_file", "glossary", "results_file", "stats_file")


def refuse_reference(flags: Any) -> None:
    """Refuse what --score-reference would leave out, as it searches nothing (raises UsageError)."""
    load_strategies()
    named = [s.flag for s in chosen(flags)]
    named += ["--" + name.replace("_", "-") for name in UNUSED_BY_REFERENCE if getattr(flags, name)]
    if named:
        given = "--score-reference scores translations that are there already"
        raise UsageError(f"{given}, so {named[0]} has nothing to do: leave one of the two out")


def field_names(strategy: Strategy) -> list[str]:
    """Names of the strategy's flags."""
    return [] if strategy.flags is None else [f.name for f in dataclasses.fields(strategy.flags)]


def refuse_unused(flags: Any, in_use: list[Strategy]) -> None:
    """Refuse a flag whose strategy is not switched on (raises UsageError)."""
    read = {name for s in in_use for name in field_names(s)}
    for strategy in all_strategies():
        unused = [name for name in changed(flags, strategy) if name not in read]
        if unused:
            flag = "--" + unused[0].replace("_", "-")
            owners = " or ".join(s.flag for s in all_strategies() if unused[0] in field_names(s))
            raise UsageError(f"{flag} belongs to {owners}, which is not switched on: add it or leave {flag} out")


def validate(flags: Any, generation: Any) -> None:
    """Refuse what cannot work, in one sentence that names the flags and the way out (raises UsageError)."""
    for name in ("beam", "nbest"):
        if getattr(generation, name, 1) < 1:
            raise UsageError(f"--{name} {getattr(generation, name)} leaves no hypothesis: use 1 or more")
    load_strategies()
    if sentence := refusal(parts(flags, generation)):
        raise UsageError(sentence)
    in_use = [STRATEGIES[point][choice(flags, point)] for point in POINTS] + [s for s in PRUNERS.values() if changed(flags, s)]
    refuse_unused(flags, in_use)
    cpu_workers.check(flags)
    if flags.resume and not flags.results_file:
        raise UsageError("--resume goes on with a results file and none is named: add --results-file")
    for strategy in in_use:
        if strategy.check is not None and not stock_search(generation):
            strategy.check(flags, generation)


def signature(flags: Any, generation: Any, backend: str) -> str:
    """One line that says how the output was made."""
    parts = [f"fairseq_ext:{VERSION}"]
    for point in POINTS:
        strategy = STRATEGIES[point][choice(flags, point)]
        settings = [strategy.name] + [f"{name}={value}" for name, value in changed(flags, strategy).items()]
        settings += [strategy.tell(flags, generation)] if strategy.tell is not None else []
        if point != "decoding" or strategy.name != "beam":
            parts.append(f"{point}:{','.join(settings)}")
    prunes = [changed(flags, strategy) for strategy in PRUNERS.values()]
    parts += [f"prune:{name.removeprefix('prune_')}={value}" for settings in prunes for name, value in settings.items()]
    search = stock_search(generation)
    if search:
        parts.append(f"search:fairseq {search}")
    return "|".join([*parts, f"backend:{backend}"])
