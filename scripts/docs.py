"""Keeps the documents true: README.md and docs/ against the commands, the flags and the code.

    python scripts/docs.py            check everything; a sentence for each thing that is stale,
                                      status 1 if there is one
    python scripts/docs.py --write    paste what the blocks print, make the generated parts again,
                                      and wrap paragraphs that are wider than 100 columns
    python scripts/docs.py PAGE ...   these pages only
    python scripts/docs.py --quick    no block is run: generated parts and links only
    python scripts/docs.py --wheel W  run the blocks with the wheel W, installed in a new
                                      environment, instead of with this clone
    python scripts/docs.py --site DIR build the pages as a site with search (pip install
                                      mkdocs-material); a link that leads nowhere fails

The notebook docs/tour.ipynb counts as a page. How a page marks its blocks and parts:
scripts/documents/blocks.py and tables.py.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs" / "tour.ipynb"
sys.path.insert(0, str(ROOT / "scripts"))

from documents import blocks, notebook, prose, tables  # noqa: E402

# of the last --write: every change of the code changes it
AGE = re.compile(r"(?<=<!-- generated: age ).*?(?=<!-- end -->)", re.DOTALL)
# another name of a commit makes no page stale: histories are rewritten
COMMIT = re.compile(r"\b[0-9a-f]{7}\b")


def pages() -> list[Path]:
    """Return README.md and every page of docs/."""
    return [
        ROOT / name for name in ("README.md", "CONTRIBUTING.md") if (ROOT / name).exists()
    ] + sorted((ROOT / "docs").rglob("*.md"))


def lasting(text: str) -> str:
    """Return what a page must say whatever has been committed since it was written."""
    return COMMIT.sub("#", AGE.sub("", text))


def check(page: Path, *, write: bool = False, quick: bool = False) -> list[str]:
    """Return a sentence for each part of the page that is stale; `write` mends generated
    parts and outputs."""
    wrong: list[str] = []
    if page.suffix == ".ipynb":
        with tempfile.TemporaryDirectory(prefix="docs-") as work:
            return [] if quick else notebook.check(page, ROOT, Path(work), write=write)
    text = page.read_text()
    own = page.stem != "supported-models"  # that is generated
    if write and own:
        text = prose.narrow(text)
        page.write_text(text)
    try:
        filled = tables.fill(text, os.path.relpath(ROOT, page.parent))
    except KeyError as error:
        return [f"{page.name}: nothing generates {error}"]
    if lasting(filled) != lasting(text) or (write and filled != text):
        if write:
            page.write_text(filled)
        else:
            wrong.append(
                f"{page.name}: a generated part is stale; run python scripts/docs.py --write"
            )
    wrong += prose.broken(page, ROOT)
    if page.is_relative_to(ROOT / "docs") and (many := prose.early(filled)):
        wrong.append(
            f"{page.name}: too many numbers before its first table: {', '.join(many)}; say them in "
            "words, or behind the table"
        )
    if own:
        wrong += prose.wide(page)
    if not quick:
        with tempfile.TemporaryDirectory(prefix="docs-") as work:
            wrong += blocks.check_page(page, ROOT, Path(work), write=write)
    return wrong


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel as the page "Install" says, and what the pages need next to it, in a new
    environment; return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    (folder / "torch.txt").write_text(f"torch=={version('torch')}\n")  # the build that is there
    wanted = [f"{wheel.resolve()}[serve,text,hf,terms,cluster,plots]", "nbclient", "ipykernel"]
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "-c", folder / "torch.txt", *wanted],
        cwd=folder,
        check=True,
    )
    subprocess.run(
        [python, "-m", "fairseq_ext.doctor", "--install-fairseq"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return python


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true", help="mend what is stale")
    parser.add_argument("--quick", action="store_true", help="run no block")
    parser.add_argument(
        "--wheel", type=Path, help="a wheel of this project: take it, not the clone"
    )
    parser.add_argument("--site", type=Path, metavar="DIR", help="build the site in this folder")
    args = parser.parse_args()
    if args.site:
        command = [
            sys.executable,
            *"-m mkdocs build --strict -q -d".split(),
            args.site.resolve(),
        ]
        sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)
    if args.wheel:
        with tempfile.TemporaryDirectory(prefix="docs-") as folder:
            python = install(args.wheel, Path(folder))
            sys.exit(subprocess.run([python, __file__, *args.pages], check=False).returncode)
    wrong = 0
    for page in args.pages or [*pages(), NOTEBOOK]:
        for sentence in check(page.resolve(), write=args.write, quick=args.quick):
            print(sentence, flush=True)
            wrong += 1
    if not wrong:
        print("the documents are up to date", flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
