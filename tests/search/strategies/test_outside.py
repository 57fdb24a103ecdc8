"""What a strategy from outside the package returns is checked at its first steps: each slip ends
in a sentence, not in another translation."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
import torch
from models import batch, build, dictionary, generators, run, same

from fairseq_ext import UsageError
from fairseq_ext.search import registry
from fairseq_ext.search.candidates import Candidates, best_of_sentences
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.outside import watched
from fairseq_ext.search.protocols import Prune, Select, Softmax
from fairseq_ext.search.registry import OUTSIDE_MODULE, Strategy
from fairseq_ext.search.strategies.schedule import Stream
from fairseq_ext.search.strategies.stop.count import Count

K, MIXED = 3, [3, 1, 7, 5]


def strategy(point: str, **declared) -> Strategy:
    def build(flags, context):
        """Not called here."""

    build.__module__ = OUTSIDE_MODULE + "mine"
    return Strategy(point, "mine", build, **declared)


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


def pair(point: str, change=None, **declared):
    """fairseq's generator, and ours with a strategy from outside at an extension point."""
    both = generators([build("transformer")], beam=K, max_len_b=8)
    plug = (
        {"select": Best, "softmax": Full, "prune": All}[point](change)
        if point != "stop"
        else Ends(both.ours.setup.spec.eos, change)
    )
    plug = watched(strategy(point, **declared), plug, both.ours.setup.spec.eos, len(dictionary()))
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


def only_word(value, word):
    return LogProbs(torch.full_like(value, -torch.inf).index_fill_(1, torch.tensor([word]), 0.0))


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
        r"shape \(S, c\)",
    ),
    "select: fields in another order": (
        lambda c, b: moved(c, row=c.score, score=c.row),
        "row and token must be int64",
    ),
    "select: rows of its sentence": (
        lambda c, b: moved(c, row=c.row - b.first_row()[:, None]),
        "rows of another sentence",
    ),
    "select: unsorted": (
        lambda c, b: moved(c, **{n: getattr(c, n).flip(1) for n in ("row", "token", "score")}),
        "not sorted, best first",
    ),
    "select: columns": (
        lambda c, b: moved(c, token=c.token * 0),
        "above .* the token's log-probability",
    ),
    "select: no words": (
        lambda c, b: moved(c, token=c.token - 1000),
        "or no token of the vocabulary",
    ),
    "select: of this step alone": (
        lambda c, b: moved(c, score=c.score * 0),
        "returns a score above",
    ),
    "select: NaN": (lambda c, b: moved(c, score=c.score * torch.nan), "returns NaN for a score"),
    "select: nothing at all": (
        lambda c, b: moved(c, score=c.score - torch.inf),
        "returns no candidate for a sentence that has one",
    ),
    "select: other tokens": (
        lambda c, b: b.tokens.fill_(7) is None or c,
        "writes to beam.tokens, which may only be read",
    ),
    "select: other sums": (
        lambda c, b: b.last_score().sub_(9) is None or c,
        "writes to beam.score, which may only be read",
    ),
    "softmax: too few words": (
        lambda value: LogProbs(value[:, :-3].log_softmax(1)),
        "returns 22 words a row, and the dictionary has 25",
    ),
    "softmax: a tensor": (
        lambda value: value,
        "returns a float64 tensor of shape .*, not LogProbs",
    ),
    "softmax: one row": (
        lambda value: LogProbs(value[:1].clone()),
        r"not log-probabilities \(n, V\) of the 4 rows",
    ),
    "softmax: turned": (
        lambda value: LogProbs(value.t().contiguous()),
        r"not log-probabilities \(n, V\)",
    ),
    "softmax: ids that fall": (
        lambda value: LogProbs(value, torch.arange(value.size(1)).flip(0), value.size(1)),
        "ids that do not ascend",
    ),
    "softmax: too few ids": (
        lambda value: LogProbs(value, torch.arange(4), value.size(1)),
        "ids that do not ascend, or are not one for",
    ),
    "softmax: above 0": (
        lambda value: LogProbs(value + 30),
        "log-probabilities above 0, without denies",
    ),
    "softmax: NaN": (lambda value: LogProbs(value * torch.nan), "NaN where the decoder has none"),
    "softmax: no word": (lambda value: LogProbs(value - torch.inf), "leaves a sentence no word"),
    "softmax: no EOS at the end": (
        lambda value: only_word(value, 5),
        "or no EOS at the length limit",
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


def test_scores_above_0_pass_where_the_register_line_says_so():
    declared = {"denies": frozenset({"scores of at most 0"})}
    found = run(pair("softmax", lambda value: LogProbs(value + 1), **declared).ours, batch(MIXED))
    plain = run(generators([build("transformer")], beam=K, max_len_b=8).stock, batch(MIXED))
    assert found[0][0]["score"] > plain[0][0]["score"]


class Over(Count):
    what = ""

    def __call__(self, candidates, beam, pool, finished, *given):
        found = super().__call__(candidates, beam, pool, finished, *given)
        (candidates.score if self.what == "candidates.score" else finished.total).zero_()
        return found


@pytest.mark.parametrize("what", ["candidates.score", "finished.total"])
def test_what_may_only_be_read_is_not_written(what):
    both = generators([build("transformer")], beam=K, max_len_b=8)
    over, eos = Over(both.ours.setup.spec.eos), both.ours.setup.spec.eos
    over.what = what
    both.ours.strategies.stop = watched(strategy("stop"), over, eos, len(dictionary()))
    with pytest.raises(UsageError, match=f"writes to {what}, which may only be read"):
        run(both.ours, batch(MIXED))


def test_a_stop_mask_of_another_shape_is_reported():
    def of_sentences(found):
        found.stays = found.final
        return found

    with pytest.raises(UsageError, match="returns stays a bool tensor of shape"):
        run(pair("stop", of_sentences).ours, batch(MIXED))


class Late(Stream):
    def __call__(self, waiting, live, rows, since):
        return waiting + 1


def test_schedules_and_builders_are_held_to_their_kinds():
    late = watched(strategy("schedule"), Late(4, 0.5, False, None, 1), 2, 25)
    with pytest.raises(
        UsageError, match="returns 4, not a number of sentences from 0 to the 3 that wait"
    ):
        late(3, 0, 0, 0)
    with pytest.raises(UsageError, match=r"builds nothing \(a return is missing\), not a Select"):
        watched(strategy("select"), None, 2, 25)
    with pytest.raises(UsageError, match="builds a Full, not a Stop"):
        watched(strategy("stop"), Full(), 2, 25)
    inside = Full()
    # of this package: as it is
    assert watched(registry.STRATEGIES["softmax"]["full"], inside, 2, 25) is inside


LINES = {
    '"select", "odd", needs=("beam")': "needs and denies are tuples, so write a comma",
    '"select", "odd", needs=("no constraint",)': "names 'no constraint': use 'no constraints' of "
    "the table in docs/strategy.md",
    '"select", "odd", Plain': "Plain, are not marked as a dataclass: write @dataclass",
    '"select", "odd", Taken': "fairseq has a flag --beam already: choose another name",
    '"select", "odd", Absent': r"line \d+: NameError: name 'Absent' is not defined: "
    r"correct the file",
    '"select", "odd",,': r"odd.py, line 14: SyntaxError: .*: correct the file",
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
def build(flags, context):
    return None
"""


def test_a_line_is_named_of_a_file_by_a_relative_path(tmp_path, monkeypatch):
    (tmp_path / "odd.py").write_text("import torch\nmissing\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="odd.py, line 2: NameError"):
        registry.load_outside(Path("odd.py"))


@pytest.mark.parametrize("line", LINES)
def test_a_wrong_register_line_is_reported(line, tmp_path, monkeypatch):
    monkeypatch.setitem(registry.STRATEGIES, "select", dict(registry.STRATEGIES["select"]))
    file = tmp_path / "odd.py"
    file.write_text(FILE.format(line))
    with pytest.raises(UsageError, match=LINES[line]):
        registry.load_outside(file)
    assert OUTSIDE_MODULE + "odd" not in registry.sys.modules


def test_the_old_path_of_the_length_reward_serves_files_of_others(tmp_path):
    """Nothing else is found below it: a second copy of a strategy would be registered twice."""
    file = tmp_path / "old_path.py"
    file.write_text(
        "import fairseq_ext.strategies.stop.length_reward\n"
        "from fairseq_ext.strategies.stop.length_reward import LengthFlags, check_length\n"
        "assert fairseq_ext.strategies.stop.length_reward.LengthFlags is LengthFlags\n"
    )
    registry.load_outside(file)
    file = tmp_path / "not_there.py"
    file.write_text("from fairseq_ext.strategies.stop.count import Count\n")
    with pytest.raises(UsageError, match="ModuleNotFoundError"):
        registry.load_outside(file)
