"""Soft terms: required phrases that are preferred, not forced (`--constraint-bonus b`).

    F. Odermatt, B. Egressy and R. Wattenhofer. Cascaded Beam Search: Plug-and-Play
    Terminology-Forcing for Neural Machine Translation. 2023. https://arxiv.org/abs/2305.14538. Only
    the raised logits of terms are used; instead of the cascade of beams there is --select dba.

It is beam search over log P(y | x) + b x (number of tokens of phrases in y): each token that
advances a phrase adds b nats, and a row that unwinds loses what it had. Tokens are counted as
dba.py counts banks: those of met phrases, and of the longest current partial match. A phrase that
would cost more than its bonus is left out, and the report says so. Scores, also those of the
output, include the bonus.
Banned phrases and prefixes are forced as in dba.py. Candidates are the 32 (or 2k) likeliest words
of each row and the next tokens of its phrases.

| symbol | flag |
| --- | --- |
| b | --constraint-bonus |

Neutral setting: b = 0, or no constraints.
"""

from functools import partial

import torch
from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, pick
from fairseq_ext.search.constraints.required import ConstraintFlags
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.phrase_table import PhraseTable
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.registry import register
from fairseq_ext.search.settings import Generation
from fairseq_ext.search.strategies.select._constraints import Tables, make_select
from fairseq_ext.search.strategies.select.dba import DBA
from fairseq_ext.search.strategies.select.topk import merge_phrase_tokens

LIKELIEST = 32  # candidate words of each row, at least


class Bonus(DBA):
    """The select strategy; its row state is that of DBA."""

    soft = True

    def __init__(self, bonus: float, *arguments, **more):
        super().__init__(*arguments, **more)
        self.bonus = bonus

    def __call__(self, beam: Beam, log_probs: LogProbs, pool: Pool) -> Candidates:
        found = super().__call__(beam, log_probs, pool)
        return Candidates(found.row, found.token, found.score, self.k, aux=found.aux)  # no banks

    def chosen(
        self, beam: Beam, log_probs: LogProbs, table: Tables, phrases: PhraseTable, *_: Tensor
    ) -> tuple[object, ...]:
        """Return row, token, bank and raised score (S, 2k) of each sentence's best, their state and
        count (S, 2k, G), and None."""
        # (S, width, G)
        state, count = (beam.by_sentence(beam.aux[name], 0) for name in ("state", "count"))
        # (1) the likeliest words of each row, and the next tokens of its phrases
        most = self.children or max(2 * self.k, LIKELIEST)
        likeliest = log_probs.topk(min(most, log_probs.size))
        row, token, score = merge_phrase_tokens(beam, log_probs, phrases, state, count, likeliest)
        of = row - beam.first_row()[:, None]
        score = score.masked_fill(~self.are_first(of, token, score), -torch.inf)
        # (2) b for each token by which a row's bank rises, -b for each by which it falls
        before = phrases.bank(state, count).gather(1, of)
        state, count = phrases.advance(pick(state, of), pick(count, of), token)
        bank = phrases.bank(state, count)
        # (3) the best of all of them
        score = score + self.bonus * (bank - before).to(score.dtype)
        score, order = score.topk(min(2 * self.k, score.size(1)), dim=1)
        row, token, bank = (each.gather(1, order) for each in (row, token, bank))
        return row, token, bank, score, pick(state, order), pick(count, order), None


def check(flags: ConstraintFlags, generation: Generation) -> None:
    """Raise UsageError if there is no bonus."""
    if flags.constraint_bonus is None:
        raise UsageError(
            "--select bonus prefers phrases by a bonus and none is given: add --constraint-bonus"
        )


@register(
    "select",
    "bonus",
    ConstraintFlags,
    check=check,
    needs=("search loop", "beam"),
    neutral=({"select": "bonus", "constraint_bonus": 0.0},),
    example=({"select": "bonus", "constraint_bonus": 2.0},),
    paper="Odermatt et al. 2023, raised logits",
    constrained=True,
)
def build(flags: ConstraintFlags, setup: Setup) -> Bonus:
    assert flags.constraint_bonus is not None  # `check`
    return make_select(partial(Bonus, flags.constraint_bonus), setup)
