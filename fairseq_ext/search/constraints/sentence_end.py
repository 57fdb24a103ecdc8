"""Nothing follows the end of a sentence, and required phrases come before it (`--constraint-end`).

Constrained search puts a phrase that has no better place after everything else: "The children are
jumping. canine." Under this rule a row after its last sentence end may only take EOS, further final
punctuation, and closing quotes and brackets; and it may take the punctuation of that last end only
once it has all its phrases. The number of sentence ends that a translation may have is counted in
the source, at least one.

phrases/sentence_ends.py defines a sentence end. Punctuation of a required phrase is none; an
abbreviation is one unless the source has one, too.

Shapes: N sentences in the pool, S live ones, n rows, V vocabulary, F tokens of final punctuation, c
candidates of a sentence. A row's state is 2 x sentence ends so far, plus 1 if its last token ends a
sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_ext.search.beam import Beam
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.phrase_table import PhraseTable
from fairseq_ext.search.phrases.sentence_ends import SentenceEnds
from fairseq_ext.search.registry import register_feature


@dataclass
class EndFlags:
    constraint_end: bool = field(
        default=False,
        metadata={
            "help": "nothing but EOS and closing quotes follows the end of a sentence, and "
            "required phrases come before it (default: off)",
            "applies_to": "phrases",
            "needs": ("free ends",),
        },
    )


register_feature("constraints: sentence end", EndFlags, constrains=True)


class EndRule:
    """The rule for a pool's sentences.

    ruled (N,): sentences that the rule applies to; forced (N,): tokens of the prefix, to which it
    does not apply.
    """

    def __init__(self, ends: SentenceEnds, ruled: Tensor, forced: Tensor, min_len: int, eos: int):
        device = ruled.device
        self.tokens, self.allowed = ends.tokens.to(device), ends.allowed.to(device)
        self.is_restricted, self.forced, self.min_len, self.eos = ruled, forced, min_len, eos

    def start(self, beam: Beam) -> None:
        """Set the state in which no sentence has ended."""
        beam.aux["ends"] = torch.zeros(beam.rows, dtype=torch.long, device=beam.device)

    def forbid_(
        self, beam: Beam, log_probs: LogProbs, phrases: PhraseTable, forced: bool
    ) -> Tensor:
        """Ban tokens that break the rule, in place; return the next tokens (n, Q) of each row's
        phrases.

        phrases: those of the S sentences; forced: phrases must be met.
        """
        live, sentence = beam.live_index(), beam.sentence_of_row()
        state, count = (beam.by_sentence(beam.aux[name], 0) for name in ("state", "count"))
        proposed = beam.by_row(phrases.next_token(state, count))
        # (S,), or one for all
        done = torch.as_tensor(beam.longest, device=beam.device) - (
            0 if beam.lags is None else beam.lag()
        )
        # (S, 1): EOS could not follow
        early = (done + 1 < self.min_len).expand(len(beam.live))[:, None]
        lacks = (phrases.bank(state, count) < phrases.total[:, None]) & forced
        ruled = self.is_restricted[live] & (done >= self.forced[live])
        is_ruled, waits = ruled[sentence], beam.by_row(lacks | early)
        ends, behind = beam.aux["ends"] // 2, beam.aux["ends"] % 2 == 1
        allowed = self.allowed[live][sentence]
        # (1) punctuation of the last sentence end, in rows with missing phrases
        final = self.tokens.final.nonzero()[:, 0]
        gate = waits & is_ruled & ~behind & (ends + 1 >= allowed)
        abbreviates = self.tokens.abbreviates[beam.tokens[:, -1]]
        attached = self.tokens.period[final] & abbreviates[:, None]  # (n, F)
        own = (proposed[:, :, None] == final).any(1)
        log_probs.ban_each_(torch.where(gate[:, None] & ~attached & ~own, final, -1))
        # (2) all but EOS and closing tokens, in rows after their last end
        closed = is_ruled & behind & (ends >= allowed)
        # in most steps none; only checked on a CPU, where it does not wait for a device
        if closed.device.type != "cpu" or bool(closed.any()):
            follows = self.tokens.final | self.tokens.closer
            follows[self.eos] = True
            log_probs.ban_words_(closed, ~follows)
        return torch.where(is_ruled[:, None], proposed, -2)  # -2: not counted at all

    def next_state(self, beam: Beam, row: Tensor, token: Tensor, proposed: Tensor) -> Tensor:
        """Return the state (S, c) after the tokens (S, c) of rows (S, c); proposed: the result of
        `forbid_`."""
        own = (proposed[row] == token[..., None]).any(-1)
        state = self.tokens.next_state(beam.aux["ends"][row], beam.tokens[:, -1][row], token, own)
        return torch.where(proposed[row][..., 0] == -2, beam.aux["ends"][row], state)
