"""A definition and the C++ that repeats it name each other: who changes one finds the other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import fairseq_ext

PACKAGE = Path(fairseq_ext.__file__).parent
KERNELS = PACKAGE / "kernels"


def named(files: Iterable[Path], label: str, path: str) -> set[tuple[str, str]]:
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
