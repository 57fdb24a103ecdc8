"""What of others' modules is this package's, as JSON: `python patched.py [ARGUMENTS OF A
COMMAND OF FAIRSEQ]`."""

import gc
import importlib
import json
import sys
import types
import warnings

before = gc.get_threshold()
sys.orig_argv = sys.argv = sys.argv[1:]  # core/command_line.py looks whose process this is
import omegaconf  # noqa: E402, F401

from fairseq_ext.plugin.compat import patches  # noqa: E402

PACKAGE = patches.__file__.rpartition("plugin")[0]
OTHERS = {"fairseq", "hydra", "numpy", "omegaconf", "torch", *sys.stdlib_module_names}
# what Python's import, and startup.py's, puts into every module
OF_IMPORT = {"__loader__", "__spec__", "__getattr__", "__class__", "_"}


def is_ours(value: object) -> bool:
    """A function of this package, an object or a class of one of its classes, a module that
    another stands in for."""
    value = value.fget if isinstance(value, property) else value
    if isinstance(value, (types.FunctionType, types.MethodType)):
        return value.__code__.co_filename.startswith(PACKAGE)
    if type(value) is types.ModuleType:
        return value.__name__ == "numpy" and value is not sys.modules["numpy"]
    return str((value if isinstance(value, type) else type(value)).__module__).startswith(
        "fairseq_ext"
    )


def is_borrowed(module: str, name: str, value: object) -> bool:
    """A hash of a class of fairseq's that is Python's own: fairseq gives none."""
    return name == "__hash__" and value is object.__hash__ and module.startswith("fairseq.")


for patch in patches.PATCHES:
    for name in set(patch.modules) - {patches.ALL, "fairseq_cli.interactive"}:
        getattr(importlib.import_module(name), "absent", None)  # which has a lazy module run
found = set()
for name, module in list(sys.modules.items()):
    for attribute, value in (
        vars(module).items()
        if name.partition(".")[0] in OTHERS and type(module) is types.ModuleType
        else ()
    ):
        if is_ours(value) and attribute not in OF_IMPORT:
            found.add("eval" if attribute == "eval" else f"{name}.{attribute}")
        elif isinstance(value, type) and value.__module__ == name:
            found |= {
                f"{name}.{attribute}.{own}"
                for own, held in vars(value).items()
                if is_ours(held) or is_borrowed(name, own, held)
            }
found |= {"gc.set_threshold"} if gc.get_threshold() != before else set()
found |= (
    {"warnings.filters"}
    if any("ray" in str(module) for _, _, _, module, _ in warnings.filters)
    else set()
)
print(json.dumps([sorted(found), [patch.change.__name__ for patch in patches.in_force]]))
