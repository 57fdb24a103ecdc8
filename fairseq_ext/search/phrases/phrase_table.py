"""Required phrases: how much each row has of them, as tensors, and one phrase as an automaton.

Every constraint has an automaton over tokens (below): a token that breaks a partial match is read
again from the root, so overlapping matches are found; if the target's words are known, every
segmentation of a phrase's text is recognised. A phrase needed m times counts disjoint occurrences.
A constraint may have alternatives, any one of which meets it; its size is that of the shortest. A
*pending* constraint (automaton.py) counts as met in the bank; it is met by a token that does not
continue the word, EOS included, and unwound by one that does.

Shapes: N sentences, G constraints of a sentence at most, M states of all automata, W tokens
proposed in a state at most, V vocabulary, S sentences of c rows; a row has state (..., G), of each
constraint's automaton, and count (..., G), how often each is met.

Compiled twin: kernels/phrases.hpp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.kernels.library import address, new
from fairseq_ext.search.phrases.automaton import (
    NO_PHRASES,
    Pattern,
    PhraseAutomata,
    PhraseAutomaton,
    compile_automaton,
)
from fairseq_ext.search.phrases.pieces import (
    IN,
    LED,
    ROOTS,
    SPACE,
    START,
    Boundaries,
    Pieces,
    folded,
    is_letter,
)
from fairseq_ext.search.phrases.sentence import Cased, Constraint, Phrase

PARTS = ("start", "need", "size", "total")


@dataclass
class PhraseTable:
    """The constraints of N sentences."""

    automata: PhraseAutomata
    start: Tensor  # (N, G) the state of each constraint before the first token
    need: Tensor  # (N, G) how often each constraint must be met; 0: no constraint
    size: Tensor  # (N, G) tokens that a constraint takes
    total: Tensor  # (N,) tokens of all constraints: the highest bank
    value: Tensor  # (M,) tokens of its constraint that a row has
    proposed: Tensor  # (M, W) tokens that continue the phrases, padded with -1
    longest: Tensor  # (N,) tokens of the longest proposed phrase
    words: Tensor  # (N,) required words; tokens if the target's words are not known
    ordered: bool  # constraints must be met in their order

    def for_sentences(self, sentence: Tensor) -> PhraseTable:
        """Return the table of these sentences (S,)."""
        return replace(
            self, **{name: getattr(self, name)[sentence] for name in (*PARTS, "longest", "words")}
        )

    def begin(self, sentence: Tensor) -> tuple[Tensor, Tensor]:
        """Return state (n, G) and count (n, G) of rows of these sentences (n,) without tokens."""
        state = self.start[sentence]
        return state, torch.zeros_like(state)

    def struct(self) -> object:
        """Return the table as the compiled search reads it; it must live as long."""
        automata, longs = self.automata, (self.value, self.proposed)
        of_sentences = self.need, self.size, self.total
        known = automata.is_bounded
        return new(
            "Phrases",
            automata.arcs_struct(),
            address(automata.hits, torch.int32),
            address(automata.base, torch.long),
            address(automata.root, torch.long),
            address(automata.pending, torch.bool),
            *(address(part, torch.long) for part in (*longs, *of_sentences)),
            address(automata.root_after_token if known else None, torch.long),
            address(automata.continues_word if known else None, torch.bool),
            self.need.size(1),
            self.proposed.size(1),
            int(self.ordered),
        )

    def inactive(self, count: Tensor) -> Tensor:
        """Return (S, c, G): constraints that do not matter any more, or not yet, for count
        (S, c, G)."""
        met = count >= self.need[:, None]
        return met | ((~met).cumsum(-1) != 1) if self.ordered else met

    def is_pending(self, state: Tensor, count: Tensor) -> Tensor:
        """Return (S, c, G): constraints that the next token decides on."""
        return self.automata.pending[state] & ~self.inactive(count)

    def meet_pending(
        self, state: Tensor, count: Tensor, token: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return state and count (S, c, G) after pending constraints are met, where token (S, c)
        does not continue the word; None: the text ends."""
        if not self.automata.is_bounded:
            return state, count
        met = self.is_pending(state, count)
        if token is not None:
            met &= ~self.automata.continues_word[token][..., None]
        return torch.where(met, self.automata.base[state] + IN, state), count + met

    def next_token(self, state: Tensor, count: Tensor) -> Tensor:
        """Return (S, c, G x W): the tokens that continue active constraints, -1 for others."""
        state, count = self.meet_pending(state, count, None)
        return self.proposed[state].masked_fill(self.inactive(count)[..., None], -1).flatten(2)

    def advance(self, state: Tensor, count: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Return the state (S, c, G) after token (S, c)."""
        state, count = self.meet_pending(state, count, token)
        inactive = self.inactive(count)
        after, hits, behind = self.automata.advance(state, token[..., None])
        count = torch.where(inactive, count, (count + hits).minimum(self.need[:, None]))
        return torch.where(inactive, behind, after), count

    def bank(self, state: Tensor, count: Tensor) -> Tensor:
        """Return (S, c): tokens of met and pending constraints plus the longest current partial
        match of an unmet one."""
        state, count = self.meet_pending(state, count, None)
        partial = self.value[state].masked_fill(self.inactive(count), 0)
        return (count * self.size[:, None]).sum(-1) + partial.amax(-1)

    def bank_after(self, prefixes: Sequence[Phrase]) -> Tensor:
        """Return (N,): the bank of each sentence's prefix."""
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


class Compiler:
    """A compiler of the automata of phrases, with caches.

    any_case: of banned phrases, whose texts are then compared without case.
    """

    def __init__(self, boundaries: Boundaries | None = None, any_case: bool = False):
        self.boundaries, self.any_case = boundaries, any_case
        requirement = partial(compiled_requirement, boundaries=boundaries)
        self.required = lru_cache(maxsize=1 << 15)(requirement)
        self.banned = lru_cache(maxsize=64)(self.compile_banned)
        self.banned_table: Any = None  # the last one of search/constraints/banned.py

    def compile_banned(self, phrases: Sequence[Phrase]) -> PhraseAutomaton:
        """Return the automaton of banned phrases."""
        cased = Cased("any" if self.any_case else "exact")
        patterns = patterns_of(phrases, cased, self.boundaries)
        return compile_automaton(patterns, self.boundaries, self.any_case).automaton


def build_table(
    sentences: Sequence[Sequence[Constraint]],
    ordered: bool,
    device: torch.device,
    compiler: Compiler | None = None,
) -> PhraseTable:
    """Return the table for each sentence's constraints. compiler: None for phrases as sequences of
    tokens."""
    compiler = compiler or Compiler()
    # how often each requirement of a sentence is needed; ordered ones by their places
    groups = [
        Counter(
            (place * ordered, compiler.required(tuple(sorted({*each.phrases})), each.cased))
            for place, each in enumerate(constraints)
        )
        for constraints in sentences
    ]
    parts = list(dict.fromkeys([NO_CONSTRAINT, *(part for group in groups for _, part in group)]))
    automata = PhraseAutomata([part.automaton for part in parts], compiler.boundaries, device)
    N, G = len(groups), max([1, *map(len, groups)])
    starts = dict(zip(parts, automata.starts.tolist(), strict=True))
    rows = [
        [(starts[part], times, part.size) for (_, part), times in group.items()]
        + [(0, 0, 0)] * (G - len(group))
        for group in groups
    ]
    start, need, size = torch.tensor(rows, device=device).view(N, G, 3).movedim(2, 0).contiguous()
    longest = [max([1, *(part.longest for _, part in group)]) for group in groups]
    is_continuing = None if compiler.boundaries is None else compiler.boundaries.continues_word
    words = [
        sum(min(number_of_words(p, is_continuing) for p in each.phrases) for each in constraints)
        for constraints in sentences
    ]
    W = max(part.proposed.shape[1] for part in parts)
    proposed = np.full((len(automata.base), W), -1)
    for part, first in starts.items():
        proposed[first : first + len(part.proposed), : part.proposed.shape[1]] = part.proposed
    return PhraseTable(
        automata,
        start,
        need,
        size,
        (need * size).sum(1),
        automata.joined([part.value for part in parts], np.int64),
        automata.joined([proposed], np.int64),
        torch.tensor(longest, device=device),
        torch.tensor(words, device=device),
        ordered,
    )


def number_of_words(phrase: Phrase, continues_word: Tensor | None) -> int:
    """Return the number of words of a phrase; of its tokens if it is not known which tokens
    continue a word."""
    if continues_word is None:
        return len(phrase)
    return len(phrase) - int(continues_word[list(phrase[1:])].sum())


# ---- One constraint as an automaton: its progress in each state, and the proposed next tokens
#
# The search proposes the usual segmentation of a phrase (and of its other cases, sentence.py,
# Cased); every other segmentation leads through the same states, so it counts as well. In a state
# in the middle of a usual piece, the progress is that of the longest match that ends between two
# pieces.


@dataclass(eq=False)
class Requirement:
    """A constraint's automaton of n states."""

    automaton: PhraseAutomaton
    value: np.ndarray  # (n,) tokens of the constraint that a row has
    proposed: np.ndarray  # (n, W) tokens that the search proposes, padded with -1
    size: int  # tokens of the constraint
    longest: int  # tokens of its longest form


NO_CONSTRAINT = Requirement(NO_PHRASES, np.zeros(ROOTS, int), np.full((ROOTS, 1), -1), 0, 1)


def compiled_requirement(
    alternatives: Sequence[Phrase], cased: Cased, boundaries: Boundaries | None
) -> Requirement:
    """Return the automaton of alternative phrases."""
    patterns = patterns_of(alternatives, cased, boundaries)
    automaton, items_of, paths = compile_automaton(patterns, boundaries, cased.mode == "any")
    pieces = None if boundaries is None else boundaries.pieces
    # forms that may occur anywhere are guaranteed to be possible
    size = min(len(form) for pattern in patterns if not pattern.at_start for form in pattern.forms)
    forms = [
        Form(pattern, path, form, size, pieces)
        for pattern, path in zip(patterns, paths, strict=True)
        for form in pattern.forms
    ]
    # progress and next token by the context alone: of states without items, and of forms that have
    # not begun
    unbegun = [[form.unbegun(context) for form in forms] for context in range(ROOTS)]
    value, proposed = [], []
    for items, context in zip(items_of, automaton.context.tolist(), strict=True):
        found = [
            (form.short + n, form.tokens[n])
            if (n := max((form.tokens_at.get(node, 0) for node in items), default=0))
            else unbegun_form
            for form, unbegun_form in zip(forms, unbegun[context], strict=True)
        ]
        value.append(max(0, *(has for has, _ in found)))
        proposed.append(list(dict.fromkeys(token for _, token in found if token >= 0)))
    width = max(1, *map(len, proposed))
    return Requirement(
        automaton,
        np.array(value),
        np.array([tokens + [-1] * (width - len(tokens)) for tokens in proposed]),
        size,
        max(len(form.tokens) for form in forms),
    )


def patterns_of(
    alternatives: Sequence[Phrase], cased: Cased, boundaries: Boundaries | None
) -> list[Pattern]:
    """Return phrases as sequences of tokens, or with boundaries as their texts: each once, with the
    segmentations that a search proposes."""

    def units(form: Phrase) -> Sequence[object]:
        if boundaries is None:
            return form
        text = boundaries.pieces.text_of(form)
        return folded(text) if cased.mode == "any" else text

    # by whether they count at the start only
    found: dict[bool, dict[Sequence[object], dict[Phrase, None]]] = {False: {}, True: {}}
    for at_start, forms in ((False, (*alternatives, *cased.anywhere)), (True, cased.at_start)):
        for form in forms:
            if units(form) not in found[False] or not at_start:
                found[at_start].setdefault(units(form), {})[form] = None
    return [
        Pattern(each, at_start, tuple(forms))
        for at_start, texts in found.items()
        for each, forms in texts.items()
    ]


class Form:
    """A segmentation that the search proposes. pieces: None for phrases as sequences of tokens."""

    def __init__(
        self, of: Pattern, path: list[int], tokens: Phrase, size: int, pieces: Pieces | None
    ):
        self.tokens, self.at_start = tokens, of.at_start
        # difference to the shortest form in tokens, as a number of 0 or less
        self.short = size - len(tokens)
        n = len(of.units)
        self.begins_with_letter = [False] * len(tokens)
        # number of the pattern's units after each number of tokens
        read = list(range(len(tokens) + 1))
        if pieces is not None:
            read = [min(n, len(pieces.prefix_text(tokens[:k]))) for k in range(len(tokens) + 1)]
            self.begins_with_letter = [
                is_letter(pieces.texts[token][:1] or " ") for token in tokens
            ]
        self.blanks = sum(units == 0 for units in read[1:])  # leading pieces that are spaces
        # number of tokens that lead to each node
        self.tokens_at = {path[units]: k for k, units in enumerate(read) if 0 < units < n}

    def unbegun(self, context: int) -> tuple[int, int]:
        """Return the progress before the form has begun, after a context, in tokens of the
        constraint, and the next token, -1 for none."""
        come = self.blanks if context in (LED, SPACE) else 0
        barred = (
            self.begins_with_letter[come]
            and context == IN
            or self.at_start
            and context not in (START, LED)
        )
        return 0 if self.at_start else self.short + come, -1 if barred else self.tokens[come]
