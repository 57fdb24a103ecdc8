"""The flags of parallel decoding, which all methods of --decoding but beam read, and what they refuse."""

import math
from dataclasses import dataclass, field
from typing import Literal

from fairseq_ext.core.errors import UsageError


@dataclass
class ParallelFlags:
    block_size: int = field(
        default=0,
        metadata={
            "help": "tokens that a call reads at most in each row (1: greedy; default 0: 3, or with window as many as pay off)",
            "range": (0, 1_000_000, "number of tokens"),
        },
    )
    parallel_length: int = field(
        default=0,
        metadata={
            "help": "target tokens decoded in parallel by jacobi (its block) and hybrid-jacobi (default 0: 1.25 x source tokens)",
            "range": (0, 1_000_000, "number of tokens"),
        },
    )
    draft: Literal["auto", "none", "pad", "repeat", "ngram"] = field(
        default="auto",
        metadata={
            "help": "first guess of a block: pad (the paper), repeat (the last token), ngram (a table made by scripts/build_drafts.py), "
            "none (default auto: ngram where there is a table, else repeat)"
        },
    )
    draft_file: str | None = field(
        default=None, metadata={"help": "earlier translations as drafts, one segmented line a sentence (default: none)", "file": True}
    )
    draft_table: str | None = field(
        default=None,
        metadata={
            "help": "the table of --draft ngram (default: CHECKPOINT.drafts.npz beside the checkpoint, if it is there)",
            "file": True,
        },
    )
    draft_cost: float = field(
        default=-1.0,
        metadata={"help": "cost of one more position, in decoder calls; window weighs drafts by it (default -1: by device and rows)"},
    )
    parallel_margin: float = field(
        default=-1.0,
        metadata={
            "help": "half precision: read a position again alone where its two best words are closer than this, in nats "
            "(0: never; default -1: by precision, 0 for float32)"
        },
    )
    ddg_dir: str | None = field(
        default=None,
        metadata={
            "help": "write each sentence's decoding dependency graph as JSON to this directory; python -m fairseq_ext.viz.ddg draws it "
            "(default: none)",
            "file": True,
        },
    )


def check(flags, generation) -> None:
    """Refuse lengths, costs and margins that mean nothing (raises UsageError)."""
    name = f"--decoding {flags.decoding}"
    if flags.decoding == "jacobi" and flags.block_size:
        raise UsageError(
            "--decoding jacobi has one block, the whole sentence: use --parallel-length for its length, or gs-jacobi with --block-size"
        )
    if str(flags.decoding) in ("gs-jacobi", "window") and flags.parallel_length:
        raise UsageError(f"--parallel-length belongs to jacobi and hybrid-jacobi, not to {name}: leave it out")
    if flags.draft_cost != -1 and str(flags.decoding) != "window":
        raise UsageError(f"--draft-cost belongs to --decoding window, not to {name}: leave it out")
    if flags.draft_table and str(flags.draft) not in ("auto", "ngram"):
        raise UsageError(f"--draft-table belongs to --draft ngram, not to --draft {flags.draft}: leave it out")
    for flag, value in (("--draft-cost", flags.draft_cost), ("--parallel-margin", flags.parallel_margin)):
        if value != -1 and not 0 <= value < math.inf:
            raise UsageError(f"{flag} {value:g} means nothing: it is a number of 0 or more, or -1 for the default")
