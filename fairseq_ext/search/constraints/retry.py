"""A second search of a sentence, for terms that fit badly where they are inserted in its draft.

The search must use each term or the model's own word for it, which a term then replaces. Its result
is kept only if it has as many content words as the draft, and is as probable as the draft with the
model's own word inserted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fairseq_ext.search.constraints.drafts import Alternatives, Candidate, Sentence
from fairseq_ext.search.constraints.word_alignment import word_spans
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.phrases.pieces import folded
from fairseq_ext.search.phrases.sentence import SentenceConstraints, SourceTerm


@dataclass(frozen=True)
class Retry:
    """A second search.

    terms: which it must have; own: for the phrases of a term those of the model's own word; first:
    the hypotheses with insertions, none if there is none; draft: from which they come; mean: the
    log-probability of that draft with the model's own words, a token.
    """

    terms: tuple[SourceTerm, ...]
    own: Mapping[Alternatives, Alternatives] = field(default_factory=dict)
    first: Sequence[Hypothesis] = ()
    draft: Candidate | None = None
    mean: float = 0.0

    def constraints(self, given: SentenceConstraints) -> SentenceConstraints:
        """Return the constraints of the search. given: those of the sentence."""
        kept = given.without_terms(self.terms)
        any_of = tuple((*each, *self.own.get(each, ())) for each in kept.any_of)
        return replace(kept, any_of=any_of)

    def better(
        self, sentence: Sentence, found: list[Hypothesis] | None, functions: Collection[str]
    ) -> list[Hypothesis]:
        """Return the better hypotheses: the first ones or those that were found. functions: the
        function words of the target."""
        new = sentence.candidates[0].draft
        if found is None or self.draft is None:
            return list(self.first)
        before, after = (
            content_words(each.text, functions) for each in (self.draft, sentence.candidates[0])
        )
        keeps = after - len(self.terms) >= before
        is_probable = float(new.positional_scores.mean()) >= self.mean
        return found if keeps and is_probable else list(self.first)


def content_words(text: str, functions: Collection[str]) -> int:
    """Return the number of a text's words that are no function words."""
    return sum(folded(text[start:end]) not in functions for start, end in word_spans(text))
