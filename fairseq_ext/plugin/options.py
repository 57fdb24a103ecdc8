"""The settings of a run as plain frozen values (`Options`), what a strategy's builder reads
(`Context`), and the one-line signature.

fairseq keeps settings in namespaces (argparse, omegaconf). They are read here, once, when a
generator is built; the code behind it reads attributes of frozen dataclasses.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass, make_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import fairseq
import torch
from fairseq.dataclass.configs import GenerationConfig
from fairseq.utils import split_paths
from omegaconf import DictConfig, OmegaConf

from fairseq_ext.core import __version__
from fairseq_ext.core.files import SHOWN, refuse_shared
from fairseq_ext.core.glossary import Languages
from fairseq_ext.plugin.flags_dataclass import flags_dataclass
from fairseq_ext.plugin.loading.settings import (
    checkpoint_of,
    limit_of,
    segments_text,
    setting,
    shows_bar,
)
from fairseq_ext.search.checks import refuse_stock_search, stock_search, validate
from fairseq_ext.search.constraints.glossary import check_glossary, choose_placement
from fairseq_ext.search.constraints.required import expect_phrases
from fairseq_ext.search.constraints.sources import choose_strategies, is_ordered
from fairseq_ext.search.finished import Scoring
from fairseq_ext.search.protocols import SearchSpec
from fairseq_ext.search.registry import (
    FEATURES,
    POINTS,
    PRUNERS,
    STRATEGIES,
    Part,
    changed,
    choice,
    constrained,
    declared,
    samples,
)

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.sequence_generator import SequenceGenerator

    from fairseq_ext.core.stats import Stats


VERSION = __version__.rpartition(".")[0]


# ---- Namespaces of fairseq, read once


def plain(value: Any) -> Any:
    """A setting as a value of Python's own."""
    if isinstance(value, Enum):
        return value.value
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


@functools.cache
def frozen_kind(kind: type) -> type:
    """A frozen dataclass with the fields of a dataclass of fairseq's."""
    names = [each.name for each in dataclasses.fields(kind) if each.name != "_name"]
    return make_dataclass(kind.__name__, names, frozen=True)


def frozen(kind: type, settings: Any) -> Any:
    """The fields of a dataclass of fairseq's as a namespace has them, else with their defaults;
    plain values in a frozen dataclass."""
    values = {
        each.name: plain(getattr(settings, each.name, each.default))
        for each in dataclasses.fields(kind)
        if each.name != "_name"
    }
    return frozen_kind(kind)(**values)


def own_flags(settings: DictConfig | Namespace) -> Any:
    """Our flags, frozen. settings: a task's."""
    return frozen(flags_dataclass(), settings)


def languages_of(settings: DictConfig | Namespace) -> Languages:
    """The languages of a task's settings, which an engine changes from request to request; None
    where the task has none."""
    return Languages(*(getattr(settings, f"{side}_lang", None) for side in ("source", "target")))


@dataclass(frozen=True)
class CommandSettings:
    """What a run reads of fairseq's other settings, those of the task and of the command."""

    languages: Languages = Languages(None, None)
    left_pad_source: bool = True
    data: str = ""  # directories, joined by colons
    checkpoint: str | None = None  # the first model's file, where it is there
    seed: int = 1
    max_tokens: int | None = None  # most tokens of a batch; None: any number
    subset: str | None = None  # --gen-subset
    input: str | None = None  # --input of fairseq-interactive
    undoes_bpe: bool = False  # --remove-bpe
    scores_reference: bool = False  # --score-reference
    skips_invalid: bool = False  # --skip-invalid-size-inputs-valid-test
    segments_text: bool = False  # --bpe or --tokenizer is given
    shows_bar: bool = False


def command_settings(settings: DictConfig | Namespace) -> CommandSettings:
    """fairseq's other settings. settings: a task's, as the command has them."""
    seed = setting(settings, "common", "seed")
    return CommandSettings(
        languages_of(settings),
        getattr(settings, "left_pad_source", True),
        str(getattr(settings, "data", None) or ""),
        checkpoint_of(settings),
        1 if seed is None else int(seed),
        limit_of(setting(settings, "dataset", "max_tokens")),
        setting(settings, "dataset", "gen_subset"),
        setting(settings, "interactive", "input"),
        bool(setting(settings, "common_eval", "post_process")),
        bool(setting(settings, "generation", "score_reference")),
        bool(setting(settings, "dataset", "skip_invalid_size_inputs_valid_test")),
        segments_text(settings),
        shows_bar(settings),
    )


@dataclass(frozen=True)
class Options:
    """All settings of a generator.

    flags: ours, by name; generation: fairseq's GenerationConfig. Both say which strategies run,
    also where constraints have chosen them. typed: --constraints is given, so that phrases may be
    typed behind lines.
    """

    flags: Any
    generation: Any
    settings: CommandSettings = CommandSettings()
    typed: bool = False

    @property
    def constrained(self) -> bool:
        """Whether sentences have constraints that our own search obeys."""
        return constrained(self.flags, self.generation) and not stock_search(self.generation)


@dataclass(frozen=True)
class GivenByCalls:
    """What comes with each call of a Translator or an Engine, in addition to the flags."""

    phrases: bool = False
    glossaries: bool = False


def options_of(
    flags: Any, args: Any, settings: CommandSettings, calls: GivenByCalls, *more: Part
) -> Options:
    """The settings of a generator. flags: as of `own_flags`; args: fairseq's GenerationConfig or
    a namespace with some of its fields; more: as of `validate`.

    The flags imply others: constraints imply the stock flag and choose strategies, a glossary
    chooses its placement. args gets what fairseq's commands read there.
    Errors: UsageError for flags that cannot work.
    """
    generation = frozen(GenerationConfig, args)
    typed = bool(generation.constraints)
    if calls.phrases and (shaping := expect_phrases(flags, generation)):
        generation = replace(generation, constraints="unordered")
        refuse_stock_search(shaping, generation)
    check_glossary(flags, calls.glossaries)
    if constrained(flags, generation) and not generation.constraints:
        # fairseq-interactive then reads tab-separated phrases and prints C- lines
        generation = replace(generation, constraints="unordered")
    flags, generation = choose_strategies(flags, generation)
    validate(flags, generation, *more)
    flags = choose_placement(flags, generation, settings.segments_text, calls.glossaries)
    for name in ("constraints", "sampling"):
        if (value := vars(generation)[name]) != getattr(args, name, None):
            setattr(args, name, value)
    return Options(flags, generation, settings, typed)


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


def search_spec(options: Options, stock: SequenceGenerator) -> SearchSpec:
    """The settings of a search: from our flags, and from fairseq's as its generator
    has taken them in."""
    flags, generation = options.flags, options.generation
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
        nbest=k if flags.mbr else min(generation.nbest, k),
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
        seed=options.settings.seed,
        diverse_groups=generation.diverse_beam_groups,
        diverse_strength=generation.diverse_beam_strength,
        sampling_topk=generation.sampling_topk,
        sampling_topp=generation.sampling_topp,
    )


def signature(options: Options, backend: str) -> str:
    """One line that says how the output was made."""
    flags, generation, written = options.flags, options.generation, declared("written")
    parts = [f"fairseq_ext:{VERSION}"]
    for point in POINTS:
        strategy = STRATEGIES[point][choice(flags, point)]
        settings = [strategy.name] + [
            f"{name}={value}"
            for name, value in changed(flags, strategy).items()
            if name not in written
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
    parts += [f"seed:{options.settings.seed}"] if samples(flags) else []
    search = stock_search(generation)
    if options.constrained:
        parts.append(f"constraints:{'ordered' if is_ordered(flags, generation) else 'unordered'}")
    own = (f.signature(flags, generation) for f in FEATURES.values() if f.signature is not None)
    parts += [part for part in own if part and not search]
    if search:
        parts.append(f"search:fairseq {search}")
    return "|".join([*parts, f"backend:{backend}"])


# parts of the signature that are no strategies
MADE_WITH = ("beam", "lenpen", "model", "fairseq", "torch")


def made_with(generation: Any, models: list) -> str:
    """The end of the signature: beam, length penalty, a short name of the weights, and versions."""
    lenpen = "none" if generation.unnormalized else f"{generation.lenpen:g}"
    values = (
        generation.beam,
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


READ = (("common_eval", "path"), ("interactive", "input"), ("generation", "lm_path"))


def check_outputs(settings: DictConfig | Namespace) -> None:
    """UsageError for two flags that name one file, where the command writes it.

    settings: a task's.
    """
    ours = dict(vars(own_flags(settings)))
    written = [("--" + name.replace("_", "-"), ours.pop(name)) for name in declared("written")]
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
