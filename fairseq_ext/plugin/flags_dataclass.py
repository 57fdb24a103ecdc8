"""Our flags as one dataclass, in the form that fairseq reads."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from dataclasses import dataclass, field, make_dataclass
from types import NoneType, UnionType
from typing import (  # noqa: UP035
    Any,
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
    DEFAULT,
    POINTS,
    STOCK_FLAG_NAMES,
    all_strategies,
    features,
    file_of,
    names_of,
    register_feature,
)

HELP = {
    "select": "how continuations are chosen (default: dba where there are constraints, else "
    "topk, as fairseq)",
    "stop": "when a sentence is final (default: early where there are constraints, else count, as "
    "fairseq: beam-many finished hypotheses)",
    "schedule": "when sentences start (default: batch, as fairseq: all together)",
    "softmax": "which words are scored (default: full, all of them)",
    "decoding": "what drives the decoder (default: beam, beam search)",
}
STOCK_FLAG_NAMES.update(
    name
    for group in vars(FairseqConfig).values()
    for name in vars(type(group)).get("__dataclass_fields__", ())
)


def fairseq_type(kind: Any) -> Any:
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


@functools.cache
def fairseq_dataclass(flags: type) -> type:
    """Return fairseq's kind of a plain dataclass of flags, with the same name, module, fields and
    base classes. One of fairseq's own kind is returned as it is.

    Errors: UsageError for a type that fairseq cannot read.
    """
    if flags is FairseqDataclass or not dataclasses.is_dataclass(flags):
        return flags
    annotations = inspect.get_annotations(flags)
    own = [each for each in dataclasses.fields(flags) if each.name in annotations]
    try:
        read = get_type_hints(flags)
        types = {each.name: fairseq_type(read[each.name]) for each in own}
    except (NameError, TypeError) as error:
        raise UsageError(
            f"{file_of(flags.__module__)}: fairseq cannot read a type of {flags.__name__} "
            f"({error}): use int, float, str, bool, a Literal of strings, or one of them | None"
        ) from None
    bases = tuple(fairseq_dataclass(base) for base in flags.__bases__ if base is not object)
    same = bases == flags.__bases__ and all(str(types[each.name]) == str(each.type) for each in own)
    if same and issubclass(flags, FairseqDataclass):
        return flags
    if not any(issubclass(base, FairseqDataclass) for base in bases):
        bases += (FairseqDataclass,)
    fields = []
    for each in own:
        given = {name: getattr(each, name) for name in ("default", "default_factory", "metadata")}
        fields.append((each.name, types[each.name], field(**given)))
    made = make_dataclass(flags.__name__, fields, bases=bases)
    made.__module__ = flags.__module__
    return made


def flag_bases() -> list[type]:
    """Return the flag dataclasses of strategies and features, in fairseq's form, each once, without
    those that another one extends."""
    kinds = [s.flags for s in all_strategies() if s.flags] + [f.flags for f in features()]
    classes = list(dict.fromkeys(map(fairseq_dataclass, kinds)))
    return [
        c for c in classes if not any(issubclass(other, c) and other is not c for other in classes)
    ]


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


def check_run(flags: Any, generation: Any) -> None:
    """Raise UsageError for --resume without a file."""
    if flags.resume and not flags.results_file:
        raise UsageError("--resume continues a results file and none is named: add --results-file")


register_feature("run", RunFlags, check=check_run)


def flags_dataclass() -> type:
    """Return all our flags as one dataclass, ready to be mixed into a task's."""
    bases = flag_bases()  # loads the strategies, so that the choices below are complete
    own: list = []
    for point in POINTS:
        kind: Any = ChoiceEnum(names_of(point))
        default: str | None = DEFAULT[point]
        if point in ("select", "stop"):
            # constraints choose the strategy if no flag names one, so the default differs from
            # every name
            kind, default = Optional[kind], None  # noqa: UP045
        own.append((point, kind, field(default=default, metadata={"help": HELP[point]})))
    return make_dataclass(
        "DecodingFlags",
        own,
        bases=(*bases, FairseqDataclass),
        namespace={"__module__": __name__},
    )


def task_dataclass(stock: type, flags: type) -> type:
    """Return a stock task's dataclass with our flags."""
    return make_dataclass(f"{stock.__name__}Ext", [], bases=(flags, stock))
