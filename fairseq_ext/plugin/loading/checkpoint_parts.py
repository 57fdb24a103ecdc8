"""What a checkpoint must hold before a model is built of it: a damaged one takes neither hours nor all memory, and opens no other file."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from fairseq_ext.core.errors import UsageError, cut

MOST = {"_layers": 1000, "_heads": 1000, "_dim": 100_000, "_positions": 1_000_000}  # of settings whose names end so
UNLIMITED = ("target_layers", -1)  # of fairseq's examples/latent_depth, which has no count of layers to come to
NUMBERS = ("dropout", "normalize_before")  # endings of names whose values are read in decoding only
NEEDED = ("dropout", "attention_dropout")  # others may be None
FILES = ("encoder_embed_path", "decoder_embed_path", "load_pretrained_encoder_from", "load_pretrained_decoder_from")


def check_(state: Any) -> None:
    """UsageError for what is no checkpoint of a model; files that its training began with are forgotten, in place."""
    if not isinstance(state, Mapping):
        return  # which fairseq tells
    weights = state.get("model")
    if not isinstance(weights, Mapping):
        raise wrong('has no weights ("model")')
    for name, weight in weights.items():
        if not isinstance(weight, torch.Tensor):
            raise wrong(f"has {type(weight).__name__} in the place of the weight {name}")
        if weight.is_meta or weight.layout is not torch.strided:
            raise wrong(f"has the weight {name} without its numbers, or in a sparse form")
    for name, kinds in (("args", (Namespace,)), ("cfg", (Mapping, DictConfig)), ("task_state", (Mapping,))):
        if state.get(name) is not None and not isinstance(state[name], kinds):
            raise wrong(f'has {type(state[name]).__name__} in the place of "{name}"')
    groups = state.get("cfg")
    holder = state["args"] if state.get("args") is not None else None if groups is None else groups.get("model")
    settings = plain(holder)
    for name, value in settings.items():
        most = next((most for ending, most in MOST.items() if name.endswith(ending)), None)
        if most is not None and isinstance(value, int) and not 0 <= value <= most and (name, value) != UNLIMITED:
            raise wrong(f"has {name}={value}, and 0 to {most} are allowed")
        if name.endswith(NUMBERS) and not isinstance(value, (int, float)) and (value is not None or name in NEEDED):
            raise wrong(f"has {name}={cut(repr(value))}, and a number or a truth value is needed")
        if name in FILES and value:
            if isinstance(holder, Namespace):
                setattr(holder, name, None)
            else:
                holder[name] = None  # type: ignore[index]
    refuse_oversize(settings, 16 * sum(weight.numel() for weight in weights.values()))


def refuse_oversize(settings: Mapping[str, Any], room: int) -> None:
    """UsageError for settings of a model that would hold more than `room` numbers, from the products that its matrices have."""
    for side in ("encoder", "decoder"):
        layers, width, inner = (settings.get(f"{side}_{name}") for name in ("layers", "embed_dim", "ffn_embed_dim"))
        if isinstance(layers, int) and isinstance(width, int):
            inner = max(width, inner) if isinstance(inner, int) else width
            if layers * width * inner > room:
                raise wrong(f"has far fewer weights than {layers} layers of width {width} and {inner} in its {side}")


def wrong(what: str) -> UsageError:
    """The error for a checkpoint."""
    return UsageError(f"the checkpoint {what}: it is damaged, or of another kind; name one as fairseq-train has saved it")


def unbuilt(paths: Any, error: Exception) -> UsageError:
    """The error where no model could be built of a checkpoint, for whatever reason."""
    why = cut(str(error) or "no reason is given")
    return UsageError(
        f"no model can be built of {', '.join(paths)} ({type(error).__name__}: {why}): "
        "it is damaged, or of another version of fairseq; name one that fairseq 0.12 has saved"
    )


def plain(settings: Any) -> dict[str, Any]:
    """A group of settings as a dictionary, in whichever form it is saved; {} for none."""
    if isinstance(settings, Namespace):
        return dict(vars(settings))
    if isinstance(settings, DictConfig):
        return dict(OmegaConf.to_container(settings))  # type: ignore[arg-type]
    return dict(settings) if isinstance(settings, Mapping) else {}
