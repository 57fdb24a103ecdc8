"""Phrases that rows must not contain, as one automaton over tokens for each sentence.

search/phrases/automaton.py builds it, so that overlapping phrases are all banned, and so is every
segmentation of their text if the target's words are known. A row's state is one number; tokens that
would complete a phrase are banned before the search sees them. If a phrase counts as a whole word,
the token after it decides: it must continue the word.

Shapes: N sentences, M states of all automata, n rows, B tokens banned in a state at most, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.automaton import NO_PHRASES, PhraseAutomata
from fairseq_ext.search.phrases.phrase_table import Compiler
from fairseq_ext.search.phrases.sentence import Phrase
from fairseq_ext.search.phrases.token_automaton import SPAN
from fairseq_ext.search.registry import register_feature


@dataclass
class AvoidFlags:
    avoid_file: str | None = field(
        default=None,
        metadata={
            "help": "phrases that must never appear, one a line (default: none)",
            "file": True,
            "gives": "banned phrases",
        },
    )
    avoid_case: Literal["any", "exact"] = field(
        default="any",
        metadata={
            "help": "in which case a banned phrase must not appear: in any, or as written "
            "(exact) (default: any)",
            "applies_to": "banned phrases",
        },
    )


register_feature("constraints: banned", AvoidFlags, constrains=True)


@dataclass
class BannedTable:
    """The automata of N sentences."""

    automata: PhraseAutomata
    start: Tensor  # (N,) the state of each sentence before the first token
    completing_tokens: Tensor  # (M, B) tokens that would complete a phrase, padded with -1
    # (M, B) tokens that lead to a pending state, except for those of its root, padded with -1
    pending_tokens: Tensor
    start_of_list: dict[tuple[Phrase, ...], int]  # start state of each list of phrases

    def ban_(self, log_probs: LogProbs, state: Tensor, last: Tensor | None = None) -> None:
        """Ban tokens that would violate a phrase in rows (n,) of these states.

        last (n,) bool: rows that end after the next token.
        """
        automata, root = self.automata, self.automata.root[state]
        log_probs.ban_each_(
            torch.cat([self.completing_tokens[state], self.completing_tokens[root]], dim=1)
        )
        if not automata.is_bounded:
            return
        pending = automata.pending[state]
        if state.device.type != "cpu" or bool(pending.any()):
            log_probs.ban_words_(pending, ~automata.continues_word)
        if last is not None and (state.device.type != "cpu" or bool(last.any())):
            pending_tokens = torch.cat(
                [self.pending_tokens[state], self.pending_tokens[root]], dim=1
            )
            log_probs.ban_each_(pending_tokens.masked_fill(~last[:, None], -1))

    def advance(self, state: Tensor, token: Tensor) -> Tensor:
        """Return the states after a token, any shape."""
        return self.automata.advance(state, token)[0]


def build_banned(
    sentences: Sequence[Sequence[Phrase]], device: torch.device, compiler: Compiler | None = None
) -> BannedTable:
    """Return the automata of each sentence's banned phrases; equal lists share one.

    compiler: the cache of automata, with the last table, which is used again if it has all of the
    lists: in a pool whose sentences come and go, most have the same lists as before.
    """
    compiler = compiler or Compiler()
    of_object = {
        id(phrases): tuple(sorted({tuple(p) for p in phrases}))
        for phrases in {id(each): each for each in sentences}.values()
    }
    names = [of_object[id(phrases)] for phrases in sentences]
    table: BannedTable | None = compiler.banned_table
    if (
        table is None
        or table.start.device != device
        or not table.start_of_list.keys() >= set(names)
    ):
        table = compiler.banned_table = table_of(list(dict.fromkeys(names)), device, compiler)
    return replace(
        table,
        start=torch.tensor(
            [table.start_of_list[name] for name in names], dtype=torch.long, device=device
        ),
    )


def table_of(
    lists: Sequence[tuple[Phrase, ...]], device: torch.device, compiler: Compiler
) -> BannedTable:
    """Return the table of different lists of phrases."""
    parts = [NO_PHRASES, *map(compiler.banned, lists)]
    automata = PhraseAutomata(parts, compiler.boundaries, device)
    states = len(automata.base)
    state, token = automata.key // SPAN, automata.token.long()
    completes = automata.hits > 0
    pends = automata.pending[automata.target] & ~completes
    root = automata.root[state]
    pends &= (root == state) | ~torch.isin(root * SPAN + token, automata.key[pends])

    def padded(which: Tensor) -> Tensor:
        row, width = state[which], 1
        count = torch.bincount(row, minlength=states)
        width = max(1, int(count.max()))
        column = torch.arange(len(row), device=device) - (count.cumsum(0) - count)[row]
        return torch.full((states, width), -1, device=device).index_put((row, column), token[which])

    starts = dict(zip(lists, automata.starts[1:].tolist(), strict=True))
    none = torch.tensor([], dtype=torch.long, device=device)
    return BannedTable(automata, none, padded(completes), padded(pends), starts)
