"""What a strategy from outside the package returns is checked at its first step: a wrong type,
shape or dtype ends in a sentence."""

from __future__ import annotations

import math
import re
import sys
import types
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import TINY, command, ran
from forked import generate
from models import batch, build, dictionary, generators, run, same, separated, settings
from sizes import drawn
from table_model import called_through
from test_cli import sentence

from fairseq_ext import UsageError
from fairseq_ext.plugin.loading.settings import as_arguments
from fairseq_ext.plugin.options import VERSION
from fairseq_ext.plugin.search_setup import check_made, check_result
from fairseq_ext.search import registry
from fairseq_ext.search.candidates import Candidates
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.registry import OUTSIDE_MODULE, Strategy
from fairseq_ext.search.strategies.prune import PruneThreshold
from fairseq_ext.search.strategies.softmax.full import FullSoftmax

K, MIXED = 3, [3, 1, 7, 5]
TESTS = Path(__file__).parents[2]


def strategy(point: str) -> Strategy:
    def build(flags, setup):
        """Not called here."""

    build.__module__ = OUTSIDE_MODULE + "mine"
    return Strategy(point, "mine", build)


@pytest.fixture(autouse=True)
def module(monkeypatch):
    monkeypatch.setitem(
        registry.sys.modules, OUTSIDE_MODULE + "mine", types.SimpleNamespace(__file__="mine.py")
    )


def pair(point: str, change=lambda found: found):
    """fairseq's generator, and ours with a strategy from outside at an extension point. change:
    what a slip makes of its answer."""
    both = generators([build("transformer")], beam=K, max_len_b=8)
    strategies, made = both.ours.strategies, strategy(point)
    right = PruneThreshold(math.inf) if point == "prune" else getattr(strategies, point)
    plug = called_through(right, lambda *given: change(right(*given)))
    check_made(made, plug)
    both.ours.setup.checks[id(plug)] = partial(check_result, made, len(dictionary()))
    setattr(strategies, point, [plug] if point == "prune" else plug)
    return both


@pytest.mark.parametrize("point", ["select", "softmax", "prune", "stop"])
def test_what_is_right_passes(point):
    both = pair(point)
    same(run(both.stock, batch(MIXED)), run(both.ours, batch(MIXED)))


def test_where_a_strategy_drops_every_row_the_output_is_empty():
    for [best] in run(pair("prune", torch.zeros_like).ours, batch(MIXED)):
        assert best["tokens"].tolist() == [dictionary().eos()] and best["score"] == -torch.inf


def moved(found: Candidates, **fields) -> Candidates:
    return Candidates(
        **{"row": found.row, "token": found.token, "score": found.score, "width": K} | fields
    )


SLIPS = {
    "select: nothing": (
        lambda found: None,
        r"returns nothing \(a return is missing\), not Candidates",
    ),
    "select: a tuple": (lambda found: (found.row, found.token), "returns a tuple, not Candidates"),
    "select: no candidates": (
        lambda found: moved(
            found, **{n: getattr(found, n)[:, :0] for n in ("row", "token", "score")}
        ),
        r"row a int64 tensor of shape \(4, 0\), not int64 of shape",
    ),
    "select: fields in another order": (
        lambda found: moved(found, row=found.score, score=found.row),
        r"row a float64 tensor of shape \(4, 6\), not int64 of shape \(4, 6\)",
    ),
    "softmax: too few words": (
        lambda found: LogProbs(found.dense()[:, :-3].log_softmax(1)),
        r"tensor of shape \(4, 22\), not float of shape \(4, 25\)",
    ),
    "softmax: a tensor": (LogProbs.dense, "returns a float64 tensor of shape .*, not LogProbs"),
    "softmax: turned": (
        lambda found: LogProbs(found.dense().t().contiguous()),
        r"log-probabilities a float64 tensor of shape \(25, 4\), not float of shape \(4, 25\)",
    ),
    "softmax: too few ids": (
        lambda found: LogProbs(found.dense(), torch.arange(4), 25),
        r"of shape \(4, 25\), not float of shape \(4, 4\)",
    ),
    "prune: of sentences": (
        lambda mask: mask[:, 0],
        r"bool tensor of shape \(4,\), not a mask \(bool\) of shape \(4, 6\)",
    ),
    "prune: numbers": (torch.nonzero, r"int64 tensor .*, not a mask"),
    "stop: nothing": (lambda found: None, "not a StopDecision"),
    "stop: stays of sentences": (
        lambda found: setattr(found, "stays", found.final) or found,
        "returns stays a bool tensor of shape",
    ),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_reported(slip):
    (change, said), point = SLIPS[slip], slip.split(":")[0]
    flag = {"prune": "--prune-mine"}.get(point, f"--{point} mine")
    said = rf"^{flag} \(\S*mine.py\) .*{said}.*: see the table of the extension points"
    with pytest.raises(UsageError, match=said):
        run(pair(point, change).ours, batch(MIXED))


def test_builders_are_held_to_their_kinds():
    with pytest.raises(UsageError, match=r"builds nothing \(a return is missing\), not a Select"):
        check_made(strategy("select"), None)
    with pytest.raises(UsageError, match="builds a FullSoftmax, not a Stop"):
        check_made(strategy("stop"), FullSoftmax(1.0))
    assert not registry.STRATEGIES["softmax"]["full"].is_outside


LINES = {
    '"select", "odd", needs=("no constraint",)': "'no constraint': use words of the table in "
    "docs/strategy.md",
    '"select", "topk"': "topk is registered twice",
    '"select", "odd", Taken': "fairseq has a flag --beam already: choose another name",
}
FILE = """
from dataclasses import dataclass
from fairseq.dataclass import FairseqDataclass
from fairseq_ext.registry import register

class Plain(FairseqDataclass):
    odd: float = 1.0

@dataclass
class Taken(FairseqDataclass):
    beam: int = 5


@register({})
def build(flags, setup):
    return None
"""


@pytest.mark.parametrize("line", LINES)
def test_a_wrong_register_line_is_reported(line, tmp_path, monkeypatch):
    monkeypatch.setitem(registry.STRATEGIES, "select", dict(registry.STRATEGIES["select"]))
    file = tmp_path / "odd.py"
    file.write_text(FILE.format(line))
    with pytest.raises(UsageError, match=LINES[line]):
        registry.load_outside(file)
    assert OUTSIDE_MODULE + "odd" not in registry.sys.modules


# ---- through the command

EXAMPLES = settings("example")


def of_tiny(tiny: Path) -> tuple:
    where = ("--cpu", "--batch-size", 4, "--max-len-b", 12, "--task", "translation_ext")
    return (tiny / "data", "--path", tiny / "model.pt", *where)


@drawn(4)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_through_the_command(name, tiny, tmp_path):
    """Each example of a registered strategy, a stranger's too."""
    phrases = tmp_path / "constraints.tsv"
    phrases.write_text("".join(f"en{i % 7}\n" if i % 2 else "\n" for i in range(11)))
    words = "".join(f"de{i} en{7 * i % 30} 0.{j}\n" for i in range(30) for j in range(1, 5))
    (tmp_path / "table.txt").write_text(words)
    placed = {"{lexical table}": str(tmp_path / "table.txt"), "{constraints}": str(phrases)}
    setting = {n: placed.get(v, v) if isinstance(v, str) else v for n, v in EXAMPLES[name].items()}
    ours, stock = separated(setting)
    if registry.STRATEGIES["select"].get(ours.get("select", "topk")).constrained:
        ours["constraints_file"] = str(phrases)
    stock |= {"nbest": 4} if "sampling" in stock else {}  # fairseq requires that
    given = as_arguments({"beam": 4} | stock | ours)
    status, out, log = generate(*of_tiny(tiny), "--user-dir", "fairseq_ext", *given)
    assert status == 0, log
    assert {*map(int, re.findall(r"^H-(\d+)", out, re.MULTILINE))} == {*range(11)}
    reported = next(line for line in log.splitlines() if f"fairseq_ext:{VERSION}|" in line)
    assert all(f"|{n}:{v}" in reported for n, v in ours.items() if n in registry.STRATEGIES)


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
    """One file with its register lines is enough: the tests of neutral settings, of compositions
    and of commands pick it up, and pass. The second is the one that docs/strategy.md shows."""
    (tmp_path / "mine.py").write_text(OUTSIDE)
    page = (TESTS.parent / "docs" / "strategy.md").read_text()
    behind = re.search(r"^cat > behind.py <<'END'\n(.*?)^END$", page, re.DOTALL | re.MULTILINE)[1]
    (tmp_path / "behind.py").write_text(behind)
    few = (
        "(mine or behind or prune_nothing) and (ensemble or prefix or lightconv or optimal or "
        "stream or allowed or command)"
    )
    names = ("test_neutral.py", "test_random_flags.py", "search/strategies/test_outside.py")
    words = ["-m", "pytest", "-q", "-p", "no:warnings", "-p", "no:cacheprovider", "-k", few]
    outside = {"FAIRSEQ_EXT_STRATEGIES": f"{tmp_path / 'mine.py'}:{tmp_path / 'behind.py'}"}
    paths = (TESTS / name for name in names)
    how = dict(cwd=TESTS.parent, timeout=3600, **outside, **{TINY: str(tiny)})
    assert ran(sys.executable, *words, *paths, **how).stdout.count(".") > 40  # of each kind some


def test_what_a_strategy_from_outside_gets_wrong_is_one_sentence(tiny, tmp_path):
    wrong = OUTSIDE.replace("candidates.score == candidates.score", "candidates.score[:, 0] == 0")
    assert wrong != OUTSIDE
    (tmp_path / "mine.py").write_text(wrong)
    outside = {"FAIRSEQ_EXT_STRATEGIES": str(tmp_path / "mine.py")}
    words = ("fairseq-generate", *of_tiny(tiny), "--prune-nothing", 1)
    said = sentence(command(*words, check=False, cold=True, **outside))
    assert re.match(
        r"error: --prune-nothing \(\S+mine.py\) returns a bool tensor of shape \(4,\), not a mask",
        said,
    )
