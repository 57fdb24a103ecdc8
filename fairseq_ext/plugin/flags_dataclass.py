"""Our flags as one dataclass, in the form that fairseq reads."""

from __future__ import annotations

import os
from copy import copy
from dataclasses import Field, dataclass, field, make_dataclass
from types import NoneType, UnionType
from typing import (  # noqa: UP035
    List,
    Literal,
    Optional,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.configs import FairseqConfig

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.registry import (
    STOCK_FLAG_NAMES,
    fields_of,
    file_of,
    flag_kinds,
    names_of,
    register_feature,
)
from fairseq_ext.search.settings import POINTS, Settings

STOCK_FLAG_NAMES.update(
    name
    for group in vars(FairseqConfig).values()
    for name in vars(type(group)).get("__dataclass_fields__", ())
)


Declaration = tuple[str, object, Field]  # name, type in fairseq's form, and the rest


def fairseq_type(kind: object) -> object:
    """Return a flag's type in the form that fairseq reads.

    Errors: TypeError for a type that fairseq has no form for.
    """
    origin, inner = get_origin(kind), get_args(kind)
    some = [each for each in inner if each is not NoneType]
    if origin in (Union, UnionType) and len(some) == 1:
        return Optional[fairseq_type(some[0])]  # noqa: UP045
    if origin in (Union, UnionType):
        raise TypeError(kind)
    if origin is Literal:
        if not all(isinstance(each, str) for each in inner):
            raise TypeError(kind)
        return ChoiceEnum(list(inner))
    return List[inner] if origin is list else kind  # type: ignore[valid-type]  # noqa: UP006


@dataclass
class RunFlags:
    """The flags of a run, whatever its strategies."""

    decoder_backend: Literal["auto", "transformer", "fairseq"] = field(
        default="auto",
        metadata={
            "help": "the decoder (same results): the fastest that supports the model, or fairseq's "
            "own modules (default: auto)",
            "same_results": True,
            "needs": {"transformer": ("search loop",)},
            "denies": {"fairseq": ("compiled linear layers",)},
            "page": "supported-models.md",
            "implemented": "model/choose.py",
        },
    )
    cpu_workers: int = field(
        default=1,
        metadata={
            "help": "processes of one thread that share each batch's sentences on a CPU "
            "(default: 1)",
            "same_results": True,
            "range": (1, max(64, 4 * (os.cpu_count() or 1)), "number of processes"),
            "needs": ("divisible batches",),
            "denies": ("one process",),
            "corpus": "would start processes within the workers, which --workers counts",
            "implemented": "plugin/workers.py",
        },
    )
    int8: bool = field(
        default=False,
        metadata={
            "help": "linear layers in 8 bits: faster on a CPU, other results (default: off)",
            "needs": ("search loop", "compiled linear layers"),
            "denies": ("attention",),
            "page": "limits.md",
            "implemented": "model/transformer/weights.py",
        },
    )
    cuda_graphs: Literal["auto", "off"] = field(
        default="auto",
        metadata={
            "help": "decoder steps on a GPU: one launch each, or many (off; same results; "
            "default: auto)",
            "same_results": True,
            "page": "limits.md",
            "implemented": "model/transformer/cuda_graph.py",
        },
    )
    results_file: str | None = field(
        default=None,
        metadata={
            "help": "also write each sentence's results to this JSONL file as it finishes "
            "(default: none)",
            "file": True,
            "written": True,
            "same_results": True,
            "needs": ("search loop", "one process"),
            "denies": ("attention",),
            "engine": "has no place in an engine, whose requests have no numbers",
            "page": "quickstart.md",
            "implemented": "plugin/results.py",
        },
    )
    resume: bool = field(
        default=False,
        metadata={
            "help": "sentences that --results-file has already are not decoded again "
            "(default: off)",
            "same_results": True,
            "engine": "continues a results file, and an engine has none",
            "page": "quickstart.md",
            "implemented": "plugin/results.py",
        },
    )
    strict: bool = field(
        default=False,
        metadata={
            "help": "end at the first sentence that cannot be translated (default: continue, and "
            "exit with status 3)",
            "same_results": True,
            "engine": "ends a run at its first bad sentence, and here each request has its own "
            "answer",
            "corpus": "ends at a sentence, and a corpus run continues to its end",
            "page": "reliability.md",
            "implemented": "plugin/bad_sentences.py",
        },
    )
    stats_file: str | None = field(
        default=None,
        metadata={
            "help": "write counts and times of the run to this JSON file (default: none)",
            "file": True,
            "written": True,
            "same_results": True,
            "engine": "is written by a run that ends: read the engine's own counts",
            "implemented": "plugin/results.py",
        },
    )


def check_run(settings: Settings) -> None:
    """Raise UsageError for --resume without a file."""
    flags = settings.get(RunFlags)
    if flags.resume and not flags.results_file:
        raise UsageError("--resume continues a results file and none is named: add --results-file")


register_feature("run", RunFlags, check=check_run)


def fairseq_fields(kind: type) -> dict[str, Declaration]:
    """Return the fields of a dataclass of flags by name, in fairseq's form: name, type, field.

    Errors: UsageError for a type that fairseq cannot read.
    """
    try:
        types, own = get_type_hints(kind), fields_of([kind]).items()
        return {name: (name, fairseq_type(types[name]), copy(each)) for name, each in own}
    except (NameError, TypeError) as error:
        raise UsageError(
            f"{file_of(kind.__module__)}: fairseq cannot read a type of {kind.__name__} "
            f"({error}): use int, float, str, bool, a Literal of strings, or one of them | None"
        ) from None


def flags_dataclass() -> type:
    """Return all our flags as one dataclass in fairseq's form, ready to be mixed into a task's."""
    found: dict[str, Declaration] = {}
    for kind in flag_kinds():  # loads the strategies, so that the choices below are complete
        found |= fairseq_fields(kind)
    for point in POINTS:
        # constraints choose the strategy if no flag names one: then None differs from every name
        names, (_, own, declared) = ChoiceEnum(names_of(point)), found[point]
        found[point] = (point, names if own is str else Optional[names], declared)  # noqa: UP045
    return make_dataclass(
        "DecodingFlags",
        found.values(),
        bases=(FairseqDataclass,),
        namespace={"__module__": __name__},
    )


def task_dataclass(stock: type, flags: type) -> type:
    """Return a stock task's dataclass with our flags."""
    return make_dataclass(f"{stock.__name__}Ext", [], bases=(flags, stock))
