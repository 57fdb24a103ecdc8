"""Streaming variable-width beam search: the batch is refilled as sentences finish, and beams are as wide as they need be.

    K. Yang, V. Yao, J. DeNero and D. Klein. A Streaming Approach For Efficient Batched Beam Search.
    EMNLP 2020. https://aclanthology.org/2020.emnlp-main.366/     Algorithm 1; the finishing rule of Appendix A.1
    The pruning heuristics: M. Freitag and Y. Al-Onaizan, 2017. https://aclanthology.org/W17-3207/

| symbol | flag |
| --- | --- |
| k | --beam |
| n, sentences at once | --stream-width; or a limit on rows, as in the parsing experiments: --stream-rows |
| epsilon | --refill-threshold |
| delta | --prune-threshold: dropped when the sum of log-probabilities is below the best's by more than this |
| M | --prune-children: most children of one row |
| which sentences are expanded | --stream-order shortest: those with the fewest tokens (line 12); fifo: all (Appendix A.2) |
| finalised candidates stay on the beam (A.1) | --stop ranked |

Neutral settings: --schedule batch; the stream itself never changes a result. delta = inf, M >= k. A row has at most k children that
count, so M >= k is no limit.

Here, other than in the paper: the best candidate, from which delta is measured, may be any finished one; with constraints it is the
best of the candidate's own bank, so that pruning cannot lose a constraint, and neither does M count continuations that are there
for a constraint's sake. Rows that would not fit under --stream-rows wait, those with the most tokens first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor

from fairseq_ext.constraints.flags import select_flag
from fairseq_ext.errors import UsageError
from fairseq_ext.registry import register
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.finished import Finished
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Prune, Schedule, Stop


@dataclass
class StreamFlags(FairseqDataclass):
    stream_width: int = field(default=64, metadata={"help": "sentences that are decoded at once under --schedule stream (default: 64)"})
    refill_threshold: float = field(
        default=1 / 6,
        metadata={
            "help": "new sentences start when at most this share of the stream's width is left (default: 1/6)"
        },
    )
    stream_order: ChoiceEnum(["shortest", "fifo"]) = field(  # type: ignore[valid-type]
        default="shortest",
        metadata={
            "help": "shortest: the sentences with the fewest tokens are decoded until they are level with the others; fifo: all in turn "
            "(default: shortest, as the paper; same results)"
        },
    )
    stream_rows: Optional[int] = field(  # noqa: UP045
        default=None,
        metadata={"help": "limit the rows of a decoder call instead of the sentences, --stream-width (default: none)"},
    )


@dataclass
class PruneFlags(FairseqDataclass):
    prune_threshold: Optional[float] = field(  # noqa: UP045
        default=None,
        metadata={"help": "drop what is worse than the best candidate by more than this, in nats (neutral: off; the paper: 1.5)"},
    )


@dataclass
class ChildrenFlags(FairseqDataclass):
    prune_children: Optional[int] = field(  # noqa: UP045
        default=None, metadata={"help": "continue a hypothesis in at most so many ways (neutral: off, or --beam; the paper: 5)"}
    )


class Stream(Schedule):
    """New sentences start when few are left: at most epsilon n; then n (1 - epsilon) of them."""

    def __init__(self, width: int, threshold: float, level: bool, rows: int | None):
        self.width = width if rows is None else rows
        self.threshold = threshold
        self.level = level
        self.most_rows = rows

    def __call__(self, pool: Pool, started: int, live: int, rows: int) -> Sequence[int]:
        queue = pool.queue(started)
        # every new sentence is one row
        if not queue or (live if self.most_rows is None else rows) > self.threshold * self.width:
            return ()
        return queue[: max(1, int(self.width * (1 - self.threshold) + 1e-9))]


class PruneThreshold(Prune):
    """Keeps candidates within delta of the sentence's best, whether finished or live."""

    def __init__(self, delta: float):
        self.delta = delta

    def __call__(self, candidates: Candidates, beam: Beam, pool: Pool, finished: Finished) -> Tensor:
        score = candidates.score
        ended = finished.total[beam.live_index()].to(score.dtype)  # (S,)
        if candidates.group is None or candidates.goal is None:
            return score >= torch.maximum(score.amax(1), ended)[:, None] - self.delta
        # banks: a finished hypothesis belongs to the highest
        banks = int(candidates.group.max()) + 1
        best = score.new_full((score.size(0), banks), -torch.inf).scatter_reduce_(1, candidates.group, score, "amax")
        best = best.gather(1, candidates.group)
        best = torch.where(candidates.group == candidates.goal[:, None], best.maximum(ended[:, None]), best)
        return score >= best - self.delta


class Ranked(Stop):
    """Appendix A.1: a candidate that ends takes a place on the beam, costs no more decoding, and is an answer when all above it are
    finished; until then better ones may push it off. The beam has k places less the answers."""

    variable = True

    def __init__(self, k: int, eos: int):
        self.k = k
        self.eos = eos
        none = torch.zeros(0, k)
        self.total = none.double()  # (N, k) sums of log-probabilities of the finished hypotheses on each sentence's beam; else -inf
        self.number = none.long()  # (N, k) which of the sentence's finished hypotheses they are
        self.answer = none.long()  # (N, k) which of them are answers, padded with -1
        self.count = none.long().sum(1)  # (N,) answers

    def start(self, beam: Beam, pool: Pool) -> None:
        live, more = beam.live_index(), len(pool) - len(self.count)
        if more > 0 or self.count.device != beam.device:
            self.total, self.number, self.answer = (
                torch.cat([x.to(beam.device), x.new_zeros(max(more, 0), self.k, device=beam.device)])
                for x in (self.total, self.number, self.answer)
            )
            self.count = torch.cat([self.count.to(beam.device), self.count.new_zeros(max(more, 0), device=beam.device)])
        self.total[live], self.number[live], self.answer[live], self.count[live] = -torch.inf, 0, -1, 0

    def answers(self, sentence: int) -> list[int]:
        return [number for number in self.answer[sentence].tolist() if number >= 0]

    def __call__(self, candidates: Candidates, beam: Beam, pool: Pool, finished: Finished, at_limit: Tensor | None) -> StopDecision:
        live, k = beam.live_index(), self.k
        waiting, number, made = self.total[live], self.number[live], finished.count[live]
        ends, _ = candidates.ends_and_goes_on(self.eos)
        # the beam's places go to the best of what was finished before (S, k) and the candidates (S, c)
        total, order = torch.cat([waiting, candidates.score.double()], dim=1).sort(dim=1, descending=True, stable=True)
        count = self.count[live]
        place = torch.arange(total.size(1), device=total.device)
        on_beam = (place < k - count[:, None]) & (total > -torch.inf)
        complete = on_beam & torch.cat([torch.ones_like(waiting, dtype=torch.bool), ends], dim=1).gather(1, order)
        answered = complete & complete.cumprod(1).bool()
        # hypotheses are numbered as they are collected: the candidates that end on the beam, in the candidates' order
        kept = torch.zeros_like(on_beam).scatter(1, order, on_beam)[:, k:]
        done = kept & ends
        numbers = torch.cat([number, made[:, None] + done.cumsum(1) - 1], dim=1).gather(1, order)
        into = torch.where(answered, count[:, None] + place, k).clamp(max=k)  # answers follow those that are there
        answers = torch.cat([self.answer[live], numbers.new_full((len(beam.live), 1), -1)], dim=1)
        self.answer[live] = answers.scatter(1, into, numbers)[:, :k]
        stays = complete & ~answered
        self.total[live] = total.masked_fill(~stays, -torch.inf)[:, :k]
        self.number[live] = numbers[:, :k]
        count = count + answered.sum(1)
        self.count[live] = count
        goes_on = kept & ~ends
        final = (count >= k) | ~goes_on.any(1)
        return StopDecision(done, goes_on, final if at_limit is None else final | at_limit)


def check(flags, generation) -> None:
    """Refuse a stream that nothing fits into (raises UsageError)."""
    if flags.stream_width < 1:
        raise UsageError(f"--stream-width {flags.stream_width} leaves no place for a sentence: use 1 or more")
    if not 0 <= flags.refill_threshold < 1:
        raise UsageError(f"--refill-threshold {flags.refill_threshold} is not a share below 1: use 0 or more, such as 0.167")
    if flags.stream_rows is not None and flags.stream_rows < generation.beam:
        raise UsageError(f"--stream-rows {flags.stream_rows} is below the beam of {generation.beam}: use at least one sentence's rows")


def check_prune(flags, generation) -> None:
    """Refuse what is no distance (raises UsageError)."""
    if flags.prune_threshold is not None and not flags.prune_threshold >= 0:
        raise UsageError(f"--prune-threshold {flags.prune_threshold} is not a distance: use 0 or more, such as 1.5")


def check_children(flags, generation) -> None:
    """Refuse a beam without children (raises UsageError)."""
    if flags.prune_children is not None and flags.prune_children < 1:
        raise UsageError(f"--prune-children {flags.prune_children} would leave no hypothesis: use 1 or more")


def check_ranked(flags, generation) -> None:
    """Refuse banks, between which scores do not compare (raises UsageError)."""
    if str(flags.select or "topk") != "topk":  # where it is left out, constraints have made it dba already
        banks = select_flag(flags, generation)
        raise UsageError(f"--stop ranked compares all hypotheses of a sentence, and {banks} has banks: use --stop count")


@register("schedule", "stream", StreamFlags, check)
def stream(flags, context) -> Stream:
    context.stats.refills = context.stats.refills or 0
    return Stream(flags.stream_width, flags.refill_threshold, str(flags.stream_order) == "shortest", flags.stream_rows)


@register("prune", "threshold", PruneFlags, check_prune)
def threshold(flags, context) -> PruneThreshold:
    return PruneThreshold(flags.prune_threshold)


@register("prune", "children", ChildrenFlags, check_children)
def children(flags, context) -> None:
    """The select plug itself takes no more (Context.children)."""


@register("stop", "ranked", None, check_ranked)
def ranked(flags, context) -> Ranked:
    return Ranked(context.k, context.eos)
