"""`--decoding hybrid-jacobi`: Hybrid GS-Jacobi, blocks and then single tokens (Algorithm 3, HGJ,
of the paper that jacobi.py cites).

Up to the length h = --parallel-length it works as gs_jacobi.py. The tokens after that are decoded
one by one, as in the paper if EOS has not been decoded by then.

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


@register_method(
    "hybrid-jacobi", "Santilli et al. 2023, parallel decoding", block_size=3, parallel_length=4
)
def build(flags: ParallelFlags, setup: Setup) -> ParallelSearch:
    return driver_with(
        flags,
        setup,
        lambda drafter: Blocks(
            drafter, flags.block_size or BLOCK, flags.parallel_length, hybrid=True
        ),
    )
