"""A notebook's code cells: run outside the clone, and compared with the outputs that it holds."""

from __future__ import annotations

import os
from pathlib import Path

from documents import blocks


def check(notebook: Path, clone: Path, work: Path, *, write: bool = False) -> list[str]:
    """Return a sentence for each cell that fails or whose output is stale; `write` keeps what
    the cells print instead.

    work: the folder in which the cells run. Errors: ModuleNotFoundError without
    nbclient and a kernel.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    held = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    done = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    before = dict(os.environ)
    os.environ.update(blocks.environment(clone, work))
    try:
        # it would say that it uses TCP
        place, quiet = {"metadata": {"path": str(work)}}, ["--IPKernelApp.log_level=ERROR"]
        NotebookClient(done, timeout=300, resources=place, extra_arguments=quiet).execute()
    except CellExecutionError as error:
        return [f"{notebook.name}: a cell fails: {error}"]
    finally:
        os.environ.clear()
        os.environ.update(before)
    wrong = []
    for number, (old, new) in enumerate(zip(held.cells, done.cells, strict=True), 1):
        if old.cell_type == "code":
            shown, printed = printed_by(old), printed_by(new)
            if not blocks.same(shown, printed):
                wrong.append(
                    f"{notebook.name}, cell {number}: the notebook shows\n"
                    f"{shown}\n"
                    "but the cell prints\n"
                    f"{printed}"
                )
            old.outputs = (
                [nbformat.v4.new_output("stream", name="stdout", text=printed)] if printed else []
            )  # type: ignore[no-untyped-call]
    if write and wrong:
        nbformat.write(held, notebook)  # type: ignore[no-untyped-call]
        return []
    return wrong


def printed_by(cell: dict) -> str:
    """Return what a cell wrote to standard output."""
    return "".join(out["text"] for out in cell["outputs"] if out.get("name") == "stdout")
