"""What the driver asks of a decoding method (strategies/decoding/).

Shapes: n live rows, w block width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from fairseq_ext.kernels.parallel import CompiledMethod
from fairseq_ext.search.parallel.rows import Iteration, Rows
from fairseq_ext.search.pool import Pool

Trace = Callable[[Iteration], None]  # is told of every call of every row


class Method(ABC):
    """A method of --decoding: how wide blocks are, what is drafted, how many verified tokens are committed."""

    @abstractmethod
    def start(self, pool: Pool) -> None:
        """Begin with a new pool."""

    @abstractmethod
    def draft(self, rows: Rows, most: int) -> np.ndarray:
        """(n, w - 1) draft tokens, w - 1 <= most: what the next call reads behind each row's last token."""

    def learn(self, rows: Rows, out: np.ndarray, verified: np.ndarray, w: int) -> None:  # noqa: B027  most need not know
        """Take note of what came of the draft, before the commit: outputs (n, w), of which the first verified (n,) are right."""

    @abstractmethod
    def commit(self, rows: Rows, verified: np.ndarray, finished: np.ndarray, w: int) -> np.ndarray:
        """(n,) how many of each row's verified outputs (n,), one at least, are kept; the last one is EOS where finished (n,)."""

    def compiled(self, sentence: int) -> CompiledMethod | None:
        """The compiled twin for a sentence that is alone (kernels/parallel.cpp); None: the functions above serve."""
        return None
