"""The shell and Python blocks of a Markdown page: found, run in order outside the clone, and
compared with the output pasted below them.

A block that runs stands behind `<!-- run -->` (`<!-- run status=3 -->` for a command that
is to fail), its output behind `<!-- output -->`. A block that cannot run here says why:
`<!-- no run: needs Slurm -->`. Every bash and Python block is one or the other.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(
    r"(?:<!-- (?P<mark>run|no run)(?P<rest>[^\n]*?) -->\n+)?"
    r"^```(?P<language>bash|python)\n(?P<code>.*?)^```\n"
    r"(?P<between>(?:\n*<!-- output -->\n+```text\n)(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
MEASURED = re.compile(
    r"[-+]?\d+(?:[.,]\d+)*(?=(?: ?(?:s|ms|us|seconds|MiB|GiB|sentences/s|x|%)(?![\w])))"
)
TOLERANCE = 2e-3
COMMANDS = Path(sys.executable).parent  # the folder of this Python and its commands


class StaleError(Exception):
    """A block does not do what its page says."""


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    page: Path
    line: int  # of the fence, from 1
    language: str
    code: str
    runs: bool
    reason: str  # why it does not run
    status: int
    output: str | None  # as pasted; None: none is shown
    span: tuple[int, int]  # of the pasted output in the page's text

    @property
    def place(self) -> str:
        """Return where the block stands, as messages name it."""
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return the bash and Python blocks of a page, in order."""
    return blocks_in(page, page.read_text())


def blocks_in(page: Path, text: str) -> list[Block]:
    """Return the bash and Python blocks of a page's text, in order."""
    found = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        rest = match["rest"] or ""
        status = re.search(r"status=(\d+)", rest)
        found.append(
            Block(
                page,
                line,
                match["language"],
                match["code"],
                runs=match["mark"] == "run",
                reason=rest.lstrip(": ") if match["mark"] == "no run" else "",
                status=int(status[1]) if status else 0,
                output=match["output"],
                span=match.span("output"),
            )
        )
    return found


def environment(clone: Path, work: Path, commands: Path = COMMANDS) -> dict[str, str]:
    """Return the variables that blocks run with: CLONE, DEMO (the demo model), one thread, and
    `commands` first on the path."""
    return {
        **os.environ,
        "CLONE": str(clone),
        "DEMO": str(clone / "checkpoints" / "demo"),
        "HOME": str(work),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
        "PATH": f"{commands}:{COMMANDS}:{os.environ['PATH']}",
    }


def run(block: Block, clone: Path, work: Path, commands: Path) -> str:
    """Run a block in the folder `work`; return its standard output.

    Raises StaleError where its status is not the promised one.
    """
    command = (
        ["bash", "-euo", "pipefail", "-c", block.code]
        if block.language == "bash"
        else ["python", "-c", block.code]
    )
    settings = environment(clone, work, commands)
    done = subprocess.run(
        command,
        cwd=work,
        env=settings,
        capture_output=True,
        text=True,
        timeout=600,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != block.status:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-12:])
        raise StaleError(
            f"{block.place}: the block ends with status {done.returncode}, not {block.status}:\n"
            f"{tail}"
        )
    return done.stdout.replace(str(work), "~").replace(str(clone), "$CLONE")


def same(pasted: str, printed: str) -> bool:
    """Whether two outputs say the same: words equal, measured times and sizes left out, other
    numbers within TOLERANCE."""
    left, right = (MEASURED.sub("#", text).split() for text in (pasted, printed))
    return len(left) == len(right) and all(
        same_word(a, b) for a, b in zip(left, right, strict=True)
    )


def same_word(a: str, b: str) -> bool:
    """Whether two words are equal but for the last digits of their numbers."""
    if a == b:
        return True
    if NUMBER.sub("#", a) != NUMBER.sub("#", b):
        return False
    pairs = list(zip(NUMBER.findall(a), NUMBER.findall(b), strict=True))
    return all(
        x == y
        or (
            "." in x
            and "." in y
            and abs(float(x) - float(y)) <= TOLERANCE * max(1.0, abs(float(x)))
        )
        for x, y in pairs
    )


def numbered(blocks: list[Block]) -> dict[tuple[str, int], Block]:
    """Return blocks by their code and how many blocks before them have the same code."""
    made: dict[tuple[str, int], Block] = {}
    count: Counter[str] = Counter()
    for block in blocks:
        made[block.code, count[block.code]] = block
        count[block.code] += 1
    return made


def paste(page: Path, printed: dict[tuple[str, int], str]) -> list[str]:
    """Paste what blocks printed, by `numbered`; return a sentence for each that has gone.

    The page is read again, as it may have been edited while its blocks ran: the places of outputs
    that were found before that are not its own.
    """
    text, wrong = page.read_text(), []
    made, end = "", 0
    blocks = numbered(blocks_in(page, text))
    for key, block in blocks.items():
        if key in printed and block.output is not None:
            made += text[end : block.span[0]] + printed[key]
            end = block.span[1]
        elif key in printed:
            wrong.append(f"{block.place}: its output was taken from the page while the block ran")
    wrong += [
        f"{page.name}: a block was edited while it ran; run python scripts/docs.py --write again:\n"
        f"{key[0]}"
        for key in printed
        if key not in blocks
    ]
    page.write_text(made + text[end:])
    return wrong


def check_page(
    page: Path, clone: Path, work: Path, *, write: bool = False, commands: Path = COMMANDS
) -> list[str]:
    """Run a page's blocks; return a sentence for each that is stale.

    `write` pastes what they print instead.
    """
    wrong, pasted = [], {}
    for key, block in numbered(blocks_of(page)).items():
        if not block.runs:
            if not block.reason:
                wrong.append(
                    f"{block.place}: say `<!-- run -->` or `<!-- no run: WHY -->` above the block"
                )
            continue
        try:
            printed = run(block, clone, work, commands)
        except (StaleError, subprocess.TimeoutExpired) as error:
            wrong.append(str(error))
            continue
        if block.output is None:
            continue
        if write:
            pasted[key] = printed.rstrip("\n") + "\n"
        elif not same(block.output, printed):
            wrong.append(
                f"{block.place}: the page shows\n{block.output}but the block prints\n{printed}"
            )
    return wrong + paste(page, pasted) if pasted else wrong
