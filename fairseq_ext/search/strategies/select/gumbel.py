"""Sampling without replacement: --beam different hypotheses of each sentence (`--select gumbel`).

    W. Kool, H. van Hoof and M. Welling. Stochastic Beams and Where to Find Them: The Gumbel-Top-k
    Trick for Sampling Sequences Without Replacement. ICML 2019.

A beam search whose rows are ranked by G, their log-probability with Gumbel noise. A row's G
is the highest of its continuations', so they are drawn from the top down: the best word by its
probability, the next from what is left, each G below the last. The paper draws noise for all words
and shifts it; the distribution is the same. Hypotheses keep their log-probability as score, and
their places on the beam as `--stop ranked` says. The noise is that of `--sampling`.

Shapes: n rows, d continuations that are drawn, S live sentences, c = k candidates a sentence.
"""

import torch
from torch import Tensor

from fairseq_ext.kernels.log_probs import SamplingCut, draw, draw_compiled, uniform, weights
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, laid_out
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Select, Stop
from fairseq_ext.search.registry import register
from fairseq_ext.search.strategies.select.sampling import noise_of
from fairseq_ext.search.strategies.stop.ranked import Ranked

ALL = SamplingCut()


class Gumbel(Select):
    """The k continuations of each sentence that G ranks first."""

    variable = True

    def __init__(self, k: int, eos: int):
        self.k, self.eos = k, eos

    def ending(self, stop: Stop) -> Stop:
        return Ranked(self.k, self.eos)

    def start(self, beam: Beam, pool: Pool) -> None:
        # mass: log-probability of a row among the words that were possible
        for name in ("G", "mass"):
            beam.aux[name] = torch.zeros(beam.rows, dtype=torch.double, device=beam.device)

    def __call__(self, beam: Beam, log_probs: LogProbs, pool: Pool) -> Candidates:
        sentence, value = beam.sentence_of_row(), log_probs.dense().clone()
        draws = draw if log_probs.dense_for_library() is None else draw_compiled
        seed, number, step = noise_of(beam, pool)
        weight = weights(value)
        left = whole = weight.sum(1)
        row, highest = torch.arange(beam.rows, device=beam.device), beam.aux["G"]
        found: list[tuple[Tensor, ...]] = []
        # G of each sentence's candidates
        best = value.new_full((len(beam.live), self.k), -torch.inf, dtype=torch.double)
        for i in range(min(self.k, value.size(1))):
            u, v = (
                uniform(
                    seed[row],
                    number[row],
                    2 * (beam.rank_of_row()[row] * self.k + i) + j,
                    step[row],
                )
                for j in (0, 1)
            )
            if i:  # below the last one, where what is left has its highest
                at = beam.aux["mass"][row] + (left[row] / whole[row]).log()
                highest = at - torch.logaddexp(at - highest, (-torch.log1p(-v)).log())
            within = (highest > best[sentence[row], -1]) & (left[row] > 0 if i else whole[row] >= 0)
            row, highest, u = row[within], highest[within], u[within]
            if not row.numel():
                break
            token = draws(value[row], torch.arange(row.numel(), device=row.device), u, ALL)
            score, mass = (
                value[row, token.clamp(min=0)],
                (weight[row, token.clamp(min=0)] / whole[row]).log(),
            )
            possible = token >= 0
            mass = torch.where(whole[row] > 0, mass, 0.0) + beam.aux["mass"][row]
            row, highest, token, score, mass = (
                x[possible] for x in (row, highest, token, score, mass)
            )
            found.append((row, token, score + beam.last_score()[row], highest, mass))
            here = laid_out(len(beam.live), sentence[row], highest, -torch.inf)
            best = torch.cat([best, here], dim=1).sort(dim=1, descending=True).values[:, : self.k]
            left = left.index_put((row,), left[row] - weight[row, token])
            value[row, token] = -torch.inf
        row, token, score, key, mass = (torch.cat(each) for each in zip(*found, strict=True))
        order = key.sort(descending=True, stable=True).indices
        order = order[sentence[row[order]].sort(stable=True).indices]
        of = sentence[row[order]]

        def lay(each: Tensor, empty: Tensor | float) -> Tensor:
            return laid_out(len(beam.live), of, each[order], empty)[:, : self.k]

        G = lay(key, -torch.inf)
        return Candidates(
            lay(row, beam.first_row()),
            lay(token, 0),
            lay(score, -torch.inf),
            self.k,
            key=G,
            aux={"G": G, "mass": lay(mass, 0.0)},
        )


@register(
    "select",
    "gumbel",
    needs=("search loop",),
    denies=("beam", "repeatable calls"),
    samples=True,
    example=({"select": "gumbel"},),
    paper="Kool et al. 2019",
)
def build(flags, context) -> Gumbel:
    return Gumbel(context.k, context.eos)
