"""fairseq's selection: the 2k best continuations of a sentence (`--select topk`, the default).

2k, so that k remain even if k of them end in EOS. k = --beam.
"""

from fairseq_ext.kernels.beam import PlugRules
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Select
from fairseq_ext.search.registry import register
from fairseq_ext.search.strategies.select._best import best_of_rows


class TopK(Select):
    """The 2k best continuations of each sentence."""

    def __init__(self, k: int, children: int | None = None):
        self.k = k
        self.children = children  # most continuations of one row; None: no limit
        self.variable = children is not None

    @property
    def rules(self) -> PlugRules | None:
        return PlugRules(children=self.children)

    def __call__(self, beam: Beam, log_probs: LogProbs, pool: Pool) -> Candidates:
        best = best_of_rows(self.k, beam, log_probs, self.children)
        return Candidates(best.row, best.token, best.score, self.k)


@register("select", "topk", needs=("no constraints",), neutral=({},), paper="fairseq's own")
def build(flags, context) -> TopK:
    return TopK(context.k, context.children)
