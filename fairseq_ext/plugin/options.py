"""`Settings` from fairseq's namespaces (argparse, omegaconf), read once, when a generator is built,
and the one-line signature."""

from __future__ import annotations

import dataclasses
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import fairseq
import numpy as np
import torch
from fairseq.dataclass.configs import GenerationConfig
from fairseq.utils import split_paths
from omegaconf import OmegaConf

from fairseq_ext.core import __version__
from fairseq_ext.core.files import SHOWN, refuse_shared, sha256
from fairseq_ext.plugin.loading.settings import (
    StockSettings,
    checkpoint_of,
    languages_of,
    max_tokens_limit,
    of_some_tasks,
    segments_text,
    setting,
)
from fairseq_ext.search.checks import refuse_stock_search, stock_search, validate
from fairseq_ext.search.constraints.allowed import restricts_outputs
from fairseq_ext.search.constraints.glossary import (
    GlossaryFlags,
    check_glossary,
    match_mode,
)
from fairseq_ext.search.constraints.required import choose_placement, expect_phrases
from fairseq_ext.search.constraints.sources import choose_strategies, is_ordered
from fairseq_ext.search.finished import Scoring
from fairseq_ext.search.mbr import CandidateFlags
from fairseq_ext.search.protocols import SearchSpec
from fairseq_ext.search.registry import (
    PRUNERS,
    Part,
    all_fields,
    changed,
    chosen,
    constraint_flag,
    declared,
    features,
    samples,
    typed,
)
from fairseq_ext.search.settings import POINTS, CommandSettings, Generation, Settings, Value
from fairseq_ext.search.strategies.prune import ChildrenFlags
from fairseq_ext.search.strategies.stop.length_reward import LengthFlags

if TYPE_CHECKING:
    from fairseq.sequence_generator import SequenceGenerator


VERSION = __version__.rpartition(".")[0]
SAMPLED = 1024  # values of a weight by which it is known


# ---- Namespaces of fairseq, read once


def plain(value: object) -> Any:
    """Return a setting as a value of Python's own."""
    if isinstance(value, Enum):
        return value.value
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def values_of(flags: Iterable[dataclasses.Field], namespace: StockSettings) -> dict[str, Value]:
    """Return the values of flags from a namespace of fairseq's, or their defaults."""
    return {
        each.name: plain(getattr(namespace, each.name, each.default))
        for each in flags
        if each.name != "_name"
    }


def read_settings(namespace: StockSettings) -> Settings:
    """Return our flags and the settings of the command, from those of a task."""
    return Settings(values_of(all_fields().values(), namespace), command_settings(namespace))


def command_settings(settings: StockSettings) -> CommandSettings:
    """Return fairseq's other settings. settings: a task's, as the command has them."""
    seed = setting(settings, "common", "seed")
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
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
        is_terminal and not setting(settings, "common", "no_progress_bar"),
        bool(of_some_tasks(settings, "keep_inference_langtok")),
    )


def is_constrained(settings: Settings) -> bool:
    """Return whether sentences have constraints, or allowed outputs, that our own search obeys."""
    given = constraint_flag(settings) is not None or restricts_outputs(settings)
    return given and not stock_search(settings.generation)


@dataclass(frozen=True)
class GivenByCalls:
    """Kinds of constraints that each call of a Translator or an Engine may pass."""

    phrases: bool = False
    glossaries: bool = False


def chosen_settings(
    settings: Settings,
    args: GenerationConfig | Namespace,
    calls: GivenByCalls = GivenByCalls(),
    *more: Part,
) -> Settings:
    """Return the settings of a generator. settings: from `read_settings`; args: fairseq's
    GenerationConfig or a namespace with some of its fields; more: see `validate`.

    Some flags imply others: constraints imply the stock flag and choose strategies, a glossary
    chooses its placement. Those that fairseq's commands read are written into args.
    Errors: UsageError for flags that cannot work.
    """
    settings = settings.changed(**values_of(fields(GenerationConfig), args))
    given = settings.generation
    settings = replace(settings, has_typed=bool(given.constraints))
    if calls.phrases and (flag := expect_phrases(settings)):
        settings = settings.changed(constraints="unordered")
        refuse_stock_search(flag, given)
    check_glossary(settings, calls.glossaries)
    if constraint_flag(settings) and not settings.generation.constraints:
        # fairseq-interactive then reads tab-separated phrases and prints C- lines
        settings = settings.changed(constraints="unordered")
    settings = choose_strategies(settings)
    validate(settings, *more)
    settings = choose_placement(settings, calls.glossaries)
    for name in ("constraints", "sampling"):
        if (value := settings.values[name]) != vars(given)[name]:
            setattr(args, name, value)
    return settings


def search_spec(settings: Settings, stock: SequenceGenerator) -> SearchSpec:
    """Return the settings of a search, from our flags and from fairseq's generator."""
    generation, length = settings.generation, settings.get(LengthFlags)
    scoring = Scoring(
        stock.normalize_scores,
        stock.len_penalty,
        reward=length.length_reward,
        ratio=length.length_ratio,
        offset=length.length_offset,
        bounded=not length.length_reward_unbounded,
    )
    k, children = stock.beam_size, settings.get(ChildrenFlags).prune_children
    return SearchSpec(
        k=k,
        nbest=k if settings.get(CandidateFlags).mbr else min(generation.nbest, k),
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
        seed=settings.command.seed,
    )


def signature(settings: Settings, backend: str) -> str:
    """Return one line that says how the output was made."""
    generation, written = settings.generation, declared("written")
    if settings.get(GlossaryFlags).glossary_placement is not None:  # surface is not named
        given, match = settings.command, settings.get(GlossaryFlags).glossary_match
        mode = match_mode(match, given.languages, given.segments_text)
        settings = settings.changed(glossary_match=None if mode == "surface" else mode)
    parts = [f"fairseq_ext:{VERSION}"]
    for point in POINTS:
        strategy = chosen(settings, point)
        named = [strategy.name] + [
            f"{name}={value}"
            for name, value in changed(settings, strategy).items()
            if name not in written
        ]
        if strategy.signature_part is not None:
            named.append(strategy.signature_part(settings.get(strategy.flags), generation))
        if point != "decoding" or strategy.name != "beam":
            parts.append(f"{point}:{','.join(named)}")
    parts += [
        f"prune:{name.removeprefix('prune_')}={value}"
        for strategy in PRUNERS.values()
        for name, value in changed(settings, strategy).items()
    ]
    parts += [f"seed:{settings.command.seed}"] if samples(settings) else []
    search = stock_search(generation)
    if constraint_flag(settings) and not search:
        parts.append(f"constraints:{'ordered' if is_ordered(settings) else 'unordered'}")
    own = (f.signature(settings) for f in features() if f.signature is not None)
    parts += [part for part in own if part and not search]
    if search:
        parts.append(f"search:fairseq {search}")
    return "|".join([*parts, f"backend:{backend}"])


# parts of the signature that are no strategies
VERSION_PARTS = ("beam", "lenpen", "model", "fairseq", "torch")


def signature_versions(generation: Generation, models: list) -> str:
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


def short_name_of_weights(models: Iterable[torch.nn.Module]) -> str:
    """Return eight hexadecimal digits that identify a trained model: a digest of every weight's
    name and shape and of SAMPLED of its values, evenly spread, so that a model of any size takes
    milliseconds."""

    def parts() -> Iterator[bytes | np.ndarray]:
        for model in models:
            for name, weight in model.named_parameters():
                yield f"{name} {tuple(weight.shape)}\n".encode()
                values = weight.detach().reshape(-1)[:: max(1, weight.numel() // SAMPLED)]
                yield values.float().cpu().contiguous().numpy()

    return sha256(parts())[:8]


# ---- The files that a command writes: each must differ from its inputs and its other outputs


INPUT_FLAGS = (("common_eval", "path"), ("interactive", "input"), ("generation", "lm_path"))


def check_outputs(settings: StockSettings) -> None:
    """Raise UsageError if two flags name one file, and the command writes it.

    settings: a task's.
    """
    ours = values_of(all_fields().values(), settings)
    written = [(typed(name), str(path)) for name in declared("written") if (path := ours.pop(name))]
    read = [(typed(name), value) for name, value in ours.items() if isinstance(value, str)]
    for group, name in INPUT_FLAGS:
        if isinstance(given := setting(settings, group, name), str) and given:
            read += [(typed(name), part) for part in split_paths(given)]
    refuse_shared(written, read)
