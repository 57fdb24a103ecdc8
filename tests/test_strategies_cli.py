"""Every registered strategy through the real command: `fairseq-generate` with each of
its example settings.

A new strategy is run here as soon as its file is there. Each command is the body of
`fairseq-generate` in a forked child, so that fairseq and torch are imported once.
"""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TINY, command
from forked import generate
from models import separated, settings
from sizes import drawn

from fairseq_ext.plugin.options import VERSION
from fairseq_ext.search.registry import STRATEGIES

EXAMPLES = settings("example")


def arguments(setting: dict) -> list[str]:
    """A setting as a user types it."""
    out = []
    for name, value in setting.items():
        flag = "--" + name.replace("_", "-")
        out += [flag] if value is True else [flag, str(value)]
    return out


@pytest.fixture(scope="module")
def files(tiny, tmp_path_factory) -> dict[str, str]:
    """What example settings name in braces, over the dictionaries of the tiny corpus."""
    folder, chance = tmp_path_factory.mktemp("files"), random.Random(3)
    table = folder / "table.txt"
    table.write_text(
        "".join(f"de{i} en{chance.randrange(30)} 0.{j}\n" for i in range(30) for j in range(1, 5))
    )
    constraints = folder / "constraints.tsv"
    constraints.write_text("".join(f"en{i % 7}\n" if i % 2 else "\n" for i in range(11)))
    return {"{lexical table}": str(table), "{constraints}": str(constraints)}


@drawn(4)
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs_through_the_command(name, tiny, files):
    setting = {n: files.get(v, v) if isinstance(v, str) else v for n, v in EXAMPLES[name].items()}
    ours, stock = separated(setting)
    if STRATEGIES["select"].get(ours.get("select", "topk")).constrained:
        ours["constraints_file"] = files["{constraints}"]
    where = [
        tiny / "data",
        "--path",
        tiny / "model.pt",
        "--cpu",
        "--batch-size",
        4,
        "--max-len-b",
        12,
        "--user-dir",
        "fairseq_ext",
    ]
    stock |= {"nbest": 4} if "sampling" in stock else {}  # fairseq requires that
    command = [
        *where,
        "--task",
        "translation_ext",
        *arguments({"beam": 4} | stock),
        *arguments(ours),
    ]
    status, out, log = generate(*command)
    assert status == 0, log
    assert sorted(
        {int(line.split("\t")[0][2:]) for line in out.splitlines() if line.startswith("H-")}
    ) == list(range(11))
    reported = next(line for line in log.splitlines() if f"fairseq_ext:{VERSION}|" in line)
    for point, value in ours.items():
        if point in STRATEGIES:
            assert f"|{point}:{value}" in reported


OUTSIDE = '''
"""Strategies of somebody else, in a file outside the package."""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import FairseqDataclass

from fairseq_ext.registry import register
from fairseq_ext.search.protocols import Prune
from fairseq_ext.search.strategies.select.topk import TopK
from fairseq_ext.search.strategies.softmax.full import FullSoftmax
from fairseq_ext.search.strategies.stop.count import Count


@dataclass
class WorstFlags(FairseqDataclass):
    prune_nothing: Optional[float] = field(
        default=None, metadata={"help": "drop nothing (default: off)"}
    )


@register("select", "mine", needs=("search loop", "beam"), neutral=({"select": "mine"},),
          example=({"select": "mine"},), paper="none")
def mine(flags, setup):
    return TopK(setup.k, setup.children)


@register("stop", "mine", needs=("search loop", "beam"), neutral=({"stop": "mine"},),
          example=({"stop": "mine"},), paper="none")
def stop(flags, setup):
    return Count(setup.eos)


@register("softmax", "mine", needs=("search loop",), neutral=({"softmax": "mine"},),
          example=({"softmax": "mine"},), paper="none")
def softmax(flags, setup):
    return FullSoftmax(setup.temperature)


class Nothing(Prune):
    def __call__(self, candidates, beam, pool, finished):
        return candidates.score == candidates.score


@register("prune", "nothing", WorstFlags, needs=("search loop", "beam"),
          neutral=({"prune_nothing": 1.0},),
          example=({"prune_nothing": 1.0},), paper="none")
def nothing(flags, setup):
    return Nothing()
'''


@drawn(0)  # long
def test_files_outside_the_package_are_strategies(tiny, tmp_path):
    """One file with its register lines is enough: the neutral, composition and command-line tests
    pick it up, and pass. The second is the one that docs/strategy.md shows."""
    (tmp_path / "mine.py").write_text(OUTSIDE)
    tests = Path(__file__).parent
    page = (tests.parent / "docs" / "strategy.md").read_text()
    behind = re.search(r"^cat > behind.py <<'END'\n(.*?)^END$", page, re.DOTALL | re.MULTILINE)[1]
    (tmp_path / "behind.py").write_text(behind)
    few = (
        "(mine or behind or prune_nothing) and (ensemble or prefix or lightconv or optimal or "
        "stream or dba or command)"
    )
    files = [
        str(tests / name)
        for name in ("test_neutral.py", "test_compose.py", "test_strategies_cli.py")
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:warnings",
        "-p",
        "no:cacheprovider",
        "-k",
        few,
        *files,
    ]
    outside = {
        "FAIRSEQ_EXT_STRATEGIES": f"{tmp_path / 'mine.py'}:{tmp_path / 'behind.py'}",
        TINY: str(tiny),
    }
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tests.parent, env={**os.environ, **outside}
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.count(".") > 40  # of each kind some


def test_what_a_strategy_from_outside_gets_wrong_is_one_sentence(tiny, tmp_path):
    wrong = OUTSIDE.replace(
        "return candidates.score == candidates.score", "return candidates.score[:, 0] == 0"
    )
    assert wrong != OUTSIDE
    (tmp_path / "mine.py").write_text(wrong)
    where = (
        tiny / "data",
        "--path",
        tiny / "model.pt",
        "--cpu",
        "--batch-size",
        4,
        "--max-len-b",
        12,
        "--task",
        "translation_ext",
    )
    outside = {"FAIRSEQ_EXT_STRATEGIES": str(tmp_path / "mine.py")}
    done = command(
        "fairseq-generate", *where, "--prune-nothing", 1, check=False, cold=True, **outside
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 1 and len(said) == 1 and "Traceback" not in done.stderr, done.stderr
    assert re.match(
        r"error: --prune-nothing \(\S+mine.py\) returns a bool tensor of shape \(4,\), not a mask",
        said[0],
    )
