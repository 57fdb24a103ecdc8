"""The forms of terms in drafts, and whether a term is left.

Each term has its forms as alternatives, in an inflected language those of search/phrases/forms.py;
in the place of a noun the words before it may change with it (search/phrases/agreement.py). The
models choose: the sentence with the highest probability, the draft's own words among the
candidates. Sums are compared, as a mean favours forms of many tokens. Terms are chosen one after
the other, nouns first, since adjectives agree with them. Of alternatives that the glossary writes
(a|b) the first is preferred.

A term that the model knows, as it writes it itself for the source term alone, is often a common
word in a sentence, which the term does not translate ("Set", "Open"). There the draft without it is
a candidate too: the term is left where it costs the sentence more than `KNOWN_COST`. A term that
the model does not know is an order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fairseq_ext.search.constraints.drafts import Candidate, Rewrite, Sentence, Version
from fairseq_ext.search.constraints.forced_decoding import Sources
from fairseq_ext.search.constraints.term_writer import PARTS_BEHIND, TermWriter, hyphened
from fairseq_ext.search.phrases.agreement import LANGUAGES, has_noun
from fairseq_ext.search.phrases.pieces import folded
from fairseq_ext.search.phrases.places import Span, overlap
from fairseq_ext.search.phrases.sentence import SourceTerm
from fairseq_ext.search.pool import Pool

KNOWN_COST = 8.0  # nats that a term which the model knows may cost its sentence
# nats a token by which another alternative of an entry must be better than the first
OTHER_COST = 1.0
WRONG_MARGIN = 2.0  # that the draft's own words must be better by, where they do not agree
Options = list[tuple[SourceTerm, list[Rewrite]]]  # the terms of a draft, and ways to write them
Score = Callable[[Pool, Sources, Sequence[Version], bool], None]
COMPARED = 4  # ways that are compared by the whole sentence


class Choice(NamedTuple):
    """A draft with a term (way None: without it). bonus: what speaks for it but its probability."""

    version: Version
    term: SourceTerm
    way: Rewrite | None
    bonus: float  # nats

    @property
    def total(self) -> float:
        """The log-probability of the sentence, with the bonus."""
        return float(self.version.scores.sum()) + self.bonus


class Inflection:
    """Chooses the forms of terms in drafts. score_versions_: that of GlossaryPlacement."""

    def __init__(self, writer: TermWriter, score_versions_: Score):
        self.writer, self.score_versions_ = writer, score_versions_

    @property
    def has_agreement(self) -> bool:
        """Whether it is known for the target language which words agree."""
        return self.writer.language in LANGUAGES

    def __call__(self, pool: Pool, sources: Sources, sentences: Sequence[Sentence]) -> None:
        """Choose the rewrites of the terms of all drafts that are still to be written."""
        drafts = [
            (sentence, candidate, self.options(sentence, candidate))
            for sentence in sentences
            for candidate in sentence.incomplete(len(sentence.candidates))
            if sentence.is_complete(candidate) and not candidate.finals
        ]
        for _, candidate, options in drafts:
            candidate.rewrites = {
                term: as_it_is(candidate, term) if term in candidate.wrong else ways[0]
                for term, ways in options
            }
        for turn in range(max((len(options) for *_, options in drafts), default=0)):
            self.choose(pool, sources, [each for each in drafts if turn < len(each[2])], turn)

    def options(self, sentence: Sentence, candidate: Candidate) -> Options:
        """Return the ways to write each term of a draft, nouns first."""
        if sentence.entry is not None:  # as the glossary has it
            written = sentence.entry.text.split("|")
            text = next((t for t in written if folded(t) == folded(candidate.text)), written[0])
            return [(sentence.entry, [Rewrite((0, len(candidate.text)), text, text)])]
        places = [(term, span) for term, span in sentence.places(candidate) if span is not None]
        spans = [span for _, span in places]
        found = [
            (
                term,
                self.writer.inserted(term, candidate.inserted[term], candidate.text)
                if term in candidate.inserted
                else self.joined(sentence, candidate, term, span)
                or self.writer.inflected(
                    term, candidate.text, span, spans, longer_word(candidate, term)
                )
                if self.has_agreement
                else self.writer.choices(term, candidate.text, span),
            )
            for term, span in places
        ]
        return sorted(found, key=lambda each: not any(map(has_noun, each[0].targets)))

    def joined(
        self, sentence: Sentence, candidate: Candidate, term: SourceTerm, span: Span
    ) -> list[Rewrite]:
        """Return the ways to write a term in the place of a part of a longer word."""
        part, whole = sentence.part(candidate, term), span
        if part is None and PARTS_BEHIND.match(candidate.text, span[1]):
            part, whole = span, hyphened(candidate.text, span)
        is_split = any(overlap(whole, each.span) for each in candidate.inserted.values())
        if part is None or is_split or not any(map(has_noun, term.targets)):
            return []
        return self.writer.joined(term, candidate.text, whole, part)

    def choose(
        self,
        pool: Pool,
        sources: Sources,
        drafts: Sequence[tuple[Sentence, Candidate, Options]],
        turn: int,
    ) -> None:
        """Choose the rewrite of one term of each draft."""
        choices: dict[Candidate, list[Choice]] = {}
        for sentence, candidate, options in drafts:
            choices[candidate] = self.choices(pool, sentence, candidate, options, turn)
        many = [each for of in choices.values() if len(of) > COMPARED for each in of]
        self.score_versions_(pool, sources, [each.version for each in many], True)
        for candidate, of in choices.items():
            if len(of) > COMPARED:
                ranked = sorted(of, key=lambda each: -each.total)
                best = [each for i, each in enumerate(ranked) if i < COMPARED or each.way is None]
                choices[candidate] = best
        left = [each for of in choices.values() for each in of]
        self.score_versions_(pool, sources, [each.version for each in left], False)
        for candidate, of in choices.items():
            for each in of:
                candidate.scores[tuple(each.version.tokens)] = each.version.scores
            if of:
                chosen = max(of, key=lambda each: each.total)
                take(candidate, chosen)
                candidate.alternatives = [
                    each.version for each in of if each is not chosen and each.way is not None
                ]

    def choices(
        self, pool: Pool, sentence: Sentence, candidate: Candidate, options: Options, turn: int
    ) -> list[Choice]:
        """Return the ways to write one term of a draft, and to leave it, where it may be left."""
        term, ways = options[turn]
        may_be_left = (
            term in sentence.known_terms - {sentence.entry} and term not in candidate.wrong
        )
        if len(ways) == 1 and not may_be_left:
            return []
        fixed = candidate.inserted | candidate.rewrites
        undecided = {
            each for each, _ in options[turn + 1 :] if not any(map(has_noun, each.targets))
        }

        def agreeing(is_plural: bool = False, is_strict: bool = True) -> list[Rewrite]:
            return [
                way
                for way in ways
                if self.writer.agrees(
                    candidate.text, fixed | {term: way}, term, undecided, is_plural, is_strict
                )
            ]

        possible = agreeing() or agreeing(is_strict=False)
        if term in candidate.wrong and not possible:
            return []
        possible = possible or ways
        of_number = set(agreeing(self.writer.number(term) == "plural") or ways)
        bonus: dict[Rewrite | None, float] = {
            way: self.writer.bonus(term, way.form, candidate.text[slice(*way.span)])
            if way in of_number
            else 0.0
            for way in possible
        }
        preferred = [self.writer.is_preferred(term, way.form) for way in possible]
        if any(preferred) and not all(preferred):
            for way, is_first in zip(possible, preferred, strict=True):
                bonus[way] -= OTHER_COST * self.writer.size(term) * (not is_first)
        if may_be_left:  # the number decides only between forms
            gain = max(self.writer.bonus(term, form) for form in term.targets)
            bonus[None] = gain - KNOWN_COST
        if term in candidate.wrong:
            bonus[as_it_is(candidate, term)] = max(bonus.values()) - WRONG_MARGIN
        out = []
        for written, of in bonus.items():
            chosen = fixed | {term: written}
            version = self.writer.version(
                sentence, candidate, {t: each for t, each in chosen.items() if each is not None}
            )
            if len(version.tokens) <= pool.max_len[sentence.number] + 1:
                out.append(Choice(version, term, written, of))
        return out


def take(candidate: Candidate, choice: Choice) -> None:
    """Write a term of a draft in the way that was chosen."""
    term, way = choice.term, choice.way
    candidate.unfit.discard(term)
    if way is None:
        candidate.unfit.add(term)
        candidate.rewrites.pop(term, None)
        candidate.inserted.pop(term, None)
    else:
        candidate.rewrites[term] = way
        if term in candidate.inserted:
            candidate.inserted[term] = way


def longer_word(candidate: Candidate, term: SourceTerm) -> str:
    """Return the longer word of a draft that a term is a part of, where it is written again."""
    if term not in candidate.wrong:
        return ""
    own = candidate.text[slice(*candidate.wrong[term])]
    return "" if folded(own) in map(folded, term.targets) else own


def as_it_is(candidate: Candidate, term: SourceTerm) -> Rewrite:
    """Return a term as a draft has it."""
    own = candidate.text[slice(*candidate.wrong[term])]
    return Rewrite(candidate.wrong[term], own, own)
