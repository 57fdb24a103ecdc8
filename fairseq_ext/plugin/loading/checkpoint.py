"""Checks of a checkpoint before a model is built from it.

A damaged checkpoint takes neither hours nor all memory, and opens no other file.
"""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
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
    architecture = settings.get("arch") or settings.get("_name")
    known = (architecture in registry for registry in (ARCH_MODEL_REGISTRY, MODEL_REGISTRY))
    if architecture and not any(known):
        raise UsageError(
            f"the checkpoint's architecture {cut(str(architecture))} is not registered here: name "
            "its --user-dir"
        )
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
