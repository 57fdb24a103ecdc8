"""What the methods of parallel decoding share: the driver around them. search/strategies/decoding/_flags.py has their flags; jacobi.py cites the paper."""

from collections.abc import Callable
from typing import Any, cast

from fairseq_ext.model.protocol import BlockDecoder
from fairseq_ext.search.parallel.block_reader import BlockReader
from fairseq_ext.search.parallel.drafter import Drafter
from fairseq_ext.search.parallel.driver import ParallelSearch
from fairseq_ext.search.parallel.near_ties import NearTies
from fairseq_ext.search.parallel.protocols import Method
from fairseq_ext.search.protocols import SearchSetup
from fairseq_ext.search.registry import register
from fairseq_ext.search.strategies.decoding._factory import make_drafter
from fairseq_ext.search.strategies.decoding._flags import ParallelFlags, check

BLOCK = 3  # default of --block-size where blocks must converge
MARGIN = {"float16": 0.1, "bfloat16": 0.8}  # nats; by experience single tokens and blocks differ by less


def is_on_cpu(context: Any) -> bool:
    """Whether the model lies on the CPU."""
    return next(context.models[0].parameters()).device.type == "cpu"


def driver_with(flags: Any, context: Any, make: Callable[[Drafter], Method]) -> Callable[[SearchSetup], ParallelSearch]:
    """A function from the setup to the driver, with the method that `make` makes of the drafter.

    Raises UsageError where the drafts that the flags name cannot be had.
    """
    method = make(make_drafter(flags, context))

    def driver(setup: SearchSetup) -> ParallelSearch:
        dtype = str(next(context.models[0].parameters()).dtype).removeprefix("torch.")
        margin = MARGIN.get(dtype, 0.0) if flags.parallel_margin < 0 else flags.parallel_margin
        decoder, strategies = cast("BlockDecoder", setup.decoder), setup.strategies  # each backend reads blocks
        reader = BlockReader(decoder, strategies.softmax, setup.processors)
        return ParallelSearch(reader, method, setup.spec.scoring, setup.stats, strategies.schedule, NearTies(margin))

    return driver


def register_method(name: str, paper: str, **example: Any) -> Callable:
    """Register a method's builder. example: flags at which it does its work; its output is greedy decoding's at these and any others."""
    setting = {"decoding": name, "beam": 1, **example}
    needs, denies = ("search loop", "greedy", "several tokens a call", "repeatable calls"), ("beam", "rows of a beam", "attention")
    parts: dict[str, Any] = {"check": check, "needs": needs, "denies": denies, "neutral": (setting,), "example": (setting,)}
    return register("decoding", name, ParallelFlags, paper=paper, **parts)
