"""All flags as one dataclass, what a strategy's builder is given (`Context`), and
the one-line signature."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass, field, make_dataclass
from types import NoneType, UnionType
from typing import (  # noqa: UP035
    TYPE_CHECKING,
    Any,
    List,
    Literal,
    Optional,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import fairseq
import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.configs import FairseqConfig
from fairseq.utils import split_paths
from omegaconf import DictConfig

from fairseq_ext.core import __version__
from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import SHOWN, refuse_shared
from fairseq_ext.plugin.loading.settings import setting
from fairseq_ext.search.checks import stock_search, validate
from fairseq_ext.search.constraints.glossary import places_terms
from fairseq_ext.search.constraints.sources import choose_strategies, constrained, is_ordered
from fairseq_ext.search.finished import Scoring
from fairseq_ext.search.mbr import CandidateFlags, given
from fairseq_ext.search.protocols import SearchSpec
from fairseq_ext.search.registry import (
    DEFAULT,
    POINTS,
    PRUNERS,
    STRATEGIES,
    TAKEN,
    Part,
    all_strategies,
    changed,
    choice,
    file_of,
    names_of,
    samples,
)

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.sequence_generator import SequenceGenerator

    from fairseq_ext.core.stats import Stats


VERSION = __version__.rpartition(".")[0]
Text = Optional[str]  # noqa: UP045  (fairseq reads this form only)
BACKENDS = ("auto", "transformer", "fairseq")
HELP = {
    "select": "how continuations are chosen (default: dba where there are constraints, else "
    "topk, as fairseq)",
    "stop": "when a sentence is final (default: early where there are constraints, else count, as "
    "fairseq: beam-many finished hypotheses)",
    "schedule": "when sentences start (default: batch, as fairseq: all together)",
    "softmax": "which words are scored (default: full, all of them)",
    "decoding": "what drives the decoder (default: beam, beam search)",
}
TAKEN.update(
    name
    for group in vars(FairseqConfig).values()
    for name in vars(type(group)).get("__dataclass_fields__", ())
)


@dataclass(frozen=True, kw_only=True)
class Context(SearchSpec):
    """What a strategy's builder may need besides its flags: the search's settings,
    and what it works on."""

    dictionary: Dictionary  # target side
    source_dictionary: Dictionary | None
    checkpoint: str | None  # the first model's file, where it is known
    models: list
    stats: Stats

    @property
    def joined_dictionary(self) -> bool:
        """Whether source and target side share their words, and so their counts."""
        return self.source_dictionary is not None and self.source_dictionary == self.dictionary


def search_spec(flags: Any, generation: Any, stock: SequenceGenerator) -> SearchSpec:
    """The settings of a search: from our flags, and from fairseq's as its generator
    has taken them in."""
    scoring = Scoring(
        stock.normalize_scores,
        stock.len_penalty,
        reward=flags.length_reward,
        ratio=flags.length_ratio,
        offset=flags.length_offset,
        bounded=not flags.length_reward_unbounded,
    )
    k, children = stock.beam_size, flags.prune_children
    return SearchSpec(
        k=k,
        nbest=k if flags.mbr else min(getattr(generation, "nbest", 1), k),
        pad=stock.pad,
        unk=stock.unk,
        eos=stock.eos,
        max_len_a=stock.max_len_a,
        max_len_b=stock.max_len_b,
        max_len=stock.max_len,
        min_len=stock.min_len,
        temperature=stock.temperature,
        unk_penalty=stock.unk_penalty,
        scoring=scoring,
        # a row has no more than k children that count
        children=children if children is not None and children < k else None,
        seed=seed_of(flags),
        diverse_groups=getattr(generation, "diverse_beam_groups", -1),
        diverse_strength=getattr(generation, "diverse_beam_strength", 0.5),
        sampling_topk=getattr(generation, "sampling_topk", -1),
        sampling_topp=getattr(generation, "sampling_topp", -1.0),
    )


def seed_of(flags: Any) -> int:
    """--seed, 1 where it is not given, as in fairseq."""
    seed = setting(flags, "common", "seed")
    return 1 if seed is None else int(seed)


# ---- The flags as one dataclass


def fairseq_type(kind: Any) -> Any:
    """A flag's type in the form that fairseq reads.

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
    """fairseq's kind of a plain dataclass of flags: its name, module, fields and base classes stay.
    One of fairseq's own kind stays as it is.

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
    """The strategies' flag dataclasses, of fairseq's kind, each once, those that another
    one extends left out."""
    classes = list(
        dict.fromkeys(fairseq_dataclass(s.flags) for s in all_strategies() if s.flags is not None)
    )
    return [
        c for c in classes if not any(issubclass(other, c) and other is not c for other in classes)
    ]


def complete_flags(flags: Any, generation: Any, *more: Part) -> None:
    """Fill in what the flags imply: the stock flag for constraints, the strategies that constraints
    choose. more: as of `validate`.
    Errors: UsageError for flags that cannot work."""
    if constrained(flags, generation) and not getattr(generation, "constraints", None):
        # fairseq-interactive then reads tab-separated phrases and prints C- lines
        generation.constraints = "unordered"
    choose_strategies(flags, generation)
    validate(flags, generation, *more)


def option(name: str, kind: Any, default: Any, text: str) -> tuple[str, Any, Any]:
    """A flag that belongs to no strategy, as make_dataclass takes it."""
    return name, kind, field(default=default, metadata={"help": text})


def flags_dataclass() -> type:
    """All our flags as one dataclass, ready to be mixed into a task's."""
    bases = flag_bases()  # loads the strategies, so that the choices below are complete
    own: list = [
        option(point, ChoiceEnum(names_of(point)), DEFAULT[point], HELP[point]) for point in POINTS
    ]
    # where nobody names a strategy at these points, constraints decide; so the default must
    # differ from every name
    for i, point in enumerate(("select", "stop")):
        own[i] = option(point, Optional[own[i][1]], None, HELP[point])  # noqa: UP045
    own += [
        option(
            "decoder_backend",
            ChoiceEnum(list(BACKENDS)),
            "auto",
            "the decoder (same results): the fastest that supports the model, or fairseq's own "
            "modules (default: auto)",
        ),
        option(
            "cpu_workers",
            int,
            1,
            "processes of one thread that share each batch's sentences on a CPU (default: 1)",
        ),
        option(
            "int8",
            bool,
            False,
            "linear layers in 8 bits: faster on a CPU, other results (default: off)",
        ),
        option(
            "cuda_graphs",
            ChoiceEnum(["auto", "off"]),
            "auto",
            "decoder steps on a GPU: one launch each, or many (off; same results; default: auto)",
        ),
        option(
            "results_file",
            Text,
            None,
            "also write each sentence's results to this JSONL file as it finishes (default: none)",
        ),
        option(
            "resume",
            bool,
            False,
            "sentences that --results-file has already are not decoded again (default: off)",
        ),
        option(
            "glossary_report",
            Text,
            None,
            "write which terms of --glossary fired, and their forms, to this JSONL file "
            "(default: none)",
        ),
        option(
            "strict",
            bool,
            False,
            "end at the first sentence that cannot be translated (default: continue, and "
            "exit with status 3)",
        ),
        option(
            "stats_file",
            Text,
            None,
            "write counts and times of the run to this JSON file (default: none)",
        ),
    ]
    bases += [fairseq_dataclass(CandidateFlags), FairseqDataclass]
    return make_dataclass(
        "DecodingFlags", own, bases=tuple(bases), namespace={"__module__": __name__}
    )


def task_dataclass(stock: type, flags: type) -> type:
    """A stock task's dataclass with our flags."""
    return make_dataclass(f"{stock.__name__}Ext", [], bases=(flags, stock))


def signature(flags: Any, generation: Any, backend: str) -> str:
    """One line that says how the output was made."""
    parts = [f"fairseq_ext:{VERSION}"]
    for point in POINTS:
        strategy = STRATEGIES[point][choice(flags, point)]
        settings = [strategy.name] + [
            f"{name}={value}" for name, value in changed(flags, strategy).items()
        ]
        settings += [strategy.tell(flags, generation)] if strategy.tell is not None else []
        if point != "decoding" or strategy.name != "beam":
            parts.append(f"{point}:{','.join(settings)}")
    prunes = [changed(flags, strategy) for strategy in PRUNERS.values()]
    parts += [
        f"prune:{name.removeprefix('prune_')}={value}"
        for settings in prunes
        for name, value in settings.items()
    ]
    parts += [f"seed:{seed_of(flags)}"] if samples(flags) else []
    parts += (
        ["mbr:" + ",".join(f"{name}={value}" for name, value in given(flags).items())]
        if flags.mbr
        else []
    )
    search = stock_search(generation)
    if constrained(flags, generation) and not search:
        parts.append(f"constraints:{'ordered' if is_ordered(flags, generation) else 'unordered'}")
    if places_terms(flags, generation) and not search:
        parts.append("glossary:align")
    if search:
        parts.append(f"search:fairseq {search}")
    return "|".join([*parts, f"backend:{backend}"])


# parts of the signature that are no strategies
MADE_WITH = ("beam", "lenpen", "model", "fairseq", "torch")


def made_with(generation: Any, models: list) -> str:
    """The end of the signature: beam, length penalty, a short name of the weights, and versions."""
    lenpen = (
        "none"
        if getattr(generation, "unnormalized", False)
        else f"{getattr(generation, 'lenpen', 1):g}"
    )
    values = (
        getattr(generation, "beam", 5),
        lenpen,
        short_name_of_weights(models),
        fairseq.__version__,
        torch.__version__,
    )
    return "|".join(f"{name}:{value}" for name, value in zip(MADE_WITH, values, strict=True))


def fingerprint_of_weights(models: Iterable[torch.nn.Module]) -> str:
    """The number of weights of all models and the digest of every one of them, in
    their own precision."""
    digest, count = hashlib.sha256(), 0
    for model in models:
        for name, weight in model.named_parameters():
            digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
            digest.update(
                weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            )
            count += weight.numel()
    return f"{count} weights, {digest.hexdigest()[:SHOWN]}"


def short_name_of_weights(models: Iterable[torch.nn.Module], sampled: int = 1024) -> str:
    """Eight hexadecimal digits that tell trained models apart: the digest of every weight's name
    and shape and of some of its values.

    sampled: the most values of a weight, evenly spread, so that a model of any size
    takes milliseconds.
    """
    digest = hashlib.sha256()
    for model in models:
        for name, weight in model.named_parameters():
            digest.update(f"{name} {tuple(weight.shape)}\n".encode())
            values = weight.detach().reshape(-1)
            digest.update(
                values[:: max(1, values.numel() // sampled)]
                .float()
                .cpu()
                .contiguous()
                .numpy()
                .tobytes()
            )
    return digest.hexdigest()[:8]


# ---- The files that a command writes
#
# None of them is one that it reads, or another one that it writes.


WRITTEN = ("results_file", "stats_file", "glossary_report")
READ = (("common_eval", "path"), ("interactive", "input"), ("generation", "lm_path"))


def check_outputs(settings: DictConfig | Namespace) -> None:
    """UsageError for two flags that name one file, where the command writes it.

    settings: a task's.
    """
    ours = {
        f.name: getattr(settings, f.name, None)
        for f in dataclasses.fields(flags_dataclass())
        if f.name != "_name"
    }
    written = [("--" + name.replace("_", "-"), ours.pop(name)) for name in WRITTEN]
    read = [
        ("--" + name.replace("_", "-"), value)
        for name, value in ours.items()
        if isinstance(value, str)
    ]
    for group, name in READ:
        found = setting(settings, group, name)
        read += (
            [("--" + name.replace("_", "-"), part) for part in split_paths(found)]
            if isinstance(found, str) and found
            else []
        )
    refuse_shared([(flag, path) for flag, path in written if path], read)
