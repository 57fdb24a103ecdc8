"""Constraints of one sentence as target tokens: the dictionary, phrases, limits, and which are met.

search/constraints/ makes them; the searches read them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.phrases.token_automaton import TokenAutomaton

# ---- The protocol of a dictionary: numbers of symbols, as in fairseq's `Dictionary`


class Dictionary(Protocol):
    """Symbols by number: `nspecial` special ones first."""

    symbols: list[str]
    indices: dict[str, int]
    count: list[int]
    nspecial: int
    bos_word: str
    eos_word: str
    pad_word: str

    def __len__(self) -> int: ...

    def __getitem__(self, idx: int) -> str:
        """Return a symbol; the unknown one's for an unused number."""

    def string(self, tensor: Tensor) -> str:
        """Return the symbols of tokens (L,), separated by spaces."""

    def index(self, sym: str) -> int:
        """Return the number of a symbol; the unknown one's for another text."""

    def bos(self) -> int: ...

    def eos(self) -> int: ...

    def pad(self) -> int: ...

    def unk(self) -> int: ...


# ---- Phrases and constraints


Phrase = tuple[int, ...]  # target token ids, at least one
Span = tuple[int, int]  # [start, end), of characters or tokens


class Unwritable(UsageError):
    """A phrase that the target dictionary has no pieces for. reason: the end of the message."""

    def __init__(self, where: str, text: str, reason: str):
        super().__init__(f"in {where}, the phrase '{text}' {reason}")
        self.reason = reason


def unusable_reason(phrase: Phrase, pieces: Sequence[str], dictionary: Dictionary) -> str | None:
    """Return why a phrase of these pieces cannot be a constraint; None if it can."""
    for token, piece in zip(phrase, pieces, strict=True):
        if token in (dictionary.eos(), dictionary.pad(), dictionary.bos()):
            return f"contains '{piece}', a symbol that no translation holds: remove it"
        if token == dictionary.unk():
            return (
                f"contains the piece '{piece}', which the target dictionary lacks: "
                "reword or remove it"
            )
    return None


def occurrences(phrase: Phrase, tokens: Phrase) -> list[Span]:
    """Return the places of a phrase in tokens, from left to right."""
    n = len(phrase)
    return [(i, i + n) for i in range(len(tokens) - n + 1) if tokens[i : i + n] == phrase]


MAX_CONSTRAINTS = 64  # of a sentence
MAX_TOKENS = 512  # of a sentence's constraints, including alternatives


@dataclass(frozen=True)
class Cased:
    """The case in which the phrases of a constraint count (`--constraint-case`).

    mode: exact, as written; initial, also with a capital at the start of the sentence; any; fitted:
    as any, and a search writes them as initial, or in the case of running text. forms: the
    segmentations of these other spellings, which the search proposes as well; running: those of
    running text. in_compounds: a noun that is a part of a longer word counts as well.
    """

    mode: str = "exact"
    forms: tuple[Phrase, ...] = ()
    running: tuple[Phrase, ...] = ()
    in_compounds: bool = False

    @property
    def anywhere(self) -> tuple[Phrase, ...]:
        """The other spellings that a search proposes at any place."""
        return self.forms if self.mode == "any" else self.running

    @property
    def at_start(self) -> tuple[Phrase, ...]:
        """Those that it proposes at the start alone."""
        return self.forms if self.mode in ("initial", "fitted") else ()


EXACT = Cased()


@dataclass(frozen=True)
class Constraint:
    """A required phrase, or several of which any one is required."""

    text: str  # as the user wrote it, "a|b" for alternatives
    phrases: tuple[Phrase, ...] = ()
    cased: Cased = EXACT


@dataclass(frozen=True)
class SourceTerm(Constraint):
    """The constraint of a mention of a glossary's term in a source, or of all of its mentions with
    --glossary-repeat once; without phrases it is unmet from the start."""

    cased: Cased = Cased("fitted")
    source: str = ""  # as in the glossary
    entry: tuple[str, ...] = ()  # its target forms as in the glossary
    line: int = 0  # of the glossary
    targets: tuple[
        str, ...
    ] = ()  # its target forms that the dictionary can write, inflected ones too
    words: tuple[tuple[int, int], ...] = ()  # of the source, of each mention
    # source tokens of each mention, by their places; none if it is not placed
    mentions: tuple[tuple[int, ...], ...] = ()
    mention: str = ""  # as in the source
    around: tuple[str, str] = ("", "")  # the source words before and behind it, "" for none
    code: str = ""  # the path, URL or identifier that the mention is a part of
    optional: bool = False  # it may be left where it does not fit
    required: bool = False  # by a phrase of the line, the file or the call as well

    def __hash__(self) -> int:  # that of all fields takes longer
        return hash((self.text, self.source, self.words))

    @property
    def case(self) -> str:
        """The case in which its target forms count."""
        return self.cased.mode

    @property
    def forms(self) -> tuple[str, ...]:
        """Its target forms, inflected ones last."""
        return tuple(dict.fromkeys((*self.entry, *self.targets)))


@dataclass(frozen=True)
class Placed:
    """How a mention of a glossary term got its place in a hypothesis, as every report says it.

    placed_by: draft (the draft has the term), compound (it has it as a part of a longer word),
    aligned (in the place of the words that translate its source term), inserted, searched, or left,
    where the term is not placed; "" where terms are not placed.
    """

    placed_by: str = ""
    displaced: str = ""  # the words of the draft in whose place it stands
    weight: float | None = None  # of their alignment
    doubtful: bool = False


@dataclass(frozen=True)
class Placement(Placed):
    """How a mention of a term got its place. term: None until it is known."""

    term: SourceTerm | None = None
    other_form: str = ""  # the words of the draft that are another form of the term, and stay

    @property
    def place(self) -> str:
        """Whether it is in the place of the words that translate its source term."""
        return "elsewhere" if self.placed_by in ("inserted", "searched") else "in place"


@dataclass(frozen=True)
class SentenceConstraints:
    """The constraints of one sentence.

    A hypothesis has a phrase if its text contains it as words (places.py), or, if the target's
    words are not known, if its tokens contain the phrase's as neighbours.
    """

    required: tuple[Constraint, ...] = ()  # order and duplicates are the user's
    # phrases that must not appear, each with its text; often one object for all sentences
    banned: Mapping[Phrase, str] = field(default_factory=dict)
    # beginning of the translation, without <s>: one at most, of one phrase
    prefix: tuple[Constraint, ...] = ()
    unmet: tuple[tuple[str, str], ...] = ()  # constraints that were dropped: text, reason
    dropped: tuple[SourceTerm, ...] = ()  # terms of a glossary that were dropped
    unknown: tuple[str, ...] = ()  # pieces of the source that its dictionary lacks
    # the tokens of each word of the source, by their places; none where terms are not placed
    source_words: tuple[tuple[int, ...], ...] = ()
    allowed: TokenAutomaton | None = None  # the outputs that are allowed; None: all

    @property
    def any_of(self) -> tuple[tuple[Phrase, ...], ...]:
        """The phrases of each required constraint."""
        return tuple(each.phrases for each in self.required)

    @property
    def text(self) -> tuple[str, ...]:
        """How the user wrote each required constraint."""
        return tuple(each.text for each in self.required)

    @property
    def beginning(self) -> Phrase:
        """The phrase of the prefix, () for none."""
        return self.prefix[0].phrases[0] if self.prefix else ()

    @cached_property
    def terms(self) -> tuple[SourceTerm, ...]:
        """The terms of glossaries, in the order of the source."""
        found = (each for each in self.required if isinstance(each, SourceTerm))
        return tuple(sorted((*found, *self.dropped), key=lambda each: each.words))

    @property
    def is_placed(self) -> bool:
        """Whether it has terms that are to be placed."""
        return any(each.mentions for each in self.terms)

    @property
    def is_empty(self) -> bool:
        """Whether the sentence has no constraints, for the search and for the report."""
        return not (self.required or self.banned or self.prefix or self.unmet or self.allowed)

    @property
    def is_restricted(self) -> bool:
        """Whether the sentence has no constraints but its allowed outputs, or none at all."""
        return not (self.required or self.banned or self.prefix)

    def required_tokens(self) -> Iterator[int]:
        """Return every token of every required phrase, and of its other cases."""
        for each in self.required:
            yield from itertools.chain.from_iterable((*each.phrases, *each.cased.forms))

    def without_terms(self) -> SentenceConstraints:
        """Return these constraints without those of its glossary terms."""
        return replace(self.without_mentions(self.terms), dropped=())

    def without_places(self) -> SentenceConstraints:
        """Return these constraints with terms that are required at any place."""
        required = (
            replace(each, mentions=()) if isinstance(each, SourceTerm) else each
            for each in self.required
        )
        dropped = tuple(replace(each, mentions=()) for each in self.dropped)
        return replace(self, required=tuple(required), dropped=dropped)

    def without_mentions(self, terms: Collection[SourceTerm]) -> SentenceConstraints:
        """Return these constraints without those of some of its glossary terms."""
        return replace(self, required=tuple(each for each in self.required if each not in terms))


EMPTY = SentenceConstraints()
Kind = tuple[frozenset[Phrase], Cased]  # constraints of one kind need disjoint occurrences


def merge(
    a: SentenceConstraints,
    b: SentenceConstraints,
    consistent: Callable[[SentenceConstraints], SentenceConstraints] | None = None,
) -> SentenceConstraints:
    """Return the constraints of both, a's first; those that the other's banned phrases exclude
    become unmet. Of two sets of allowed outputs, b's counts.

    consistent: removes excluded ones; None: by tokens (`without_conflicts`).
    Errors: UsageError for two different prefixes, or for more constraints than the limits allow.
    """
    if a.prefix and b.prefix and a.beginning != b.beginning:
        raise UsageError(
            f"a sentence has two target prefixes, '{a.prefix[0].text}' and '{b.prefix[0].text}': "
            "give one"
        )
    banned = a.banned or b.banned
    if b.banned and banned is not b.banned:
        banned = {**banned, **b.banned}
    both = SentenceConstraints(
        a.required + b.required,
        banned,
        a.prefix or b.prefix,
        a.unmet + b.unmet,
        a.dropped + b.dropped,
        allowed=b.allowed or a.allowed,
    )
    return within_limits((consistent or without_conflicts)(both), "a sentence")


def within_limits(constraints: SentenceConstraints, where: str) -> SentenceConstraints:
    """Return the same constraints (raises UsageError if they are too many)."""
    tokens = size(constraints.required)
    if len(constraints.required) > MAX_CONSTRAINTS:
        raise UsageError(
            f"{where} has {len(constraints.required)} phrases and {MAX_CONSTRAINTS} are allowed in "
            "a sentence: leave some out"
        )
    if tokens > MAX_TOKENS:
        raise UsageError(
            f"{where} has {tokens} constraint tokens and {MAX_TOKENS} are allowed in a sentence: "
            "shorten its phrases"
        )
    return constraints


def size(required: Sequence[Constraint]) -> int:
    """Return the number of tokens of all phrases."""
    return sum(len(phrase) for each in required for phrase in each.phrases)


def banned_in_tokens(constraints: SentenceConstraints) -> Callable[[Phrase], str | None]:
    """Return a function from a phrase to the text of a banned phrase that its tokens contain, None
    for none."""
    text_of = constraints.banned
    lengths = sorted(set(map(len, text_of)))

    def banned_in(phrase: Phrase) -> str | None:
        parts = (phrase[i : i + n] for n in lengths for i in range(len(phrase) - n + 1))
        return next((text_of[part] for part in parts if part in text_of), None)

    return banned_in


def without_conflicts(
    constraints: SentenceConstraints,
    look: Callable[[SentenceConstraints], Callable[[Phrase], str | None]] = banned_in_tokens,
) -> SentenceConstraints:
    """Return the constraints without phrases that contain a banned phrase; a constraint without
    phrases becomes unmet.

    look: how a banned phrase is found in another: by tokens, or by text (places.py).
    """
    if not constraints.banned or not (constraints.required or constraints.prefix):
        return constraints
    banned_in = look(constraints)

    required, unmet, dropped = [], list(constraints.unmet), list(constraints.dropped)
    for each in constraints.required:
        left = tuple(phrase for phrase in each.phrases if banned_in(phrase) is None)
        if left:
            forms = tuple(form for form in each.cased.forms if banned_in(form) is None)
            cased = replace(each.cased, forms=forms)
            required.append(replace(each, phrases=left, cased=cased))
        else:
            why = f"conflicts with the banned phrase '{banned_in(each.phrases[0])}'"
            unmet.append((each.text, why))
            dropped += [replace(each, phrases=())] if isinstance(each, SourceTerm) else []
    prefix = constraints.prefix
    if (clash := banned_in(constraints.beginning)) is not None:
        unmet.append((prefix[0].text, f"conflicts with the banned phrase '{clash}'"))
        prefix = ()
    return replace(
        constraints,
        required=tuple(required),
        unmet=tuple(unmet),
        dropped=tuple(dropped),
        prefix=prefix,
    )


def met(hypothesis: Sequence[int], constraints: SentenceConstraints, ordered: bool) -> list[bool]:
    """Return whether a hypothesis (a sequence of tokens) meets each constraint, counted in its
    tokens, independently of the search; see `met_in_turn`."""
    tokens = tuple(hypothesis)

    def places(each: Constraint) -> list[Span]:
        anywhere = (*each.phrases, *each.cased.anywhere)
        begins = (form for form in each.cased.at_start if tokens[: len(form)] == form)
        found = [span for phrase in anywhere for span in occurrences(phrase, tokens)]
        return found + [(0, len(form)) for form in begins]

    return met_in_turn(constraints, ordered, places)


def met_in_turn(
    constraints: SentenceConstraints,
    ordered: bool,
    places: Callable[[Constraint], Sequence[Span]],
) -> list[bool]:
    """Return whether each constraint is met. places: returns those of a constraint's alternatives.

    m equal constraints need m disjoint occurrences; if fewer are found, the first of them count as
    met. Different constraints may overlap. ordered: they must occur in order; after the first that
    does not occur, none is met.
    """
    reached: dict[Kind | None, float] = {}  # end of the last occurrence
    out = []
    for each in constraints.required:
        kind = None if ordered else (frozenset(each.phrases), each.cased)
        ends = [end for start, end in places(each) if start >= reached.get(kind, 0)]
        # the occurrence that ends first leaves the most room for the others
        reached[kind] = min(ends, default=math.inf)
        out.append(bool(ends))
    return out


# (tokens, constraints, ordered) -> whether each is met
Meets = Callable[[Sequence[int], SentenceConstraints, bool], list[bool]]


# ---- The key `prefix`: a given beginning of the translation


def met_with_prefix(
    tokens: list[int], constraints: SentenceConstraints, ordered: bool, meets: Meets, lead: int = 0
) -> list[bool]:
    """Return which constraints these tokens meet; the last entry is for the prefix after `lead`
    tokens, if there is one, which counts as one constraint."""
    prefix = constraints.beginning
    starts = [tuple(tokens[lead : lead + len(prefix)]) == prefix] if prefix else []
    return meets(tokens, constraints, ordered) + starts
