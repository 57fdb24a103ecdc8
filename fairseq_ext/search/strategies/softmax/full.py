"""fairseq's softmax: every word is scored (`--softmax full`, the default)."""

from torch import Tensor

from fairseq_ext.model.protocol import Decoder
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup, Softmax
from fairseq_ext.search.registry import register
from fairseq_ext.search.settings import NoFlags


class FullSoftmax(Softmax):
    """Gives every word of the vocabulary the decoder's own log-probability."""

    is_full = True

    def __init__(self, temperature: float = 1.0):
        self.temperature = temperature

    def __call__(
        self,
        decoder: Decoder,
        features: list[Tensor],
        beam: Beam | None = None,
        pool: Pool | None = None,
    ) -> LogProbs:
        return LogProbs(decoder.log_probs(features, self.temperature))


@register("softmax", "full", neutral=({},), paper="fairseq's own")
def build(flags: NoFlags, setup: Setup) -> FullSoftmax:
    return FullSoftmax(setup.temperature)
