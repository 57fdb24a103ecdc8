"""Logits processors: length limits, prefixes, banned tokens and n-grams, penalties and a language
model, in fairseq's order.

They change the log-probabilities of a step, with every strategy.

Shapes: m positions (the n rows of a beam, or all positions of blocks), C scored words, S live
sentences, T longest history.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_ext.search.beam import Beam
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool


@dataclass
class Positions:
    """The m positions of log-probabilities (m, C), which are the rows of a beam or all positions of
    blocks, as logits processors need them."""

    at_limit: Tensor | None  # (m,) positions where only EOS is allowed; None: none
    # (m,) prefix token of each position, pad after the prefix; None: no prefix anywhere
    forced: Tensor | None
    too_short: Tensor | bool  # (m,) positions where EOS is too early; False: none, True: all
    after_prefix: Tensor | bool  # (m,) positions after the prefixes
    # (m, T) the tokens before each position, padded on the left with NOT_YET
    history: Callable[[], Tensor]


@dataclass
class LogitsProcessors:
    """The logits processors of the stock flags."""

    pad: int
    unk: int
    eos: int
    unk_penalty: float = 0.0
    min_len: int = 1  # target tokens before EOS, at least
    no_repeat_ngram: int = 0  # 0: off
    suppress: Tensor | None = None  # tokens that are never allowed
    lm: torch.nn.Module | None = None
    lm_weight: float = 1.0

    @property
    def is_plain(self) -> bool:
        """Whether only pad, the length limits and repeated n-grams change log-probabilities."""
        return not self.unk_penalty and self.suppress is None and self.lm is None

    def __call__(
        self, log_probs: LogProbs, beam: Beam, pool: Pool, at_limit: Tensor | None
    ) -> LogProbs:
        """Apply all processors to a beam; at_limit (S,): sentences that must end now, None for
        none."""
        if self.lm is not None:
            add_language_model(log_probs, beam, self.lm, self.lm_weight)
        sentence = (
            None
            if at_limit is None and pool.prefix is None and beam.lags is None
            else beam.sentence_of_row()
        )
        step: int | Tensor = (
            beam.longest if beam.lags is None else (beam.longest - beam.lag())[sentence]
        )
        rows = None if sentence is None else beam.live_index()[sentence]  # (n,) pool numbers
        limit = None if at_limit is None or sentence is None else at_limit[sentence]
        at = self.positions(pool, rows, step, limit, beam.generated_tokens)
        self.apply_(log_probs, at)
        if at.forced is not None and beam.width > 1:
            repeat_ended(
                log_probs,
                beam,
                (at.forced == self.eos) if limit is None else (at.forced == self.eos) & ~limit,
            )
        if pool.rule is not None:
            pool.rule(log_probs, beam, pool)
        return log_probs

    def positions(
        self,
        pool: Pool,
        sentence: Tensor | None,
        step: int | Tensor,
        at_limit: Tensor | None,
        history: Callable[[], Tensor],
    ) -> Positions:
        """Return the positions of these sentences (m,), pool numbers, after `step` tokens, an int
        or (m,). at_limit (m,) and history as in `Positions`. sentence may be None if the pool has
        no prefix."""
        too_short: Tensor | bool = step < self.min_len
        after_prefix: Tensor | bool = True
        forced = None
        if pool.prefix is not None:
            P = pool.prefix.size(1)
            after_prefix = step >= min(P, max(pool.max_len))
            if after_prefix is not True:
                column = torch.as_tensor(step, device=pool.prefix.device)
                forced = pool.prefix[sentence, column.clamp(max=P - 1)].masked_fill(
                    column >= P, self.pad
                )
                # fairseq: the minimum length applies when all prefixes have ended
                if pool.min_len_after_own_prefix:
                    after_prefix = forced == self.pad
                if too_short is not False:
                    too_short = after_prefix if too_short is True else too_short & after_prefix
        return Positions(at_limit, forced, too_short, after_prefix, history)

    def apply_(self, log_probs: LogProbs, at: Positions) -> None:
        """Apply all processors but the language model, in fairseq's order."""
        log_probs.ban_(self.pad)
        if self.unk_penalty:
            log_probs.add_(self.unk, -self.unk_penalty)
        if at.at_limit is not None:  # only EOS, at its true log-probability
            log_probs.only_(
                torch.full_like(at.at_limit, self.eos, dtype=torch.long)[:, None], at.at_limit
            )
        if at.forced is not None:
            rows = (
                at.forced != self.pad
                if at.at_limit is None
                else (at.forced != self.pad) & ~at.at_limit
            )
            log_probs.only_(at.forced.masked_fill(~rows, self.eos)[:, None], rows)
        ban_where(log_probs, self.eos, at.too_short)
        for token in self.suppress.tolist() if self.suppress is not None else ():
            ban_where(log_probs, token, at.after_prefix)
        if self.no_repeat_ngram:
            log_probs.ban_repeated_(at.history(), self.no_repeat_ngram)


def ban_where(log_probs: LogProbs, token: int, where: Tensor | bool) -> None:
    """Make a token impossible where the mask (m,) is true; True: everywhere, False: nowhere."""
    if isinstance(where, Tensor):
        log_probs.ban_(token, where)
    elif where:
        log_probs.ban_(token)


def add_language_model(log_probs: LogProbs, beam: Beam, lm: torch.nn.Module, weight: float) -> None:
    """Add the weighted log-probabilities of a fairseq language model over the same dictionary
    (shallow fusion)."""
    out = lm(beam.tokens)
    probs = lm.get_normalized_probs(out, log_probs=True, sample=None)  # type: ignore[operator]
    lm_log_probs = probs[:, -1, :]
    log_probs.add_dense_(weight * lm_log_probs)


def repeat_ended(log_probs: LogProbs, beam: Beam, ends: Tensor) -> None:
    """Copy a sentence's best row over its others if a prefix ends the sentence (rows ends (n,)), as
    fairseq does.

    subtle: so the n-best list of such a sentence holds the same hypothesis k times.
    """
    if bool(ends.any()):
        source = torch.where(
            ends,
            beam.first_row()[beam.sentence_of_row()],
            torch.arange(beam.rows, device=beam.device),
        )
        log_probs.reorder_(source)
        beam.tokens, beam.score = beam.tokens[source], beam.score[source]
