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
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType

ALLOW = "FAIRSEQ_EXT_ALLOW_GLOBALS"
# the first release whose torch.load runs no code by default (CVE-2025-32434 concerns older ones)
SAFE_TORCH = "2.6"
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
        torch = checkpoint_utils.torch
        if torch.__version__ < SAFE_TORCH:
            raise OSError(
                f"torch {torch.__version__} runs code from checkpoints: install torch 2.6 or later"
            )
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
            found = (
                re.search(r"GLOBAL ([\w.]+)", str(error))
                if isinstance(error, pickle.UnpicklingError)
                else None
            )
            if not found:
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

    with open(path, "rb") as file:
        packed = file.read(4) == b"PK\3\4"  # an archive, with the weights outside the pickle
        with contextlib.closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as data:
            if (torch._C.PyTorchFileReader(path).get_record("data.pkl") if packed else data).find(
                BYTEARRAY_OPCODE
            ) >= 0:
                raise OSError(
                    f"{path} is not a checkpoint that fairseq can read: its pickle calls "
                    "bytearray, which can take all memory"
                )


def build_plain_transformers(checkpoint_utils: ModuleType) -> None:
    """Let our tasks build architectures that are fairseq's Transformer under another name, and
    report in one sentence why a model cannot be built (plugin/loading/checkpoint.py)."""
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
        if "fairseq_ext.plugin.tasks" in sys.modules:
            importlib.import_module("fairseq_ext.plugin.loading.checkpoint").build_as_plain_(state)
        return stock(state)

    checkpoint_utils._upgrade_state_dict = upgrade  # type: ignore[attr-defined]
    checkpoint_utils.load_model_ensemble_and_task = load_model_ensemble_and_task  # type: ignore


# ---- Configuration strings as literals
#
# This replaces fairseq's `eval`, because a checkpoint's strings could run code.
#
# fairseq writes lists such as `[(512, 3)] * 9 + [(1024, 3)] * 4` into a model's settings and
# evaluates them when it builds the model. `literal` gives such strings the value that `eval` gives
# them: constants, lists, tuples, sets and dictionaries, sums, differences and products of numbers,
# sums of lists or of tuples, and a list or tuple times a whole number. It refuses everything else.


MAX_CHARACTERS = 10_000  # of a string; fairseq's longest default has under 200
MAX_ITEMS = 10_000  # of one list
MAX_QUOTED = 80  # characters of a refused string that the message quotes
SIGNS: dict[type, Callable] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
OPERATORS: dict[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
CONTAINERS: dict[type, Callable] = {ast.List: list, ast.Tuple: tuple, ast.Set: set}
NUMBERS, SEQUENCES = (int, float), (list, tuple)
NODE_NAMES = {
    ast.Call: "a call",
    ast.Name: "a name",
    ast.Attribute: "an attribute",
    ast.Subscript: "a subscript",
    ast.Lambda: "a function",
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.JoinedStr: "a formatted string",
    ast.NamedExpr: "an assignment",
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
            raise Refused(f"it has more than {MAX_CHARACTERS} characters")
        return value(ast.parse(text.strip(), mode="eval").body)
    except (
        Refused,
        SyntaxError,
        ValueError,
        TypeError,
        ArithmeticError,
        RecursionError,
        MemoryError,
    ) as error:
        why = str(error) if isinstance(error, Refused) else "it cannot be read"
        shown = ascii(text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "...")
        raise Refused(
            f"the setting {shown} is not evaluated because {why}: only numbers, lists and their "
            "sums and products are; do not trust a checkpoint that holds another expression, or "
            "set the value with --model-overrides"
        ) from None


def value(node: ast.AST) -> object:
    """Return the value of one part of a parsed string."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return CONTAINERS[type(node)]([value(item) for item in node.elts])
    if isinstance(node, ast.Dict) and None not in node.keys:  # None: `**other`
        return {
            value(name): value(item)
            for name, item in zip(node.keys, node.values, strict=True)
            if name is not None
        }
    if isinstance(node, ast.UnaryOp) and type(node.op) in SIGNS:
        number = value(node.operand)
        if isinstance(number, NUMBERS):
            return SIGNS[type(node.op)](number)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return evaluate_binary(type(node.op), value(node.left), value(node.right))
    called = f" of {ast.unparse(node.func)[:MAX_QUOTED]}" if isinstance(node, ast.Call) else ""
    named = f" ({node.id[:MAX_QUOTED]})" if isinstance(node, ast.Name) else ""
    what = NODE_NAMES.get(type(node), f"an expression ({type(node).__name__})")
    raise Refused(f"it holds {what}{called}{named}")


def evaluate_binary(kind: type, left, right) -> object:
    """Return a sum, difference or product of two numbers, a sum of two lists or tuples, or a list
    or tuple times a whole number."""
    if isinstance(left, NUMBERS) and isinstance(right, NUMBERS):
        return OPERATORS[kind](left, right)
    if kind is ast.Add and type(left) is type(right) and isinstance(left, SEQUENCES):
        length = len(left) + len(right)
    elif kind is ast.Mult and isinstance(left, SEQUENCES) and isinstance(right, int):
        length = len(left) * right
    elif kind is ast.Mult and isinstance(right, SEQUENCES) and isinstance(left, int):
        length = len(right) * left
    else:
        raise Refused("it adds or multiplies something else than numbers and lists")
    if length > MAX_ITEMS:
        raise Refused(f"it makes a list of more than {MAX_ITEMS} items")
    return OPERATORS[kind](left, right)
