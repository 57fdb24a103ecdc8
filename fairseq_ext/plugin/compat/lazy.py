"""Runs the files of fairseq's models, tasks, criterions, ... when they are first needed, not all
of them at every start.

`import fairseq` runs some 200 files, each of which registers names: tasks, architectures,
optimizers. A command that translates needs a dozen of them. Here such a file becomes a module that
runs at the first access of one of its attributes. fairseq's registries become dictionaries with the
names that each file would register (`registered_names` reads them from its text): a look-up of a
name runs the files that register it; a look-up of an unknown name, or of all entries, runs all
files. So every reader sees complete registries.

Packages of others that fairseq imports, and that no translation needs (LATE), wait in the same way.

startup.py imports this module while fairseq is being imported, so it imports the standard library
only.
"""

import importlib.abc
import re
import sys
from collections.abc import Callable, Iterator, KeysView, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FunctionType, ModuleType

# packages of fairseq whose every file runs at import because of its registrations
FOLDERS = (
    "fairseq.criterions",
    "fairseq.data.encoders",
    "fairseq.models",
    "fairseq.optim",
    "fairseq.optim.lr_scheduler",
    "fairseq.scoring",
    "fairseq.tasks",
)
# packages that fairseq imports only for their registrations
STANDALONE_PACKAGES = ("fairseq.benchmark", "fairseq.model_parallel")
# packages of others -> the module of theirs that runs without the package's own code
LATE = {
    "portalocker": "",
    "pyarrow": "pyarrow.plasma",
    "torch.onnx": "torch.onnx.operators",
    "wcwidth": "",
}
REGISTER_CALL = re.compile(
    r"@(?:\w+\.)?register_(\w+)\(\s*(?:model_name=)?[\"']([^\"']+)[\"'](?:\s*,"
    r"\s*(?:arch_name=)?[\"']([^\"']+)[\"'])?"
)
MODEL_DICTIONARIES = (
    "MODEL_REGISTRY",
    "MODEL_DATACLASS_REGISTRY",
    "ARCH_MODEL_REGISTRY",
    "ARCH_MODEL_NAME_REGISTRY",
    "ARCH_MODEL_INV_REGISTRY",
    "ARCH_CONFIG_REGISTRY",
)
TASK_DICTIONARIES = ("TASK_REGISTRY", "TASK_DATACLASS_REGISTRY")
# register_X -> the kind of registry, if it has another name
REGISTRY_OF_DECORATOR = {"model_architecture": "model", "scorer": "scoring"}

waiting: dict[str, ModuleSpec] = {}  # modules that have not run
registering_modules: dict[
    str, dict[str, list[str]]
] = {}  # kind -> name -> modules that register it


def is_lazy(fullname: str) -> bool:
    """Return whether a module of fairseq runs when it is needed; packages whose files register run
    at once, and so do their own parts."""
    if fullname in FOLDERS:
        return False
    package, _, name = fullname.rpartition(".")
    return fullname in STANDALONE_PACKAGES or (package in FOLDERS and not name.startswith("_"))


class LazyLoader(importlib.abc.Loader):
    """A loader that gives a module the attributes of its spec and a `__getattr__` that runs it."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        name = module.__name__
        waiting[name] = module.__spec__
        for kind, each in registered_names(module.__spec__):
            registering_modules.setdefault(kind, {}).setdefault(each, []).append(name)

        def missing(attribute: str) -> object:
            # inspect and similar modules read this of every module
            if attribute.startswith("__") and attribute != "__all__":
                raise AttributeError(attribute)
            run(name)
            return getattr(module, attribute)

        module.__getattr__ = missing  # type: ignore[method-assign]

    def __getattr__(self, name: str):
        return getattr(self.loader, name)


class LateLoader(LazyLoader):
    """The same for a package of others (LATE), which registers nothing."""

    def exec_module(self, module: ModuleType) -> None:
        self.module = module
        module.__getattr__ = self.missing  # type: ignore[method-assign]

    def missing(self, attribute: str) -> object:
        if attribute.startswith("__") and attribute not in ("__all__", "__version__"):
            raise AttributeError(attribute)
        self.run()
        return getattr(self.module, attribute)

    def run(self) -> None:
        if vars(self.module).pop("__getattr__", None):
            self.loader.exec_module(self.module)


class AlreadyImportedLoader(importlib.abc.Loader):
    """A loader for a module that its package has imported meanwhile; it runs nothing."""

    def __init__(self, module: ModuleType, loader: importlib.abc.Loader) -> None:
        self.module, self.loader = module, loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        pass

    def __getattr__(self, name: str):
        return getattr(self.loader, name)


def run(name: str) -> None:
    """Run a pending module."""
    spec = waiting.pop(name, None)
    if spec is None:
        return
    module = sys.modules[name]
    del module.__getattr__
    assert isinstance(spec.loader, LazyLoader)
    spec.loader.loader.exec_module(module)


def run_all() -> None:
    """Run every pending module, in the order in which fairseq imports them."""
    while waiting:
        run(next(iter(waiting)))


def make_lazy(spec: ModuleSpec) -> ModuleSpec:
    """Change a module's spec so that the module runs when it is needed, if it may; return the spec.
    Its packages run first."""
    parents = spec.name.split(".")
    for i in range(2, len(parents)):
        run(".".join(parents[:i]))
    assert spec.loader is not None
    made = sys.modules.get(spec.name)
    if made is not None:
        spec.loader = AlreadyImportedLoader(made, spec.loader)
        # subtle: if a module exists already, Python continues with its spec
        made.__spec__ = spec
    elif is_lazy(spec.name):
        spec.loader = LazyLoader(spec.loader)
    return spec


def late_spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Return the spec of a package of LATE, which runs late; any other module of such a package
    runs it first. None for all others."""
    package = name.rpartition(".")[0]
    if name not in LATE and (package not in LATE or name == LATE[package]):
        return None
    spec = PathFinder.find_spec(name, path)
    if spec is None or spec.loader is None:
        return spec
    if name in LATE:
        spec.loader = LateLoader(spec.loader)
    elif isinstance(loader := getattr(sys.modules[package].__spec__, "loader", None), LateLoader):
        loader.run()
        if name in sys.modules:
            spec.loader = AlreadyImportedLoader(sys.modules[name], spec.loader)
            sys.modules[name].__spec__ = spec
    return spec


def registered_names(spec: ModuleSpec) -> Iterator[tuple[str, str]]:
    """Yield the kind (model, task, criterion, ...) and name of each registration in a module, or in
    all files of a package."""
    assert spec.origin is not None
    path = Path(spec.origin)
    for file in sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]:
        for kind, first, second in REGISTER_CALL.findall(file.read_text(encoding="utf-8")):
            yield (
                REGISTRY_OF_DECORATOR.get(kind, kind),
                second if kind == "model_architecture" else first,
            )


class Registry(dict):
    """A registry of fairseq with the names of pending files; kind: of `registering_modules`."""

    def __init__(self, kind: str, entries: dict, lists_names: bool) -> None:
        super().__init__(entries)
        self.kind = kind
        # its keys are all names of the kind, so that they are known without running files
        self.lists_names = lists_names

    def find(self, name: object) -> None:
        """Run the files that register a name."""
        if not dict.__contains__(self, name):
            for module in registering_modules.get(self.kind, {}).get(name, ()):  # type: ignore
                run(module)

    def __contains__(self, name: object) -> bool:
        self.find(name)
        return super().__contains__(name)

    def __missing__(self, name: str) -> object:
        self.find(name)
        if not super().__contains__(name):
            run_all()
        if not super().__contains__(name):
            raise KeyError(name)
        return super().__getitem__(name)

    def get(self, name, default=None):
        return super().__getitem__(name) if name in self else default

    def setdefault(self, name, default=None):
        if name not in self:
            self[name] = default
        return super().__getitem__(name)

    def keys(self) -> KeysView:  # type: ignore[override]
        return Names(self)

    def __iter__(self) -> Iterator:
        if self.lists_names:  # the names are known without running files
            return iter(
                dict.fromkeys([*registering_modules.get(self.kind, ()), *super().__iter__()])
            )
        run_all()
        return super().__iter__()


def method_over_all_entries(name: str) -> Callable:
    """Return a method of dictionaries that includes all entries."""

    def method(self, *others):
        run_all()
        return getattr(dict, name)(self, *others)

    return method


for each in ("__len__", "values", "items", "copy", "__eq__", "__repr__"):
    setattr(Registry, each, method_over_all_entries(each))


class Names(KeysView):
    """The keys of a registry."""

    def __repr__(self) -> str:
        return f"dict_keys({list(self)})"


def replace_registries(module: ModuleType) -> None:
    """Make the registries of fairseq.models, fairseq.tasks or fairseq.registry lazy,
    once the module has run."""
    (replace_set_up if module.__name__ == "fairseq.registry" else replace_dictionaries)(module)


def replace_dictionaries(module: ModuleType) -> None:
    """Make the dictionaries of a package's module lazy."""
    names, kind = (
        (MODEL_DICTIONARIES, "model")
        if module.__name__ == "fairseq.models"
        else (TASK_DICTIONARIES, "task")
    )
    for name in names:
        setattr(module, name, Registry(kind, getattr(module, name), name == "TASK_REGISTRY"))


def replace_set_up(registry: ModuleType) -> None:
    """Make the registries that fairseq.registry sets up lazy: its functions have them in their
    closures."""
    stock = registry.setup_registry

    def setup_registry(registry_name: str, *arguments, **more):
        made = stock(registry_name, *arguments, **more)
        if made is None:
            return None
        build, register, *_ = made
        kind = registry_name.removeprefix("--").replace("-", "_")
        lazy = [
            replace_in_closure(build, name, kind) for name in ("REGISTRY", "DATACLASS_REGISTRY")
        ]
        registry.REGISTRIES[kind] |= dict(
            zip(("registry", "dataclass_registry"), lazy, strict=True)
        )
        return build, register, *lazy

    registry.setup_registry = setup_registry  # type: ignore[attr-defined]


def replace_in_closure(function: FunctionType, name: str, kind: str) -> Registry:
    """Replace a dictionary in the closure of a function, which others may share, by a lazy
    registry."""
    assert function.__closure__ is not None
    cell = function.__closure__[function.__code__.co_freevars.index(name)]
    cell.cell_contents = Registry(kind, cell.cell_contents, name == "REGISTRY")
    return cell.cell_contents
