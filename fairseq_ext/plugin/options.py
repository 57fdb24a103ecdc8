"""The settings of a run as plain frozen values (`Options`), the input of a strategy's builder
(`Context`), and the one-line signature.

fairseq keeps settings in namespaces (argparse, omegaconf). They are read here, once, when a
generator is built; all other code reads attributes of frozen dataclasses.
"""

from __future__ import annotations

import dataclasses
import functools
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, make_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import fairseq
import torch
from fairseq.dataclass.configs import GenerationConfig
from fairseq.utils import split_paths
from omegaconf import DictConfig, OmegaConf

from fairseq_ext.core import __version__
from fairseq_ext.core.files import SHOWN, refuse_shared, sha256
from fairseq_ext.core.glossary import Languages
from fairseq_ext.plugin.flags_dataclass import flags_dataclass
from fairseq_ext.plugin.loading.settings import (
    checkpoint_of,
    max_tokens_limit,
    of_some_tasks,
    segments_text,
    setting,
    shows_bar,
)
from fairseq_ext.search.checks import refuse_stock_search, stock_search, validate
from fairseq_ext.search.constraints.allowed import restricts_outputs
from fairseq_ext.search.constraints.glossary import check_glossary, match_mode
from fairseq_ext.search.constraints.required import choose_placement, expect_phrases
from fairseq_ext.search.constraints.sources import choose_strategies, is_ordered
from fairseq_ext.search.finished import Scoring
from fairseq_ext.search.protocols import SearchSpec
from fairseq_ext.search.registry import (
    POINTS,
    PRUNERS,
    Part,
    changed,
    chosen,
    constrained,
    declared,
    features,
    samples,
)

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.sequence_generator import SequenceGenerator

    from fairseq_ext.core.stats import Stats


VERSION = __version__.rpartition(".")[0]


# ---- Namespaces of fairseq, read once


def plain(value: Any) -> Any:
    """Return a setting as a value of Python's own."""
    if isinstance(value, Enum):
        return value.value
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


@functools.cache
def frozen_kind(kind: type) -> type:
    """Return a frozen dataclass with the fields of a dataclass of fairseq's."""
    names = [each.name for each in dataclasses.fields(kind) if each.name != "_name"]
    return make_dataclass(kind.__name__, names, frozen=True)


def frozen(kind: type, settings: Any) -> Any:
    """Return the fields of a dataclass of fairseq's from a namespace, or their defaults, as plain
    values in a frozen dataclass."""
    values = {
        each.name: plain(getattr(settings, each.name, each.default))
        for each in dataclasses.fields(kind)
        if each.name != "_name"
    }
    return frozen_kind(kind)(**values)


def own_flags(settings: DictConfig | Namespace) -> Any:
    """Return our flags, frozen. settings: a task's."""
    return frozen(flags_dataclass(), settings)


def languages_of(settings: DictConfig | Namespace) -> Languages:
    """Return the languages of a task's settings, which an engine changes from request to request;
    None for a task without them."""
    return Languages(*(of_some_tasks(settings, f"{side}_lang") for side in ("source", "target")))


@dataclass(frozen=True)
class CommandSettings:
    """fairseq's other settings that a run reads, of the task and of the command."""

    languages: Languages = Languages(None, None)
    left_pad_source: bool = True
    data: str = ""  # directories, joined by colons
    checkpoint: str | None = None  # the first model's file, if it exists
    seed: int = 1
    max_tokens: int | None = None  # of a batch; None: no limit
    subset: str | None = None  # --gen-subset
    input: str | None = None  # --input of fairseq-interactive
    undoes_bpe: bool = False  # --remove-bpe
    scores_reference: bool = False  # --score-reference
    skips_invalid: bool = False  # --skip-invalid-size-inputs-valid-test
    segments_text: bool = False  # --bpe or --tokenizer is given
    shows_bar: bool = False
    keeps_language_token: bool = False  # --keep-inference-langtok


def command_settings(settings: DictConfig | Namespace) -> CommandSettings:
    """Return fairseq's other settings. settings: a task's, as the command has them."""
    seed = setting(settings, "common", "seed")
    return CommandSettings(
        languages_of(settings),
        of_some_tasks(settings, "left_pad_source", True),
        str(of_some_tasks(settings, "data") or ""),
        checkpoint_of(settings),
        1 if seed is None else int(seed),
        max_tokens_limit(setting(settings, "dataset", "max_tokens")),
        setting(settings, "dataset", "gen_subset"),
        setting(settings, "interactive", "input"),
        bool(setting(settings, "common_eval", "post_process")),
        bool(setting(settings, "generation", "score_reference")),
        bool(setting(settings, "dataset", "skip_invalid_size_inputs_valid_test")),
        segments_text(settings),
        shows_bar(settings),
        bool(of_some_tasks(settings, "keep_inference_langtok")),
    )


@dataclass(frozen=True)
class Options:
    """All settings of a generator.

    flags: ours, by name; generation: fairseq's GenerationConfig. Both name the strategies, also if
    constraints have chosen them. typed: --constraints is given, so that phrases may follow a line.
    """

    flags: Any
    generation: Any
    settings: CommandSettings = CommandSettings()
    typed: bool = False

    @property
    def constrained(self) -> bool:
        """Whether sentences have constraints, or allowed outputs, that our own search obeys."""
        return (
            constrained(self.flags, self.generation) or restricts_outputs(self.flags)
        ) and not stock_search(self.generation)


@dataclass(frozen=True)
class GivenByCalls:
    """Kinds of constraints that each call of a Translator or an Engine may pass."""

    phrases: bool = False
    glossaries: bool = False


def options_of(
    flags: Any, args: Any, settings: CommandSettings, calls: GivenByCalls, *more: Part
) -> Options:
    """Return the settings of a generator. flags: from `own_flags`; args: fairseq's GenerationConfig
    or a namespace with some of its fields; more: see `validate`.

    Some flags imply others: constraints imply the stock flag and choose strategies, a glossary
    chooses its placement. Those that fairseq's commands read are written into args.
    Errors: UsageError for flags that cannot work.
    """
    given = generation = frozen(GenerationConfig, args)
    typed = bool(generation.constraints)
    if calls.phrases and (flag := expect_phrases(flags, generation)):
        generation = replace(generation, constraints="unordered")
        refuse_stock_search(flag, generation)
    check_glossary(flags, calls.glossaries)
    if constrained(flags, generation) and not generation.constraints:
        # fairseq-interactive then reads tab-separated phrases and prints C- lines
        generation = replace(generation, constraints="unordered")
    flags, generation = choose_strategies(flags, generation)
    validate(flags, generation, *more)
    flags = choose_placement(flags, generation, settings.segments_text, calls.glossaries)
    for name in ("constraints", "sampling"):
        if (value := vars(generation)[name]) != vars(given)[name]:
            setattr(args, name, value)
    return Options(flags, generation, settings, typed)


@dataclass(frozen=True, kw_only=True)
class Context(SearchSpec):
    """The input of a strategy's builder, in addition to its flags: settings of the search,
    dictionaries, models."""

    dictionary: Dictionary  # target side
    source_dictionary: Dictionary | None
    checkpoint: str | None  # the first model's file, if it is known
    models: list
    stats: Stats

    @property
    def joined_dictionary(self) -> bool:
        """Whether source and target side share their words, and so their counts."""
        return self.source_dictionary is not None and self.source_dictionary == self.dictionary


def search_spec(options: Options, stock: SequenceGenerator) -> SearchSpec:
    """Return the settings of a search, from our flags and from fairseq's generator."""
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
        # a row has at most k children that count
        children=children if children is not None and children < k else None,
        seed=options.settings.seed,
        diverse_groups=generation.diverse_beam_groups,
        diverse_strength=generation.diverse_beam_strength,
        sampling_topk=generation.sampling_topk,
        sampling_topp=generation.sampling_topp,
    )


def signature(options: Options, backend: str) -> str:
    """Return one line that says how the output was made."""
    flags, generation, written = options.flags, options.generation, declared("written")
    if flags.glossary_placement is not None:  # surface is not named
        given = options.settings
        match = match_mode(flags.glossary_match, given.languages, given.segments_text)
        flags = replace(flags, glossary_match=None if match == "surface" else match)
    parts = [f"fairseq_ext:{VERSION}"]
    for point in POINTS:
        strategy = chosen(flags, point)
        settings = [strategy.name] + [
            f"{name}={value}"
            for name, value in changed(flags, strategy).items()
            if name not in written
        ]
        settings += (
            [strategy.signature_part(flags, generation)]
            if strategy.signature_part is not None
            else []
        )
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
    if constrained(flags, generation) and not search:
        parts.append(f"constraints:{'ordered' if is_ordered(flags, generation) else 'unordered'}")
    own = (f.signature(flags, generation) for f in features() if f.signature is not None)
    parts += [part for part in own if part and not search]
    if search:
        parts.append(f"search:fairseq {search}")
    return "|".join([*parts, f"backend:{backend}"])


# parts of the signature that are no strategies
VERSION_PARTS = ("beam", "lenpen", "model", "fairseq", "torch")


def signature_versions(generation: Any, models: list) -> str:
    """Return the end of the signature: beam, length penalty, name of the weights, versions."""
    lenpen = "none" if generation.unnormalized else f"{generation.lenpen:g}"
    values = (
        generation.beam,
        lenpen,
        short_name_of_weights(models),
        fairseq.__version__,
        torch.__version__,
    )
    return "|".join(f"{name}:{value}" for name, value in zip(VERSION_PARTS, values, strict=True))


def fingerprint_of_weights(models: Iterable[torch.nn.Module]) -> str:
    """Return the number of weights of all models and the digest of all values, in their own
    precision."""
    named = [each for model in models for each in model.named_parameters()]
    digest = sha256(
        part
        for name, weight in named
        for part in (
            f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode(),
            weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy(),
        )
    )
    return f"{sum(weight.numel() for _, weight in named)} weights, {digest[:SHOWN]}"


def short_name_of_weights(models: Iterable[torch.nn.Module], sampled: int = 1024) -> str:
    """Return eight hexadecimal digits that identify a trained model: a digest of every weight's
    name and shape and of some of its values.

    sampled: the number of values of a weight, evenly spread, so that a model of any size takes
    milliseconds.
    """

    def parts() -> Iterator[Any]:
        for model in models:
            for name, weight in model.named_parameters():
                yield f"{name} {tuple(weight.shape)}\n".encode()
                values = weight.detach().reshape(-1)[:: max(1, weight.numel() // sampled)]
                yield values.float().cpu().contiguous().numpy()

    return sha256(parts())[:8]


# ---- The files that a command writes: each must differ from its inputs and its other outputs


INPUT_FLAGS = (("common_eval", "path"), ("interactive", "input"), ("generation", "lm_path"))


def check_outputs(settings: DictConfig | Namespace) -> None:
    """Raise UsageError if two flags name one file, and the command writes it.

    settings: a task's.
    """
    ours = dict(vars(own_flags(settings)))
    written = [("--" + name.replace("_", "-"), ours.pop(name)) for name in declared("written")]
    read = [
        ("--" + name.replace("_", "-"), value)
        for name, value in ours.items()
        if isinstance(value, str)
    ]
    for group, name in INPUT_FLAGS:
        found = setting(settings, group, name)
        read += (
            [("--" + name.replace("_", "-"), part) for part in split_paths(found)]
            if isinstance(found, str) and found
            else []
        )
    refuse_shared([(flag, path) for flag, path in written if path], read)
