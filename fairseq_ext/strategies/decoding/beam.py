"""Beam search, fairseq's own driver (`--decoding beam`, the default): search/loop.py."""

from collections.abc import Callable
from functools import partial

from fairseq_ext.registry import register
from fairseq_ext.search.loop import beam_search
from fairseq_ext.search.state import Engine


@register("decoding", "beam", neutral=({"decoding": "beam"},), paper="fairseq's own")
def build(flags, context) -> Callable[[Engine], Callable[..., None]]:
    """From an engine to the driver (pool, answer)."""
    return lambda engine: partial(beam_search, engine)
