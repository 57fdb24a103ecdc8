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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.search.phrases.automaton import Automaton, Pattern, text_automaton, token_automaton
from fairseq_ext.search.phrases.letter_case import capitalised
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
    word_tensors,
)
from fairseq_ext.search.phrases.sentence import Cased, Constraint, Phrase

PARTS = ("start", "need", "size", "total")
CACHE_SIZE = 1 << 15  # automata in a compiler's cache


class RequirementCompiler:
    """A compiler of the automata of constraints, with a cache."""

    def __init__(self, boundaries: Boundaries | None):
        self.boundaries = boundaries
        compiled = partial(compiled_requirement, boundaries=boundaries)
        self.compiled = lru_cache(maxsize=CACHE_SIZE)(compiled)


@dataclass
class PhraseTable:
    """The constraints of N sentences."""

    start: Tensor  # (N, G) the state of each constraint before the first token
    need: Tensor  # (N, G) how often each constraint must be met; 0: no constraint
    size: Tensor  # (N, G) tokens that a constraint takes
    total: Tensor  # (N,) tokens of all constraints: the highest bank
    first: Tensor  # (M + 1,) first arc of each state
    token: Tensor  # (E,) of each arc, ascending within a state
    target: Tensor  # (E,) next state of each arc
    hits: Tensor  # (E,) how often it meets the constraint
    key: Tensor  # (E,) ascending: state x span + token
    base: Tensor  # (M,) the first root of each state's automaton
    root: Tensor  # (M,) the root whose arcs are used if a state has none for a token
    pending: Tensor  # (M,) 1 if the next token decides
    value: Tensor  # (M,) tokens of its constraint that a row has
    proposed: Tensor  # (M, W) tokens that continue the phrases, padded with -1
    # (V,) the root after each token, -1: unchanged; (1,) if the target's words are not known
    root_after_token: Tensor
    continues_word: Tensor  # (V,) bool: tokens that continue a word; (1,) if that is not known
    span: int  # above every token that has an arc
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

    @property
    def is_bounded(self) -> bool:
        """Whether the characters around a phrase decide if it counts."""
        return self.continues_word.numel() > 1

    def inactive(self, count: Tensor) -> Tensor:
        """Return (S, c, G): constraints that do not matter any more, or not yet, for count
        (S, c, G)."""
        met = count >= self.need[:, None]
        return met | ((~met).cumsum(-1) != 1) if self.ordered else met

    def is_pending(self, state: Tensor, count: Tensor) -> Tensor:
        """Return (S, c, G): constraints that the next token decides on."""
        return (self.pending[state] > 0) & ~self.inactive(count)

    def meet_pending(
        self, state: Tensor, count: Tensor, token: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return state and count (S, c, G) after pending constraints are met, where token (S, c)
        does not continue the word; None: the text ends."""
        if not self.is_bounded:
            return state, count
        met = self.is_pending(state, count)
        if token is not None:
            met &= ~self.continues_word[token][..., None]
        return torch.where(met, self.base[state] + IN, state), count + met

    def next_token(self, state: Tensor, count: Tensor) -> Tensor:
        """Return (S, c, G x W): the tokens that continue active constraints, -1 for others."""
        state, count = self.meet_pending(state, count, None)
        return self.proposed[state].masked_fill(self.inactive(count)[..., None], -1).flatten(2)

    @cached_property
    def arcs(self) -> Tensor:
        """Return (E + 1, 3): key, target and hits of each arc, and a last one of no state."""
        return F.pad(torch.stack([self.key, self.target, self.hits], dim=1), (0, 0, 0, 1), value=-1)

    def arc(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return whether states have an arc of their own for tokens, its target and its hits (all
        of one shape)."""
        key = token.clamp(max=self.span - 1) + state * self.span
        found, target, hits = self.arcs[torch.searchsorted(self.key, key)].unbind(-1)
        return found == key, target, hits

    def advance(self, state: Tensor, count: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Return the state (S, c, G) after token (S, c)."""
        state, count = self.meet_pending(state, count, token)
        inactive = self.inactive(count)
        behind = (
            self.root_after_token[token][..., None] if self.is_bounded else self.root_after_token
        )
        behind = torch.where(behind < 0, self.root[state], self.base[state] + behind)
        token = token[..., None].expand_as(state)
        # an arc of the state, else one of the root, else none
        (own, known), (target, at_root), (hits, root_hits) = self.arc(
            torch.stack([state, self.root[state]]), token
        )
        after = torch.where(own, target, torch.where(known, at_root, behind))
        hits = torch.where(own, hits, root_hits * known)
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


def build_table(
    sentences: Sequence[Sequence[Constraint]],
    ordered: bool,
    device: torch.device,
    boundaries: Boundaries | None = None,
    compiler: RequirementCompiler | None = None,
) -> PhraseTable:
    """Return the table for each sentence's constraints. compiler: the cache of automata for these
    boundaries."""
    compiler = RequirementCompiler(boundaries) if compiler is None else compiler
    known: dict[int, int] = {}  # automaton -> its first state
    parts = [empty_requirement()]
    states = len(parts[0].context)
    # per sentence: first state, how often it is needed, the automaton
    groups: list[list[tuple[int, int, Requirement]]] = []
    for constraints in sentences:
        merged: dict = {}
        for number, each in enumerate(constraints):
            key = (tuple(sorted({tuple(p) for p in each.phrases})), each.cased)
            name = (number, key) if ordered else key
            merged[name] = (key, merged.get(name, (key, 0))[1] + 1)
        groups.append([])
        for key, times in merged.values():
            automaton = compiler.compiled(*key)
            if id(automaton) not in known:
                known[id(automaton)] = states
                parts.append(automaton)
                states += len(automaton.context)
            groups[-1].append((known[id(automaton)], times, automaton))
    N, G = len(groups), max([1, *map(len, groups)])
    start, need, size = torch.zeros(3, N, G, dtype=torch.long)
    longest, words = torch.ones(N, dtype=torch.long), torch.zeros(N, dtype=torch.long)
    is_continuing = None if boundaries is None else boundaries.continues_word
    for n, constraints in enumerate(sentences):
        words[n] = sum(
            min(number_of_words(p, is_continuing) for p in each.phrases) for each in constraints
        )
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
    behind, continues = word_tensors(boundaries, device)

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
        root_after_token=behind,
        continues_word=continues,
        span=span,
        longest=longest.to(device),
        words=words.to(device),
        ordered=ordered,
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


@dataclass(frozen=True)
class Arcs:
    """The arcs of n states, those of a state ascending by token; E arcs."""

    first: np.ndarray  # (n,) first arc of each state
    token: np.ndarray  # (E,)
    target: np.ndarray  # (E,) next state
    hits: np.ndarray  # (E,) how often the phrases are met


@dataclass(frozen=True)
class Requirement:
    """A constraint's automaton of n states, of which the first five are roots (automaton.py)."""

    arcs: Arcs
    context: np.ndarray  # (n,) the root whose arcs are used if a state has none for a token
    pending: np.ndarray  # (n,) 1 if the next token decides whether the constraint is met
    value: np.ndarray  # (n,) tokens of the constraint that a row has
    proposed: np.ndarray  # (n, W) tokens that the search proposes, padded with -1
    size: int  # tokens of the constraint
    longest: int  # tokens of its longest form


def arcs_of(automaton: Automaton) -> Arcs:
    """Return the automaton's arcs as arrays."""
    rows = [(token, *arc) for arcs in automaton.arcs for token, arc in sorted(arcs.items())]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    lengths = [len(arcs) for arcs in automaton.arcs]
    return Arcs(np.cumsum([0, *lengths[:-1]]), table[:, 0], table[:, 2], table[:, 1])


def compiled_requirement(
    alternatives: Sequence[Phrase], cased: Cased, boundaries: Boundaries | None
) -> Requirement:
    """Return the automaton of alternative phrases."""
    if boundaries is None:
        patterns = token_patterns(alternatives, cased)
        automaton = token_automaton(patterns)
    else:
        index = (
            boundaries.pieces.folded_index if cased.mode == "any" else boundaries.pieces.exact_index
        )
        patterns = text_patterns(alternatives, cased, boundaries.pieces)
        automaton = text_automaton(patterns, index, boundaries.whole_words, boundaries.unseen)
    pieces = None if boundaries is None else boundaries.pieces
    # forms that may occur anywhere are guaranteed to be possible
    size = min(len(form) for pattern in patterns if not pattern.at_start for form in pattern.forms)
    forms = [
        Form(p, pattern, form, size, pieces)
        for p, pattern in enumerate(patterns)
        for form in pattern.forms
    ]
    # progress and next token by the context alone: of states without items, and of forms that have
    # not begun
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
                    if n in form.tokens_at and form.pattern in automaton.patterns_of_node[node]
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
    """Return phrases as sequences of tokens."""
    anywhere = dict.fromkeys([*alternatives, *cased.anywhere])
    at_start = [form for form in cased.at_start if form not in anywhere]
    return [Pattern(form, forms=(form,)) for form in anywhere] + [
        Pattern(form, True, (form,)) for form in dict.fromkeys(at_start)
    ]


def text_patterns(alternatives: Sequence[Phrase], cased: Cased, pieces: Pieces) -> list[Pattern]:
    """Return the texts of phrases, each once, with the given segmentations."""
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
    """A segmentation that the search proposes. pieces: None for phrases as sequences of tokens."""

    def __init__(self, pattern: int, of: Pattern, tokens: Phrase, size: int, pieces: Pieces | None):
        self.pattern, self.tokens, self.at_start = pattern, tokens, of.at_start
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
        self.tokens_at = {units: k for k, units in enumerate(read) if 0 < units < n}

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


def empty_requirement() -> Requirement:
    """Return the requirement that stands for no constraint."""
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
