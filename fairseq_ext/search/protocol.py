"""The protocol of all searches: requests go in, steps are made, hypotheses come out.

The loop (loop.py) is the definition of beam search; compiled_search.py and constrained.py are its compiled twins, and the driver of
parallel decoding (search/parallel/driver.py) is the fourth. A command adds all sentences of a batch and steps until none is live; a worker of an
engine adds and cancels requests between any two steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.phrases.sentence import SentenceConstraints
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.request import Request


class Searcher(ABC):
    """A search that requests join and leave between any two steps. Callers hold torch.no_grad, else autograd records every step."""

    @property
    @abstractmethod
    def live(self) -> int:
        """Requests that are being decoded."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Their rows."""

    def may_take(self, constraints: SentenceConstraints | None) -> bool:
        """Whether a sentence with these constraints is for this search, as far as they say; by default it is."""
        return True

    def takes(self, pool: Pool) -> bool:
        """Whether this search knows all that the sentences of a pool ask for; by default it does."""
        return True

    @abstractmethod
    def admit(self, requests: Sequence[Request]) -> None:
        """Encode requests of one pool; they are live then."""

    @abstractmethod
    def step(self, most: int = 1) -> list[Request]:
        """Add a token to rows, as the schedule says, at most so often; stop when a sentence ends. Return the requests that have ended, each
        of which must be taken. Errors: NotANumber where the model gives NaN."""

    @abstractmethod
    def take(self, request: Request) -> list[Hypothesis] | None:
        """The hypotheses of a request that has ended, best first; it is forgotten then. None: it has not, and goes on in another search.

        Errors: NotANumber where the model gives NaN for it.
        """

    @abstractmethod
    def cancel(self, requests: Collection[Request]) -> None:
        """Forget requests without an answer; their rows are free for the next step."""

    @abstractmethod
    def common_prefix(self, request: Request) -> list[int]:
        """The tokens that every hypothesis of a live request begins with, so that its answer does."""

    def set_aside(self) -> None:  # noqa: B027  most hold no rows in it between two steps
        """Leave the decoder to another search until the next step."""


def common_prefix(rows: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all rows begin with; none where there are no rows."""
    first, last = (list(edge(map(tuple, rows), default=())) for edge in (min, max))
    # of rows in order, what the outermost two have in common all have
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]
