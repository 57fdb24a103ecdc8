"""Draft hypotheses of a sentence with glossary terms, and their versions with the terms."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fairseq_ext.core.words import words_of
from fairseq_ext.search.constraints.word_alignment import Mention, WordAlignment
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.phrases.pieces import folded, normal
from fairseq_ext.search.phrases.places import Span, Text, compounds
from fairseq_ext.search.phrases.sentence import Phrase, Placement, SentenceConstraints, SourceTerm

Alternatives = tuple[Phrase, ...]
SEARCHED = 5  # hypotheses that are searched for a word where the best has none


def mentions_of(constraints: SentenceConstraints, functions: Collection[str]) -> list[Mention]:
    """The mentions of a sentence's terms. functions: the source's function words."""
    return [
        Mention(
            tokens,
            term.targets,
            frozenset(i for i, of in enumerate(constraints.source_words) if set(of) <= set(tokens)),
            not set(functions).isdisjoint(words_of(folded(term.source))),
        )
        for term in constraints.terms
        for tokens in term.mentions
    ]


@dataclass(frozen=True)
class Rewrite:
    """A text in the place of a span of a draft (rewrites.py).

    span: characters [start, end) of the draft's text, empty for an insertion; text: what is written
    there; form: the term's form in it, as the text has it; placed_by: as in Placement; around:
    changes of the words before it that agree with it.
    """

    span: Span
    text: str
    form: str
    placed_by: str = "aligned"
    around: tuple[tuple[Span, str], ...] = ()


@dataclass(eq=False)
class Candidate:
    """One draft hypothesis and its versions with terms."""

    draft: Hypothesis
    tokens: list[int]  # what follows the tokens that the command forces (a language, a prompt)
    text: str  # of these, in NFKC
    has_term: list[bool]  # whether it has each term already
    has: Collection[Alternatives] = ()  # the phrases of the terms that it has at least once
    words: WordAlignment | None = None  # of each mention; None: not aligned yet
    spans: list[Span] = field(default_factory=list)  # of its tokens in the text, once aligned
    # places of terms without a word: an empty span
    inserted: dict[SourceTerm, Span] = field(default_factory=dict)
    # how its terms are written, once this is decided (inflection.py)
    rewrites: dict[SourceTerm, Rewrite] = field(default_factory=dict)
    unfit: set[SourceTerm] = field(default_factory=set)  # terms that do not fit its words
    # versions with the terms, one for each choice of forms, with their ranking scores
    finals: list[tuple[float, Hypothesis]] = field(default_factory=list)

    def standing(self, terms: Sequence[SourceTerm]) -> list[Span]:
        """The places of the terms that it has."""
        text = Text(self.text, False)
        return [
            span
            for term, is_held in zip(terms, self.has_term, strict=True)
            if is_held
            for form in map(normal, term.targets)
            for span in [
                *text.places(form, term.case),
                *(compounds(form, self.text) if term.in_compounds else ()),
            ]
        ]

    def is_compounded(self, term: SourceTerm) -> bool:
        """Whether it has a term only as a part of longer words."""
        text = Text(self.text, False)
        return term.in_compounds and not any(
            text.places(normal(form), term.case) for form in term.targets
        )

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
    mentions: list[Mention] = field(default_factory=list)
    # terms that the search has brought in, since a first draft had no word for them
    required: tuple[SourceTerm, ...] = ()
    source: int = -1  # its number among the encoded sources

    @property
    def first_mentions(self) -> list[int]:
        """The number of each term's first mention."""
        lengths = (len(term.mentions) for term in self.constraints.terms)
        return list(itertools.accumulate(lengths, initial=0))[:-1]

    def all_places(self, candidate: Candidate) -> list[tuple[SourceTerm, Span | None]]:
        """The terms that a candidate lacks, and the words of each."""
        each = zip(self.constraints.terms, candidate.has_term, self.first_mentions, strict=True)
        return [
            (term, candidate.place(term, first)) for term, is_held, first in each if not is_held
        ]

    def places(self, candidate: Candidate) -> list[tuple[SourceTerm, Span | None]]:
        """The same without the terms that are left."""
        left = self.left_terms(candidate)
        return [each for each in self.all_places(candidate) if each[0] not in left]

    def left_terms(self, candidate: Candidate) -> list[SourceTerm]:
        """The further mentions of terms (--glossary-repeat each) for which a candidate has no word:
        it may have a pronoun there. Labels that fit no word."""
        if all(candidate.has_term) or candidate.words is None:
            return []
        places, left = self.all_places(candidate), []
        known = {(term.source, term.phrases) for term, word in places if word is not None}
        for term, word in places:
            key = term.source, term.phrases
            is_further = key in known or term.phrases in candidate.has
            if term in candidate.unfit or (word is None and (is_further or term.is_label)):
                left.append(term)
            known.add(key)
        return left

    def placements(
        self, candidate: Candidate, displaced: Mapping[SourceTerm, str]
    ) -> tuple[Placement, ...]:
        """How each term got its place in a version of a candidate. displaced: the words in whose
        place terms stand."""
        left, out = self.left_terms(candidate), []
        for term, is_held, first in zip(
            self.constraints.terms, candidate.has_term, self.first_mentions, strict=True
        ):
            if term in left or not term.phrases:
                out.append(Placement("left", doubtful=True))
            elif is_held or term not in displaced:
                is_searched = term in self.required
                how = "compound" if candidate.is_compounded(term) else "draft"
                out.append(Placement("searched" if is_searched else how, doubtful=is_searched))
            elif term in candidate.inserted or candidate.words is None:
                out.append(Placement("inserted", doubtful=True))
            else:
                places = range(first, first + len(term.mentions))
                mention = next(i for i in places if candidate.words.span_of_mention[i] is not None)
                weight = round(candidate.words.weight[mention], 3)
                is_doubtful = candidate.words.is_doubtful(mention)
                out.append(Placement("aligned", displaced[term], weight, is_doubtful))
        return tuple(out)

    def is_doubtful(self, candidate: Candidate, term: SourceTerm) -> bool:
        """Whether little speaks for the words in whose place a term stands."""
        assert candidate.words is not None
        words, first = candidate.words, self.first_mentions[self.constraints.terms.index(term)]
        places = range(first, first + len(term.mentions))
        found = next((i for i in places if words.span_of_mention[i] is not None), None)
        return found is None or words.is_doubtful(found)

    def incomplete(self, first: int) -> list[Candidate]:
        """Those of the first candidates that lack a term."""
        return [each for each in self.candidates[:first] if not all(each.has_term)]

    def rank(self, place: int) -> int:
        """Return 0 for the best candidate, 1 for those that are searched if it lacks a word, 2 for
        others: so that the answer does not depend on the requested number of hypotheses."""
        return 1 + (place >= SEARCHED) if place else 0

    @property
    def unaligned_terms(self) -> tuple[SourceTerm, ...]:
        """The terms for which the best draft has no word, but for those that the
        search was to bring in."""
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


def elsewhere(constraints: SentenceConstraints, found: list[Hypothesis]) -> list[Hypothesis]:
    """Hypotheses of a search that was free to put the terms anywhere."""
    terms = tuple(term.text for term in constraints.terms)
    how = [Placement("searched" if t.phrases else "left", doubtful=True) for t in constraints.terms]
    return [replace(hypothesis, elsewhere=terms, placements=tuple(how)) for hypothesis in found]
