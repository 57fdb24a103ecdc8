"""Phrases that rows must not contain: one automaton with failure links a sentence (Aho and Corasick 1975), so that overlapping
phrases are all blocked. A row's state is one number; the tokens that would finish a phrase are banned before the search sees them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fairseq_ext.search.log_probs import LogProbs


@dataclass
class BannedTable:
    """The automata of N sentences, their states numbered through."""

    root: Tensor  # (N,) start state of each sentence
    key: Tensor  # (E,) ascending: state x vocabulary + token of every transition that does not lead to the root
    target: Tensor  # (E,) the state it leads to
    root_of: Tensor  # (states,)
    banned: Tensor  # (states, B) tokens that would finish a phrase, padded with -1
    vocabulary: int
    start: dict[tuple, int]  # start state of each list of phrases

    def ban_(self, log_probs: LogProbs, state: Tensor) -> None:
        """Make impossible what would finish a phrase in rows (n,) of these states."""
        token = self.banned[state]  # (n, B)
        column, known = log_probs.column(token.clamp(min=0))
        penalty = torch.zeros_like(column, dtype=log_probs.value.dtype).masked_fill_((token >= 0) & known, -torch.inf)
        log_probs.value = log_probs.value.scatter_add(1, column, penalty)

    def advance(self, state: Tensor, token: Tensor) -> Tensor:
        """States after a token, any shape."""
        wanted = state * self.vocabulary + token
        place = torch.searchsorted(self.key, wanted).clamp_(max=self.key.numel() - 1)
        return torch.where(self.key[place] == wanted, self.target[place], self.root_of[state])


def build_banned(
    sentences: Sequence[Sequence[Sequence[int]]], vocabulary: int, device: torch.device, known: BannedTable | None = None
) -> BannedTable:
    """The automata for each sentence's banned phrases; equal lists share one. known: a table that is used again if it has all of them."""
    of_list = {id(phrases): tuple(sorted({tuple(p) for p in phrases})) for phrases in {id(x): x for x in sentences}.values()}
    names = [of_list[id(phrases)] for phrases in sentences]
    if known is not None and all(name in known.start for name in of_list.values()):
        return replace(known, root=torch.tensor([known.start[name] for name in names], dtype=torch.long, device=device))
    shared: dict[tuple, int] = {}
    keys: list[int] = []
    targets: list[int] = []
    root_of: list[int] = []
    banned: list[list[int]] = []
    for name in names:
        if name not in shared:
            shared[name] = base = len(banned)
            transitions, bans = automaton(name)
            for state, moves in enumerate(transitions):
                for token, target in moves.items():
                    keys.append((base + state) * vocabulary + token)
                    targets.append(base + target)
            banned += [sorted(b) for b in bans]
            root_of += [base] * len(bans)
    width = max([1, *(len(b) for b in banned)])
    order = sorted(range(len(keys)), key=keys.__getitem__)

    def tensor(values: list) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    return BannedTable(
        root=tensor([shared[name] for name in names]),
        key=tensor([keys[i] for i in order] or [-1]),
        target=tensor([targets[i] for i in order] or [0]),
        root_of=tensor(root_of),
        banned=tensor([b + [-1] * (width - len(b)) for b in banned]),
        vocabulary=vocabulary,
        start=shared,
    )


def automaton(phrases: Sequence[Sequence[int]]) -> tuple[list[dict[int, int]], list[set[int]]]:
    """Complete transitions (root targets left out) and banned tokens of each state.

    States are the proper prefixes of the phrases: a state that would hold a whole phrase is never entered.
    """
    children: list[dict[int, int]] = [{}]
    bans: list[set[int]] = [set()]
    for phrase in phrases:
        state = 0
        for token in phrase[:-1]:
            if token not in children[state]:
                children[state][token] = len(children)
                children.append({})
                bans.append(set())
            state = children[state][token]
        bans[state].add(phrase[-1])
    # breadth first: a state inherits the moves and bans of the longest other state that is its suffix
    moves = [dict(children[0])] + [{} for _ in children[1:]]
    fail = [0] * len(children)
    queue = list(children[0].values())
    while queue:
        state = queue.pop(0)
        moves[state] = {**moves[fail[state]], **children[state]}
        bans[state] |= bans[fail[state]]
        for token, child in children[state].items():
            fail[child] = moves[fail[state]].get(token, 0)
            queue.append(child)
    return moves, bans
