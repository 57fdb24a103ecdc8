"""Flags: the strategies' dataclasses gathered into one, checked together, and told in one line (the signature)."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from fairseq_ext.constraints.flags import select_flag
from fairseq_ext.errors import UsageError
from fairseq_ext.registry import DEFAULT, POINTS, PRUNERS, STRATEGIES, Strategy, load_strategies
from fairseq_ext.session import cpu_workers as workers

if TYPE_CHECKING:
    from fairseq.data import Dictionary

    from fairseq_ext.search.scoring import Scoring
    from fairseq_ext.stats import Stats

VERSION = "0.1"
Text = Optional[str]  # noqa: UP045  (fairseq reads this form only)
BACKENDS = ("auto", "transformer", "fairseq")
HELP = {
    "select": "how continuations are chosen (default: dba where there are constraints, else topk, as fairseq)",
    "stop": "when a sentence is final (neutral: count, as fairseq: beam-many finished hypotheses)",
    "schedule": "when sentences start (neutral: batch, as fairseq: all together)",
    "softmax": "which words are scored (neutral: full, all of them)",
    "decoding": "what drives the decoder (neutral: beam search)",
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


def all_strategies() -> list[Strategy]:
    """Every registered strategy, fairseq's own first."""
    load_strategies()
    return [STRATEGIES[point][name] for point in POINTS for name in names_of(point)] + list(PRUNERS.values())


def names_of(point: str) -> list[str]:
    """The names of a plug point's strategies, fairseq's own first."""
    return sorted(STRATEGIES[point], key=lambda name: name != DEFAULT[point])


def flag_bases() -> list[type]:
    """The strategies' flag dataclasses, each once, those that another one extends left out."""
    classes = list(dict.fromkeys(s.flags for s in all_strategies() if s.flags is not None))
    return [c for c in classes if not any(issubclass(other, c) and other is not c for other in classes)]


def flags_dataclass() -> type:
    """All our flags as one dataclass, ready to be mixed into a task's."""
    bases = flag_bases()  # loads the strategies, so that the choices below are complete
    own: list = [
        (point, ChoiceEnum(names_of(point)), field(default=DEFAULT[point], metadata={"help": HELP[point]}))
        for point in POINTS
    ]
    # where nobody names a selection, constraints decide; so its default must differ from every name
    own[0] = ("select", Optional[own[0][1]], field(default=None, metadata={"help": HELP["select"]}))  # noqa: UP045
    own += [
        (
            "decoder_backend",
            ChoiceEnum(list(BACKENDS)),
            field(
                default="auto",
                metadata={"help": "the decoder (same results): the fastest that fits the model, or fairseq's own modules (default: auto)"},
            ),
        ),
        (
            "cpu_workers",
            int,
            field(default=1, metadata={"help": "processes of one thread that share each batch's sentences on a CPU (neutral: 1)"}),
        ),
        (
            "int8",
            bool,
            field(default=False, metadata={"help": "products rounded to 8 bits: faster on a CPU, other results (default: off)"}),
        ),
        (
            "cuda_graphs",
            ChoiceEnum(["auto", "off"]),
            field(default="auto", metadata={"help": "decoder steps on a GPU: one launch each, or many (off; same results; default: auto)"}),
        ),
        (
            "results_file",
            Text,
            field(default=None, metadata={"help": "also write each sentence's results to this JSONL file as it finishes (default: none)"}),
        ),
        (
            "resume",
            bool,
            field(default=False, metadata={"help": "sentences that --results-file has already are not decoded again (default: off)"}),
        ),
        ("stats_file", Text, field(default=None, metadata={"help": "write counts and times of the run to this JSON file (default: none)"})),
    ]
    return make_dataclass("DecodingFlags", own, bases=(*bases, FairseqDataclass))


def task_dataclass(stock: type, flags: type) -> type:
    """A stock task's dataclass with our flags."""
    return make_dataclass(f"{stock.__name__}Ext", [], bases=(flags, stock))


def choice(flags: Any, point: str) -> str:
    """The strategy that the flags name at a plug point."""
    return str(getattr(flags, point, None) or DEFAULT[point])


def chosen(flags: Any) -> list[Strategy]:
    """The strategies that the flags switch on, fairseq's own left out."""
    named = [STRATEGIES[point][choice(flags, point)] for point in POINTS]
    active = [s for s in named if s.name != DEFAULT[s.point]]
    return active + [s for s in PRUNERS.values() if changed(flags, s)]


def changed(flags: Any, strategy: Strategy) -> dict[str, Any]:
    """The strategy's flags that differ from their neutral values."""
    if strategy.flags is None:
        return {}
    defaults = {f.name: f.default for f in dataclasses.fields(strategy.flags) if f.name != "_name"}
    return {name: getattr(flags, name) for name, neutral in defaults.items() if getattr(flags, name, neutral) != neutral}


UNUSED_BY_REFERENCE = ("constraints_file", "avoid_file", "glossary", "results_file", "stats_file")
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


def flag_of(strategy: Strategy) -> str:
    """How the user wrote it."""
    return f"--prune-{strategy.name}" if strategy.point == "prune" else f"--{strategy.point} {strategy.name}"


def refuse_reference(flags: Any) -> None:
    """Refuse what --score-reference would leave out, as it searches nothing (raises UsageError)."""
    load_strategies()
    named = [flag_of(s) for s in chosen(flags)]
    named += ["--" + name.replace("_", "-") for name in UNUSED_BY_REFERENCE if getattr(flags, name, None)]
    if named:
        given = "--score-reference scores translations that are there already"
        raise UsageError(f"{given}, so {named[0]} has nothing to do: leave one of the two out")


def validate(flags: Any, generation: Any) -> None:
    """Refuse what cannot work, in one sentence that names the flags and the way out (raises UsageError)."""
    for name in ("beam", "nbest"):
        if getattr(generation, name, 1) < 1:
            raise UsageError(f"--{name} {getattr(generation, name)} leaves no hypothesis: use 1 or more")
    active = chosen(flags)
    other = stock_search(generation)
    if active and other:
        ours = select_flag(flags, generation) if active[0].point == "select" else flag_of(active[0])
        raise UsageError(f"{other} replaces beam search, so {ours} cannot work with it: leave one of the two out")
    named = [STRATEGIES[point][choice(flags, point)] for point in POINTS] + active
    in_use = {f.name for s in named if s.flags is not None for f in dataclasses.fields(s.flags)}
    for strategy in all_strategies():
        unused = [name for name in changed(flags, strategy) if name not in in_use]
        if unused:
            flag = "--" + unused[0].replace("_", "-")
            # several strategies of one point may share their flags
            owners = " or ".join(flag_of(s) for s in all_strategies() if s.flags is strategy.flags)
            raise UsageError(f"{flag} belongs to {owners}, which is not switched on: add it or leave {flag} out")
    if getattr(flags, "int8", False):
        if other:
            raise UsageError(f"{other} is decoded by fairseq's own loop, which has no 8-bit products: leave it or --int8 out")
        if flags.decoder_backend == "fairseq":
            raise UsageError("--int8 is for the transformer backend, and --decoder-backend fairseq is another: leave one of the two out")
        if getattr(generation, "print_alignment", None):
            raise UsageError("--int8 keeps no attention, from which --print-alignment reads: leave one of the two out")
    workers.check(flags, generation)
    if getattr(flags, "resume", False) and not flags.results_file:
        raise UsageError("--resume goes on with a results file and none is named: add --results-file")
    if getattr(flags, "results_file", None):
        if other:
            raise UsageError(f"{other} is decoded by fairseq's own loop, which --results-file does not see: leave one of the two out")
        if getattr(generation, "print_alignment", None):
            raise UsageError("--results-file keeps no attention, from which --print-alignment reads: leave one of the two out")
    for strategy in dict.fromkeys(named):
        if strategy.check is not None and not other:
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
