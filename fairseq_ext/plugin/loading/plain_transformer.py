"""Checkpoints of an architecture that nobody has registered here, whose settings are those of a plain Transformer.

Many user directories register nothing but a name for sizes of fairseq's own Transformer, and checkpoints save the sizes themselves.
Such a one is built as `transformer`. The weights must then fit strictly, name by name and size by size, which fairseq checks.
"""

from __future__ import annotations

import functools
import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from fairseq import options
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY

from fairseq_ext.core.errors import UsageError
from fairseq_ext.plugin.loading.checkpoint_parts import plain

logger = logging.getLogger("fairseq_ext")
SIDES = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "learned_pos")
NEEDED = tuple(f"{side}_{what}" for side in ("encoder", "decoder") for what in SIDES)
NEEDED += ("share_all_embeddings", "share_decoder_input_output_embed", "activation_fn", "no_token_positional_embeddings")
# of other releases of fairseq: settings of training, and of how files are read
OTHER_RELEASES = frozenset(
    "arch _name raw_text lazy_load log_keys remove_bpe min_lr max_sentences max_sentences_valid max_positions bmuf ddp_comm_hook "
    "fast_stat_sync target_length_dict memory_efficient_fp16 no_seed_provided distributed_no_spawn enable_reservsed_directories_shards "
    "device_id cpu_offload update_ordered_indices_seed skip_remainder_batch input_feeding upsample_primary multilang_sampler_type".split()
)
CHOICES = ("criterion", "optimizer", "lr_scheduler")  # settings that name an entry of fairseq's registries


@functools.cache
def known_settings() -> frozenset[str]:
    """Every setting of fairseq's own that a checkpoint of a plain Transformer may hold."""
    from fairseq.models.transformer import TransformerModel, base_architecture

    known = set(OTHER_RELEASES)
    parsers = [options.get_training_parser()]
    entries = [TransformerModel]
    for registry in (TASK_REGISTRY, *(each["registry"] for each in REGISTRIES.values())):
        entries += list(registry.values())
    for entry in entries:
        parser = ArgumentParser(add_help=False, conflict_handler="resolve")
        if hasattr(entry, "add_args"):
            entry.add_args(parser)
        elif hasattr(entry, "__dataclass"):
            gen_parser_from_dataclass(parser, getattr(entry, "__dataclass")())  # noqa: B009
        parsers.append(parser)
    for parser in parsers:
        known |= {action.dest for action in parser._actions}
    sizes = Namespace()
    base_architecture(sizes)
    default = options.parse_args_and_arch(options.get_training_parser(), ["--arch", "transformer", "--task", "translation", "data"])
    return frozenset(known | set(vars(sizes)) | set(vars(default)))


def refusal(settings: Mapping[str, Any]) -> str | None:
    """Why settings do not describe a plain Transformer; None where they do."""
    lacking = [name for name in NEEDED if name not in settings]
    if lacking:
        return f"its settings lack {lacking[0]}"
    unknown = {name: value for name, value in settings.items() if value and name not in known_settings()}
    if unknown:
        name, value = next(iter(unknown.items()))
        return f"its settings have {name}={value!r}, which a plain Transformer does not have"
    return None


def build_as_plain_(state: dict[str, Any]) -> None:
    """Name the architecture of a loaded checkpoint `transformer`, in place, where it is unknown and a plain Transformer by its settings.

    Errors: UsageError, which says why, where it is unknown and something else.
    """
    groups = state.get("cfg")
    holder = state.get("args") if state.get("args") is not None else None if groups is None else groups.get("model")
    settings = plain(holder)
    name = settings.get("arch") or settings.get("_name")
    if not name or name in ARCH_MODEL_REGISTRY or name in MODEL_REGISTRY:
        return
    reason = "it is spread over several files" if "fsdp_metadata" in state else refusal(settings)
    if reason is not None:
        raise UsageError(f"the checkpoint's architecture {name} is not registered here, and {reason}: name its --user-dir")
    sizes = f"{settings['encoder_layers']} + {settings['decoder_layers']} layers of width {settings['decoder_embed_dim']}"
    logger.info("the checkpoint's architecture %s is not registered here: built as a plain Transformer, %s, by its settings", name, sizes)
    if isinstance(holder, Namespace):
        rename_(holder, settings)
    else:  # saved as a dictionary: fairseq takes a namespace of its architectures
        state["cfg"]["model"] = Namespace(**settings | {"arch": "transformer", "_name": "transformer"})


def rename_(holder: Namespace, settings: Mapping[str, Any]) -> None:
    """Settings that fairseq can read: the architecture's name, and no other name that is unknown here."""
    holder.arch = "transformer"
    if "_name" in settings:
        holder._name = "transformer"
    if settings.get("task") not in TASK_REGISTRY:
        holder.task = "translation"
    for name in CHOICES:
        if getattr(holder, name, None) not in REGISTRIES[name]["registry"]:
            setattr(holder, name, None)
