"""Schedules: the sentences of a batch start all together (`batch`), or as others finish
(`--schedule stream`).

The stream is streaming variable-width beam search, a form of continuous batching:

    K. Yang, V. Yao, J. DeNero and D. Klein. A Streaming Approach For Efficient Batched Beam Search.
    EMNLP 2020. https://aclanthology.org/2020.emnlp-main.366/
    Algorithm 1; the finishing rule of Appendix A.1
    The pruning heuristics: M. Freitag and Y. Al-Onaizan, 2017. https://aclanthology.org/W17-3207/

| symbol | flag |
| --- | --- |
| k | --beam |
| n, sentences at once | --stream-width; or --stream-rows, as in the parsing experiments |
| epsilon | --refill-threshold |
| delta | --prune-threshold: dropped when the score is below the best's by more than this |
| M | --prune-children: most children of one row |
| which sentences are expanded | --stream-order shortest (line 12); fifo: all (Appendix A.2), with |
| | --stream-rows those with the most tokens that fit |
| flush of sentences that are stuck (footnote 3) | --stream-flush |
| finalised candidates stay on the beam (A.1) | --stop ranked |

Neutral setting: every one; the stream changes no result, except with shortlists that all rows share
(`--lsh-share batch`, `--shortlist-share batch`). This file decides when sentences start. Which are
expanded is in search/loop.py, delta and M are in search/strategies/prune.py, the finishing rule of
A.1 in search/strategies/stop/ranked.py.

Differences from the paper: under shortest, rows that do not fit into --stream-rows wait, those with
the most tokens first. An engine (engine/) refills whenever there is room, so that a request does
not wait for others.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.protocols import Schedule, Setup
from fairseq_ext.search.registry import register
from fairseq_ext.search.scheduler import WholeBatch
from fairseq_ext.search.settings import Generation, NoFlags

# ---- All sentences of a batch start together, as in fairseq (`--schedule batch`)


@register("schedule", "batch", neutral=({},), paper="fairseq's own")
def build_batch(flags: NoFlags, setup: Setup) -> WholeBatch:
    return WholeBatch()


# ---- New sentences start as others finish (`--schedule stream`)


@dataclass
class StreamFlags:
    stream_width: int = field(
        default=64,
        metadata={
            "help": "sentences that are decoded at once under --schedule stream (default: 64)",
            "range": (1, 10_000_000, "number of sentences"),
        },
    )
    refill_threshold: float = field(
        default=1 / 6,
        metadata={
            "help": "new sentences start when at most this share of the stream's width is "
            "left (default: 1/6)"
        },
    )
    stream_order: Literal["shortest", "fifo"] = field(
        default="shortest",
        metadata={
            "help": "shortest: the sentences with the fewest tokens are decoded until "
            "they are level with the others; fifo: all, with --stream-rows the longest first "
            "(default: shortest, as the paper; same results)"
        },
    )
    stream_rows: int | None = field(
        default=None,
        metadata={
            "help": "limit the rows of a decoder call instead of the sentences, --stream-width "
            "(default: none)"
        },
    )
    stream_flush: int | None = field(
        default=None,
        metadata={
            "help": "after N sentences have started, finish all live ones before others "
            "start, so that none is stuck (default: never)",
            "range": (1, math.inf, "number of sentences"),
        },
    )


class Stream(Schedule):
    """n sentences, or rows, are decoded at once. When at most epsilon n are live, n (1 - epsilon)
    start.

    steps: the smallest number of steps between two starts, while any sentence is live; fills: start
    as many as there is room for.
    """

    def __init__(
        self,
        width: int,
        threshold: float,
        level: bool,
        rows: int | None,
        steps: int = 0,
        fills: bool = False,
        longest_first: bool = False,
        flush: int | None = None,
    ):
        self.width = width if rows is None else rows
        self.threshold, self.level, self.most_rows = threshold, level, rows
        self.steps, self.fills = steps, fills
        self.longest_first, self.flush = longest_first, flush

    def __call__(self, waiting: int, live: int, rows: int, since: int) -> int:
        taken = live if self.most_rows is None else rows  # every new sentence is one row
        if taken > self.threshold * self.width or (live and since < self.steps):
            return 0
        return min(
            waiting,
            self.width - taken
            if self.fills
            else max(1, int(self.width * (1 - self.threshold) + 1e-9)),
        )


def check_stream(flags: StreamFlags, generation: Generation) -> None:
    """Refuse a stream without room for a sentence (raises UsageError)."""
    if not 0 <= flags.refill_threshold < 1:
        raise UsageError(
            f"--refill-threshold {flags.refill_threshold} is not a share below 1: use 0 or "
            "more, such as 0.167"
        )
    if flags.stream_rows is not None and flags.stream_rows < generation.beam:
        raise UsageError(
            f"--stream-rows {flags.stream_rows} is below the beam of {generation.beam}: use "
            f"{generation.beam} or more"
        )


@register(
    "schedule",
    "stream",
    StreamFlags,
    check=check_stream,
    needs=("search loop",),
    neutral=(
        {"schedule": "stream", "stream_width": 3},
        {"schedule": "stream", "stream_order": "fifo", "stream_rows": 60},
        {"schedule": "stream", "stream_width": 3, "stream_flush": 5},
    ),
    example=(
        {"schedule": "stream", "stream_width": 2},
        {"schedule": "stream", "stream_width": 3, "stream_order": "fifo"},
        {"schedule": "stream", "stream_rows": 9},
    ),
    paper="Yang et al. 2020, streaming variable-width beam search",
    refills=True,
)
def build_stream(flags: StreamFlags, setup: Setup) -> Stream:
    return Stream(
        flags.stream_width,
        flags.refill_threshold,
        flags.stream_order == "shortest",
        flags.stream_rows,
        longest_first=flags.stream_order == "fifo",
        flush=flags.stream_flush,
    )
