"""`--constraint-end` in the searches with required phrases: the rule of search/constraints/sentence_end.py over the rows of a beam.

Row state: beam.aux["ends"]. Shapes: S live sentences, n rows, Q phrases, c candidates of a sentence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_ext.search.beam import Beam
from fairseq_ext.search.constraints.sentence_end import Rows, SentenceEnds, forbid_
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.required import PhraseTable


class EndRule:
    """The rule for a pool's sentences. ruled (N,): those that keep to it; forced (N,): tokens of the prefix, to which it does not apply."""

    def __init__(self, ends: SentenceEnds, ruled: Tensor, forced: Tensor, min_len: int, eos: int):
        device = ruled.device
        self.tokens, self.allowed = ends.tokens.to(device), ends.allowed.to(device)
        self.ruled, self.forced, self.min_len, self.eos = ruled, forced, min_len, eos

    def start(self, beam: Beam) -> None:
        """No sentence has ended yet."""
        beam.aux["ends"] = torch.zeros(beam.rows, dtype=torch.long, device=beam.device)

    def forbid_(self, beam: Beam, log_probs: LogProbs, phrases: PhraseTable, forced: bool) -> Tensor:
        """Ban tokens that break the rule, in place; return the next tokens (n, Q) of each row's phrases.

        phrases: those of the S sentences; forced: phrases must be met, not only may.
        """
        live, sentence = beam.live_index(), beam.sentence_of_row()
        state, count = (beam.by_sentence(beam.aux[name], 0) for name in ("state", "count"))
        proposed = beam.by_row(phrases.next_token(state, count))
        done = torch.as_tensor(beam.longest, device=beam.device) - (0 if beam.lags is None else beam.lag())  # (S,), or one for all
        early = (done + 1 < self.min_len).expand(len(beam.live))[:, None]  # (S, 1): EOS could not follow
        lacks = (phrases.bank(state, count) < phrases.total[:, None]) & forced
        ruled = self.ruled[live] & (done >= self.forced[live])
        rows = Rows(
            beam.aux["ends"], beam.tokens[:, -1], self.allowed[live][sentence], beam.by_row(lacks | early), ruled[sentence], proposed
        )
        forbid_(log_probs, self.tokens, rows, self.eos)
        return torch.where(ruled[sentence][:, None], proposed, -2)  # -2: not counted at all

    def after(self, beam: Beam, row: Tensor, token: Tensor, proposed: Tensor) -> Tensor:
        """State (S, c) after the tokens (S, c) of rows (S, c); proposed: what `forbid_` returned."""
        own = (proposed[row] == token[..., None]).any(-1)
        state = self.tokens.after(beam.aux["ends"][row], beam.tokens[:, -1][row], token, own)
        return torch.where(proposed[row][..., 0] == -2, beam.aux["ends"][row], state)
