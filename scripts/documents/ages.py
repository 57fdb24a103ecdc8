"""Which tables of results are older than the code that they measure, by the commits that git knows.

A table's commit is the one that its section names (`commit HASH`), else the next section's
that names one, else one before it; in a file without any, the commit that wrote the file last.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from documents.prose import wrapped

ROOT = Path(__file__).resolve().parents[2]
SEARCH = ("fairseq_ext/search", "fairseq_ext/model", "fairseq_ext/kernels")
PAPERS = {  # what the results of a folder of scripts/experiments measure
    "dba": SEARCH,
    "jacobi": (
        "fairseq_ext/search/parallel",
        "fairseq_ext/model",
        "fairseq_ext/kernels",
        "fairseq_ext/search/strategies/decoding",
    ),
    "lsh": ("fairseq_ext/kernels", "fairseq_ext/search/strategies/softmax"),
    "optimal_ending": SEARCH,
    "streaming": SEARCH,
    "terminology": (*SEARCH, "fairseq_ext/core", "fairseq_ext/terms"),
}
APART = ("corpus", "doctor.py", "viz")  # that no page of results measures
# what other results measure
EVERYTHING = ("fairseq_ext", *(f":!fairseq_ext/{name}" for name in APART))
# a line of a commit's message, with the reason: such a commit makes no table older
UNCHANGED = "^No figure changes: "
# not the other checkout that a comparison names ("before: commit HASH")
COMMIT = re.compile(r"(?:(?<!before: )commit\s+|\"git_commit\": \")`?([0-9a-f]{7,40})\b")
NOT_COMMITTED = "with changes of the package"  # report.py: no commit has what was measured
HEADING = re.compile(r"^(#{1,6}) +(.+?) *$", re.MULTILINE)
ROW = re.compile(r"^\|", re.MULTILINE)


def code_of(file: Path) -> tuple[str, ...]:
    """Return the folders that the results in `file` measure."""
    return next(
        (
            paths
            for name, paths in PAPERS.items()
            if name in file.parts and "experiments" in file.parts
        ),
        EVERYTHING,
    )


def git(root: Path, *arguments: str) -> str | None:
    """Return what git says, None where it fails or is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def is_older(commit: str, paths: tuple[str, ...], root: Path) -> bool:
    """Return whether a commit of this history that `commit` does not contain changed one of the
    paths, and with that perhaps figures; an unknown commit is old."""
    since = git(
        root,
        "rev-list",
        "-1",
        "--no-merges",  # whose commits are there themselves
        "--invert-grep",
        f"--grep={UNCHANGED}",
        f"{commit}..HEAD",
        "--",
        *paths,
    )
    return since != ""


def tables_of(text: str, brought_in: str) -> list[tuple[str, str]]:
    """Return the title of each section that has a table, and its commit; for results without a
    table, one entry for the text."""
    places = [0, *(match.start() for match in HEADING.finditer(text)), len(text)]
    sections = [text[start:end] for start, end in zip(places, places[1:], strict=False)]
    own = [COMMIT.search(section) for section in sections]
    found = []
    for i, section in enumerate(sections):
        if ROW.search(section):
            heading = HEADING.match(section)
            # a line below tables speaks of them
            chosen = next((commit for commit in (*own[i:], *reversed(own[:i])) if commit), None)
            found.append(
                (heading[2] if heading else "the first table", chosen[1] if chosen else brought_in)
            )
    named = next((commit[1] for commit in own if commit), brought_in)
    return found or [("what the text says", named)]


def older_tables(path: str, root: Path) -> str | None:
    """Return how a file's older tables are named, "" where none is older; None without git's
    history."""
    brought_in = git(root, "log", "-1", "--format=%H", "--", path)
    if brought_in is None or git(root, "rev-parse", "--is-shallow-repository") == "true":
        return None
    text = (root / path).read_text(encoding="utf-8")
    tables = tables_of(text, brought_in or "HEAD")
    commits = {commit for _, commit in tables}
    older = {commit for commit in commits if is_older(commit, code_of(Path(path)), root)}
    old = [
        (title, commit[:7]) for title, commit in tables if commit in older or NOT_COMMITTED in text
    ]
    some = "" if len(old) == len(tables) else f"{'; '.join(title for title, _ in old)}: "
    return some + ", ".join(dict.fromkeys(commit for _, commit in old)) if old else ""


def age(*paths: str, root: Path = ROOT) -> str | None:
    """Return a paragraph that names the results files of a page, and those whose tables are older
    than the code that they measure with their commit; None without git's history."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        old = older_tables(path, root)
        if old is None:
            return None
        file = Path(path)
        folder, name = (
            (file.parent.parent, file.parent.name)
            if file.stem == "tables"
            else (file.parent, file.stem)
        )
        folders.setdefault(folder.as_posix(), []).append(f"{name} ({old})" if old else name)
    files = "; ".join(
        f"[{folder}](../../{folder}): {', '.join(names)}" for folder, names in folders.items()
    )
    text = (
        "The files of these figures, with all columns, machine and commit; a commit in brackets: "
        f"**older than the code that it measures**. {files}."
    )
    return "\n".join(wrapped([text]))
