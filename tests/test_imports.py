"""Imports of the package point one way: a folder imports only from those above it in one order, and
no module imports itself by way of others. Definitions and their compiled twins name each other.

Every import statement counts, wherever it stands: at the top of a file, in a function,
or under TYPE_CHECKING."""

import ast
import functools
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fairseq_ext

PACKAGE = Path(__file__).parents[1] / "fairseq_ext"

# Each folder, or file of the root, imports from itself and from those before it. Names on one line
# do not import each other. "search" alone means the files that lie in the folder itself.
ORDER = (
    "core",
    "kernels",
    "model",
    "search/phrases",
    "search",
    "search/parallel search/constraints",
    "search/strategies",
    "plugin",
    "text",
    "translator",
    "engine",
    "serve corpus translate terms allowed convert doctor viz registry",
    "__main__ __init__",
)
TORCH_FREE = ("core",)
FAIRSEQ_FREE = ("core", "kernels", "search")
PLACE = {name: place for place, names in enumerate(ORDER) for name in names.split()}


def modules(package):
    """Return the files of a package by module name: "" for the package itself, "search" for a
    folder's __init__, "search.loop"."""
    paths = [path.relative_to(package).with_suffix("") for path in sorted(package.rglob("*.py"))]
    return {
        ".".join(p.parts[:-1] if p.name == "__init__" else p.parts): package / p.with_suffix(".py")
        for p in paths
    }


def all_imports(path):
    """Return what a file imports: (module, name), the name empty for `import module`."""
    return imports_in(path.read_text(encoding="utf-8"), path)


@functools.cache
def imports_in(source, path):
    out = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            out += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: a relative import"
            out += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):
            named = [each.value for each in node.args if isinstance(each, ast.Constant)]
            out += [
                (name, "")
                for name in named
                if isinstance(name, str) and name.replace(".", "_").isidentifier()
            ]
    return out


def imports_of(path, package):
    """Return what a file imports from its package, without the package's name."""
    found = [
        (module, name) for module, name in all_imports(path) if module.split(".")[0] == package
    ]
    return [(module.removeprefix(package).removeprefix("."), name) for module, name in found]


def arrows(package):
    """Return all (importing module, imported module) of a package.

    A name that the package's own __init__ takes from a module is an import of that module. The
    package itself, which Python imports before any of its modules, is not.
    """
    files = modules(package)
    given = imports_of(files[""], package.name)
    exported = {
        name: module
        for module, name in given
        if name and f"{module}.{name}".strip(".") not in files
    }
    out = set()
    for importer, path in files.items():
        for module, name in imports_of(path, package.name):
            full = f"{module}.{name}".strip(".")
            target = full if full in files else exported.get(name, "") if not module else module
            if target and target != importer:
                assert target in files, f"{path} imports {target}, which is no module"
                out.add((importer, target))
    return out


def circle(edges):
    """Return the modules of one circle; an empty list where there is none."""
    sorter = TopologicalSorter()
    for importer, target in sorted(edges):
        sorter.add(importer, target)
    try:
        sorter.prepare()
    except CycleError as error:
        return error.args[1]
    return []


def folder(module):
    """Return the entry of ORDER that a module belongs to."""
    first, *rest = module.split(".") if module else ["__init__"]
    inner = f"{first}/{rest[0]}" if rest else first
    return inner if inner in PLACE else first


def is_allowed(importer, target):
    """Return whether the order of the layers allows an import."""
    if folder(importer) == folder(target):
        return True
    if importer.endswith("__main__") and PLACE[folder(importer)] > PLACE["plugin"]:
        return True  # a command, which no module imports
    return PLACE[folder(target)] < PLACE[folder(importer)]


def test_no_module_imports_itself_by_way_of_others():
    found = circle(arrows(PACKAGE))
    assert not found, " - ".join(found)


def test_a_folder_imports_only_from_those_above_it():
    wrong = sorted(
        f"{importer} -> {target}"
        for importer, target in arrows(PACKAGE)
        if not is_allowed(importer, target)
    )
    assert not wrong, "\n".join(wrong)


def test_every_folder_has_a_place():
    assert {folder(module) for module in modules(PACKAGE)} <= set(PLACE)


@pytest.mark.parametrize(
    ("package", "layers"),
    [
        ("torch", TORCH_FREE),
        *((name, FAIRSEQ_FREE) for name in ("fairseq", "fairseq_cli", "hydra", "omegaconf")),
    ],
)
def test_layers_do_not_know(package, layers):
    found = {
        f"{name} imports {module}"
        for name, path in modules(PACKAGE).items()
        for module, _ in all_imports(path)
        if name.split(".")[0] in layers and module.split(".")[0] == package
    }
    assert not found, "\n".join(sorted(found))


def test_every_name_that_the_package_promises_can_be_imported():
    for name in {*fairseq_ext.__all__} - {"__version__"}:
        assert getattr(fairseq_ext, name).__module__.startswith("fairseq_ext.")
    assert fairseq_ext.__version__


# ---- the walk itself


@pytest.fixture
def written(tmp_path):
    """Writes a package, given its files, and returns its folder."""

    def write(**files):
        package = tmp_path / "fairseq_ext"
        package.mkdir()
        for name, text in files.items():
            (package / f"{name}.py").write_text(text)
        return package

    return write


@pytest.mark.parametrize(
    "back",
    [
        "from fairseq_ext import a",
        "import fairseq_ext.a",
        "from fairseq_ext.a import x",
        "def f():\n    from fairseq_ext.a import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fairseq_ext.a import x",
        "from fairseq_ext import x",  # by way of the package's __init__
    ],
)
def test_a_circle_is_found_wherever_its_import_stands(back, written):
    package = written(
        __init__="from fairseq_ext.a import x",
        a="from fairseq_ext.b import y",
        b="from fairseq_ext.c import z",
        c=back,
    )
    assert set(circle(arrows(package))) == {"a", "b", "c"}


def test_what_is_no_circle_is_not_found(written):
    package = written(
        __init__="from fairseq_ext import a",
        a="from fairseq_ext import b, c",
        b="import fairseq_ext",
        c="import a, torch",
    )
    assert arrows(package) == {("", "a"), ("a", "b"), ("a", "c")}
    assert not circle(arrows(package))


# ---- compiled twins

KERNELS = PACKAGE / "kernels"


def named(files, label, path):
    """(file, path) of each path in a list `label: path, path.` of a docstring or comment."""
    found = set()
    for file in files:
        text = re.sub(r"\s*\n(?://)?\s*", " ", file.read_text("utf-8"))
        for listed in re.findall(rf"{label}: ({path}(?:, {path})*)\.", text):
            found |= {(file.relative_to(PACKAGE).as_posix(), each) for each in listed.split(", ")}
    return found


def test_a_definition_and_its_compiled_twin_exist_and_name_each_other():
    native = [file for end in ("cpp", "hpp", "cu") for file in KERNELS.glob(f"*.{end}")]
    definitions = named(native, "Definition", r"[\w/]+\.py")
    twins = named(PACKAGE.rglob("*.py"), "Compiled twins?", r"kernels/\w+\.\w+")
    assert {(python, native) for native, python in definitions} == twins
    assert len(twins) > 20 and all((PACKAGE / each).is_file() for pair in twins for each in pair)


def test_a_strategy_that_the_compiled_search_replaces_names_its_twin():
    replaced = {
        file.relative_to(PACKAGE).as_posix()
        for file in (PACKAGE / "search" / "strategies").rglob("*.py")
        if "def rules(self)" in file.read_text("utf-8")
    }
    twins = named(PACKAGE.rglob("*.py"), "Compiled twins?", r"kernels/\w+\.\w+")
    assert replaced and replaced <= {python for python, _ in twins}
