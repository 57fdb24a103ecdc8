"""fairseq's loading of checkpoints and their settings, changed so that no code of theirs runs.

A refusal is one sentence that names the way out.
patches.py loads this file by its path, while fairseq is being imported, so torch is imported in
functions.
"""

import argparse
import ast
import collections
import contextlib
import enum
import importlib
import mmap
import operator
import os
import re
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

ALLOW = "FAIRSEQ_EXT_ALLOW_GLOBALS"
BYTEARRAY_OPCODE = b"\nbytearray\n"
safe_globals_lock = threading.RLock()


def allowed_classes() -> list:
    """Return the few classes that real fairseq checkpoints hold, fairseq's own enums among them,
    and those that the user trusts."""
    import numpy
    from fairseq.dataclass import constants

    # numpy 1 and 2 name it differently, and read each other's files
    scalar = numpy.float64(0).__reduce__()[0]
    found: list = [argparse.Namespace, collections.OrderedDict, numpy.dtype]
    found += [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
    found += [type(numpy.dtype(kind)) for kind in ("float32", "float64", "int32", "int64", "bool")]
    found += [
        v for v in vars(constants).values() if isinstance(v, type) and issubclass(v, enum.Enum)
    ]
    for name in filter(None, os.environ.get(ALLOW, "").split(",")):
        module, _, attribute = name.strip().rpartition(".")
        try:
            found.append(getattr(importlib.import_module(module), attribute))
        except (ImportError, AttributeError, ValueError) as error:
            UsageError = importlib.import_module("fairseq_ext.core.errors").UsageError
            raise UsageError(
                f"{ALLOW} names {name}, which cannot be imported ({error}): correct it, "
                "or leave it out"
            ) from None
    return found


@contextlib.contextmanager
def safe_globals() -> Iterator[None]:
    """Let torch's code-free loader read those classes inside the context.

    One thread at a time: torch has one list.
    """
    import torch

    with safe_globals_lock:
        known = torch.serialization.get_safe_globals()
        with torch.serialization.safe_globals(
            [each for each in allowed_classes() if each not in known]
        ):
            yield


def allow_plain_classes(module: ModuleType) -> None:
    """Let the functions of fairseq that read checkpoints read those classes."""
    for name in ("load_checkpoint_to_cpu", "load_ema_from_checkpoint", "_broadcast_object_slow"):
        if hasattr(module, name):
            setattr(module, name, safe_globals()(getattr(module, name)))


def explain_refused_checkpoints(checkpoint_utils: ModuleType) -> None:
    """Turn torch's refusal of a class in a checkpoint into one sentence that names the class and
    the opt-in."""
    stock = checkpoint_utils.load_checkpoint_to_cpu

    def load_checkpoint_to_cpu(path, *args, **kwargs):
        try:
            if os.path.isfile(path):
                refuse_bytearray_calls(path)
            return stock(path, *args, **kwargs)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # for a file of another kind the unpickler may raise anything
            is_other = isinstance(error, RuntimeError) and not re.search(
                "PytorchStreamReader|weights_only", str(error)
            )
            if is_other or type(error).__name__ == "UsageError":
                raise
            if not (found := re.search(r"GLOBAL ([\w.]+)", str(error))):
                raise OSError(
                    f"{path} is not a checkpoint that fairseq can read: it is of another kind, "
                    "or was cut short"
                ) from error
            name = found[1] if "." in found[1] else f"builtins.{found[1]}"
            raise OSError(
                f"{path} holds {name}, which is not loaded because unpickling a class can run "
                f"code; if you trust this file, set {ALLOW}={name}"
            ) from error

    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu  # type: ignore[attr-defined]


def refuse_bytearray_calls(path: str) -> None:
    """Raise OSError for a pickle that calls bytearray: torch's loader allows it, and a few bytes of
    a file could take all memory."""
    import torch

    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        pickled: bytes | mmap.mmap = data
        if data[:4] == b"PK\3\4":  # an archive, with the weights outside the pickle
            pickled = torch._C.PyTorchFileReader(path).get_record("data.pkl")
        if pickled.find(BYTEARRAY_OPCODE) >= 0:
            raise OSError(
                f"{path} is not a checkpoint that fairseq can read: its pickle calls bytearray, "
                "which can take all memory"
            )


def check_models(checkpoint_utils: ModuleType) -> None:
    """Let our tasks check a checkpoint, and report in one sentence why a model cannot be built
    (plugin/loading/checkpoint.py)."""
    stock = checkpoint_utils._upgrade_state_dict
    load = checkpoint_utils.load_model_ensemble_and_task
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
            raise importlib.import_module("fairseq_ext.plugin.loading.checkpoint").unbuilt(
                filenames, error
            ) from error
        finally:
            ours.loads = False

    def upgrade(state):
        if getattr(ours, "loads", False):
            importlib.import_module("fairseq_ext.plugin.loading.checkpoint").check_(state)
        return stock(state)

    checkpoint_utils._upgrade_state_dict = upgrade  # type: ignore[attr-defined]
    checkpoint_utils.load_model_ensemble_and_task = load_model_ensemble_and_task  # type: ignore


# ---- Configuration strings as literals
#
# This replaces fairseq's `eval`, because a checkpoint's strings could run code.
#
# fairseq writes lists such as `[(512, 3)] * 9 + [(1024, 3)] * 4` into a model's settings and
# evaluates them when it builds the model. `literal` gives such strings the value that `eval` gives
# them: Python's literals, sums, differences and products of numbers, sums of lists or of tuples,
# and a list or tuple times a whole number. It refuses everything else.


MAX_CHARACTERS = 10_000  # of a string; fairseq's longest default has under 200
MAX_ITEMS = 10_000  # of one list
MAX_QUOTED = 80  # characters of a refused string that the message quotes
OPERATORS: dict[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


class Refused(ValueError):
    """A configuration string that is not a literal; the text is one sentence."""


def replace_eval(module: ModuleType) -> None:
    """Give a module of fairseq another `eval` before it runs: the strings that fairseq evaluates
    come from checkpoints."""
    module.eval = literal  # type: ignore[attr-defined]


def literal(text: str, *scopes: object) -> object:
    """Return the value of a configuration string. `scopes`: the mappings that `eval` takes; a
    literal needs none.

    Errors: TypeError if `text` is not a string, as from `eval` (fairseq's eval_bool relies on it);
    Refused for anything but a literal.
    """
    if not isinstance(text, str):
        raise TypeError(f"a configuration string is expected, not {type(text).__name__}")
    try:
        if len(text) > MAX_CHARACTERS:
            raise ValueError
        return value(ast.parse(text.strip(), mode="eval").body)
    except (
        SyntaxError,
        LookupError,
        ValueError,
        TypeError,
        ArithmeticError,
        RecursionError,
        MemoryError,
    ):
        shown = ascii(text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "...")
        raise Refused(
            f"the setting {shown} is not evaluated: only numbers, lists of at most {MAX_ITEMS} "
            "items and their sums and products are; do not trust a checkpoint that holds another "
            "expression, or set the value with --model-overrides"
        ) from None


def value(node: ast.expr) -> Any:
    """Return the value of one part of a parsed string (raises one of the errors above)."""
    if isinstance(node, (ast.List, ast.Tuple)):
        items = [value(each) for each in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)
    if not isinstance(node, ast.BinOp):
        return ast.literal_eval(node)
    operate = OPERATORS[type(node.op)]
    operands = [value(node.left), value(node.right)]
    if not {*map(type, operands)} <= {int, float, list, tuple}:
        raise TypeError
    sizes = [each if isinstance(each, (int, float)) else len(each) for each in operands]
    if sizes != operands and operate(*sizes) > MAX_ITEMS:
        raise ValueError
    return operate(*operands)
