"""Diverse beams: groups of the beam that choose in turn, with a penalty for words that earlier
groups chose (`--diverse-beam-groups`).

    A. K. Vijayakumar, M. Cogswell, R. R. Selvaraju, Q. Sun, S. Lee, D. Crandall and D. Batra.
    Diverse Beam Search: Decoding Diverse Solutions from Neural Sequence Models. AAAI 2018.

As in fairseq: rows g, g + G, g + 2G, ... of a sentence are group g, and a score keeps the penalties
for words of other groups.

Shapes: S live sentences, G groups, c candidates of a group, V words.
"""

import torch

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Select, Setup
from fairseq_ext.search.registry import register
from fairseq_ext.search.settings import Generation, NoFlags


class Diverse(Select):
    """The 2k/G best continuations of each group."""

    def __init__(self, k: int, groups: int, strength: float):
        self.k, self.groups, self.strength = k, groups, strength

    def __call__(self, beam: Beam, log_probs: LogProbs, pool: Pool) -> Candidates:
        value = log_probs.dense()
        S, V, G = len(beam.live), value.size(1), self.groups
        total = value.unflatten(0, (S, beam.width))  # (S, rows, V)
        before = beam.last_score().unflatten(0, (S, beam.width))
        started = beam.width > 1 or self.k == 1
        taken = value.new_zeros(S, V)
        found = []
        for g in range(G):
            rows = slice(g, None, G) if started else slice(None)  # all groups start from one row
            scores = (
                total[:, rows] - self.strength * taken[:, None] + before[:, rows, None]
            ).flatten(1)
            score, place = scores.topk(min(2 * self.k // G, scores.size(1) - 1), dim=1)
            token = place % V
            row = place // V * (G if started else 1) + (g if started else 0)
            taken.scatter_add_(1, token, torch.ones_like(score))
            found.append((row + beam.first_row()[:, None], token, score))
        row, token, score = (
            torch.stack(each, dim=2).flatten(1) for each in zip(*found, strict=True)
        )
        return Candidates(row, token, score, self.k)


def check(flags: NoFlags, generation: Generation) -> None:
    """Refuse a beam that cannot be divided among the groups (raises UsageError)."""
    if generation.beam % max(1, generation.diverse_beam_groups):
        raise UsageError(
            "--diverse-beam-groups shares the beam out evenly, so --beam must be a multiple of it: "
            "change one of the two"
        )


@register(
    "select",
    "diverse",
    check=check,
    needs=("search loop",),
    denies=("beam", "one order", "scores of at most 0"),
    neutral=({"select": "diverse", "diverse_beam_groups": 1},),
    paper="fairseq's own; Vijayakumar et al. 2018",
)
def build(flags: NoFlags, setup: Setup) -> Diverse:
    given = setup.settings.generation
    return Diverse(setup.k, max(1, given.diverse_beam_groups), given.diverse_beam_strength)
