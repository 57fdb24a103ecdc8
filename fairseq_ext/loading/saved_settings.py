"""The settings that training has saved in a checkpoint, read without reading its weights where the file allows."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import torch
from fairseq import checkpoint_utils
from omegaconf import DictConfig, OmegaConf

from fairseq_ext.compat import checkpoints


def plain(settings: Any) -> dict[str, Any]:
    """A group of settings as a dictionary, in whichever form it is saved; {} for none."""
    if isinstance(settings, Namespace):
        return dict(vars(settings))
    if isinstance(settings, DictConfig):
        return dict(OmegaConf.to_container(settings))  # type: ignore[arg-type]
    return dict(settings) if isinstance(settings, Mapping) else {}


def saved_settings(path: str) -> dict[str, dict[str, Any]]:
    """The settings of the task and the model, {"task": ..., "model": ...}, each with its name as "_name".

    Errors: OSError for a file that is no checkpoint.
    """
    try:
        with checkpoints.safe():
            state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception:  # older files cannot be mapped; what is wrong with others is told here
        state = checkpoint_utils.load_checkpoint_to_cpu(path)
    if not isinstance(state, Mapping):
        return {"task": {}, "model": {}}
    if state.get("args") is not None:  # of fairseq before 0.10: all in one
        flat = plain(state["args"])
        return {"task": {**flat, "_name": flat.get("task", "translation")}, "model": {**flat, "_name": flat.get("arch")}}
    groups = plain(state.get("cfg"))
    return {name: plain(groups.get(name)) for name in ("task", "model")}
