"""Parallel Jacobi decoding: greedy's output in fewer decoder calls, by reading several tokens a call (`--decoding`).

    A. Santilli, S. Severino, E. Postolache, V. Maiorca, M. Mancusi, R. Marin and E. Rodola. Accelerating Transformer Inference for
    Translation via Parallel Decoding. ACL 2023. https://aclanthology.org/2023.acl-long.689/

A block of positions is computed from a draft of them; outputs replace the draft until nothing changes. What stands before the first
change is what greedy decoding gives, whatever the draft was (Proposition 1). The driver is parallel/driver.py, the
methods are strategies/decoding/_blocks.py and strategies/decoding/window.py.

| algorithm | flag | block | tokens are committed |
| --- | --- | --- | --- |
| 1, PJ | --decoding jacobi | the whole sentence, of length m = --parallel-length | when the block has converged |
| 2, PGJ | --decoding gs-jacobi | b = --block-size positions | when the block has converged |
| 3, HGJ | --decoding hybrid-jacobi | as PGJ up to length h = --parallel-length, then single tokens | when the block has converged |
| not in the paper | --decoding window | 1 to b positions, as many as the drafts are worth | as soon as they are verified |

m and h are never taken from the reference (the paper's are for PJ and PGJ): without the flag they are 1.25 x source tokens, and
where a sentence is longer, PJ goes on with another block and HGJ with single tokens. A block has converged when its inputs equal the
outputs before them; the paper compares one output more, which costs a call and changes nothing. EOS ends a sentence as soon as it is
verified. INITT, the first draft of a block, is --draft; the paper's is `pad`.

Neutral setting: --decoding beam; a block of 1 is greedy decoding, with greedy's calls.
Left out: beams, constraints, language models, alignments (refused).
"""

import math
from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from fairseq_ext.errors import UsageError
from fairseq_ext.parallel.drafts.choose import make_source
from fairseq_ext.parallel.driver import ParallelSearch
from fairseq_ext.parallel.near_ties import Guard
from fairseq_ext.registry import register
from fairseq_ext.strategies.decoding._blocks import Blocks
from fairseq_ext.strategies.decoding.window import Cost, Window

COSTS = {"cpu": Cost(0.05, 0.07, 0.005, cheap=6, beyond=2.5), "cuda": Cost(0.1, 0.01, 0.0002)}
MARGIN = {"float16": 0.1, "bfloat16": 0.8}  # nats; by experience single tokens and blocks differ by less


@dataclass
class JacobiFlags(FairseqDataclass):
    block_size: int = field(
        default=0,
        metadata={"help": "tokens that a call reads at most in each row (neutral: 1; default 0: 3, or with window as many as pay off)"},
    )
    parallel_length: int = field(
        default=0,
        metadata={"help": "target tokens decoded in parallel by jacobi (its block) and hybrid-jacobi (default 0: 1.25 x source tokens)"},
    )
    draft: ChoiceEnum(["auto", "none", "pad", "repeat", "copy", "ngram"]) = field(  # type: ignore[valid-type]
        default="auto",
        metadata={
            "help": "first guess of a block: pad (the paper), repeat (the last token), copy (of source tokens), ngram (a table made by "
            "scripts/build_drafts.py), none (default auto: ngram where there is a table, else repeat)"
        },
    )
    draft_file: Optional[str] = field(  # noqa: UP045
        default=None, metadata={"help": "earlier translations as drafts, one segmented line a sentence (default: none)"}
    )
    draft_table: Optional[str] = field(  # noqa: UP045
        default=None, metadata={"help": "the table of --draft ngram (default: CHECKPOINT.drafts.npz beside the checkpoint, if it is there)"}
    )
    draft_cost: float = field(
        default=-1.0,
        metadata={"help": "cost of one more position, in decoder calls; window weighs drafts by it (default -1: by device and rows)"},
    )
    parallel_margin: float = field(
        default=-1.0,
        metadata={
            "help": "half precision: read a position again alone where its two best words are closer than this, in nats "
            "(neutral: 0; default -1: by precision, 0 for float32)"
        },
    )
    ddg_dir: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={"help": "write each sentence's decoding dependency graph (JSON, PNG, SVG, HTML) to this directory (default: none)"},
    )


def build(flags, context, name: str):
    """A function from the search's parts to the driver."""
    source = make_source(flags, context)
    b = flags.block_size

    def driver(decoder, softmax, rules, scoring, stats, schedule) -> ParallelSearch:
        parameter = next(context.models[0].parameters())
        if name == "window":
            cost = COSTS["cpu" if parameter.device.type == "cpu" else "cuda"] if flags.draft_cost < 0 else Cost(0.0, flags.draft_cost, 0.0)
            method: Blocks | Window = Window(source, b, cost)
        else:
            method = Blocks(source, b or 3, flags.parallel_length, name == "jacobi", name == "hybrid-jacobi")
        automatic = MARGIN.get(str(parameter.dtype).removeprefix("torch."), 0.0)
        guard = Guard(automatic if flags.parallel_margin < 0 else flags.parallel_margin)
        return ParallelSearch(decoder, method, softmax, rules, scoring, stats, schedule, guard)

    return driver


def check(flags, generation) -> None:
    """Refuse lengths, costs and margins that mean nothing (raises UsageError)."""
    name = f"--decoding {flags.decoding}"
    if flags.block_size < 0 or flags.parallel_length < 0:
        flag = "--block-size" if flags.block_size < 0 else "--parallel-length"
        raise UsageError(f"{flag} is a number of tokens: use 1 or more, or 0 for the default")
    if flags.decoding == "jacobi" and flags.block_size:
        raise UsageError(
            "--decoding jacobi has one block, the whole sentence: use --parallel-length for its length, or gs-jacobi with --block-size"
        )
    if str(flags.decoding) in ("gs-jacobi", "window") and flags.parallel_length:
        raise UsageError(f"--parallel-length belongs to jacobi and hybrid-jacobi, not to {name}: leave it out")
    for flag, value in (("--draft-cost", flags.draft_cost), ("--parallel-margin", flags.parallel_margin)):
        if value != -1 and not 0 <= value < math.inf:
            raise UsageError(f"{flag} {value:g} means nothing: it is a number of 0 or more, or -1 for the default")


NEEDS = ("own loop", "greedy", "several tokens a call", "repeatable calls")
DENIES = ("beam", "rows of a beam", "attention")
ONE = {"beam": 1}
for method_name, example in (
    ("jacobi", {"decoding": "jacobi", **ONE}),
    ("gs-jacobi", {"decoding": "gs-jacobi", "block_size": 4, **ONE}),
    ("hybrid-jacobi", {"decoding": "hybrid-jacobi", "block_size": 3, "parallel_length": 4, **ONE}),
    ("window", {"decoding": "window", **ONE}),
):

    @register(
        "decoding",
        method_name,
        JacobiFlags,
        check=check,
        needs=NEEDS,
        denies=DENIES,
        neutral=(example,),  # the output is greedy decoding's, whatever the block
        example=(example,),
        paper="Santilli et al. 2023, parallel decoding" if method_name != "window" else "verified windows, after Santilli et al. 2023",
    )
    def build_method(flags, context, name=method_name):
        return build(flags, context, name)
