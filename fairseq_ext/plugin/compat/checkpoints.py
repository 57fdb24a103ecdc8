"""What is done to fairseq's loading of checkpoints: no code of theirs runs, and a refusal is one sentence that names the way out.

startup.py loads this file by its path, while fairseq is being imported. torch is imported where it is used.
"""

import argparse
import collections
import contextlib
import enum
import importlib
import mmap
import os
import pickle
import re
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

ALLOW = "FAIRSEQ_EXT_ALLOW_GLOBALS"
SAFE_TORCH = (2, 6)  # the first whose torch.load runs no code unless told to (CVE-2025-32434 is of those before)
CALL = b"\nbytearray\n"
reading = threading.RLock()


def plain_classes() -> list:
    """The few classes that real fairseq checkpoints hold, fairseq's own enums among them, and those that the user trusts."""
    import numpy
    from fairseq.dataclass import constants

    scalar = numpy.float64(0).__reduce__()[0]  # numpy 1 and 2 name it differently, and read each other's files
    found: list = [argparse.Namespace, collections.OrderedDict, numpy.dtype]
    found += [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
    found += [type(numpy.dtype(kind)) for kind in ("float32", "float64", "int32", "int64", "bool")]
    found += [v for v in vars(constants).values() if isinstance(v, type) and issubclass(v, enum.Enum)]
    for name in filter(None, os.environ.get(ALLOW, "").split(",")):
        module, _, attribute = name.strip().rpartition(".")
        try:
            found.append(getattr(importlib.import_module(module), attribute))
        except (ImportError, AttributeError, ValueError) as error:
            UsageError = importlib.import_module("fairseq_ext.core.errors").UsageError
            raise UsageError(f"{ALLOW} names {name}, which cannot be imported ({error}): correct it, or leave it out") from None
    return found


@contextlib.contextmanager
def safe() -> Iterator[None]:
    """Let torch's code-free loader read those classes for as long as the context lasts. One thread at a time: torch has one list."""
    import torch

    with reading:
        known = torch.serialization.get_safe_globals()
        with torch.serialization.safe_globals([each for each in plain_classes() if each not in known]):
            yield


def allow_plain_classes(module: ModuleType) -> None:
    """Let the functions of fairseq that read checkpoints read those classes."""
    for name in ("load_checkpoint_to_cpu", "load_ema_from_checkpoint", "_broadcast_object_slow"):
        if hasattr(module, name):
            setattr(module, name, safe()(getattr(module, name)))


def explain_refused_checkpoints(checkpoint_utils: ModuleType) -> None:
    """Turn torch's refusal of a class in a checkpoint into one sentence that names the class and the opt-in."""
    stock = checkpoint_utils.load_checkpoint_to_cpu

    def load_checkpoint_to_cpu(path, *args, **kwargs):
        if tuple(int(part) for part in re.findall(r"\d+", checkpoint_utils.torch.__version__)[:2]) < SAFE_TORCH:
            raise OSError(f"torch {checkpoint_utils.torch.__version__} runs code from checkpoints: install torch 2.6 or later")
        try:
            if os.path.isfile(path):
                refuse_any_length(path)
            return stock(path, *args, **kwargs)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # the unpickler fails in any way on a file of another kind
            is_other = isinstance(error, RuntimeError) and not re.search("PytorchStreamReader|weights_only", str(error))
            if is_other or type(error).__name__ == "UsageError":
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


def refuse_any_length(path: str) -> None:
    """OSError for a pickle that calls bytearray: torch's loader lets it, and by its argument a few bytes of a file take all memory."""
    import torch

    with open(path, "rb") as file:
        packed = file.read(4) == b"PK\3\4"  # an archive, whose weights stand apart from the pickle
        with contextlib.closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as data:
            if (torch._C.PyTorchFileReader(path).get_record("data.pkl") if packed else data).find(CALL) >= 0:
                raise OSError(f"{path} is not a checkpoint that fairseq can read: its pickle calls bytearray, which can take all memory")


def build_plain_transformers(checkpoint_utils: ModuleType) -> None:
    """Let our tasks build architectures that only have another name than fairseq's Transformer (plugin/loading/plain_transformer.py), and tell in
    a sentence why one cannot be built (plugin/loading/checkpoint_parts.py)."""
    stock, load = checkpoint_utils._upgrade_state_dict, checkpoint_utils.load_model_ensemble_and_task
    ours = threading.local()

    def load_model_ensemble_and_task(filenames, arg_overrides=None, task=None, *args, **kwargs):
        if not type(task).__module__.startswith("fairseq_ext."):
            return load(filenames, arg_overrides, task, *args, **kwargs)
        ours.loads = True
        try:
            return load(filenames, arg_overrides, task, *args, **kwargs)
        except Exception as error:
            if importlib.import_module("fairseq_ext.core.errors").explain(error) is not None:
                raise
            raise importlib.import_module("fairseq_ext.plugin.loading.checkpoint_parts").unbuilt(filenames, error) from error
        finally:
            ours.loads = False

    def upgrade(state):
        if getattr(ours, "loads", False):
            importlib.import_module("fairseq_ext.plugin.loading.checkpoint_parts").check_(state)
        if "fairseq_ext.plugin.tasks" in sys.modules:
            importlib.import_module("fairseq_ext.plugin.loading.plain_transformer").build_as_plain_(state)
        return stock(state)

    checkpoint_utils._upgrade_state_dict = upgrade  # type: ignore[attr-defined]
    checkpoint_utils.load_model_ensemble_and_task = load_model_ensemble_and_task  # type: ignore[attr-defined]
