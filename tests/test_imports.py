"""Imports of the package point one way: no module imports itself by way of others, and no folder imports from where it should not.

Every import statement counts, wherever it stands: at the top of a file, in a function, or under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fairseq_ext

PACKAGE = Path(__file__).parents[1] / "fairseq_ext"

# What each folder, or file of the root, may import from the others: folders, files of the root, or single files of a folder.
# A search, of either driver, sees a decoder only through decoders/protocol.py.
ALLOWED = {
    # doors
    "__init__": "compat engine errors tasks text.translation translator version",
    "__main__": "candidates.flags compat.own_process errors registry tasks",
    "compat": "errors tasks",
    "convert": "errors models.sentencepiece_pair",
    "corpus": "compat.child constraints counters loading.digests errors files loading stats translator",
    "doctor": "compat",
    "serve": "constraints engine errors files loading.arguments loading.model_folder loading.several_sentences terms.glossary_files "
    "text.files text.formats text.in_engine text.language_codes text.splitter",
    "engine": "candidates.flags compat.child constraints errors flags kernels.library loading.lengths parallel placement.align search "
    "session.pool_of strategies.schedule.stream terms text.formats text.in_engine text.splitter translator",
    "terms": "errors files",
    "text": "constraints engine.jobs engine.tickets errors files loading placement.forced_decoding session.pool_of terms.words translator",
    "translator": "candidates.flags constraints errors flags loading session.bad_sentences session.cpu_workers session.generators "
    "session.stock.tasks session.teacher_forcing stats text.alignment text.in_lines text.formats text.segments "
    "text.splitter text.translation",
    "translate": "compat.own_process constraints.from_python decoders.transformer.decoder decoders.transformer.one_row errors "
    "files kernels loading.lengths loading.model_folder loading.several_sentences search.searchers.compiled tasks "
    "translator",
    "viz": "errors files parallel search translator",
    # tasks -> config, generator
    "tasks": "checks compat.own_process config decoders.refused loading models session",
    "generator": "candidates config constraints decoders errors loading.settings search session.drivers session.pools session.progress "
    "session.results_file stats",
    "session": "checks compat.invalid_bytes compat.own_process compat.process_end config constraints "
    "decoders.fairseq.uncached decoders.protocol errors files generator kernels loading models.sentencepiece_pair parallel placement "
    "registry search stats viz.writer",
    "config": "candidates.flags checks constraints loading.digests loading.settings registry search stats version",
    "models": "",
    "candidates": "errors registry search.finished",
    "loading": "compat.checkpoints constraints.phrases.boundaries constraints.phrases.phrase errors files",
    "checks": "candidates.flags constraints.flags errors registry search.beam search.candidates search.finished search.log_probs "
    "search.pool search.protocols",
    # strategies -> drivers, kernels
    "strategies": "constraints counters decoders.protocol decoders.upload errors files kernels loading.digests parallel registry search "
    "softmax stats",
    "softmax": "counters decoders.linear decoders.protocol decoders.transformer.supported errors files kernels loading.array_file search "
    "stats",
    # drivers -> decoders, through a protocol
    "parallel": "counters decoders.protocol decoders.upload errors files kernels loading.array_file search stats",
    "search": "constraints.phrases.boundaries constraints.sentence constraints.sentence_end decoders.protocol decoders.upload errors "
    "kernels stats",
    "placement": "constraints decoders.protocol search stats terms",
    "constraints": "counters errors files search.finished search.log_probs search.pool stats terms models.sentencepiece_pair",
    "decoders": "errors kernels",
    # what all may import
    "kernels": "compat.own_process errors files",
    "registry": "checks.capabilities errors",
    "files": "errors",
    "counters": "",
    "stats": "counters",
    "errors": "",
    "flags": "",
    "version": "",
}


def modules(package: Path) -> dict[str, Path]:
    """Return the files of a package by module name: "" for the package itself, "search" for a folder's __init__, "search.loop"."""
    paths = [path.relative_to(package).with_suffix("") for path in sorted(package.rglob("*.py"))]
    return {".".join(p.parts[:-1] if p.name == "__init__" else p.parts): package / p.with_suffix(".py") for p in paths}


def imports_of(path: Path, package: str) -> list[tuple[str, str]]:
    """Return what a file imports from its package: (module, name), the name empty for `import module`."""
    out = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            out += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: a relative import"
            out += [(node.module, alias.name) for alias in node.names]
    inside = [(module.removeprefix(package).removeprefix("."), name) for module, name in out if module.split(".")[0] == package]
    return inside


def arrows(package: Path) -> set[tuple[str, str]]:
    """Return all (importing module, imported module) of a package.

    A name that the package's own __init__ takes from a module is an import of that module. The package itself, which Python imports before
    any of its modules, is not.
    """
    files = modules(package)
    doors = {name: module for module, name in imports_of(files[""], package.name) if name and f"{module}.{name}".strip(".") not in files}
    out = set()
    for importer, path in files.items():
        for module, name in imports_of(path, package.name):
            full = f"{module}.{name}".strip(".")
            target = full if full in files else doors.get(name, "") if not module else module
            if target and target != importer:
                assert target in files, f"{path} imports {target}, which is no module"
                out.add((importer, target))
    return out


def circle(edges: set[tuple[str, str]]) -> list[str]:
    """Return the modules of one circle in the order of their imports; an empty list where there is none."""
    following: dict[str, list[str]] = {}
    for importer, target in sorted(edges):
        following.setdefault(importer, []).append(target)
    finished: set[str] = set()

    def search(module: str, path: list[str]) -> list[str]:
        if module in path:
            return path[path.index(module) :]
        if module in finished:
            return []
        for target in following.get(module, []):
            if found := search(target, [*path, module]):
                return found
        finished.add(module)
        return []

    return next((found for module in following if (found := search(module, []))), [])


def folder(module: str) -> str:
    """Return the folder of a module, or its name for a file of the root."""
    return module.split(".")[0] or "__init__"


def is_allowed(importer: str, target: str) -> bool:
    """Return whether the table allows an import from another folder, whole or of this file."""
    allowed = ALLOWED.get(folder(importer), "").split()
    return folder(importer) == folder(target) or folder(target) in allowed or target in allowed


def test_no_module_imports_itself_by_way_of_others():
    found = circle(arrows(PACKAGE))
    assert not found, " -> ".join([*found, found[0]])


def test_folders_import_only_from_where_they_may():
    wrong = sorted(f"{importer} -> {target}" for importer, target in arrows(PACKAGE) if not is_allowed(importer, target))
    assert not wrong, "\n".join(wrong)


def test_the_table_names_what_is_there_and_has_no_circle_itself():
    assert {folder(module) for module in modules(PACKAGE)} <= set(ALLOWED)
    whole = {(name, target) for name, targets in ALLOWED.items() for target in targets.split() if "." not in target}
    assert not (found := circle(whole)), found


def test_the_table_allows_no_arrow_that_is_not_there():
    here = arrows(PACKAGE)
    unused = [
        f"{name} -> {allowed}"
        for name, targets in ALLOWED.items()
        for allowed in targets.split()
        if not any(folder(importer) == name and allowed in (target, folder(target)) for importer, target in here)
    ]
    assert not unused, "\n".join(unused)


def test_every_name_that_the_package_promises_can_be_imported():
    for name in fairseq_ext.__all__:
        assert getattr(fairseq_ext, name).__module__.startswith("fairseq_ext.") if name != "__version__" else fairseq_ext.__version__


# ---- the walk itself


@pytest.fixture
def written(tmp_path):
    """Writes a package, given its files, and returns its folder."""

    def write(**files: str) -> Path:
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
    package = written(__init__="from fairseq_ext.a import x", a="from fairseq_ext.b import y", b="from fairseq_ext.c import z", c=back)
    assert circle(arrows(package)) == ["a", "b", "c"]


def test_what_is_no_circle_is_not_found(written):
    package = written(__init__="from fairseq_ext import a", a="from fairseq_ext import b, c", b="import fairseq_ext", c="import a, torch")
    assert arrows(package) == {("", "a"), ("a", "b"), ("a", "c")}
    assert not circle(arrows(package))


@pytest.mark.parametrize(
    ("importer", "target", "allowed"),
    [
        ("search.loop", "decoders.protocol", True),
        ("search.loop", "decoders.transformer.decoder", False),
        ("search.loop", "search.beam", True),
        ("decoders.factory", "search.pool", False),
        ("strategies.select.dba", "config", False),
        ("kernels.constraints.banks", "strategies.select.dba", False),
        ("", "tasks", True),
        ("errors", "files", False),
    ],
)
def test_the_table_is_read_as_written(importer, target, allowed):
    assert is_allowed(importer, target) is allowed
