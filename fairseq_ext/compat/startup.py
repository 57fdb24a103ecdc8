"""Lets stock fairseq 0.12.2 run on current Python, torch and hydra, and starts our commands.

The installed file `fairseq_ext.pth` puts a small import finder into every interpreter. In a command of ours it drops the working folder
from the search path, and Ctrl-C ends the process at once until the package is imported. When `fairseq` itself is first asked for, the
finder runs this module, whose `Hook` makes the changes that patches.py lists, each when the module of fairseq runs that it is for. A
command of fairseq's that names an *_ext task becomes the package's own (own_process.py); in any other program nothing else is done.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType


def beside(name: str) -> ModuleType:
    """A file beside this one, loaded by its path where it is not loaded: importing the package would import fairseq, which is being
    imported."""
    known = f"fairseq_ext.compat.{name}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, os.path.join(os.path.dirname(__file__), f"{name}.py"))
        assert spec is not None and spec.loader is not None
        module = sys.modules[known] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[known]


def make(patch, *arguments):
    """Make a change (patches.py); what its function gives."""
    place, _, function = patch.change.rpartition(".")
    module = importlib.import_module(place) if "." in place else beside(place)
    made = getattr(module, function)(*arguments)
    if made is not False and patch not in beside("patches").in_force:
        beside("patches").in_force.append(patch)
    return made


def register_named_tasks(options: ModuleType) -> None:
    """Import fairseq_ext, and with it its tasks, where the command names one; and let --user-dir fairseq_ext mean the installed package.

    Errors: UsageError for an unknown *_ext task, in one line that lists those there are.
    """
    stock, own = options.utils.import_user_module, beside("own_process")

    def import_user_module(args) -> None:
        given = getattr(args, "user_dir", None)
        folders = own.values_of("--user-dir")
        if given is not None and (len(folders) > 1 or (os.pathsep in given and not os.path.exists(given))):
            refuse_two(folders if len(folders) > 1 else given.split(os.pathsep))
        if given is not None and os.path.basename(os.path.normpath(given)) == "fairseq_ext":
            importlib.import_module("fairseq_ext.tasks")
        else:
            if given is not None and own.names_our_task():
                refuse_wrong_folder(given)
            with beside("repairs").dataclass_defaults():
                stock(args)
        if own.names_our_task() or "fairseq_ext.tasks" in sys.modules:
            importlib.import_module("fairseq_ext.tasks").extend_examples()
        if own.names_our_task():
            stock_tasks = importlib.import_module("fairseq_ext.session.stock.tasks")
            stock_tasks.refuse_unknown(own.named_task())
            stock_tasks.refuse_flags(own.named_task(), own.arguments())

    options.utils.import_user_module = import_user_module
    if own.names_our_task():
        importlib.import_module("fairseq_ext.tasks")
    if own.decodes_alone():
        importlib.import_module("fairseq_ext.compat.leaving").interrupts_raise()
        if own.asks_for_help():
            importlib.import_module("fairseq_ext.__main__").print_flags()


def refuse_two(folders: list[str]) -> None:
    """Refuse several user directories in a sentence that shows the right command (raises UsageError)."""
    others = [folder for folder in folders if os.path.basename(os.path.normpath(folder)) != "fairseq_ext"]
    task = beside("own_process").named_task() or "translation_ext"
    raise importlib.import_module("fairseq_ext.errors").UsageError(
        f"fairseq reads one --user-dir, and {' and '.join(folders)} are given: the *_ext tasks need none, "
        f"so use --user-dir {others[0] if others else folders[0]} --task {task}"
    )


def refuse_wrong_folder(folder: str) -> None:
    """Refuse what is no user directory, and one under whose name Python knows another module: it would be taken for that (UsageError)."""
    path = os.path.abspath(folder)
    if os.path.exists(path) and not os.path.isdir(path):
        raise importlib.import_module("fairseq_ext.errors").UsageError(f"--user-dir {folder} is a file: name the folder that it lies in")
    if "." in os.path.basename(path):
        raise importlib.import_module("fairseq_ext.errors").UsageError(
            f"--user-dir {folder} cannot be imported, for there is a dot in its name: rename the folder"
        )
    known = sys.modules.get(os.path.basename(path))
    if known is not None and os.path.isdir(path) and path not in map(os.path.abspath, getattr(known, "__path__", ())):
        raise importlib.import_module("fairseq_ext.errors").UsageError(
            f"--user-dir {folder} has the name of another module of Python's, {known.__name__}: rename the folder"
        )


class Hook(importlib.abc.MetaPathFinder):
    """A finder that finds nothing: it has patches made as the modules of fairseq run. commands: those of a command as well."""

    def __init__(self) -> None:
        self.asked = False
        self.commands: tuple = ()

    def find_spec(self, fullname, path=None, target=None):
        if fullname in ("fairseq", "fairseq_cli") and not self.asked:
            self.asked = True
            if beside("own_process").command():
                importlib.import_module("fairseq_ext")
        if not fullname.startswith("fairseq."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            patches = [*beside("patches").EVERYWHERE, *self.commands]
            spec.loader = Loader(spec.loader, [p for p in patches if fullname in p.modules or p.modules == beside("patches").ALL])
            if self.commands:
                spec = beside("lazy").later(spec)
        return spec

    def own_process(self) -> None:
        """Make the changes of a command (own_process.py)."""
        patches = beside("patches")
        quick = not beside("own_process").asks_for_help() and "fairseq" not in sys.modules
        self.commands = patches.QUICK if quick else ()
        for patch in patches.COMMANDS + self.commands:
            if not patch.modules:
                make(patch)


class Loader(importlib.abc.Loader):
    """Runs the module's own loader, and makes patches before and after."""

    def __init__(self, loader, patches) -> None:
        self.loader, self.patches = loader, patches

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with contextlib.ExitStack() as meanwhile:
            for patch in self.patches:
                if patch.early and (context := make(patch, module)):
                    meanwhile.enter_context(context)
            self.loader.exec_module(module)
        for patch in self.patches:
            if not patch.early:
                make(patch, module)

    def __getattr__(self, name: str):
        return getattr(self.loader, name)


def register() -> Hook:
    """Put the hook in front of the import system, once; return it."""
    for finder in sys.meta_path:
        if type(finder).__name__ == "Hook" and hasattr(finder, "asked"):
            return finder  # type: ignore[return-value]
    sys.meta_path.insert(0, Hook())
    return sys.meta_path[0]  # type: ignore[return-value]


register()
