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
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.automaton import Automaton, Pattern, text_automaton, token_automaton
from fairseq_ext.search.phrases.pieces import START, Boundaries, folded, word_tensors
from fairseq_ext.search.phrases.sentence import Phrase
from fairseq_ext.search.registry import register_feature

CACHE_SIZE = 64  # automata of sentences' phrases in a compiler's cache


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
    """The automata of N sentences, with their states numbered consecutively."""

    start: Tensor  # (N,) the state of each sentence before the first token
    key: Tensor  # (E,) ascending: state x vocabulary + token of every arc
    target: Tensor  # (E,) the next state of every arc
    base: Tensor  # (M,) the first root of each state's automaton
    root: Tensor  # (M,) the root whose arcs are used if a state has none for a token
    # (M,) bool: a phrase is complete, and violated unless the next token continues the word
    pending: Tensor
    completing_tokens: Tensor  # (M, B) tokens that would complete a phrase, padded with -1
    # (M, B) tokens that lead to a pending state, except for those of its root, padded with -1
    pending_tokens: Tensor
    # (V,) the root after each token, -1: unchanged; (1,) if the target's words are not known
    root_after_token: Tensor
    continues_word: Tensor  # (V,) bool: tokens that continue a word; (1,) if that is not known
    vocabulary: int
    start_of_list: dict[tuple[Phrase, ...], int]  # start state of each list of phrases

    def ban_(self, log_probs: LogProbs, state: Tensor, last: Tensor | None = None) -> None:
        """Ban tokens that would violate a phrase in rows (n,) of these states.

        last (n,) bool: rows that end after the next token.
        """
        root = self.root[state]
        log_probs.ban_each_(
            torch.cat([self.completing_tokens[state], self.completing_tokens[root]], dim=1)
        )
        if self.continues_word.numel() == 1:
            return
        pending = self.pending[state]
        if state.device.type != "cpu" or bool(pending.any()):
            log_probs.ban_words_(pending, ~self.continues_word)
        if last is not None and (state.device.type != "cpu" or bool(last.any())):
            pending_tokens = torch.cat(
                [self.pending_tokens[state], self.pending_tokens[root]], dim=1
            )
            log_probs.ban_each_(pending_tokens.masked_fill(~last[:, None], -1))

    def advance(self, state: Tensor, token: Tensor) -> Tensor:
        """Return the states after a token, any shape."""
        behind = (
            self.root_after_token[token]
            if self.root_after_token.numel() > 1
            else self.root_after_token
        )
        behind = torch.where(behind < 0, self.root[state], self.base[state] + behind)
        for at in (self.root[state], state):
            key = at * self.vocabulary + token
            place = torch.searchsorted(self.key, key).clamp_(max=self.key.numel() - 1)
            behind = torch.where(self.key[place] == key, self.target[place], behind)
        return behind


class BannedCompiler:
    """A compiler of the automata of banned phrases, with a cache.

    any_case: texts are compared without case.
    """

    def __init__(self, boundaries: Boundaries | None, any_case: bool):
        self.boundaries, self.any_case = boundaries, any_case
        self.compiled = lru_cache(maxsize=CACHE_SIZE)(self.compile)
        # the last table: in a pool whose sentences come and go, most have the same lists as before
        self.table: BannedTable | None = None

    def compile(self, phrases: tuple[Phrase, ...]) -> Automaton:
        """Return the automaton of these phrases."""
        if self.boundaries is None:
            return token_automaton([Pattern(phrase) for phrase in phrases])
        pieces = self.boundaries.pieces
        texts = dict.fromkeys(map(pieces.text_of, phrases))
        texts = dict.fromkeys(map(folded, texts)) if self.any_case else texts
        index = pieces.folded_index if self.any_case else pieces.exact_index
        return text_automaton(
            [Pattern(text) for text in texts],
            index,
            self.boundaries.whole_words,
            self.boundaries.unseen,
        )


def build_banned(
    sentences: Sequence[Sequence[Phrase]],
    vocabulary: int,
    device: torch.device,
    compiler: BannedCompiler | None = None,
) -> BannedTable:
    """Return the automata of each sentence's banned phrases; equal lists share one.

    compiler: the cache of automata, with the last table, which is used again if it has all of the
    lists.
    """
    compiler = BannedCompiler(None, False) if compiler is None else compiler
    of_object = {
        id(phrases): tuple(sorted({tuple(p) for p in phrases}))
        for phrases in {id(each): each for each in sentences}.values()
    }
    names = [of_object[id(phrases)] for phrases in sentences]
    known = compiler.table
    if (
        known is not None
        and known.start.device == device
        and all(name in known.start_of_list for name in of_object.values())
    ):
        return replace(
            known,
            start=torch.tensor(
                [known.start_of_list[name] for name in names], dtype=torch.long, device=device
            ),
        )
    first: dict[tuple[Phrase, ...], int] = {}
    parts = []
    states = 0
    for name in names:
        if name not in first:
            first[name] = states + START
            parts.append((states, compiler.compiled(name)))
            states += len(parts[-1][1].context)
    arcs = [
        (base + state, token, hits, base + target)
        for base, automaton in parts
        for state, of_state in enumerate(automaton.arcs)
        for token, (hits, target) in of_state.items()
    ]
    arcs.sort()
    pending = [flag for _, automaton in parts for flag in automaton.pending]
    completing_tokens: list[list[int]] = [[] for _ in range(states)]
    pending_tokens: list[list[int]] = [[] for _ in range(states)]
    for state, token, hits, target in arcs:
        if hits:
            completing_tokens[state].append(token)
        elif pending[target]:
            pending_tokens[state].append(token)
    base = np.repeat(
        [base for base, _ in parts], [len(automaton.context) for _, automaton in parts]
    )
    root = (base + [context for _, automaton in parts for context in automaton.context]).tolist()
    pending_tokens = [
        each if root[state] == state else sorted({*each} - {*pending_tokens[root[state]]})
        for state, each in enumerate(pending_tokens)
    ]
    behind, continues = word_tensors(compiler.boundaries, device)

    def tensor(values: Sequence) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    def padded(lists: list[list[int]]) -> Tensor:
        width = max(1, *map(len, lists))
        return tensor([each + [-1] * (width - len(each)) for each in lists])

    compiler.table = BannedTable(
        start=tensor([first[name] for name in names]),
        key=tensor([state * vocabulary + token for state, token, _, _ in arcs] or [-1]),
        target=tensor([target for *_, target in arcs] or [0]),
        base=tensor(base.tolist()),
        root=tensor(root),
        pending=torch.tensor(pending, device=device),
        completing_tokens=padded(completing_tokens),
        pending_tokens=padded(pending_tokens),
        root_after_token=behind,
        continues_word=continues,
        vocabulary=vocabulary,
        start_of_list=first,
    )
    return compiler.table
