"""Common parts of the methods of parallel decoding: driver, drafter, flags, converging blocks.

jacobi.py cites the paper.

Compiled twin: kernels/parallel.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import Lines
from fairseq_ext.kernels.library import new
from fairseq_ext.kernels.parallel import CompiledMethod
from fairseq_ext.search.parallel.blocks import NONE, BlockReader, Method, NearTies, Rows
from fairseq_ext.search.parallel.drafts import Drafter, NoDrafter, Previous, Trajectory
from fairseq_ext.search.parallel.driver import ParallelSearch
from fairseq_ext.search.phrases.sentence import Dictionary
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.registry import register
from fairseq_ext.search.settings import Generation, Value

BLOCK = 3  # default of --block-size for blocks that must converge
# nats; in practice, log-probabilities of single tokens and of blocks differ by less
MARGIN = {"float16": 0.1, "bfloat16": 0.8}


def is_on_cpu(setup: Setup) -> bool:
    """Return whether the model is on the CPU."""
    return next(setup.models[0].parameters()).device.type == "cpu"


def driver_with(
    flags: ParallelFlags, setup: Setup, make: Callable[[Drafter], Method]
) -> ParallelSearch:
    """Return the driver, with the method that `make` makes of the drafter.

    Raises UsageError if the drafts that the flags name cannot be used.
    """
    method = make(make_drafter(flags, setup))
    dtype = str(next(setup.models[0].parameters()).dtype).removeprefix("torch.")
    margin = MARGIN.get(dtype, 0.0) if flags.parallel_margin < 0 else flags.parallel_margin
    strategies = setup.strategies
    reader = BlockReader(setup.decoder, strategies.softmax, setup.processors)
    return ParallelSearch(
        reader, method, setup.scoring, setup.stats, strategies.schedule, NearTies(margin)
    )


def register_method(name: str, paper: str, **example: Value) -> Callable:
    """Register a method's builder.

    example: flags at which it has an effect; its output is that of greedy decoding at these and any
    others.
    """
    setting = {"decoding": name, "beam": 1, **example}
    needs = ("search loop", "greedy", "several tokens a call", "repeatable calls")
    denies = ("beam", "rows of a beam", "attention")
    parts: dict = {
        "check": partial(check, name),
        "needs": needs,
        "denies": denies,
        "neutral": (setting,),
        "example": (setting,),
    }
    return register("decoding", name, ParallelFlags, paper=paper, **parts)


# ---- The drafter that --draft and --draft-file name


def make_drafter(flags: ParallelFlags, setup: Setup) -> Drafter:
    """Return the drafter (raises UsageError for a file that cannot be read)."""
    name = flags.draft
    drafter: Drafter = (
        NoDrafter() if name == "none" else Trajectory(setup.pad if name == "pad" else None)
    )
    return (
        drafter
        if flags.draft_file is None
        else Previous(read_drafts(flags.draft_file, setup.dictionary), drafter)
    )


def read_drafts(path: str, dictionary: Dictionary) -> list[list[int]]:
    """Return token ids of a file of segmented lines, each with EOS.

    Raises UsageError for a file that cannot be read.
    """
    return [
        [dictionary.index(word) for word in line.split()] + [dictionary.eos()]
        for line in Lines(path, "--draft-file")
    ]


# ---- The flags of parallel decoding, and their checks; all methods of --decoding but beam read
# them


@dataclass
class ParallelFlags:
    block_size: int = field(
        default=0,
        metadata={
            "help": "tokens that a call reads at most in each row (1: greedy; default 0: 3, or "
            "with window as many as pay off)",
            "range": (0, 1_000_000, "number of tokens"),
        },
    )
    parallel_length: int = field(
        default=0,
        metadata={
            "help": "target tokens decoded in parallel by jacobi (its block) and hybrid-jacobi "
            "(default 0: 1.25 x source tokens)",
            "range": (0, 1_000_000, "number of tokens"),
        },
    )
    draft: Literal["none", "pad", "repeat"] = field(
        default="repeat",
        metadata={
            "help": "first guess of a block: pad (the paper), repeat (the last token), none "
            "(default: repeat)",
        },
    )
    draft_file: str | None = field(
        default=None,
        metadata={
            "help": "earlier translations as drafts, one segmented line a sentence (default: none)",
            "file": True,
            "engine": "gives line n its draft, and requests have no numbers",
            "implemented": "search/parallel/drafts.py",
        },
    )
    draft_cost: float = field(
        default=-1.0,
        metadata={
            "help": "cost of one more position, in decoder calls; window weighs drafts by it "
            "(default -1: by device and rows)",
            "implemented": "search/strategies/decoding/window.py",
        },
    )
    parallel_margin: float = field(
        default=-1.0,
        metadata={
            "help": "half precision: read a position again alone where its two best words are "
            "closer than this, in nats (0: never; default -1: by precision, 0 for float32)",
            "implemented": "search/parallel/blocks.py",
        },
    )
    ddg_dir: str | None = field(
        default=None,
        metadata={
            "help": "write each sentence's decoding dependency graph as JSON to this directory; "
            "python -m fairseq_ext.viz.ddg draws it (default: none)",
            "file": True,
            "same_results": True,
            "needs": ("source tokens",),
            "engine": "writes graphs of the sentences of a whole run",
            "corpus": "is for a few sentences of the other commands, not a corpus",
            "implemented": "search/parallel/graph.py",
        },
    )


def check(name: str, flags: ParallelFlags, generation: Generation) -> None:
    """Refuse invalid lengths, costs and margins of a method (raises UsageError)."""
    if name == "jacobi" and flags.block_size:
        raise UsageError(
            "--decoding jacobi has one block, the whole sentence: use --parallel-length for its "
            "length, or gs-jacobi with --block-size"
        )
    if name in ("gs-jacobi", "window") and flags.parallel_length:
        raise UsageError(
            "--parallel-length belongs to jacobi and hybrid-jacobi, not to --decoding "
            f"{name}: leave it out"
        )
    if flags.draft_cost != -1 and name != "window":
        raise UsageError(
            f"--draft-cost belongs to --decoding window, not to --decoding {name}: leave it out"
        )
    for flag, value in (
        ("--draft-cost", flags.draft_cost),
        ("--parallel-margin", flags.parallel_margin),
    ):
        if value != -1 and not 0 <= value < math.inf:
            raise UsageError(f"{flag} must be 0 or more, or -1 for the default, not {value:g}")


# ---- Blocks that are computed until they have converged: jacobi.py, gs_jacobi.py, hybrid_jacobi.py
#
# The compiled twin for a single sentence is in kernels/parallel.cpp.
#
# Shapes: N sentences in the pool, n live rows, w block width.


LENGTH_RATIO = 1.25  # predicted target tokens for each source token, EOS counted in both


class Blocks(Method):
    """Blocks of b positions, or of a whole sentence. A call reads what is left of a block."""

    def __init__(
        self, drafter: Drafter, b: int, h: int, one_block: bool = False, hybrid: bool = False
    ):
        """h: target tokens that are decoded in parallel, 0 to predict them; one_block: the block
        has h positions; hybrid: single tokens after h."""
        self.drafter = drafter
        self.b = b
        self.h = h
        self.one_block = one_block
        self.hybrid = hybrid

    def start(self, pool: Pool) -> None:
        self.drafter.start(pool)
        predicted = np.ceil(LENGTH_RATIO * pool.length.cpu().numpy()).astype(np.int64)
        self.length = np.full_like(predicted, self.h) if self.h else predicted  # (N,) m or h
        self.end = np.zeros_like(predicted)  # (N,) length at which the current block ends

    def draft(self, rows: Rows, most: int) -> np.ndarray:
        size = self.length[rows.live] if self.one_block else np.full(len(rows), self.b)
        if self.hybrid:
            size = np.where(rows.length < self.length[rows.live], size, 1)
        end = self.end[rows.live]
        begins = rows.length >= end
        rows.guess[begins] = NONE  # outputs behind the last block
        end = self.end[rows.live] = np.where(begins, rows.length + size, end)
        # (n,) draft tokens of each row
        left = np.minimum(np.minimum(end - 1, rows.limit) - rows.length, most)
        m = int(left.max())
        is_inside = np.arange(m) < left[:, None]
        tokens = rows.guess[:, :m]
        tokens = np.pad(tokens, ((0, 0), (0, m - tokens.shape[1])), constant_values=NONE)
        is_new = ((tokens == NONE) & is_inside).any(1, keepdims=True)  # a new block
        if is_new.any():
            first = self.drafter.propose(rows, m)[0]
            first = np.pad(first, ((0, 0), (0, m - first.shape[1])), constant_values=NONE)
            tokens = np.where(is_new, first, tokens)
        return np.where(is_inside, tokens, NONE)

    def compiled(self, sentence: int) -> CompiledMethod:
        drafter = self.drafter.compiled(sentence)
        length = int(self.length[sentence])
        state = new("Blocks", drafter.fields, self.b, length, self.one_block, self.hybrid, 0)
        return CompiledMethod("blocks", state, drafter)
