"""What the C++ files of this folder declare, for ctypes: the fields of their structures and the signatures of their functions.

Both are read from the text that the library is compiled from, so that a layout and a signature are written once.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterable
from ctypes import c_double, c_float, c_int64, c_void_p
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
NUMBERS: dict[str, Any] = {"int64_t": c_int64, "double": c_double, "float": c_float, "void": None}
STRUCT = r"^struct {} \{{\n(.*?)^(?:\}};|\n)"  # fields stand before the first blank line, functions behind it
HIDDEN = re.compile(r"^namespace \{.*?^\}  // namespace", re.S | re.M)  # no other file sees what stands there
FUNCTION = re.compile(r'^(?:extern "C" )?(\w+) (\w+)\(([^)]*)\)\s*\{', re.M)
COMMENT = re.compile(r"//[^\n]*")


def of_type(declared: str, name: str) -> Any:
    """The type of ctypes: a pointer, a number or another structure, which a header declares."""
    if "*" in declared:
        return c_void_p
    if name in NUMBERS:
        return NUMBERS[name]
    declaring = next(path for path in sorted(FOLDER.rglob("*.hpp")) if f"\nstruct {name} {{" in path.read_text("utf-8"))
    return struct(str(declaring.relative_to(FOLDER)), name)


@functools.cache
def struct(file: str, name: str) -> type[ctypes.Structure]:
    """The structure of this name that a C++ file declares. Each field is a pointer, a number or another structure."""
    found = re.search(STRUCT.format(name), (FOLDER / file).read_text("utf-8"), re.M | re.S)
    assert found is not None, f"{file} has no struct {name}"
    fields: list[tuple[str, Any]] = []
    for line in COMMENT.sub("", found[1]).split(";")[:-1]:
        if pointer := re.search(r"\(\*(\w+)\)\(", line):  # to a function
            fields.append((pointer[1], c_void_p))
            continue
        kind, _, names = line.strip().removeprefix("const ").partition(" ")
        fields += [(part.split()[-1].lstrip("*"), of_type(kind + part, kind)) for part in names.split(",")]
    return type(f"{name}Struct", (ctypes.Structure,), {"_fields_": fields})


def signatures(files: Iterable[Path]) -> dict[str, tuple[Any, list[Any]]]:
    """What each function that these files define for other files returns and takes."""
    found = {}
    for path in files:
        text = COMMENT.sub("", HIDDEN.sub("", path.read_text("utf-8")))
        for result, name, given in FUNCTION.findall(text):
            kinds = [each.strip().removeprefix("const ") for each in given.split(",") if each.strip()]
            found[name] = NUMBERS[result], [of_type(kind, kind.split()[0]) for kind in kinds]
    return found
