"""One constraint as an automaton: what a search has of it in each state, and which tokens it proposes there.

The search proposes the usual segmentation of a phrase (and what its case allows, sentence.py, Cased); every other segmentation leads
through the same states, so it counts as well. Where a state is reached in the middle of a usual piece, the phrase has what it had at the
longest match that ends between two of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairseq_ext.search.phrases.automaton import Automaton, Pattern, of_texts, of_tokens
from fairseq_ext.search.phrases.boundaries import Boundaries
from fairseq_ext.search.phrases.phrase import Phrase
from fairseq_ext.search.phrases.pieces import IN, LED, ROOTS, SPACE, START, Pieces, capitalised, folded, is_letter
from fairseq_ext.search.phrases.sentence import Cased


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


def compiled_requirement(alternatives: Sequence[Phrase], cased: Cased, boundaries: Boundaries | None) -> Requirement:
    """The automaton of phrases any of which meets the constraint."""
    if boundaries is None:
        patterns = token_patterns(alternatives, cased)
        automaton = of_tokens(patterns)
    else:
        index = boundaries.pieces.without_case if cased.mode == "any" else boundaries.pieces.as_written
        patterns = text_patterns(alternatives, cased, boundaries.pieces)
        automaton = of_texts(patterns, index, boundaries.whole)
    pieces = None if boundaries is None else boundaries.pieces
    # what may come at any place is what can be counted on
    size = min(len(form) for pattern in patterns if not pattern.at_start for form in pattern.forms)
    forms = [Form(p, pattern, form, size, pieces) for p, pattern in enumerate(patterns) for form in pattern.forms]
    # what a row has, and the next token, by what stands in front alone: of states without items, and of forms that have not begun
    unbegun = [[form.unbegun(context) for form in forms] for context in range(ROOTS)]
    value, proposed = [], []
    for items, context in zip(automaton.items, automaton.context, strict=True):
        found = unbegun[context]
        if items:
            found = list(found)
            for i, form in enumerate(forms):
                come = [form.tokens_at[n] for node, n in items if n in form.tokens_at and form.pattern in automaton.through[node]]
                if come:
                    found[i] = form.short + max(come), form.tokens[max(come)]
        value.append(max(0, *(has for has, _ in found)))
        proposed.append(list(dict.fromkeys(token for _, token in found if token >= 0)))
    width = max(1, *map(len, proposed))
    return Requirement(
        arcs_of(automaton), np.array(automaton.context), np.array(automaton.pending, dtype=np.int64), np.array(value),
        np.array([tokens + [-1] * (width - len(tokens)) for tokens in proposed]), size, max(len(form.tokens) for form in forms),
    )  # fmt: skip


def token_patterns(alternatives: Sequence[Phrase], cased: Cased) -> list[Pattern]:
    """Phrases as rows of tokens."""
    anywhere = dict.fromkeys([*alternatives, *(cased.forms if cased.mode == "any" else ())])
    at_start = [form for form in cased.forms if cased.mode == "initial" and form not in anywhere]
    return [Pattern(form, forms=(form,)) for form in anywhere] + [Pattern(form, True, (form,)) for form in dict.fromkeys(at_start)]


def text_patterns(alternatives: Sequence[Phrase], cased: Cased, pieces: Pieces) -> list[Pattern]:
    """The texts of phrases, each once, with the segmentations in which it was given."""
    texts: dict[str, dict[Phrase, None]] = {}
    for form in [*alternatives, *(cased.forms if cased.mode == "any" else ())]:
        text = pieces.text_of(form)
        texts.setdefault(folded(text) if cased.mode == "any" else text, {})[form] = None
    found = [Pattern(text, forms=tuple(forms)) for text, forms in texts.items()]
    if cased.mode == "initial":
        capitals = dict.fromkeys(capitalised(text) for text in texts)
        forms_of = {text: tuple(dict.fromkeys(form for form in cased.forms if pieces.text_of(form) == text)) for text in capitals}
        found += [Pattern(text, True, forms_of[text]) for text in capitals if text not in texts]
    return found


class Form:
    """A segmentation that the search proposes. pieces: None for phrases that are rows of tokens."""

    def __init__(self, pattern: int, of: Pattern, tokens: Phrase, size: int, pieces: Pieces | None):
        self.pattern, self.tokens, self.at_start = pattern, tokens, of.at_start
        self.short = size - len(tokens)  # tokens that the constraint's shortest form has less, as a number below 0
        n = len(of.units)
        self.begins_with_letter = [False] * len(tokens)
        read = list(range(len(tokens) + 1))  # units of the pattern that have come with so many tokens
        if pieces is not None:
            read = [min(n, len(pieces.begun(tokens[:k]))) for k in range(len(tokens) + 1)]
            self.begins_with_letter = [is_letter(pieces.texts[token][:1] or " ") for token in tokens]
        self.blanks = sum(units == 0 for units in read[1:])  # pieces in front that are spaces
        self.tokens_at = {units: k for k, units in enumerate(read) if 0 < units < n}

    def unbegun(self, context: int) -> tuple[int, int]:
        """What a row has of it behind a context where it has not begun, in tokens of the constraint, and the next token, -1 for none."""
        come = self.blanks if context in (LED, SPACE) else 0
        barred = self.begins_with_letter[come] and context == IN or self.at_start and context not in (START, LED)
        return 0 if self.at_start else self.short + come, -1 if barred else self.tokens[come]


def never() -> Requirement:
    """What stands for no constraint."""
    none = np.zeros(ROOTS, dtype=np.int64)
    return Requirement(Arcs(none, *np.zeros((3, 0), dtype=np.int64)), np.arange(ROOTS), none, none, np.full((ROOTS, 1), -1), 0, 1)
