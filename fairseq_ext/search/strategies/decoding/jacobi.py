"""Parallel Jacobi decoding (`--decoding`): greedy's output in fewer calls, by blocks of tokens.

    A. Santilli, S. Severino, E. Postolache, V. Maiorca, M. Mancusi, R. Marin and E. Rodola.
    Accelerating Transformer Inference for Translation via Parallel Decoding. ACL 2023.
    https://aclanthology.org/2023.acl-long.689/

A block of positions is computed from a draft of them; outputs replace the draft until nothing
changes. Tokens before the first change are those of greedy decoding, for any draft (Proposition 1);
their keys and values are kept (section 4.1), and the next call reads the rest of the block.
The driver is search/parallel/driver.py.

| algorithm | flag, file | block |
| --- | --- | --- |
| 1, PJ | jacobi, this one | the whole sentence, of length m = --parallel-length |
| 2, PGJ | gs-jacobi, gs_jacobi.py | b = --block-size positions |
| 3, HGJ | hybrid-jacobi, hybrid_jacobi.py | as PGJ up to length h = --parallel-length, then 1 |
| not in the paper | window, window.py | at each call 1 to b positions, by expected gain |

The paper assumes to know m for PJ and PGJ, and sets h to the maximum. Here both are never taken
from the reference: without the flag they are 1.25 x source tokens, and if a sentence is longer, PJ
continues with another block and HGJ with single tokens. A block has converged when its inputs equal
the outputs before them, as in the authors' code; Equation 5 compares one more output, which costs
a call and changes nothing. EOS ends a sentence as soon as it is verified. INITT, the first draft of
a block, is --draft; the paper's is `pad`.

Neutral setting: --decoding beam; a block of 1 is greedy decoding, with greedy's calls. Beams,
constraints, language models and alignments are not supported (refused).
"""

from fairseq_ext.search.parallel.driver import ParallelSearch
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.strategies.decoding._parallel import (
    Blocks,
    ParallelFlags,
    driver_with,
    register_method,
)


@register_method("jacobi", "Santilli et al. 2023, parallel decoding")
def build(flags: ParallelFlags, setup: Setup) -> ParallelSearch:
    return driver_with(
        flags, setup, lambda drafter: Blocks(drafter, 1, flags.parallel_length, one_block=True)
    )
