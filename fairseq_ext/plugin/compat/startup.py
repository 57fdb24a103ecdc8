"""Lets stock fairseq 0.12.2 run on current Python, torch and hydra, and starts our commands.

The installed file `fairseq_ext.pth` puts a small import finder into every interpreter. In a command
of ours it removes the working folder from the search path, and lets Ctrl-C end the process at once
until the package is imported. When `fairseq` is first imported, the finder runs this module, whose
`Hook` makes the changes of patches.py, each when its module of fairseq runs. A command of fairseq's
that names an *_ext task becomes the package's own (core/command_line.py); any other program is not
changed further.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType


def patches() -> ModuleType:
    """Return patches.py, loaded by its path if it is not loaded: an import of the package would
    import fairseq, which is being imported."""
    name = "fairseq_ext.plugin.compat.patches"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, os.path.join(os.path.dirname(__file__), "patches.py")
        )
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


class Hook(importlib.abc.MetaPathFinder):
    """A finder of fairseq's modules, whose `Loader` makes patches before and after they run.

    commands: the patches of a command.
    """

    def __init__(self) -> None:
        self.is_started = False
        self.commands: tuple = ()

    def find_spec(self, fullname, path=None, target=None):
        if fullname in ("fairseq", "fairseq_cli") and not self.is_started:
            self.is_started = True
            if patches().load_by_path("fairseq_ext.core.command_line").command():
                importlib.import_module("fairseq_ext")
        if not fullname.startswith("fairseq."):
            lazy = "fairseq_ext.plugin.compat.lazy"
            return patches().load_by_path(lazy).late_spec(fullname, path) if self.commands else None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            all_patches = [*patches().EVERYWHERE, *self.commands]
            spec.loader = Loader(
                spec.loader,
                [p for p in all_patches if fullname in p.modules or p.modules == patches().ALL],
            )
            if self.commands:
                spec = patches().load_by_path("fairseq_ext.plugin.compat.lazy").make_lazy(spec)
        return spec

    def own_process(self) -> None:
        """Make the changes of a command (core/command_line.py)."""
        quick = (
            not patches().load_by_path("fairseq_ext.core.command_line").has_help_flag()
            and "fairseq" not in sys.modules
        )
        self.commands = patches().QUICK if quick else ()
        for patch in patches().COMMANDS + self.commands:
            if not patch.modules:
                patches().make(patch)


class Loader(importlib.abc.Loader):
    """Runs the module's own loader, and makes patches before and after."""

    def __init__(self, loader, patches) -> None:
        self.loader, self.patches = loader, patches

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with contextlib.ExitStack() as meanwhile:
            for patch in self.patches:
                if patch.early and (context := patches().make(patch, module)):
                    meanwhile.enter_context(context)
            self.loader.exec_module(module)
        for patch in self.patches:
            if not patch.early:
                patches().make(patch, module)

    def __getattr__(self, name: str):
        return getattr(self.loader, name)


def register() -> Hook:
    """Put the hook in front of the import system, once; return it."""
    for finder in sys.meta_path:
        if type(finder).__name__ == "Hook" and hasattr(finder, "is_started"):
            return finder  # type: ignore[return-value]
    sys.meta_path.insert(0, Hook())
    return sys.meta_path[0]  # type: ignore[return-value]


def own_this_process() -> None:
    """Make this process a command's own: its end, its error messages, Ctrl-C, and a quick start
    (patches.py has the list).

    Only `fairseq_ext/__init__.py` calls it, for a command. --verbose, which every command takes,
    shows tracebacks.
    """
    own = patches().load_by_path("fairseq_ext.core.command_line")
    if own.own_command:
        return
    own.own_command = own.command() or "?"
    if "--verbose" in sys.argv:
        sys.argv.remove("--verbose")
        os.environ["FAIRSEQ_EXT_TRACEBACK"] = "1"
    register().own_process()
    if not own.absolute(os.curdir):  # MKL ends the process there
        from fairseq_ext.core.errors import UsageError

        raise UsageError("the working folder has been removed: change to another")


register()
