"""Nothing follows the end of a sentence, and required phrases come before it (`--constraint-end`).

Constrained search puts a phrase that it has no place for behind everything else: "The children are
jumping. canine." Under this rule a row behind its last sentence end may take EOS, further final
punctuation, and quotes and brackets that close; and it may take the punctuation that would be that
end only once it has all its phrases. How many sentence ends a translation may have is counted in
the source, at least one.

A sentence end is a token of . ! ? … 。 ！ ？, with closing quotes and brackets or without. A period
that is attached to a digit or to a lone letter ("3.5", "J. Smith") is none, nor is punctuation that
a required phrase itself holds. Other abbreviations ("Mr.") are taken for an end unless the source
has one there too.

Shapes: N sentences in the pool, S live ones, n rows, V vocabulary, F tokens of final punctuation, c
candidates of a sentence. A row's state is 2 x sentence ends so far, plus 1 where the row stands
behind one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import regex
import torch
from torch import Tensor

from fairseq_ext.search.beam import Beam
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.phrase_table import PhraseTable
from fairseq_ext.search.phrases.pieces import kind_of, visible
from fairseq_ext.search.phrases.sentence import Dictionary

CLOSING = r"""[\p{Pe}\p{Pf}"'“‘«]"""  # the last three close quotations in German, among others
FINAL = regex.compile(rf"[.!?…。！？]+{CLOSING}*")
CLOSER = regex.compile(rf"{CLOSING}+")


@dataclass(frozen=True)
class EndTokens:
    """What each token of a vocabulary is to the end of a sentence."""

    final: Tensor  # (V,) bool: final punctuation
    closer: Tensor  # (V,) bool: closing quotes and brackets
    period: Tensor  # (V,) bool: a period without a space before it
    abbreviates: Tensor  # (V,) bool: a period attached behind it ends no sentence

    def after(
        self, state: Tensor, last: Tensor, token: Tensor, own: Tensor | bool = False
    ) -> Tensor:
        """State of rows (any shape) after a token, from the state before it and the last token;
        own: a required phrase holds it there."""
        behind = state % 2 == 1
        ends = self.final[token] & ~(self.period[token] & self.abbreviates[last])
        ends = ends & ~own if isinstance(own, Tensor) else ends
        return (
            state
            + 2 * (ends & ~behind).long()
            + (ends | (behind & self.closer[token])).long()
            - behind.long()
        )

    def count(self, tokens: Sequence[int]) -> int:
        """How many sentence ends a sequence has."""
        state = last = torch.zeros((), dtype=torch.long)
        for token in torch.tensor(tokens, dtype=torch.long):
            state, last = self.after(state, last, token), token
        return int(state) // 2

    def to(self, device: torch.device) -> EndTokens:
        """The same on a device."""
        return EndTokens(
            *(part.to(device) for part in (self.final, self.closer, self.period, self.abbreviates))
        )


def end_tokens(dictionary: Dictionary, bpe: Any) -> EndTokens:
    """What each symbol of a dictionary is to the end of a sentence; bpe: the command's encoder,
    None where there is none."""
    kind = kind_of(dictionary, bpe)
    rows = [(False,) * 4] * dictionary.nspecial
    rows += [
        read(*parts_of(symbol, kind, bpe)) for symbol in dictionary.symbols[dictionary.nspecial :]
    ]
    return EndTokens(*(torch.tensor(column) for column in zip(*rows, strict=True)))


def parts_of(symbol: str, kind: str | None, bpe: Any) -> tuple[str, bool, bool]:
    """A symbol's text, whether a space stands before it, and whether what follows
    is attached to it."""
    if kind == "gpt2" and not symbol.isdigit():
        return symbol, False, False
    text = visible(0, symbol, kind, bpe)
    return text.strip(), text.startswith(" "), not text.endswith(" ")


def read(text: str, spaced: bool, attached: bool) -> tuple[bool, bool, bool, bool]:
    """final, closer, period and abbreviates of a symbol."""
    initial = len(text) == 1 and text.isalpha() and spaced
    closer = CLOSER.fullmatch(text) is not None and not spaced
    return (
        FINAL.fullmatch(text) is not None,
        closer,
        text == "." and not spaced,
        attached and (text[-1:].isdigit() or initial),
    )


@dataclass(frozen=True)
class SentenceEnds:
    """What a pool's rows must keep to."""

    tokens: EndTokens  # of the target
    allowed: Tensor  # (N,) sentence ends that a translation may have


class EndsOfSources:
    """What translations keep to, by their sources.

    source: the sources' dictionary, None where it is not known.
    """

    def __init__(self, target: Dictionary, source: Dictionary | None, bpe: Any):
        self.target = end_tokens(target, bpe)
        self.source = None if source is None else end_tokens(source, bpe)

    def __call__(self, sources: Sequence[Sequence[int]]) -> SentenceEnds:
        """For these sources (tokens)."""
        ends = [1 if self.source is None else max(1, self.source.count(each)) for each in sources]
        return SentenceEnds(self.target, torch.tensor(ends))


@dataclass
class Rows:
    """The rows (n,) of a step."""

    state: Tensor
    last: Tensor  # their last tokens
    allowed: Tensor  # sentence ends that they may have
    open: Tensor  # bool: must not end yet
    ruled: Tensor  # bool: keep to the rule at all
    proposed: Tensor  # (n, Q) next tokens of their required phrases, -1 for none


def forbid_(log_probs: LogProbs, tokens: EndTokens, rows: Rows, eos: int) -> None:
    """Make impossible what breaks the rule."""
    ends, behind = rows.state // 2, rows.state % 2 == 1
    # (1) final punctuation that would be the last, of rows that lack something
    final = tokens.final.nonzero()[:, 0]
    gate = rows.open & rows.ruled & ~behind & (ends + 1 >= rows.allowed)
    attached = tokens.period[final] & tokens.abbreviates[rows.last][:, None]  # (n, F)
    own = (rows.proposed[:, :, None] == final).any(1)
    log_probs.ban_each_(torch.where(gate[:, None] & ~attached & ~own, final, -1))
    # (2) all but EOS and what closes, of rows behind their last end
    closed = rows.ruled & behind & (ends >= rows.allowed)
    # as in most steps; asked where that does not mean to wait for a device
    if closed.device.type == "cpu" and not bool(closed.any()):
        return
    follows = tokens.final | tokens.closer
    follows[eos] = True
    log_probs.ban_words_(closed, ~follows)


# ---- The rule over the rows of a beam
#
# For the searches with required phrases.
#
# Row state: beam.aux["ends"]. Shapes: S live sentences, n rows, Q phrases, c candidates of a
# sentence.


class EndRule:
    """The rule for a pool's sentences.

    ruled (N,): those that keep to it; forced (N,): tokens of the prefix, to which
    it does not apply.
    """

    def __init__(self, ends: SentenceEnds, ruled: Tensor, forced: Tensor, min_len: int, eos: int):
        device = ruled.device
        self.tokens, self.allowed = ends.tokens.to(device), ends.allowed.to(device)
        self.ruled, self.forced, self.min_len, self.eos = ruled, forced, min_len, eos

    def start(self, beam: Beam) -> None:
        """No sentence has ended yet."""
        beam.aux["ends"] = torch.zeros(beam.rows, dtype=torch.long, device=beam.device)

    def forbid_(
        self, beam: Beam, log_probs: LogProbs, phrases: PhraseTable, forced: bool
    ) -> Tensor:
        """Ban tokens that break the rule, in place; return the next tokens (n, Q)
        of each row's phrases.

        phrases: those of the S sentences; forced: phrases must be met, not only may.
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
        ruled = self.ruled[live] & (done >= self.forced[live])
        rows = Rows(
            beam.aux["ends"],
            beam.tokens[:, -1],
            self.allowed[live][sentence],
            beam.by_row(lacks | early),
            ruled[sentence],
            proposed,
        )
        forbid_(log_probs, self.tokens, rows, self.eos)
        return torch.where(ruled[sentence][:, None], proposed, -2)  # -2: not counted at all

    def after(self, beam: Beam, row: Tensor, token: Tensor, proposed: Tensor) -> Tensor:
        """State (S, c) after the tokens (S, c) of rows (S, c); proposed: what
        `forbid_` returned."""
        own = (proposed[row] == token[..., None]).any(-1)
        state = self.tokens.after(beam.aux["ends"][row], beam.tokens[:, -1][row], token, own)
        return torch.where(proposed[row][..., 0] == -2, beam.aux["ends"][row], state)
