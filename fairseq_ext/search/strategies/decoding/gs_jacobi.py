"""`--decoding gs-jacobi`: Parallel GS-Jacobi, one block after the other (Algorithm 2, PGJ, of the
paper that jacobi.py cites).

A block of b = --block-size positions is computed repeatedly until its draft is right; then the next
block begins.

Neutral setting: --block-size 1, which is greedy decoding with greedy's calls.
"""

from fairseq_ext.search.parallel.driver import ParallelSearch
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.strategies.decoding._parallel import (
    BLOCK,
    Blocks,
    ParallelFlags,
    driver_with,
    register_method,
)


@register_method("gs-jacobi", "Santilli et al. 2023, parallel decoding", block_size=4)
def build(flags: ParallelFlags, setup: Setup) -> ParallelSearch:
    return driver_with(flags, setup, lambda drafter: Blocks(drafter, flags.block_size or BLOCK, 0))
