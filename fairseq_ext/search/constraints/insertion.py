"""Places for glossary terms for which a draft has no word.

The model does not know the term, but what it would write for the source term by itself
(renderings.py). So the best place in the draft is the one where this word is the most probable; the
term then takes its place. The draft keeps all of its words. The log-probabilities of the draft's
own steps select a few places, in one pass over the draft; these are compared by the sum over the
sentence, in which tokens that are not near the term count as in the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fairseq_ext.search.constraints.drafts import (
    FURTHER_REASON,
    Candidate,
    Rewrite,
    Sentence,
    Version,
)
from fairseq_ext.search.constraints.forced_decoding import ForcedDecoding, Sources
from fairseq_ext.search.constraints.term_writer import TermWriter
from fairseq_ext.search.constraints.word_alignment import Mention, word_spans
from fairseq_ext.search.phrases.function_words import function_words
from fairseq_ext.search.phrases.places import agreeing, overlap
from fairseq_ext.search.phrases.sentence import SourceTerm
from fairseq_ext.search.pool import Pool

COMPARED = 3  # places of a term that are compared by the whole sentence


class Option(NamedTuple):
    """A way to insert a term."""

    place: int  # in the draft's text
    form: str  # of the term
    own: str  # the model's word in its place

    def rewrite(self, form: str) -> Rewrite:
        """Return the rewrite that has a form."""
        return Rewrite((self.place, self.place), form, form, "inserted")


class Insertion:
    """Finds places for terms. score_versions_: that of GlossaryPlacement."""

    def __init__(
        self,
        forced_decoding: ForcedDecoding,
        writer: TermWriter,
        score_versions_: Callable[[Pool, Sources, Sequence[Version], bool], None],
    ):
        self.forced_decoding, self.writer, self.score_versions_ = (
            forced_decoding,
            writer,
            score_versions_,
        )

    def __call__(self, pool: Pool, sources: Sources, sentences: Sequence[Sentence]) -> None:
        """Find a place in the best draft of each sentence for its terms without a word."""
        jobs = []
        for sentence in sentences:
            draft = sentence.candidates[0]
            lacks = sentence.lacks_answer
            places = [] if draft.words is None else sentence.all_places(draft)
            further = [t for t, why in sentence.left_terms(draft).items() if why == FURTHER_REASON]
            terms = [
                term
                for term, word in places
                if word is None and term not in further and not term.code
                if term in sentence.known_terms or lacks
            ]
            jobs += [(sentence, term) for term in terms]
        if not jobs:
            return
        options = [self.options(sentence, term) for sentence, term in jobs]
        versions = self.selected(pool, sources, jobs, options)
        self.score_versions_(pool, sources, [version for of in versions for version, _ in of], True)
        for (sentence, term), of in zip(jobs, versions, strict=True):
            best = max(of, key=lambda each: float(each[0].scores.sum()), default=None)
            if best is not None:
                sentence.candidates[0].inserted[term] = best[1]

    def options(self, sentence: Sentence, term: SourceTerm) -> list[Option]:
        """Return the ways to insert a term."""
        candidate = sentence.candidates[0]
        assert candidate.words is not None
        taken = [span for span in candidate.words.span_of_mention if span is not None]
        word = self.own_word([sentence.mentions[i] for i in sentence.mention_numbers(term)])
        forms = (
            agreeing(term.targets, word) if self.writer.is_english else self.writer.of_number(term)
        )
        form = forms[0]
        out = []
        for _, end in word_spans(candidate.text):
            if any(overlap((end - 1, end + 1), other) and end != other[1] for other in taken):
                continue
            cased = self.writer.in_case(term, form, candidate.text, (end, end))
            out.append(Option(end, cased, word or cased))
        return out

    def own_word(self, mentions: Sequence[Mention]) -> str:
        """Return the word that the model writes for a term by itself; "" for none."""
        share: dict[str, float] = {}
        functions = function_words(self.writer.language)
        for phrase, part in (pair for each in mentions for pair in each.renderings.items()):
            for word in dict.fromkeys(each for each in phrase if each not in functions):
                share[word] = share.get(word, 0.0) + part
        return max(share, key=share.__getitem__, default="")

    def selected(
        self,
        pool: Pool,
        sources: Sources,
        jobs: Sequence[tuple[Sentence, SourceTerm]],
        options: Sequence[Sequence[Option]],
    ) -> list[list[tuple[Version, Rewrite]]]:
        """Return the options whose first token is the most probable in the draft, as versions with
        the model's own word, each with the rewrite that has the term."""
        segmenter = self.writer.text.segmenter()
        own = {each.own for of in options for each in of}
        first = {
            word: segmenter.dictionary.index(segmenter.known_pieces(word, " ")[0]) for word in own
        }
        tokens = sorted(set(first.values()))
        column = {token: i for i, token in enumerate(tokens)}
        drafts = [(s.source, s.candidates[0].draft.tokens.tolist()) for s, _ in jobs]
        scores = self.forced_decoding.of_tokens(sources, drafts, pool.bos, tokens)
        out = []
        for (sentence, term), of, log_probs in zip(jobs, options, scores, strict=True):
            candidate = sentence.candidates[0]
            begins = len(candidate.draft.tokens) - len(candidate.tokens)
            values = log_probs.tolist()
            steps = {end: next_token(candidate, end) + begins for end in {x.place for x in of}}
            ranked = sorted(of, key=lambda x: -values[steps[x.place]][column[first[x.own]]])
            out.append(
                [
                    (
                        self.writer.version(sentence, candidate, {term: x.rewrite(x.own)}),
                        x.rewrite(x.form),
                    )
                    for x in ranked[:COMPARED]
                ]
            )
        return out


def next_token(candidate: Candidate, place: int) -> int:
    """Return the first token of a candidate that begins at or after a place of its text."""
    return next(
        (i for i, (start, end) in enumerate(candidate.spans) if end > place),
        len(candidate.spans) - 1,
    )
