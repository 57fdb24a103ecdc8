"""A sentence on its way from the door (a command, the Python API, an engine) to its hypotheses."""

from __future__ import annotations

from dataclasses import dataclass

from fairseq_ext.search.pool import Pool


@dataclass(eq=False)
class Request:
    """One sentence to decode, and the only record of it: a door that knows more of its sentences adds fields."""

    number: int  # as the door numbers it
    nbest: int  # length of the n-best list that its search is for
    most: int | None = None  # hypotheses that the door takes; None: all that are found
    pool: Pool | None = None  # the batch that it is encoded in; None until there is one
    sentence: int = 0  # its pool number

    @property
    def batch(self) -> Pool:
        """The batch that it is encoded in, when there is one."""
        assert self.pool is not None
        return self.pool
