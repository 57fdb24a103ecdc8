"""The import hook that lets stock fairseq 0.12.2 run on current Python, torch and hydra, and the
start of our commands.

The installed fairseq_ext.pth imports fairseq_ext_start.py at each start of Python. When `fairseq`
is first imported, that runs this module, whose `Hook` makes the changes of patches.py, each when
its module of fairseq runs. A command of fairseq's that names an *_ext task becomes the package's
own (core/command_line.py); any other program is not changed further.

In a command of ours the files of fairseq's models and tasks run when they are first
needed: such a module runs at the first access of one of its attributes, and fairseq's registries of
models and tasks become dictionaries (`Registry`) that run the files which register a name.
"""

import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import KeysView
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = Path(__file__).parents[2]
# packages of fairseq whose every file runs at import because of its registrations, and packages
# that fairseq imports only for theirs
FOLDERS = ("fairseq.models", "fairseq.tasks")
STANDALONE_PACKAGES = ("fairseq.benchmark", "fairseq.model_parallel")
REGISTERED_NAME = re.compile(
    r"@(?:\w+\.)?register_\w+\(\s*(?:\w+=)?(?:[\"'][^\"']+[\"'],\s*(?:\w+=)?)?[\"']([^\"']+)[\"']"
)
pending: dict[str, ModuleType] = {}  # modules of fairseq that have not run
registering_modules: dict[str, list[str]] = {}  # name -> modules that register it


def load(name: str) -> ModuleType:
    """Return a module of this package, by its name in it, loaded by its path if it is not loaded:
    an import of the package would import fairseq, which is being imported."""
    full = f"fairseq_ext.{name}"
    if full not in sys.modules:
        place = PACKAGE.joinpath(*name.split(".")).with_suffix(".py")
        spec = importlib.util.spec_from_file_location(full, place)
        assert spec is not None and spec.loader is not None
        module = sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[full]


class Hook:
    """A finder of fairseq's modules. is_lazy: models and tasks run when they are needed."""

    is_lazy = False

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if not fullname.startswith("fairseq."):
            return None
        parts = fullname.split(".")
        for i in range(2, len(parts)):
            run(".".join(parts[:i]))
        if target is None and fullname in sys.modules:  # its package has imported it meanwhile
            return sys.modules[fullname].__spec__
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader, cls.is_lazy and may_wait(fullname))
        return spec


def may_wait(fullname: str) -> bool:
    """Return whether a module of fairseq may run when it is needed."""
    package, _, name = fullname.rpartition(".")
    return fullname in STANDALONE_PACKAGES or (package in FOLDERS and not name.startswith("_"))


class Loader:
    """Runs a module of fairseq, once, with its patches before and after."""

    has_begun = False

    def __init__(self, loader, waits: bool) -> None:
        self.loader, self.waits = loader, waits

    def create_module(self, spec):
        return sys.modules.get(spec.name) or self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if self.has_begun:
            return
        self.has_begun = True
        if self.waits:
            wait(module)
        else:
            self.run(module)

    def run(self, module: ModuleType) -> None:
        patches = load("plugin.compat.patches").of_module(module.__name__)
        with contextlib.ExitStack() as meanwhile:
            for patch in patches:
                if patch.early and (context := patch.change(module)):
                    meanwhile.enter_context(context)
            self.loader.exec_module(module)
        for patch in patches:
            if not patch.early:
                patch.change(module)

    def __getattr__(self, name: str):
        return getattr(self.loader, name)


def wait(module: ModuleType) -> None:
    """Let a module run at the first access of one of its attributes."""
    name = module.__name__
    path = Path(str(module.__file__))
    pending[name] = module
    for file in sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]:
        for registered in REGISTERED_NAME.findall(file.read_text(encoding="utf-8")):
            registering_modules.setdefault(registered, []).append(name)

    def missing(attribute: str) -> object:
        # inspect and similar modules read this of every module
        if attribute.startswith("__") and attribute != "__all__":
            raise AttributeError(attribute)
        run(name)
        return getattr(module, attribute)

    module.__getattr__ = missing  # type: ignore[method-assign]


def run(name: str) -> None:
    """Run a module that waits."""
    if module := pending.pop(name, None):
        del module.__getattr__
        module.__spec__.loader.run(module)  # type: ignore[union-attr]


def run_all() -> None:
    """Run every module that waits, in the order in which fairseq imports them."""
    while pending:
        run(next(iter(pending)))


class Registry(dict):
    """A registry of fairseq that runs the pending files which register a name, or all of them for
    an unknown name or for all entries. So every reader sees a complete registry."""

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            for module in registering_modules.get(name, ()):  # type: ignore[call-overload]
                run(module)
        return super().__contains__(name)

    def __missing__(self, name: str) -> object:
        if name not in self:
            run_all()
        if name not in self:
            raise KeyError(name)
        return self[name]

    def get(self, name, default=None):
        return self[name] if name in self else default

    def keys(self) -> KeysView:  # type: ignore[override]
        return KeysView(self)


def over_all_entries(name: str):
    """Return a method of dictionaries that includes the entries of all files."""

    def method(self, *others):
        run_all()
        return getattr(dict, name)(self, *others)

    return method


for each in ("__iter__", "__len__", "values", "items"):
    setattr(Registry, each, over_all_entries(each))


def own_this_process() -> None:
    """Make this process a command's own: its end, its error messages, Ctrl-C, and the start of
    fairseq (patches.py lists what is changed).

    Only `fairseq_ext/__init__.py` calls it, for a command. --verbose, which every command takes,
    shows tracebacks.
    """
    own: Any = load("core.command_line")
    if own.own_command:
        return
    own.own_command = own.command() or "?"
    own.end_at_interrupt()
    if "--verbose" in sys.argv:
        sys.argv.remove("--verbose")
        os.environ["FAIRSEQ_EXT_TRACEBACK"] = "1"
    # --help lists names in the order in which fairseq's files register them
    Hook.is_lazy = not own.has_help_flag() and "fairseq" not in sys.modules
    for patch in load("plugin.compat.patches").PATCHES:
        if patch.is_of_command and not patch.modules:
            patch.change()
    if not own.absolute(os.curdir):  # MKL ends the process there
        from fairseq_ext.core.errors import UsageError

        raise UsageError("the working folder has been removed: change to another")


sys.meta_path.insert(0, Hook)
if "fairseq_ext" not in sys.modules and load("core.command_line").command():
    importlib.import_module("fairseq_ext")
