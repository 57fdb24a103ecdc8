"""What a strategy from outside the package returns is checked at its first step: a wrong type,
shape or dtype ends in a sentence."""

from __future__ import annotations

import types
from functools import partial

import pytest
import torch
from models import batch, build, dictionary, generators, run, same

from fairseq_ext import UsageError
from fairseq_ext.search import registry
from fairseq_ext.search.candidates import Candidates, best_of_sentences
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.outside import check_made, check_result
from fairseq_ext.search.protocols import Prune, Select, Softmax
from fairseq_ext.search.registry import OUTSIDE_MODULE, Strategy
from fairseq_ext.search.strategies.stop.count import Count

K, MIXED = 3, [3, 1, 7, 5]


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


class Best(Select):
    """fairseq's selection; change: what a slip makes of its answer, or None."""

    def __init__(self, change=None):
        self.change = change

    def __call__(self, beam, log_probs, pool):
        score, token = log_probs.topk(2 * K)
        found = Candidates(*best_of_sentences(2 * K, beam, score, token), K)
        return found if self.change is None else self.change(found, beam)


class Full(Softmax):
    def __init__(self, change=None):
        self.change = change

    def __call__(self, decoder, features, beam=None, pool=None):
        value = decoder.log_probs(features, 1.0)
        return LogProbs(value) if self.change is None else self.change(value)


class All(Prune):
    def __init__(self, change=None):
        self.change = change

    def __call__(self, candidates, beam, pool, finished):
        mask = torch.ones_like(candidates.token, dtype=torch.bool)
        return mask if self.change is None else self.change(mask)


class Ends(Count):
    def __init__(self, eos, change=None):
        super().__init__(eos)
        self.change = change

    def __call__(self, *given):
        found = super().__call__(*given)
        return found if self.change is None else self.change(found)


def pair(point: str, change=None):
    """fairseq's generator, and ours with a strategy from outside at an extension point."""
    both = generators([build("transformer")], beam=K, max_len_b=8)
    plug = (
        {"select": Best, "softmax": Full, "prune": All}[point](change)
        if point != "stop"
        else Ends(both.ours.setup.eos, change)
    )
    made = strategy(point)
    check_made(made, plug)
    both.ours.setup.checks[id(plug)] = partial(check_result, made, len(dictionary()))
    setattr(both.ours.strategies, point, [plug] if point == "prune" else plug)
    return both


@pytest.mark.parametrize("point", ["select", "softmax", "prune", "stop"])
def test_what_is_right_passes(point):
    both = pair(point)
    same(run(both.stock, batch(MIXED)), run(both.ours, batch(MIXED)))


def moved(found: Candidates, **fields) -> Candidates:
    return Candidates(
        **{"row": found.row, "token": found.token, "score": found.score, "width": K} | fields
    )


SLIPS = {
    "select: nothing": (
        lambda c, b: None,
        r"returns nothing \(a return is missing\), not Candidates",
    ),
    "select: a tuple": (lambda c, b: (c.row, c.token), "returns a tuple, not Candidates"),
    "select: of rows": (
        lambda c, b: moved(
            c, row=c.row.flatten(), token=c.token.flatten(), score=c.score.flatten()
        ),
        r"row a int64 tensor of shape \(\d+,\), not int64 of shape \(4, ",
    ),
    "select: no candidates": (
        lambda c, b: moved(c, **{n: getattr(c, n)[:, :0] for n in ("row", "token", "score")}),
        r"row a int64 tensor of shape \(4, 0\), not int64 of shape",
    ),
    "select: fields in another order": (
        lambda c, b: moved(c, row=c.score, score=c.row),
        r"row a float64 tensor of shape \(4, 6\), not int64 of shape \(4, 6\)",
    ),
    "softmax: too few words": (
        lambda value: LogProbs(value[:, :-3].log_softmax(1)),
        r"tensor of shape \(4, 22\), not float of shape \(4, 25\)",
    ),
    "softmax: a tensor": (
        lambda value: value,
        "returns a float64 tensor of shape .*, not LogProbs",
    ),
    "softmax: one row": (
        lambda value: LogProbs(value[:1].clone()),
        r"log-probabilities a float64 tensor of shape \(1, 25\), not float of shape \(4, 25\)",
    ),
    "softmax: turned": (
        lambda value: LogProbs(value.t().contiguous()),
        r"of shape \(25, 4\), not float of shape \(4, 25\)",
    ),
    "softmax: too few ids": (
        lambda value: LogProbs(value, torch.arange(4), value.size(1)),
        r"of shape \(4, 25\), not float of shape \(4, 4\)",
    ),
    "prune: of sentences": (
        lambda mask: mask[:, 0],
        r"bool tensor of shape \(4,\), not a mask \(bool\) of shape \(4, 6\)",
    ),
    "prune: numbers": (lambda mask: mask.nonzero(), r"int64 tensor .*, not a mask"),
    "stop: nothing": (lambda found: None, "not a StopDecision"),
    "stop: final of candidates": (
        lambda found: types.SimpleNamespace(final=found.stays),
        "not a StopDecision",
    ),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_reported(slip):
    change, said = SLIPS[slip]
    point = slip.split(":")[0]
    flag = {"prune": "--prune-mine"}.get(point, f"--{point} mine")
    with pytest.raises(
        UsageError,
        match=rf"^{flag} \(\S*mine.py\) .*{said}.*: see the table of the extension points",
    ):
        run(pair(point, change).ours, batch(MIXED))


def test_a_stop_mask_of_another_shape_is_reported():
    def of_sentences(found):
        found.stays = found.final
        return found

    with pytest.raises(UsageError, match="returns stays a bool tensor of shape"):
        run(pair("stop", of_sentences).ours, batch(MIXED))


def test_builders_are_held_to_their_kinds():
    with pytest.raises(UsageError, match=r"builds nothing \(a return is missing\), not a Select"):
        check_made(strategy("select"), None)
    with pytest.raises(UsageError, match="builds a Full, not a Stop"):
        check_made(strategy("stop"), Full())
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
