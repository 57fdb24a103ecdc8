"""Required phrases: what each row has of them so far, as tensors, and one phrase as an automaton.

Every constraint has an automaton over tokens (below), so a token that breaks a partial match is
itself looked at again and overlapping matches are found; where the target's words are known, every
segmentation of a phrase's text leads through it. A phrase needed m times counts disjoint
occurrences. A constraint may have alternatives, any one of which meets it; it then has the size of
its shortest. A constraint that is *pending* (automaton.py) counts as met in the bank; it is met
when a token comes that does not continue the word, EOS included, and unwinds when one does.

Shapes: N sentences, G constraints of a sentence at most, M states of all automata, W tokens
proposed in a state at most, V vocabulary, S sentences of c rows; a row has state (..., G), of each
constraint's automaton, and count (..., G), how often each is met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.search.phrases.automaton import Automaton, Pattern, of_texts, of_tokens
from fairseq_ext.search.phrases.pieces import (
    IN,
    LED,
    OUT,
    ROOTS,
    SPACE,
    START,
    Boundaries,
    Pieces,
    capitalised,
    folded,
    is_letter,
)
from fairseq_ext.search.phrases.sentence import EXACT, Cased, Phrase

PARTS = ("start", "need", "size", "total")
KEPT = 1 << 15  # automata that a compiler keeps


class Compiler:
    """Makes the automata of constraints, each once."""

    def __init__(self, boundaries: Boundaries | None):
        self.boundaries = boundaries
        self.known: dict[tuple[tuple[Phrase, ...], Cased], Requirement] = {}

    def __call__(self, alternatives: tuple[Phrase, ...], cased: Cased) -> Requirement:
        """The automaton of phrases any of which meets the constraint."""
        if (alternatives, cased) not in self.known:
            if len(self.known) >= KEPT:
                self.known.clear()
            self.known[alternatives, cased] = compiled_requirement(
                alternatives, cased, self.boundaries
            )
        return self.known[alternatives, cased]


@dataclass
class PhraseTable:
    """The constraints of N sentences."""

    start: Tensor  # (N, G) the state of each constraint before the first token
    need: Tensor  # (N, G) how often each constraint must be met; 0: no constraint
    size: Tensor  # (N, G) tokens that a constraint takes
    total: Tensor  # (N,) tokens of all constraints: the highest bank
    first: Tensor  # (M + 1,) number of each state's first arc
    token: Tensor  # (E,) of each arc, ascending within a state
    target: Tensor  # (E,) the state it leads to
    hits: Tensor  # (E,) how often it meets the constraint
    key: Tensor  # (E,) ascending: state x span + token
    base: Tensor  # (M,) the first root of each state's automaton
    root: Tensor  # (M,) the root whose arcs count where a state has none
    pending: Tensor  # (M,) 1 where the next token decides
    value: Tensor  # (M,) tokens of its constraint that a row has
    proposed: Tensor  # (M, W) tokens that continue the phrases, padded with -1
    # (V,) the root behind each token, -1: as before; (1,) where the target's words are not known
    behind: Tensor
    glued: Tensor  # (V,) bool: tokens that continue a word; (1,) where that is not known
    span: int  # above every token that has an arc
    longest: Tensor  # (N,) tokens of the longest phrase proposed
    ordered: bool  # constraints must be met one after the other

    def of(self, sentence: Tensor) -> PhraseTable:
        """The table of these sentences (S,)."""
        return replace(
            self, **{name: getattr(self, name)[sentence] for name in (*PARTS, "longest")}
        )

    def begin(self, sentence: Tensor) -> tuple[Tensor, Tensor]:
        """State of rows (n,) of these sentences that have no tokens yet: state (n,
        G) and count (n, G)."""
        state = self.start[sentence]
        return state, torch.zeros_like(state)

    @property
    def is_bounded(self) -> bool:
        """Whether it matters what stands around a phrase."""
        return self.glued.numel() > 1

    def inactive(self, count: Tensor) -> Tensor:
        """(S, c, G): constraints that do not matter any more, or not yet, given count (S, c, G)."""
        met = count >= self.need[:, None]
        return met | ((~met).cumsum(-1) != 1) if self.ordered else met

    def is_pending(self, state: Tensor, count: Tensor) -> Tensor:
        """(S, c, G): constraints that the next token decides on."""
        return (self.pending[state] > 0) & ~self.inactive(count)

    def meet_pending(
        self, state: Tensor, count: Tensor, token: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """State (S, c, G) once what is pending is met, where token (S, c) does not continue the
        word; None: the text ends."""
        if not self.is_bounded:
            return state, count
        met = self.is_pending(state, count)
        if token is not None:
            met &= ~self.glued[token][..., None]
        return torch.where(met, self.base[state] + IN, state), count + met

    def next_token(self, state: Tensor, count: Tensor) -> Tensor:
        """(S, c, G x W): the tokens that continue active constraints, -1 for others."""
        state, count = self.meet_pending(state, count, None)
        return self.proposed[state].masked_fill(self.inactive(count)[..., None], -1).flatten(2)

    @cached_property
    def arcs(self) -> Tensor:
        """(E + 1, 3): key, target and hits of each arc, and a last one of no state."""
        return F.pad(torch.stack([self.key, self.target, self.hits], dim=1), (0, 0, 0, 1), value=-1)

    def arc(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whether states have an arc of their own for tokens, its target and its hits
        (all of one shape)."""
        key = token.clamp(max=self.span - 1) + state * self.span
        found, target, hits = self.arcs[torch.searchsorted(self.key, key)].unbind(-1)
        return found == key, target, hits

    def advance(self, state: Tensor, count: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """State (S, c, G) after token (S, c)."""
        state, count = self.meet_pending(state, count, token)
        inactive = self.inactive(count)
        behind = self.behind[token][..., None] if self.is_bounded else self.behind
        behind = torch.where(behind < 0, self.root[state], self.base[state] + behind)
        token = token[..., None].expand_as(state)
        # an arc of its own, else one of the root, else none
        (own, known), (target, at_root), (hits, root_hits) = self.arc(
            torch.stack([state, self.root[state]]), token
        )
        after = torch.where(own, target, torch.where(known, at_root, behind))
        hits = torch.where(own, hits, root_hits * known)
        count = torch.where(inactive, count, (count + hits).minimum(self.need[:, None]))
        return torch.where(inactive, behind, after), count

    def bank(self, state: Tensor, count: Tensor) -> Tensor:
        """(S, c): tokens of met and pending constraints plus the longest live partial
        match of an unmet one."""
        state, count = self.meet_pending(state, count, None)
        partial = self.value[state].masked_fill(self.inactive(count), 0)
        return (count * self.size[:, None]).sum(-1) + partial.amax(-1)

    def bank_after(self, prefixes: Sequence[Phrase]) -> Tensor:
        """(N,): the bank of each sentence's prefix."""
        sentences = torch.arange(self.total.size(0), device=self.total.device)
        state, count = (state[:, None] for state in self.begin(sentences))  # (N, 1, G)
        for i in range(max(map(len, prefixes), default=0)):
            token = torch.tensor(
                [[prefix[i] if i < len(prefix) else -1] for prefix in prefixes], device=state.device
            )
            after = self.advance(state, count, token.clamp(min=0))
            state, count = (
                torch.where(token[:, :, None] >= 0, new, old)
                for new, old in zip(after, (state, count), strict=True)
            )
        return self.bank(state, count)[:, 0]


def build_table(
    sentences: Sequence[Sequence[Sequence[Phrase]]],
    ordered: bool,
    device: torch.device,
    boundaries: Boundaries | None = None,
    cased: Sequence[Sequence[Cased]] | None = None,
    compiler: Compiler | None = None,
) -> PhraseTable:
    """The table for each sentence's constraints, each a sequence of alternative phrases (one
    for a plain constraint).

    cased: in which case each constraint counts; None: all as written. compiler: of these
    boundaries, where automata are kept.
    """
    compiler = Compiler(boundaries) if compiler is None else compiler
    known: dict[int, int] = {}  # automaton -> its first state
    parts = [never()]
    states = len(parts[0].context)
    # per sentence: first state, how often it is needed, the automaton
    groups: list[list[tuple[int, int, Requirement]]] = []
    for n, constraints in enumerate(sentences):
        merged: dict = {}
        for number, alternatives in enumerate(constraints):
            key = (
                tuple(sorted({tuple(p) for p in alternatives})),
                cased[n][number] if cased else EXACT,
            )
            name = (number, key) if ordered else key
            merged[name] = (key, merged.get(name, (key, 0))[1] + 1)
        groups.append([])
        for key, times in merged.values():
            automaton = compiler(*key)
            if id(automaton) not in known:
                known[id(automaton)] = states
                parts.append(automaton)
                states += len(automaton.context)
            groups[-1].append((known[id(automaton)], times, automaton))
    N, G = len(groups), max([1, *map(len, groups)])
    start, need, size = torch.zeros(3, N, G, dtype=torch.long)
    longest = torch.ones(N, dtype=torch.long)
    for n, group in enumerate(groups):
        for g, (state, times, automaton) in enumerate(group):
            start[n, g], need[n, g], size[n, g] = state + START, times, automaton.size
            longest[n] = max(int(longest[n]), automaton.longest)
    bases = np.cumsum([0, *(len(part.context) for part in parts[:-1])])
    arcs = np.cumsum([0, *(len(part.arcs.token) for part in parts[:-1])])
    W = max(part.proposed.shape[1] for part in parts)
    base = np.repeat(bases, [len(part.context) for part in parts])
    first = np.concatenate([part.arcs.first + arc for part, arc in zip(parts, arcs, strict=True)])
    token = np.concatenate([part.arcs.token for part in parts])
    first = np.append(first, len(token))
    span = int(token.max(initial=0)) + 2
    proposed = np.full((states, W), -1)
    for part, at in zip(parts, bases, strict=True):
        proposed[at : at + len(part.context), : part.proposed.shape[1]] = part.proposed
    behind = torch.tensor([OUT]) if boundaries is None else boundaries.behind

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(device)

    return PhraseTable(
        start=start.to(device),
        need=need.to(device),
        size=size.to(device),
        total=(need * size).sum(1).to(device),
        first=tensor(first),
        token=tensor(token),
        target=tensor(
            np.concatenate([part.arcs.target + at for part, at in zip(parts, bases, strict=True)])
        ),
        hits=tensor(np.concatenate([part.arcs.hits for part in parts])),
        key=tensor(np.repeat(np.arange(states), np.diff(first)) * span + token),
        base=tensor(base),
        root=tensor(base + np.concatenate([part.context for part in parts])),
        pending=tensor(np.concatenate([part.pending for part in parts])),
        value=tensor(np.concatenate([part.value for part in parts])),
        proposed=tensor(proposed),
        behind=behind.to(device),
        glued=(torch.zeros(1, dtype=torch.bool) if boundaries is None else boundaries.glued).to(
            device
        ),
        span=span,
        longest=longest.to(device),
        ordered=ordered,
    )


# ---- One constraint as an automaton
#
# It tells what a search has of the constraint in each state, and which tokens it proposes there.
#
# The search proposes the usual segmentation of a phrase (and what its case allows, sentence.py,
# Cased); every other segmentation leads through the same states, so it counts as well. Where a
# state is reached in the middle of a usual piece, the phrase has what it had at the longest match
# that ends between two of them.


@dataclass(frozen=True)
class Arcs:
    """The arcs of n states, those of a state ascending by token; E arcs."""

    first: np.ndarray  # (n,) number of each state's first arc
    token: np.ndarray  # (E,)
    target: np.ndarray  # (E,) state
    hits: np.ndarray  # (E,) how often the phrases are met


@dataclass(frozen=True)
class Requirement:
    """A constraint's automaton of n states, of which the first five are roots (automaton.py)."""

    arcs: Arcs
    context: np.ndarray  # (n,) the root whose arcs count where a state has none
    pending: np.ndarray  # (n,) 1 where the token behind decides whether the constraint is met
    value: np.ndarray  # (n,) tokens of the constraint that a row has
    proposed: np.ndarray  # (n, W) tokens that the search proposes, padded with -1
    size: int  # tokens that the constraint takes
    longest: int  # tokens of its longest form


def arcs_of(automaton: Automaton) -> Arcs:
    """The automaton's arcs as arrays."""
    rows = [(token, *arc) for arcs in automaton.arcs for token, arc in sorted(arcs.items())]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    lengths = [len(arcs) for arcs in automaton.arcs]
    return Arcs(np.cumsum([0, *lengths[:-1]]), table[:, 0], table[:, 2], table[:, 1])


def compiled_requirement(
    alternatives: Sequence[Phrase], cased: Cased, boundaries: Boundaries | None
) -> Requirement:
    """The automaton of phrases any of which meets the constraint."""
    if boundaries is None:
        patterns = token_patterns(alternatives, cased)
        automaton = of_tokens(patterns)
    else:
        index = (
            boundaries.pieces.without_case if cased.mode == "any" else boundaries.pieces.as_written
        )
        patterns = text_patterns(alternatives, cased, boundaries.pieces)
        automaton = of_texts(patterns, index, boundaries.whole, boundaries.unseen)
    pieces = None if boundaries is None else boundaries.pieces
    # what may come at any place is what can be counted on
    size = min(len(form) for pattern in patterns if not pattern.at_start for form in pattern.forms)
    forms = [
        Form(p, pattern, form, size, pieces)
        for p, pattern in enumerate(patterns)
        for form in pattern.forms
    ]
    # what a row has, and the next token, by what stands in front alone: of states without items,
    # and of forms that have not begun
    unbegun = [[form.unbegun(context) for form in forms] for context in range(ROOTS)]
    value, proposed = [], []
    for items, context in zip(automaton.items, automaton.context, strict=True):
        found = unbegun[context]
        if items:
            found = list(found)
            for i, form in enumerate(forms):
                come = [
                    form.tokens_at[n]
                    for node, n in items
                    if n in form.tokens_at and form.pattern in automaton.through[node]
                ]
                if come:
                    found[i] = form.short + max(come), form.tokens[max(come)]
        value.append(max(0, *(has for has, _ in found)))
        proposed.append(list(dict.fromkeys(token for _, token in found if token >= 0)))
    width = max(1, *map(len, proposed))
    return Requirement(
        arcs_of(automaton),
        np.array(automaton.context),
        np.array(automaton.pending, dtype=np.int64),
        np.array(value),
        np.array([tokens + [-1] * (width - len(tokens)) for tokens in proposed]),
        size,
        max(len(form.tokens) for form in forms),
    )


def token_patterns(alternatives: Sequence[Phrase], cased: Cased) -> list[Pattern]:
    """Phrases as rows of tokens."""
    anywhere = dict.fromkeys([*alternatives, *cased.anywhere])
    at_start = [form for form in cased.at_start if form not in anywhere]
    return [Pattern(form, forms=(form,)) for form in anywhere] + [
        Pattern(form, True, (form,)) for form in dict.fromkeys(at_start)
    ]


def text_patterns(alternatives: Sequence[Phrase], cased: Cased, pieces: Pieces) -> list[Pattern]:
    """The texts of phrases, each once, with the segmentations in which it was given."""
    texts: dict[str, dict[Phrase, None]] = {}
    for form in [*alternatives, *cased.anywhere]:
        text = pieces.text_of(form)
        texts.setdefault(folded(text) if cased.mode == "any" else text, {})[form] = None
    found = [Pattern(text, forms=tuple(forms)) for text, forms in texts.items()]
    if cased.mode in ("initial", "fitted"):
        capitals = dict.fromkeys(capitalised(text) for text in texts)
        forms_of = {
            text: tuple(dict.fromkeys(form for form in cased.forms if pieces.text_of(form) == text))
            for text in capitals
        }
        found += [Pattern(text, True, forms_of[text]) for text in capitals if text not in texts]
    return found


class Form:
    """A segmentation that the search proposes. pieces: None for phrases that are rows of tokens."""

    def __init__(self, pattern: int, of: Pattern, tokens: Phrase, size: int, pieces: Pieces | None):
        self.pattern, self.tokens, self.at_start = pattern, tokens, of.at_start
        # tokens that the constraint's shortest form has less, as a number below 0
        self.short = size - len(tokens)
        n = len(of.units)
        self.begins_with_letter = [False] * len(tokens)
        # units of the pattern that have come with so many tokens
        read = list(range(len(tokens) + 1))
        if pieces is not None:
            read = [min(n, len(pieces.begun(tokens[:k]))) for k in range(len(tokens) + 1)]
            self.begins_with_letter = [
                is_letter(pieces.texts[token][:1] or " ") for token in tokens
            ]
        self.blanks = sum(units == 0 for units in read[1:])  # pieces in front that are spaces
        self.tokens_at = {units: k for k, units in enumerate(read) if 0 < units < n}

    def unbegun(self, context: int) -> tuple[int, int]:
        """What a row has of it behind a context where it has not begun, in tokens of the
        constraint, and the next token, -1 for none."""
        come = self.blanks if context in (LED, SPACE) else 0
        barred = (
            self.begins_with_letter[come]
            and context == IN
            or self.at_start
            and context not in (START, LED)
        )
        return 0 if self.at_start else self.short + come, -1 if barred else self.tokens[come]


def never() -> Requirement:
    """What stands for no constraint."""
    none = np.zeros(ROOTS, dtype=np.int64)
    return Requirement(
        Arcs(none, *np.zeros((3, 0), dtype=np.int64)),
        np.arange(ROOTS),
        none,
        none,
        np.full((ROOTS, 1), -1),
        0,
        1,
    )
