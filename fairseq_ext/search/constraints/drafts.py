"""Draft hypotheses of a sentence with glossary terms, and their versions with the terms."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from fairseq_ext.core.words import is_word, words_of
from fairseq_ext.search.constraints.word_alignment import Mention, WordAlignment, word_spans
from fairseq_ext.search.constraints.word_class import is_noun
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.phrases.function_words import stem
from fairseq_ext.search.phrases.letter_case import NOUNS_HAVE_CAPITALS
from fairseq_ext.search.phrases.pieces import folded, normal
from fairseq_ext.search.phrases.places import (
    PhraseToFind,
    Span,
    Text,
    banned_in_texts,
    compounds,
)
from fairseq_ext.search.phrases.sentence import (
    Meets,
    Phrase,
    Placement,
    SentenceConstraints,
    SourceTerm,
    banned_in_tokens,
    met_with_prefix,
)
from fairseq_ext.search.pool import Pool

Alternatives = tuple[Phrase, ...]
FURTHER_REASON = "a further mention for which the draft has no word of its own"
COPIED_REASON = "a part of code, or of a name that the draft repeats as the source has it"
FORM_REASON = "the draft has it in another form"
UNFIT_REASON = "a word that does not fit this sentence"
JOINTS = frozenset("-/\\_@#")  # between the parts of a path, a code, a compound
SEARCHED = 5  # hypotheses that are searched for a word where the best has none


def mentions_of(
    constraints: SentenceConstraints, functions: Collection[str], language: str
) -> list[Mention]:
    """Return the mentions of a sentence's terms. functions: the source's function words; language:
    of the source."""
    return [
        Mention(
            tokens,
            term.targets,
            frozenset(i for i, of in enumerate(constraints.source_words) if own.issuperset(of)),
            not set(functions).isdisjoint(words_of(folded(term.source))),
            is_noun=language in NOUNS_HAVE_CAPITALS and is_noun(term),
        )
        for term in constraints.terms
        for tokens in term.mentions
        for own in [set(tokens)]
    ]


def is_copied(term: SourceTerm, words: Sequence[str], is_known: bool) -> bool:
    """Return whether a draft of these words repeats the mention of a term as a part of a longer run
    of the source: a name, a path, code."""
    own = words_of(term.mention)
    before, behind = term.around
    # "Controller/Foreman" is no path
    joints = JOINTS if is_known or before == behind else JOINTS - {"/"}
    runs = [words_of(term.code)] * bool(term.code)
    runs += [[before, *own]] * (before in joints) + [[*own, behind]] * (behind in joints)
    if is_known:
        windows = (own, [before, *own], [*own, behind])
        runs += [each for each in windows if len(each) > 1 and all(map(is_word, each))]
    return any(run == list(words[i : i + len(run)]) for run in runs for i in range(len(words)))


def folded_words(text: str) -> tuple[str, ...]:
    """Return the words of a text, folded."""
    return tuple(folded(word) for word in words_of(text) if is_word(word))


def is_form(one: str, other: str) -> bool:
    """Return whether the words of a text are forms of the English words of one, or their adverbs:
    "using" of "use", "automatically" of "automatic"."""
    pairs = folded_words(one), folded_words(other)
    return (
        pairs[0] != pairs[1]
        and len(pairs[0]) == len(pairs[1])
        and all(
            stem(a) == stem(b) or b in (a + "ly", a + "ally") for a, b in zip(*pairs, strict=True)
        )
    )


def other_forms(term: SourceTerm, text: str) -> list[str]:
    """Return the words of an English text that are other forms of a term."""
    if not term.targets:
        return []
    words, count = word_spans(text), len(words_of(term.targets[0]))
    windows = [
        text[start:end] for (start, _), (_, end) in zip(words, words[count - 1 :], strict=False)
    ]
    return [window for window in windows if is_form(term.targets[0], window)]


def phrase_of(term: SourceTerm, text: str = "") -> PhraseToFind:
    """Return a term as a phrase to be found, with its other forms in a text."""
    forms = map(normal, (*term.targets, *other_forms(term, text)))
    mention = frozenset(itertools.chain(*term.mentions))
    return PhraseToFind(list(forms), term.case, mention, term.cased.in_compounds)


@dataclass(frozen=True)
class Rewrite:
    """A text in the place of a span of a draft. It may be wider than the words that translate the
    source term, and have words of its own around the form ("dem Verband" for "der Gruppe").

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
    # places of terms that it has in a wrong form, or with an article that cannot be
    wrong: Mapping[SourceTerm, Span] = field(default_factory=dict)
    words: WordAlignment | None = None  # of each mention; None: not aligned yet
    spans: list[Span] = field(default_factory=list)  # of its tokens in the text, once aligned
    # how terms without a word are written
    inserted: dict[SourceTerm, Rewrite] = field(default_factory=dict)
    unfit: set[SourceTerm] = field(default_factory=set)  # terms that the model would not write
    # how its terms are written, once this is decided (inflection.py)
    rewrites: dict[SourceTerm, Rewrite] = field(default_factory=dict)
    # terms of which it has another form, and its place
    other_forms: dict[SourceTerm, Span] = field(default_factory=dict)
    scores: dict[Phrase, Tensor] = field(default_factory=dict)  # of versions, by their tokens
    alternatives: list[Version] = field(default_factory=list)  # with another form of one of them
    # versions with the terms, with their ranking scores
    finals: list[tuple[float, Hypothesis]] = field(default_factory=list)

    @cached_property
    def text_words(self) -> list[str]:
        """The words and signs of the text."""
        return words_of(self.text)

    def standing(self, terms: Sequence[SourceTerm]) -> list[Span]:
        """Return the places of the terms that the draft has."""
        text = Text(self.text, False)
        return [*self.wrong.values()] + [
            span
            for term, is_held in zip(terms, self.has_term, strict=True)
            if is_held
            for form in map(normal, term.targets)
            for span in [
                *text.places(form, term.case),
                *(compounds(form, self.text) if term.cased.in_compounds else ()),
            ]
        ]

    def is_compounded(self, term: SourceTerm) -> bool:
        """Return whether the draft has a term only as a part of longer words."""
        text = Text(self.text, False)
        return term.cased.in_compounds and not any(
            text.places(normal(form), term.case) for form in term.targets
        )

    def place(self, term: SourceTerm, first: int) -> Span | None:
        """Return the word of a term whose mentions are numbered from `first`: that of the first
        mention that has one."""
        assert self.words is not None
        if term in self.wrong:
            return self.wrong[term]
        spans = self.words.span_of_mention[first : first + len(term.mentions)]
        inserted = self.inserted[term].span if term in self.inserted else None
        return next(filter(None, spans), inserted)


@dataclass(eq=False)
class Sentence:
    """A sentence of the pool and its candidates, best draft first."""

    number: int
    constraints: SentenceConstraints
    candidates: list[Candidate]
    nbest: int
    mentions: list[Mention] = field(default_factory=list)
    entry: SourceTerm | None = None  # the term that is all of its source
    source: int = -1  # its number among the encoded sources
    # terms that the model writes itself for their source terms: they may be left
    known_terms: set[SourceTerm] = field(default_factory=set)

    @cached_property
    def first_mentions(self) -> list[int]:
        """The number of each term's first mention."""
        lengths = (len(term.mentions) for term in self.constraints.terms)
        return list(itertools.accumulate(lengths, initial=0))[:-1]

    def share(self, term: SourceTerm) -> float:
        """Return the share of a term among the model's own translations of its source term."""
        forms = set(map(folded_words, term.targets))
        return max(
            (
                sum(self.mentions[i].renderings.get(form, 0.0) for form in forms)
                for i in self.mention_numbers(term)
            ),
            default=0.0,
        )

    def all_places(self, candidate: Candidate) -> list[tuple[SourceTerm, Span | None]]:
        """Return the terms that a candidate lacks, and the words of each."""
        each = zip(self.constraints.terms, candidate.has_term, self.first_mentions, strict=True)
        return [
            (term, candidate.place(term, first)) for term, is_held, first in each if not is_held
        ]

    def places(self, candidate: Candidate) -> list[tuple[SourceTerm, Span | None]]:
        """Return the terms that a candidate lacks, without those that are left, and the words of
        each."""
        left = self.left_terms(candidate)
        return [each for each in self.all_places(candidate) if each[0] not in left]

    def left_terms(self, candidate: Candidate) -> dict[SourceTerm, str]:
        """Return the terms that are left, with the reason: further mentions (--glossary-repeat
        each) for which a candidate has no word, as it may have a pronoun there, and terms that do
        not fit."""
        if all(candidate.has_term) or candidate.words is None:
            return {}
        places, left = self.all_places(candidate), dict[SourceTerm, str]()
        known = {(term.source, term.phrases) for term, word in places if word is not None}
        for term, word in places:
            key = term.source, term.phrases
            if term in candidate.wrong:
                continue
            if word is None and (key in known or term.phrases in candidate.has):
                left[term] = FURTHER_REASON
            elif term in candidate.other_forms:
                left[term] = FORM_REASON
            elif not (term.required or term is self.entry) and (
                (word is None and term.code)
                or is_copied(term, candidate.text_words, term in self.known_terms)
            ):
                left[term] = COPIED_REASON
            elif term in candidate.unfit or (word is None and term in self.known_terms):
                left[term] = UNFIT_REASON
            known.add(key)
        return left

    def placements(
        self, candidate: Candidate, rewrites: Mapping[SourceTerm, Rewrite]
    ) -> tuple[Placement, ...]:
        """Return how each term got its place in a version of a candidate."""
        left, out, words = self.left_terms(candidate), [], candidate.words
        for term, is_held in zip(self.constraints.terms, candidate.has_term, strict=True):
            mention = self.aligned_mention(candidate, term)
            span = None if mention is None or words is None else words.span_of_mention[mention]
            weight = None if mention is None or words is None else round(words.weight[mention], 3)
            if left.get(term) == FORM_REASON and span is not None:
                own = candidate.text[slice(*candidate.other_forms[term])]
                out.append(Placement("draft", weight=weight, other_form=own))
            elif term in left or not term.phrases:
                kept = "" if span is None else candidate.text[slice(*span)]
                out.append(Placement("left", kept, weight, True))
            elif is_held or term not in rewrites:
                is_compound = candidate.is_compounded(term)
                out.append(Placement("compound" if is_compound else "draft"))
            else:
                way = rewrites[term]
                removed = [span for span, written in way.around if not written]
                texts = (candidate.text[slice(*span)].strip() for span in [*removed, way.span])
                displaced = " ".join(filter(None, texts))
                out.append(self.placement(candidate, term, way, displaced, weight))
        return of_terms(self.constraints.terms, out)

    def placement(
        self,
        candidate: Candidate,
        term: SourceTerm,
        rewrite: Rewrite,
        displaced: str,
        weight: float | None,
    ) -> Placement:
        """Return how a term got its place in a version of a candidate that writes it."""
        if folded(displaced) == folded(rewrite.text) or term in candidate.wrong:
            is_compound = candidate.is_compounded(term)
            return Placement("compound" if is_compound else "draft", weight=weight)
        is_doubtful = self.is_doubtful(candidate, term)
        return Placement(rewrite.placed_by, displaced, weight, is_doubtful)

    def mention_numbers(self, term: SourceTerm) -> range:
        """Return the numbers of a term's mentions."""
        first = self.first_mentions[self.constraints.terms.index(term)]
        return range(first, first + len(term.mentions))

    def aligned_mention(self, candidate: Candidate, term: SourceTerm) -> int | None:
        """Return the first mention of a term that has a word in a candidate."""
        spans = () if candidate.words is None else candidate.words.span_of_mention
        return next((i for i in self.mention_numbers(term) if spans and spans[i]), None)

    def part(self, candidate: Candidate, term: SourceTerm) -> Span | None:
        """Return the part of a longer word that a term takes in a candidate; None: whole words."""
        mention = self.aligned_mention(candidate, term)
        if mention is None or candidate.words is None or term in candidate.wrong:
            return None
        return candidate.words.parts.get(mention)

    def is_doubtful(self, candidate: Candidate, term: SourceTerm) -> bool:
        """Return whether there is little evidence for the place of a term in a candidate."""
        mention = self.aligned_mention(candidate, term)
        return mention is None or candidate.words is None or candidate.words.is_doubtful(mention)

    def incomplete(self, first: int) -> list[Candidate]:
        """Return those of the first candidates that lack a term."""
        return [each for each in self.candidates[:first] if not all(each.has_term)]

    def rank(self, place: int) -> int:
        """Return 0 for the candidates that compete, 1 for others: so that the answer does not
        depend on the requested number of hypotheses."""
        return int(place >= SEARCHED or not self.competes(self.candidates[place]))

    def competes(self, candidate: Candidate) -> bool:
        """Return whether a candidate has a term that the best one lacks, and has in no other form,
        or is the best one."""
        first = self.candidates[0]
        each = zip(self.constraints.terms, candidate.has_term, first.has_term, strict=True)
        return candidate is first or any(
            own and not (other or term in first.other_forms) for term, own, other in each
        )

    @property
    def lacks_answer(self) -> bool:
        """Whether no candidate that competes is complete."""
        return not any(
            self.is_complete(candidate)
            for i, candidate in enumerate(self.candidates)
            if not self.rank(i)
        )

    def is_complete(self, candidate: Candidate) -> bool:
        """Return whether a candidate has each term, or a word in whose place it can stand."""
        return all(candidate.has_term) or (
            candidate.words is not None
            and all(word is not None for _, word in self.places(candidate))
        )


@dataclass(eq=False)
class Version:
    """A draft with terms.

    rewrites: of the terms that it writes; tokens (L,): EOS and forced tokens included; changes: of
    the draft's text, from left to right; scores (L,): log-probabilities, once computed.
    """

    sentence: Sentence
    candidate: Candidate
    rewrites: Mapping[SourceTerm, Rewrite]
    tokens: list[int]
    changes: Sequence[tuple[Span, str]] = ()
    scores: Tensor = field(default_factory=lambda: Tensor())


def elsewhere(constraints: SentenceConstraints, found: list[Hypothesis]) -> list[Hypothesis]:
    """Return the hypotheses of a search that could put the terms anywhere."""
    how = [Placement("searched" if t.phrases else "left", doubtful=True) for t in constraints.terms]
    placements = of_terms(constraints.terms, how)
    return [replace(hypothesis, placements=placements) for hypothesis in found]


def of_terms(terms: Sequence[SourceTerm], how: Sequence[Placement]) -> tuple[Placement, ...]:
    """Return placements, each with its term."""
    return tuple(replace(each, term=term) for term, each in zip(terms, how, strict=True))


# ---- The answers of a sentence: its drafts with terms that meet all of its constraints


def usable_hypotheses(
    pool: Pool, sentence: Sentence, first: int, meets: Meets, unk: int
) -> list[Hypothesis]:
    """Return the versions, with terms, of the first `first` candidates that meet all constraints;
    of equal versions the first.

    meets: as for GlossaryPlacement; unk: the unknown word, of which a version has no more than its
    draft.
    """
    constraints, lead = sentence.constraints, pool.lead_of(sentence.number)
    banned = banned_in(pool)(constraints) if constraints.banned else lambda tokens: None
    out: dict[tuple[int, ...], Hypothesis] = {}
    finals = (
        (sentence.rank(i), -value, final, each)
        for i, each in enumerate(sentence.candidates[:first])
        for value, final in each.finals
    )
    for _, _, final, candidate in sorted(finals, key=lambda each: each[:2]):
        tokens = tuple(final.tokens.tolist())
        is_allowed = (
            tokens not in out
            and tokens.count(unk) <= candidate.draft.tokens.tolist().count(unk)
            and banned(tokens[:-1]) is None
        )
        left = sentence.left_terms(candidate)
        placed = constraints.without_mentions(list(left))
        if is_allowed and all(met_with_prefix(list(tokens), placed, pool.ordered, meets, lead)):
            out[tokens] = replace(
                final,
                tokens=final.tokens.to(pool.length.device),
                left_terms=tuple((term.text, why) for term, why in left.items()),
            )
    return list(out.values())


def banned_in(pool: Pool) -> Callable[[SentenceConstraints], Callable[[Phrase], str | None]]:
    """Return the function that finds banned phrases in tokens as the search does."""
    if pool.boundaries is None:
        return banned_in_tokens
    return banned_in_texts(pool.boundaries, "any" if pool.banned_in_any_case else "exact")
