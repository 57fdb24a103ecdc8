"""Draft hypotheses of a sentence with glossary terms, and their versions with the terms."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from fairseq_ext.search.constraints.word_alignment import WordAlignment
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.phrases.places import Span
from fairseq_ext.search.phrases.sentence import SentenceConstraints, SourceTerm

SEARCHED = 5  # hypotheses that are searched for a word if the best has none


@dataclass(eq=False)
class Candidate:
    """One draft hypothesis and its versions with terms."""

    draft: Hypothesis
    tokens: list[int]  # after the tokens that the command forces (a language, a prompt)
    text: str  # of these tokens, in NFKC
    has_term: list[bool]  # whether it has each term already
    words: WordAlignment | None = None  # of each mention; None: not aligned yet
    spans: list[Span] = field(default_factory=list)  # of its tokens in the text, once aligned
    # places of terms without a word: an empty span
    inserted: dict[SourceTerm, Span] = field(default_factory=dict)
    # versions with the terms, one for each choice of forms, with their ranking scores
    finals: list[tuple[float, Hypothesis]] = field(default_factory=list)

    def place(self, term: SourceTerm, first: int) -> Span | None:
        """Return the word of a term whose mentions are numbered from `first`: that of the first
        mention that has one."""
        assert self.words is not None
        return next(
            filter(None, self.words.span_of_mention[first : first + len(term.mentions)]),
            self.inserted.get(term),
        )


@dataclass(eq=False)
class Sentence:
    """A sentence of the pool and its candidates, best draft first."""

    number: int
    constraints: SentenceConstraints
    candidates: list[Candidate]
    nbest: int
    mentions: list[tuple[int, ...]] = field(default_factory=list)
    # terms that the search was forced to use, since an earlier draft had no word for them
    required: tuple[SourceTerm, ...] = ()
    source: int = -1  # its number among the encoded sources

    def places(self, candidate: Candidate) -> list[tuple[SourceTerm, Span | None]]:
        """Return the terms that a candidate lacks, and the word of each."""
        firsts = itertools.accumulate(
            (len(term.mentions) for term in self.constraints.terms), initial=0
        )
        each = zip(self.constraints.terms, candidate.has_term, firsts, strict=False)
        return [
            (term, candidate.place(term, first)) for term, is_held, first in each if not is_held
        ]

    def incomplete(self, first: int) -> list[Candidate]:
        """Return those of the first candidates that lack a term."""
        return [each for each in self.candidates[:first] if not all(each.has_term)]

    def rank(self, place: int) -> int:
        """Return 0 for the best candidate, 1 for those that are searched if it lacks a word, 2 for
        others: so that the answer does not depend on the requested number of hypotheses."""
        return 1 + (place >= SEARCHED) if place else 0

    @property
    def forms(self) -> list[tuple[str, ...]]:
        """The target forms of each mention's term."""
        return [term.targets for term in self.constraints.terms for _ in term.mentions]

    @property
    def unaligned_terms(self) -> tuple[SourceTerm, ...]:
        """Return the terms without a word in the best draft, except for those that the search was
        forced to use."""
        places = [] if self.candidates[0].words is None else self.places(self.candidates[0])
        return tuple(term for term, word in places if word is None and term not in self.required)

    def lacks(self, rank: int) -> bool:
        """Whether no candidate of this rank or a better one is complete."""
        return not any(
            self.is_complete(candidate)
            for i, candidate in enumerate(self.candidates)
            if self.rank(i) <= rank
        )

    def is_complete(self, candidate: Candidate) -> bool:
        """Whether a candidate has each term, or a word in whose place it can stand."""
        return all(candidate.has_term) or (
            candidate.words is not None
            and all(word is not None for _, word in self.places(candidate))
        )
