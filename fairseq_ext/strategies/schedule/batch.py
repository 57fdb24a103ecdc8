"""fairseq's schedule: all sentences of a batch start together (`--schedule batch`, the default)."""

from collections.abc import Sequence

from fairseq_ext.registry import register
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Schedule


class WholeBatch(Schedule):
    """Start every sentence at once."""

    def __call__(self, pool: Pool, started: int, live: int, rows: int) -> Sequence[int]:
        return pool.queue(started)


@register("schedule", "batch", neutral=({},), paper="fairseq's own")
def build(flags, context) -> WholeBatch:
    return WholeBatch()
