"""The settings that training has saved in a checkpoint, read without reading its weights where the file allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from fairseq import checkpoint_utils

from fairseq_ext.plugin.compat import checkpoints
from fairseq_ext.plugin.loading.checkpoint_parts import plain


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
