"""What the scripts import of the package is there, also in those that only a GPU can run."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.mark.parametrize("script", sorted(SCRIPTS.rglob("*.py")), ids=lambda path: path.stem)
def test_what_a_script_imports_is_there(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fairseq_ext"):
            module = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")
