"""The forms of terms in an inflected language, and the words that agree with them.

Each term has its forms as alternatives (search/phrases/forms.py), and in the place of a noun the
words before it may change with it (search/phrases/agreement.py). The models choose: the sentence
with the highest probability, the draft's own words among the candidates. Sums are compared, as a
mean favours forms of many tokens. Terms are chosen one after the other, nouns first, since
adjectives agree with them.

A label of an interface ("Set", "Open") is often a common word in a sentence, which its term does
not translate. There the draft's own word is a candidate too: the term is left where it costs the
sentence more than a margin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairseq_ext.search.constraints.drafts import Candidate, Rewrite, Sentence
from fairseq_ext.search.constraints.forced_decoding import Sources
from fairseq_ext.search.constraints.rewrites import Version, words
from fairseq_ext.search.constraints.term_writer import TermWriter
from fairseq_ext.search.phrases.agreement import LANGUAGES, has_noun, is_nominal, noun_after
from fairseq_ext.search.phrases.sentence import SourceTerm
from fairseq_ext.search.pool import Pool

# nats that a label may cost its sentence: of several words, of one, and where the place is doubtful
PHRASE_MARGIN, WORD_MARGIN, DOUBTFUL_MARGIN = 5.0, 4.0, 2.0
NAMED_MARGIN = 8.0  # of several words, with the label's capitals in the source
# of one that the model writes by itself, where it never writes the draft's word
WRITTEN_SHARE, WRITTEN_MARGIN = 0.45, 7.0
Options = list[tuple[SourceTerm, list[Rewrite]]]  # the terms of a draft, and ways to write them
Score = Callable[[Pool, Sources, Sequence[Version]], None]


class Inflection:
    """Chooses the forms of terms in drafts. score: adds their log-probabilities to versions."""

    def __init__(self, writer: TermWriter, score: Score):
        self.writer, self.score = writer, score

    @property
    def is_known(self) -> bool:
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
            candidate.rewrites = {term: ways[0] for term, ways in options}
        for turn in range(max((len(options) for *_, options in drafts), default=0)):
            self.choose(pool, sources, [each for each in drafts if turn < len(each[2])], turn)

    def options(self, sentence: Sentence, candidate: Candidate) -> Options:
        """Return the ways to write each term of a draft, nouns first."""
        places = [(term, span) for term, span in sentence.places(candidate) if span is not None]
        spans = [span for _, span in places]
        found = [
            (term, self.writer.inflected(term, candidate.text, span, spans))
            for term, span in places
            if term not in candidate.inserted
        ]
        return sorted(found, key=lambda each: not any(map(has_noun, each[0].targets)))

    def choose(
        self,
        pool: Pool,
        sources: Sources,
        drafts: Sequence[tuple[Sentence, Candidate, Options]],
        turn: int,
    ) -> None:
        """Choose the rewrite of one term of each draft."""
        versions: list[tuple[Version, Rewrite | None]] = []
        for sentence, candidate, options in drafts:
            term, ways = options[turn]
            if len(ways) == 1 and not term.is_interface_label:
                continue
            limit = pool.max_len[sentence.number] + 1
            for way in [*ways, *([None] if term.is_interface_label else [])]:
                rewrites = candidate.inserted | candidate.rewrites | {term: way}
                chosen = {t: each for t, each in rewrites.items() if each is not None}
                version = self.writer.version(sentence, candidate, chosen)
                if len(version.tokens) <= limit:
                    versions.append((version, way))
        self.score(pool, sources, [version for version, _ in versions])
        best: dict[Candidate, float] = {}
        for version, way in versions:
            candidate, total = version.candidate, float(version.scores.sum())
            term = next(each[2] for each in drafts if each[1] is candidate)[turn][0]
            if way is not None:
                total += self.writer.bonus(term, way.form)
            else:  # the number decides only between forms
                total += max(self.writer.bonus(term, form) for form in term.targets)
                total -= margin(version.sentence, candidate, term)
            if total > best.get(candidate, -float("inf")):
                best[candidate] = total
                candidate.unfit.discard(term)
                if way is None:
                    candidate.unfit.add(term)
                    candidate.rewrites.pop(term, None)
                else:
                    candidate.rewrites[term] = way


def margin(sentence: Sentence, candidate: Candidate, term: SourceTerm) -> float:
    """Return how much less probable (in nats) a label may make a draft."""
    mention = sentence.aligned_mention(candidate, term)
    if mention is None or candidate.words is None:
        return DOUBTFUL_MARGIN
    if candidate.words.is_in_compound(mention):
        return 0.0
    if " " in term.source:
        return NAMED_MARGIN if term.mention == term.source else PHRASE_MARGIN
    span = candidate.words.span_of_mention[mention] or (0, 0)
    displaced = candidate.text[slice(*span)]
    of = sentence.mentions[mention]
    is_written = max(of.share(*words(form)) for form in term.targets) >= WRITTEN_SHARE
    is_same_kind = displaced[:1].isupper() == is_nominal(term.targets)
    is_attributive = displaced[:1].islower() and noun_after(candidate.text, span[1], "de")
    if is_written and is_same_kind and not is_attributive and not of.share(*words(displaced)):
        return WRITTEN_MARGIN
    return DOUBTFUL_MARGIN if sentence.is_doubtful(candidate, term) else WORD_MARGIN
