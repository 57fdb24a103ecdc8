"""fairseq's schedule: all sentences of a batch start together (`--schedule batch`, the default)."""

from fairseq_ext.search.protocols import Schedule
from fairseq_ext.search.registry import register


class WholeBatch(Schedule):
    """Start every sentence at once."""

    def __call__(self, waiting: int, live: int, rows: int, since: int) -> int:
        return waiting


@register("schedule", "batch", neutral=({},), paper="fairseq's own")
def build(flags, context) -> WholeBatch:
    return WholeBatch()
