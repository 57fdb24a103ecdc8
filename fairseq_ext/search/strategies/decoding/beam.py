"""Beam search, fairseq's own driver (`--decoding beam`, the default): search/searchers/several.py."""

from collections.abc import Callable

from fairseq_ext.search.protocols import SearchSetup
from fairseq_ext.search.registry import register
from fairseq_ext.search.strategies.decoding._several import BeamSearch


@register("decoding", "beam", neutral=({"decoding": "beam"},), paper="fairseq's own")
def build(flags, context) -> Callable[[SearchSetup], Callable[..., None]]:
    """From a setup to the driver (pool, answer)."""
    return BeamSearch
