"""What every search obeys, one short function a rule; `Rules` applies them in fairseq's order to each step's log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_ext.search.beam import NOT_YET, Beam
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool


@dataclass
class Rules:
    """The stock flags that change log-probabilities before the search sees them."""

    pad: int
    unk: int
    eos: int
    unk_penalty: float = 0.0
    min_len: int = 1  # target tokens before EOS, at least
    no_repeat_ngram: int = 0  # 0: off
    suppress: Tensor | None = None  # tokens that are never chosen
    lm: torch.nn.Module | None = None
    lm_weight: float = 1.0

    def __call__(self, log_probs: LogProbs, beam: Beam, pool: Pool, at_limit: Tensor | None) -> LogProbs:
        """Apply all rules; at_limit (S,): sentences that must end now, None when there is none."""
        if self.lm is not None:
            add_language_model(log_probs, beam, self.lm, self.lm_weight)
        log_probs.ban_(self.pad)
        if self.unk_penalty:
            log_probs.add_(self.unk, -self.unk_penalty)
        if at_limit is not None:
            must_end(log_probs, beam, at_limit, self.eos)
        if beam.lags is not None:
            self.by_sentence(log_probs, beam, pool, at_limit)
        elif pool.prefix is not None and beam.longest < pool.prefix.size(1) and beam.longest < max(pool.max_len):
            forced = force_prefix(log_probs, beam, pool.prefix, self.pad, self.eos, at_limit)
            if pool.min_len_beside_prefix and beam.longest < self.min_len:
                log_probs.ban_(self.eos, ~forced)
        else:
            if beam.longest < self.min_len:
                log_probs.ban_(self.eos)
            self.ban_suppressed(log_probs)
        if self.no_repeat_ngram:
            block_ngrams(log_probs, beam, self.no_repeat_ngram)
        return log_probs

    def ban_suppressed(self, log_probs: LogProbs, rows: Tensor | None = None) -> None:
        """Forbid the tokens that are never chosen, in every row or where the mask rows (n,) is true."""
        for token in self.suppress.tolist() if self.suppress is not None else ():
            log_probs.ban_(token, rows)

    def by_sentence(self, log_probs: LogProbs, beam: Beam, pool: Pool, at_limit: Tensor | None) -> None:
        """Prefix, least length and suppressed tokens where sentences stand at different steps."""
        sentence = beam.sentence_of_row()
        step = (beam.longest - beam.lag())[sentence]  # (n,)
        short = step < self.min_len
        free = torch.ones_like(short)  # rows beyond the prefixes
        if pool.prefix is not None:
            free = step >= min(pool.prefix.size(1), max(pool.max_len))
            forced = force_prefix(log_probs, beam, pool.prefix, self.pad, self.eos, at_limit)
            short = short & (~forced if pool.min_len_beside_prefix else free)
        log_probs.ban_(self.eos, short)
        self.ban_suppressed(log_probs, free)


def add_language_model(log_probs: LogProbs, beam: Beam, lm: torch.nn.Module, weight: float) -> None:
    """Shallow fusion: add the weighted log-probabilities of a fairseq language model over the same dictionary."""
    out = lm(beam.tokens)
    lm_log_probs = lm.get_normalized_probs(out, log_probs=True, sample=None)[:, -1, :]  # type: ignore[operator]
    if log_probs.ids is not None:
        lm_log_probs = lm_log_probs.gather(1, log_probs.ids.expand(beam.rows, -1))
    log_probs.value = log_probs.value + weight * lm_log_probs


def must_end(log_probs: LogProbs, beam: Beam, at_limit: Tensor, eos: int) -> None:
    """Leave only EOS, at its true log-probability, to sentences at their length limit."""
    rows = at_limit[beam.sentence_of_row()]
    log_probs.only_(torch.full((beam.rows,), eos, device=beam.device), rows)


def force_prefix(log_probs: LogProbs, beam: Beam, prefix: Tensor, pad: int, eos: int, at_limit: Tensor | None) -> Tensor:
    """Leave only the prefix token to each sentence whose prefix (S, P) reaches this step; return which rows (n,) those are.

    subtle: when a prefix contains EOS, fairseq first copies a sentence's best row over its others, so that its n-best list holds
    the same hypothesis k times.
    """
    sentence = beam.sentence_of_row()
    live, P = beam.live_index(), prefix.size(1)
    if beam.lags is None:
        token = prefix[live, beam.longest]
    else:
        step = beam.longest - beam.lag()
        token = prefix[live, step.clamp(max=P - 1)].masked_fill(step >= P, pad)
    token = token[sentence]  # (n,)
    forced = token != pad
    if at_limit is not None:
        forced &= ~at_limit[sentence]
    log_probs.only_(token.masked_fill(~forced, eos), forced)
    ends = forced & (token == eos)
    if beam.width > 1 and bool(ends.any()):
        source = torch.where(ends, beam.first_row()[sentence], torch.arange(beam.rows, device=beam.device))
        log_probs.reorder_(source)
        beam.tokens, beam.score = beam.tokens[source], beam.score[source]
    return forced


def block_ngrams(log_probs: LogProbs, beam: Beam, n: int) -> None:
    """Ban every token that would complete an n-gram that its row already holds."""
    tokens = beam.chosen()
    if tokens.size(1) < n:
        return
    grams = tokens.unfold(1, n, 1)  # (rows, grams, n)
    tail = tokens[:, tokens.size(1) - n + 1 :]  # (rows, n - 1)
    repeats = (grams[:, :, : n - 1] == tail[:, None]).all(-1) & (grams[:, :, 0] != NOT_YET)  # (rows, grams)
    column, known = log_probs.column(grams[:, :, n - 1].clamp(min=0))
    penalty = torch.zeros_like(column, dtype=log_probs.value.dtype).masked_fill_(repeats & known, -torch.inf)
    log_probs.value = log_probs.value.scatter_add(1, column, penalty)
