"""Beam search, fairseq's own driver (`--decoding beam`, the default): search/loop.py."""

from fairseq_ext.registry import register


@register("decoding", "beam", neutral=({"decoding": "beam"},), paper="fairseq's own")
def build(flags, context) -> None:
    """None: the generator calls the loop itself."""
