"""What is done to fairseq's loading of checkpoints: no code of theirs runs, and a refusal is one sentence that names the way out.

startup.py loads this file by its path, while fairseq is being imported. torch is imported where it is used.
"""

import argparse
import collections
import enum
import importlib
import os
import pickle
import re
import sys
from types import ModuleType

ALLOW = "FAIRSEQ_EXT_ALLOW_GLOBALS"
SAFE_TORCH = (2, 6)  # the first whose torch.load runs no code unless told to (CVE-2025-32434 is of those before)


def allow_checkpoint_globals() -> None:
    """Register the few classes that real fairseq checkpoints hold with torch's code-free loader."""
    import torch

    if not hasattr(torch.serialization, "add_safe_globals"):
        return
    allowed: list = [argparse.Namespace, collections.OrderedDict]
    import numpy

    core = getattr(numpy, "_core", None) or numpy.core
    allowed += [numpy.dtype, core.multiarray.scalar, (core.multiarray.scalar, "numpy.core.multiarray.scalar")]
    allowed += [type(numpy.dtype(kind)) for kind in ("float32", "float64", "int32", "int64", "bool")]
    for name in filter(None, os.environ.get(ALLOW, "").split(",")):
        module, _, attribute = name.strip().rpartition(".")
        allowed.append(getattr(importlib.import_module(module), attribute))
    torch.serialization.add_safe_globals(allowed)


def explain_refused_checkpoints(checkpoint_utils: ModuleType) -> None:
    """Turn torch's refusal of a class in a checkpoint into one sentence that names the class and the opt-in."""
    stock = checkpoint_utils.load_checkpoint_to_cpu

    def load_checkpoint_to_cpu(path, *args, **kwargs):
        if tuple(int(part) for part in re.findall(r"\d+", checkpoint_utils.torch.__version__)[:2]) < SAFE_TORCH:
            raise OSError(f"torch {checkpoint_utils.torch.__version__} runs code from checkpoints: install torch 2.6 or later")
        try:
            return stock(path, *args, **kwargs)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # the unpickler fails in any way on a file of another kind
            if isinstance(error, RuntimeError) and "PytorchStreamReader" not in str(error) or type(error).__name__ == "UsageError":
                raise
            found = re.search(r"GLOBAL ([\w.]+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
            if not found:
                raise OSError(f"{path} is not a checkpoint that fairseq can read: it is of another kind, or was cut short") from error
            name = found[1] if "." in found[1] else f"builtins.{found[1]}"
            raise OSError(
                f"{path} holds {name}, which is not loaded because unpickling a class can run code; "
                f"if you trust this file, set {ALLOW}={name}"
            ) from error

    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu  # type: ignore[attr-defined]


def build_plain_transformers(checkpoint_utils: ModuleType) -> None:
    """Let our tasks build architectures that only have another name than fairseq's Transformer (loading/plain_transformer.py)."""
    stock = checkpoint_utils._upgrade_state_dict

    def upgrade(state):
        if "fairseq_ext.tasks" in sys.modules:
            importlib.import_module("fairseq_ext.loading.plain_transformer").build_as_plain_(state)
        return stock(state)

    checkpoint_utils._upgrade_state_dict = upgrade  # type: ignore[attr-defined]


def prepare_loading(checkpoint_utils: ModuleType) -> None:
    """What is done to fairseq's loading of checkpoints."""
    explain_refused_checkpoints(checkpoint_utils)
    build_plain_transformers(checkpoint_utils)


def allow_fairseq_enums(constants: ModuleType) -> None:
    """Register fairseq's own enums (older checkpoints hold them in their configuration)."""
    import torch

    if hasattr(torch.serialization, "add_safe_globals"):
        kinds: list = [v for v in vars(constants).values() if isinstance(v, type) and issubclass(v, enum.Enum)]
        torch.serialization.add_safe_globals(kinds)
