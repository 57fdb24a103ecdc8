"""Lets stock fairseq 0.12.2 run on current Python, torch and hydra.

The installed file `fairseq_ext.pth` puts a small import finder into every interpreter; in a command of the `*_ext` tasks, Ctrl-C ends the
process at once until this package is imported. When `fairseq` itself is first asked for, the finder runs this module, whose `Hook` then

1. lets its dataclasses have dataclass instances as defaults, which Python >= 3.11 refuses (repairs.py, `allow_dataclass_defaults`);
2. lets `torch.load` read the plain containers that fairseq checkpoints hold, still without running pickled code
   (checkpoints.py), and names the class and the way out when a checkpoint holds something else;
3. keeps its Transformer encoder from a fused layer of torch that it calls in an outdated way (`avoid_fused_encoder_layer` there);
4. lets fairseq read a checkpoint's settings as literals instead of running them through `eval` (`read_settings_as_literals`);
5. registers the `*_ext` tasks where the command names one (`register_named_tasks`), with any --user-dir or none;
6. gives mBART's task the arguments that it reads (`give_arguments` there);
7. gives data sets a name that numpy 2 no longer has (`give_numpy_long` there);
8. lets Ctrl-C end a command of the `*_ext` tasks quietly while it is starting (`quiet_interrupts`), and silences the deprecation warnings
   that hydra 1.3 prints at every start, torch's of pinned memory and fairseq's note of tensorboardX, and no others;
9. where the command names an *_ext task, or fairseq_ext itself is imported first, starts quickly: fairseq's files run when they are
   needed (lazy.py), its configuration is composed without a grammar (compose.py), and the garbage collector waits (quick.py);
10. lets our tasks build a checkpoint whose architecture is a plain Transformer under a name of its own (checkpoints.py).

A fairseq that needs none of this is left as it is.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType


def read_settings_as_literals(module: ModuleType) -> None:
    """Give a module of fairseq another `eval`, before it runs: the strings that fairseq evaluates come from checkpoints."""
    module.eval = beside("literals").literal  # type: ignore[attr-defined]


@functools.cache
def beside(name: str) -> ModuleType:
    """A file beside this one, loaded by its path, once a process: importing the package would import fairseq, which is being imported."""
    known = f"_fairseq_ext_{name}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, os.path.join(os.path.dirname(__file__), f"{name}.py"))
        assert spec is not None and spec.loader is not None
        module = sys.modules[known] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[known]


def named_task(arguments: list[str]) -> str | None:
    """The task that a command's arguments name, the last where they name several; None where they name none."""
    named = None
    for i, argument in enumerate(arguments):
        if argument == "--task" and i + 1 < len(arguments):
            named = arguments[i + 1]
        elif argument.startswith("--task="):
            named = argument.partition("=")[2]
    return named


def register_named_tasks(options: ModuleType) -> None:
    """Import fairseq_ext, and with it its tasks, where the command names one; and let --user-dir fairseq_ext mean the installed package.

    Errors: UsageError for an unknown *_ext task, in one line that lists those there are.
    """
    stock = options.utils.import_user_module

    def import_user_module(args) -> None:
        given = getattr(args, "user_dir", None)
        if given is not None and (len(given_twice()) > 1 or (os.pathsep in given and not os.path.exists(given))):
            refuse_two(given_twice() if len(given_twice()) > 1 else given.split(os.pathsep))
        if given is not None and os.path.basename(os.path.normpath(given)) == "fairseq_ext":
            importlib.import_module("fairseq_ext")
        else:
            if given is not None and (named_task(sys.argv) or "").endswith("_ext"):
                refuse_taken_name(given)
            stock(args)
        if (named_task(sys.argv) or "").endswith("_ext"):
            importlib.import_module("fairseq_ext")
            importlib.import_module("fairseq_ext.session.stock_tasks").refuse_unknown(named_task(sys.argv))

    def given_twice() -> list[str]:
        apart = [sys.argv[i + 1] for i, argument in enumerate(sys.argv[:-1]) if argument == "--user-dir"]
        return apart + [argument.partition("=")[2] for argument in sys.argv if argument.startswith("--user-dir=")]

    options.utils.import_user_module = import_user_module
    if (named_task(sys.argv) or "").endswith("_ext"):
        importlib.import_module("fairseq_ext")


def starts_quickly() -> bool:
    """Whether fairseq is imported for this package: by a command that names one of its tasks, or by the package itself."""
    ours = (named_task(sys.argv) or "").endswith("_ext") or "fairseq_ext" in sys.modules
    return ours and not {"-h", "--help"} & set(sys.argv)  # help lists names in the order in which fairseq's files register them


def quick() -> ModuleType:
    """quick.py, behind the two files that it imports."""
    for name in ("compose", "lazy"):
        beside(name)
    return beside("quick")


def refuse_two(folders: list[str]) -> None:
    """Refuse several user directories in a sentence that shows the right command (raises UsageError)."""
    others = [folder for folder in folders if os.path.basename(os.path.normpath(folder)) != "fairseq_ext"]
    task = named_task(sys.argv) or "translation_ext"
    raise importlib.import_module("fairseq_ext.errors").UsageError(
        f"fairseq reads one --user-dir, and {' and '.join(folders)} are given: the *_ext tasks need none, "
        f"so use --user-dir {others[0] if others else folders[0]} --task {task}"
    )


def refuse_taken_name(folder: str) -> None:
    """Refuse a user directory under whose name Python knows another module: it would be taken for that (raises UsageError)."""
    path = os.path.abspath(folder)
    known = sys.modules.get(os.path.basename(path))
    if known is not None and os.path.isdir(path) and path not in map(os.path.abspath, getattr(known, "__path__", ())):
        raise importlib.import_module("fairseq_ext.errors").UsageError(
            f"--user-dir {folder} has the name of another module of Python's, {known.__name__}: rename the folder"
        )


def quiet_interrupts() -> None:
    """Let Ctrl-C end a command of our tasks quietly, also while it is starting; leaving.py has the hook of the time after that.

    The file fairseq_ext.pth has the handler of the signal until then; an interpreter that started without it has this hook alone.
    """

    def hook(kind, error, trace) -> None:
        if issubclass(kind, KeyboardInterrupt):
            os._exit(130)
        sys.__excepthook__(kind, error, trace)

    hook.until_ready = True  # type: ignore[attr-defined]
    if (named_task(sys.argv) or "").endswith("_ext") and sys.excepthook is sys.__excepthook__:
        sys.excepthook = hook


def of(file: str, name: str) -> Callable[[ModuleType], None]:
    """A function of a file beside this one, which is loaded when the function is called."""
    return lambda module: getattr(beside(file), name)(module)


AFTER_IMPORT = {
    "fairseq.data.token_block_dataset": of("repairs", "give_numpy_long"),
    "fairseq.data.language_pair_dataset": of("repairs", "give_numpy_long"),
    "fairseq.tasks.translation_from_pretrained_bart": of("repairs", "give_arguments"),
    "fairseq.options": register_named_tasks,
    "fairseq.checkpoint_utils": of("checkpoints", "prepare_loading"),
    "fairseq.dataclass.constants": of("checkpoints", "allow_fairseq_enums"),
    "fairseq.modules.transformer_layer": of("repairs", "avoid_fused_encoder_layer"),
}


class Hook(importlib.abc.MetaPathFinder):
    """A finder that finds nothing: it prepares Python when fairseq is first asked for, and then steps aside module by module."""

    def __init__(self) -> None:
        self.ready = self.quick = self.spared = False

    def find_spec(self, fullname, path=None, target=None):
        if fullname in ("fairseq", "fairseq_cli") and not self.spared and starts_quickly():
            self.spared = True
            quick().spare_collections()
        if fullname == "fairseq" and not self.ready:
            self.ready, self.quick = True, starts_quickly()
            beside("repairs").allow_dataclass_defaults()
            beside("checkpoints").allow_checkpoint_globals()
            beside("repairs").silence_notices()
            quiet_interrupts()
        if not fullname.startswith("fairseq."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            then = [work[fullname] for work in (AFTER_IMPORT, quick().AFTER_IMPORT if self.quick else {}) if fullname in work]
            spec.loader = Loader(spec.loader, then)
            if self.quick:
                spec = beside("lazy").later(spec)
        return spec


class Loader(importlib.abc.Loader):
    """Runs the module's own loader with a harmless `eval`, then some functions on the finished module."""

    def __init__(self, loader, then) -> None:
        self.loader, self.then = loader, then

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        read_settings_as_literals(module)
        self.loader.exec_module(module)
        for function in self.then:
            function(module)

    def __getattr__(self, name: str):
        return getattr(self.loader, name)


def register() -> Hook:
    """Put the hook in front of the import system, once; return it."""
    for finder in sys.meta_path:
        if type(finder).__name__ == "Hook" and hasattr(finder, "ready"):
            return finder  # type: ignore[return-value]
    sys.meta_path.insert(0, Hook())
    return sys.meta_path[0]  # type: ignore[return-value]


register()
