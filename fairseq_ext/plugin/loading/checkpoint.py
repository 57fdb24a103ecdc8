"""Checks of a checkpoint before a model is built from it; plain Transformers under other names.

A damaged checkpoint takes neither hours nor all memory, and opens no other file.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from fairseq import options
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf

from fairseq_ext.core.command_line import arguments, is_fairseq_command
from fairseq_ext.core.errors import UsageError, cut

# the largest value of settings, by the ending of their names
MAX_VALUES = {"_layers": 1000, "_heads": 1000, "_dim": 100_000, "_positions": 1_000_000}
# a setting of fairseq's examples/latent_depth, which has no number of layers there
UNLIMITED = ("target_layers", -1)
NUMBERS = ("dropout", "normalize_before")  # endings of names whose values are read in decoding only
REQUIRED_NUMBERS = ("dropout", "attention_dropout")  # may not be None
FILES = (
    "encoder_embed_path",
    "decoder_embed_path",
    "load_pretrained_encoder_from",
    "load_pretrained_decoder_from",
)


def check_(state: object) -> None:
    """Raise UsageError for anything but the checkpoint of a model; remove names of files that its
    training began with, in place."""
    if not isinstance(state, Mapping):
        return  # fairseq reports it
    weights = state.get("model")
    if not isinstance(weights, Mapping):
        raise checkpoint_error('has no weights ("model")')
    for name, weight in weights.items():
        if not isinstance(weight, torch.Tensor):
            raise checkpoint_error(f"has {type(weight).__name__} in the place of the weight {name}")
        if weight.is_meta or weight.layout is not torch.strided:
            raise checkpoint_error(
                f"has the weight {name} without its numbers, or in a sparse form"
            )
    for name, kinds in (
        ("args", (Namespace,)),
        ("cfg", (Mapping, DictConfig)),
        ("task_state", (Mapping,)),
    ):
        if state.get(name) is not None and not isinstance(state[name], kinds):
            raise checkpoint_error(f'has {type(state[name]).__name__} in the place of "{name}"')
    holder = holder_of(state)
    settings = plain(holder)
    for name, value in settings.items():
        most = max((most for end, most in MAX_VALUES.items() if name.endswith(end)), default=0)
        if most and isinstance(value, int) and not 0 <= value <= most:
            if (name, value) != UNLIMITED:
                raise checkpoint_error(f"has {name}={value}, and 0 to {most} are allowed")
        if (
            name.endswith(NUMBERS)
            and not isinstance(value, (int, float))
            and (value is not None or name in REQUIRED_NUMBERS)
        ):
            raise checkpoint_error(
                f"has {name}={cut(repr(value))}, and a number or a truth value is needed"
            )
        if name in FILES and value:
            (vars(holder) if isinstance(holder, Namespace) else holder)[name] = None
    refuse_oversize(settings, 16 * sum(weight.numel() for weight in weights.values()))


def refuse_oversize(settings: Mapping, room: int) -> None:
    """Raise UsageError for settings of a model with more than `room` parameters, from the sizes of
    its matrices."""
    for side in ("encoder", "decoder"):
        layers, width, inner = (
            settings.get(f"{side}_{name}") for name in ("layers", "embed_dim", "ffn_embed_dim")
        )
        if isinstance(layers, int) and isinstance(width, int):
            inner = max(width, inner) if isinstance(inner, int) else width
            if layers * width * inner > room:
                raise checkpoint_error(
                    f"has far fewer weights than {layers} layers of width {width} and "
                    f"{inner} in its {side}"
                )


def checkpoint_error(what: str) -> UsageError:
    """Return the error for a checkpoint."""
    return UsageError(
        f"the checkpoint {what}: it is damaged, or of another kind; name one as fairseq-train "
        "has saved it"
    )


def unbuilt(paths: list[str] | str, error: Exception) -> UsageError:
    """Return the error for checkpoints from which no model can be built, for any reason."""
    why = cut(str(error) or "no reason is given")
    return UsageError(
        f"no model can be built of {', '.join(paths)} ({type(error).__name__}: {why}): "
        "it is damaged, or of another version of fairseq; name one that fairseq 0.12 has saved"
    )


def holder_of(state: Mapping) -> Any:
    """Return the settings of a checkpoint's model, in whichever form they are saved; None for
    none."""
    if state.get("args") is not None:
        return state["args"]
    groups = state.get("cfg")
    return None if groups is None else groups.get("model")


def plain(settings: object) -> dict[str, object]:
    """Return a group of settings as a dictionary, in whichever form it is saved; {} for none."""
    if isinstance(settings, Namespace):
        return dict(vars(settings))
    if isinstance(settings, DictConfig):
        return dict(OmegaConf.to_container(settings))  # type: ignore[arg-type]
    return dict(settings) if isinstance(settings, Mapping) else {}


# ---- First weights of a model


DRAWS = ("uniform_", "normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_")
# beginnings of flags, which may be cut: outputs depend on the numbers that the model has drawn, or
# some of its weights are not in the checkpoint
NEEDS_DRAWS = ("--sam", "--ret", "--checkpoint-s")  # --sampling, --retain-dropout, shards


@contextlib.contextmanager
def no_first_weights(name: str) -> Iterator[None]:
    """Let a command of fairseq's build the Transformer `name` without drawing random weights, all
    of which its checkpoint then replaces: fairseq checks that it has each."""
    kind = ARCH_MODEL_REGISTRY.get(name)
    if (
        not is_fairseq_command()
        or not str(getattr(kind, "__module__", "")).startswith("fairseq.models.transformer.")
        or any(argument.startswith(NEEDS_DRAWS) for argument in arguments())
    ):
        yield
        return
    stock = {draw: getattr(torch.nn.init, draw) for draw in DRAWS}
    try:
        for draw in DRAWS:
            setattr(torch.nn.init, draw, lambda tensor, *args, **kwargs: tensor)
        yield
    finally:
        for draw, function in stock.items():
            setattr(torch.nn.init, draw, function)


# ---- Plain Transformers under other names
#
# Many user directories only register a name for sizes of fairseq's own Transformer, and checkpoints
# save the sizes themselves. If the architecture of a checkpoint is not registered here, and its
# settings are those of a plain Transformer, the model is built as `transformer`. Its weights must
# then match strictly, name by name and size by size, which fairseq checks.


logger = logging.getLogger("fairseq_ext")
SIDES = (
    "layers",
    "embed_dim",
    "ffn_embed_dim",
    "attention_heads",
    "normalize_before",
    "learned_pos",
)
NEEDED_SETTINGS = tuple(f"{side}_{what}" for side in ("encoder", "decoder") for what in SIDES)
NEEDED_SETTINGS += (
    "share_all_embeddings",
    "share_decoder_input_output_embed",
    "activation_fn",
    "no_token_positional_embeddings",
)
# settings of other releases of fairseq: of training, and of how files are read
OTHER_RELEASES = frozenset(
    (
        "arch _name raw_text lazy_load log_keys remove_bpe min_lr max_sentences "
        "max_sentences_valid max_positions bmuf ddp_comm_hook fast_stat_sync "
        "target_length_dict memory_efficient_fp16 no_seed_provided distributed_no_spawn "
        "enable_reservsed_directories_shards device_id cpu_offload update_ordered_indices_seed "
        "skip_remainder_batch input_feeding upsample_primary multilang_sampler_type"
    ).split()
)
# settings that name an entry of fairseq's registries
CHOICES = ("criterion", "optimizer", "lr_scheduler")


@functools.cache
def known_settings() -> frozenset[str]:
    """Return every setting of fairseq's own that a checkpoint of a plain Transformer may hold."""
    from fairseq.models.transformer import TransformerModel

    registries = [TASK_REGISTRY, *(each["registry"] for each in REGISTRIES.values())]
    known = set(OTHER_RELEASES)
    for entry in (TransformerModel, *(entry for each in registries for entry in each.values())):
        parser = ArgumentParser(add_help=False, conflict_handler="resolve")
        if hasattr(entry, "add_args"):
            entry.add_args(parser)
        elif hasattr(entry, "__dataclass"):
            gen_parser_from_dataclass(parser, getattr(entry, "__dataclass")())  # noqa: B009
        known |= {action.dest for action in parser._actions}
    of_transformer = options.parse_args_and_arch(
        options.get_training_parser(), ["--arch", "transformer", "--task", "translation", "data"]
    )
    return frozenset(known | set(vars(of_transformer)))


def not_plain_reason(settings: Mapping) -> str | None:
    """Return why settings do not describe a plain Transformer; None if they do."""
    lacking = [name for name in NEEDED_SETTINGS if name not in settings]
    if lacking:
        return f"its settings lack {lacking[0]}"
    unknown = {
        name: value for name, value in settings.items() if value and name not in known_settings()
    }
    if unknown:
        name, value = next(iter(unknown.items()))
        return f"its settings have {name}={value!r}, which a plain Transformer does not have"
    return None


def build_as_plain_(state: dict) -> None:
    """Name the architecture of a loaded checkpoint `transformer`, in place, if it is not registered
    and its settings are those of a plain Transformer.

    Errors: UsageError with the reason, if it is not registered and something else.
    """
    holder = holder_of(state)
    settings = plain(holder)
    name = settings.get("arch") or settings.get("_name")
    if not name or name in ARCH_MODEL_REGISTRY or name in MODEL_REGISTRY:
        return
    reason = (
        "it is spread over several files"
        if "fsdp_metadata" in state
        else not_plain_reason(settings)
    )
    if reason is not None:
        raise UsageError(
            f"the checkpoint's architecture {name} is not registered here, and {reason}: "
            "name its --user-dir"
        )
    logger.info(
        "the checkpoint's architecture %s is not registered here: built as a plain Transformer, "
        "%s + %s layers of width %s, by its settings",
        name,
        *map(settings.get, ("encoder_layers", "decoder_layers", "decoder_embed_dim")),
    )
    if isinstance(holder, Namespace):
        rename_(holder, settings)
    else:  # saved as a dictionary: fairseq takes a namespace of its architectures
        names = {"arch": "transformer", "_name": "transformer"}
        state["cfg"]["model"] = Namespace(**settings | names)


def rename_(holder: Namespace, settings: Mapping) -> None:
    """Write the architecture's name into settings, and remove other names that are not registered
    here."""
    holder.arch = "transformer"
    if "_name" in settings:
        holder._name = "transformer"
    if settings.get("task") not in TASK_REGISTRY:
        holder.task = "translation"
    for name in CHOICES:
        if getattr(holder, name, None) not in REGISTRIES[name]["registry"]:
            setattr(holder, name, None)
