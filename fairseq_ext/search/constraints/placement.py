"""Glossary terms in the place of the words that they replace (`--glossary-placement align`).

A sentence is translated without its terms (the draft). The words that translate its source terms
are found and replaced by the terms (word_alignment.py); of several target forms the one with the
best model score stays. So the decoder reads probable words before and after a term, and a term that
the model does not know has no effect on the rest. A term that the draft has already is left
unchanged. If the best hypothesis has no word for a term, another one that has is used; if none has,
the term is inserted (insertion.py). A term that the model knows and that does not fit is left
(inflection.py). If a term cannot be inserted, or the result breaks another constraint, the sentence
is searched with all its terms forced.

Scores are the model's for the final text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from os.path import commonprefix
from typing import NamedTuple
from unicodedata import normalize

import torch
from torch import Tensor

from fairseq_ext.core.language_codes import two_letters
from fairseq_ext.core.words import words_of
from fairseq_ext.search.constraints.drafts import (
    COPIED_REASON,
    SEARCHED,
    UNFIT_REASON,
    Candidate,
    Sentence,
    Version,
    elsewhere,
    is_form,
    mentions_of,
    phrase_of,
    usable_hypotheses,
)
from fairseq_ext.search.constraints.forced_decoding import ForcedDecoding, Sources
from fairseq_ext.search.constraints.inflection import KNOWN_COST, Inflection
from fairseq_ext.search.constraints.insertion import Insertion
from fairseq_ext.search.constraints.renderings import Renderings
from fairseq_ext.search.constraints.term_writer import TermWriter
from fairseq_ext.search.constraints.word_alignment import (
    WordAlignment,
    remove_tokens,
)
from fairseq_ext.search.constraints.word_class import (
    has_verb,
    is_function_word,
    is_other_class,
    is_phrasal,
    is_verb_of_noun,
)
from fairseq_ext.search.finished import Hypothesis, OnFinal
from fairseq_ext.search.phrases.agreement import has_noun
from fairseq_ext.search.phrases.function_words import function_words
from fairseq_ext.search.phrases.pieces import folded
from fairseq_ext.search.phrases.places import (
    Span,
    Text,
    token_spans,
    without_words,
)
from fairseq_ext.search.phrases.segmenter import TargetText
from fairseq_ext.search.phrases.sentence import Meets, SentenceConstraints, SourceTerm
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.settings import DEFAULT

NEAR = 8  # tokens behind a changed one that count where versions are only compared
BATCH_SIZE = 128  # sentences whose hypotheses are scored in one call
Driver = Callable[[Pool, OnFinal], None]
# least share of a term among the model's own translations of its source term, by which it knows it
KNOWN_SHARE = 0.5


class Searches(NamedTuple):
    """The drivers that placement calls."""

    draft: Driver  # of sentences without their terms, where they have no other constraints
    constrained_draft: Driver  # the same, where they have others
    forced: Driver  # with all terms forced, of sentences in which they cannot be placed


class GlossaryPlacement:
    """A driver that calls three others.

    text: returns the generator's `target_text`; meets: returns the function that counts the
    constraints that a hypothesis of a pool meets.
    """

    def __init__(
        self,
        searches: Searches,
        forced_decoding: ForcedDecoding,
        setup: Setup,
        text: Callable[[], TargetText],
        meets: Callable[[Pool], Meets],
    ):
        self.searches, self.forced_decoding, self.setup = searches, forced_decoding, setup
        self.renderings = Renderings(forced_decoding, text, setup.eos)
        self.writer = TermWriter(text, setup.eos)
        self.inflect = Inflection(self.writer, self.score_versions_)
        self.insert = Insertion(forced_decoding, self.writer, self.score_versions_)
        self.meets = meets
        settings = setup.settings
        # whether the scores of drafts are the models' own
        self.reuses = settings.choice("softmax") == DEFAULT["softmax"] and setup.processors.is_plain
        pair = settings.command.languages
        self.use_languages(two_letters(pair.source or ""), two_letters(pair.target or ""))

    @property
    def text(self) -> TargetText:
        """The conversion between the target's tokens and text."""
        return self.writer.text

    def use_languages(self, source: str, target: str) -> None:
        """Place terms of translations from one language (two letters) to another."""
        self.source_functions, self.target_functions = map(function_words, (source, target))
        self.writer.source, self.writer.language = source, target

    def __call__(self, pool: Pool, answer: OnFinal) -> None:
        """Call `answer` with each sentence's hypotheses."""
        given = pool.constraints
        if given is None or not any(each.is_placed for each in given):
            return self.searches.forced(pool, answer)
        waiting: list[Sentence] = []
        left: list[int] = []

        def answer_waiting() -> None:
            for sentence, found in zip(waiting, self.placed(pool, waiting), strict=True):
                if found is not None:
                    answer(sentence.number, found)
                else:
                    left.append(sentence.number)
            self.forced_decoding.forget(
                pool.source(sentence.number).tolist() for sentence in waiting
            )
            waiting.clear()

        def collect(number: int, found: list[Hypothesis]) -> None:
            if not given[number].is_placed or not found:
                return answer(number, found)
            waiting.append(self.sentence(pool, number, found, self.setup.nbest))
            if len(waiting) == BATCH_SIZE:
                answer_waiting()

        others = [each.without_terms() for each in given]
        has_terms_alone = all(each.is_empty for each in others)
        with self.forced_decoding.keeping(
            pool.source(i).tolist() for i in pool.sentences_to_decode() if given[i].is_placed
        ):
            searches = self.searches
            (searches.draft if has_terms_alone else searches.constrained_draft)(
                replace(pool, constraints=None if has_terms_alone else others), collect
            )
            answer_waiting()
        if left:
            self.searches.forced(
                replace(pool, to_decode=sorted(left)),
                lambda number, found: answer(number, elsewhere(given[number], found)),
            )

    def sentence(
        self,
        pool: Pool,
        number: int,
        drafts: Sequence[Hypothesis],
        nbest: int,
    ) -> Sentence:
        """Return a sentence of the pool with its drafts, best first."""
        assert pool.constraints is not None
        constraints = pool.constraints[number]
        candidates = [
            self.candidate(pool, constraints, draft, pool.lead_of(number)) for draft in drafts
        ]
        mentions = mentions_of(constraints, self.source_functions, self.writer.source)
        sentence = Sentence(number, constraints, candidates, nbest, mentions)
        term = constraints.terms[0]
        is_all = {*range(len(pool.source(number)) - 1)}.issubset(*term.mentions[:1] or ((),))
        is_same = folded(term.mention) == folded(" ".join(words_of(term.source)))
        if is_all and len(constraints.terms) == 1 and is_same:
            sentence.entry = term
            for each in candidates:
                each.has_term, each.wrong = [each.text in term.text.split("|")], {}
        return sentence

    def candidate(
        self, pool: Pool, constraints: SentenceConstraints, draft: Hypothesis, lead: int
    ) -> Candidate:
        """Return a hypothesis with its text after `lead` forced tokens, and which of the sentence's
        terms it has."""
        is_met: dict[tuple, list[bool]] = {}
        met = self.meets(pool)(draft.tokens.tolist(), constraints, pool.ordered)
        for phrases, is_there in zip(constraints.any_of, met, strict=True):
            is_met.setdefault(phrases, []).append(is_there)
        has = {phrases for phrases, each in is_met.items() if any(each)}
        terms = constraints.terms
        # of terms with the same target, one that the draft has may stand for any of them: all of
        # them look for their words, and one of these is that target
        held = {term for term in terms if all(is_met.get(term.phrases, ()))}
        tokens = draft.tokens[self.writer.word_behind(draft.tokens.tolist(), lead) :].tolist()
        text = normalize("NFKC", self.text.text(tokens)).rstrip()
        others = text if self.writer.is_english else ""  # where other forms are looked for
        wanted = [phrase_of(term, "" if term in held else others) for term in terms]
        held -= {terms[i] for i in without_words(Text(text, False), wanted)}
        absent = [term for term in terms if term not in held]
        wrong: dict[SourceTerm, Span] = {}
        for term in filter(held.__contains__, terms):
            place = self.writer.wrong_place(term, text)
            if place is not None and place not in wrong.values():
                wrong[term] = place
        has_term = [term in held and term not in wrong for term in terms]
        unfit = {term for term in absent if is_phrasal(term) and not term.required}
        return Candidate(draft, tokens, text, has_term, has, wrong, unfit=unfit)

    def placed(self, pool: Pool, sentences: Sequence[Sentence]) -> list[list[Hypothesis] | None]:
        """Return the hypotheses of each sentence with its terms, best first; None for a sentence
        that placement cannot serve."""
        if lacking := [
            sentence for sentence in sentences if any(sentence.incomplete(sentence.nbest))
        ]:
            self.place_terms(pool, lacking)
        for sentence, candidate in [
            (s, c) for s in sentences for c in s.candidates if all(c.has_term)
        ]:
            placements = sentence.placements(candidate, {})
            final = replace(candidate.draft, placements=placements)
            candidate.finals.append((self.value(sentence, candidate, final), final))
        # subtle: if the best draft cannot be used (a phrase is banned), nbest changes nothing
        unsuited = [
            sentence
            for sentence in sentences
            if sentence.nbest < min(SEARCHED, len(sentence.candidates))
            and any(sentence.incomplete(SEARCHED))
            and not usable_hypotheses(pool, sentence, 1, self.meets(pool), self.setup.unk)
        ]
        if unsuited:
            for sentence in unsuited:
                sentence.nbest = SEARCHED
            self.place_terms(pool, unsuited)
        return [self.ranked_hypotheses(pool, sentence) for sentence in sentences]

    def place_terms(self, pool: Pool, sentences: Sequence[Sentence]) -> None:
        """Write missing terms into hypotheses, and score the results."""
        for source, sentence in enumerate(sentences):
            sentence.source = source
        sources = self.forced_decoding.encode(
            [pool.source(sentence.number).tolist() for sentence in sentences], pool.length.device
        )
        self.render(pool, sentences)
        for is_first in (True, False):
            new = [
                (s, c)
                for s in sentences
                if is_first or s.lacks_answer
                for i, c in enumerate(s.candidates)
                if c.words is None
                and not all(c.has_term)
                and (i < s.nbest or (i < SEARCHED and (not is_first or s.competes(c))))
            ]
            self.align(pool, sources, new)
        self.insert(pool, sources, sentences)
        self.inflect(pool, sources, sentences)
        versions = [each for sentence in sentences for each in self.written(pool, sentence)]
        unscored = [each for each in versions if not len(each.scores)]
        self.score_versions_(pool, sources, unscored)
        for each in versions:
            self.finish(pool, each)

    def finish(self, pool: Pool, version: Version) -> None:
        """Add a scored version to those of its draft."""
        candidate, total = version.candidate, version.scores.sum()
        rewarded = self.setup.scoring.rewarded(
            pool, torch.tensor([version.sentence.number], device=pool.length.device)
        ).cpu()[0]
        final = replace(
            candidate.draft,
            tokens=torch.tensor(version.tokens),
            score=float(self.setup.scoring(total, len(version.tokens), rewarded)),
            positional_scores=version.scores,
            ending=None,
            placements=version.sentence.placements(candidate, version.rewrites),
        )
        # other forms lengthen lists, and do not compete
        competes = version not in candidate.alternatives
        value = self.value(version.sentence, candidate, final) if competes else -math.inf
        candidate.finals.append((value, final))

    def value(self, sentence: Sentence, candidate: Candidate, final: Hypothesis) -> float:
        """Return by what versions of a sentence are compared: the log-probability less the
        cost of each known term that is left."""
        reasons = sentence.left_terms(candidate)
        left = {term for term in reasons if reasons[term] in (UNFIT_REASON, COPIED_REASON)}
        cost = KNOWN_COST * len(sentence.known_terms & left)
        return float(final.positional_scores.sum()) - cost

    def render(self, pool: Pool, sentences: Sequence[Sentence]) -> None:
        """Find what the models write for the terms of sentences by themselves."""
        open_terms = []
        for sentence in sentences:
            source = pool.source(sentence.number).tolist()
            words = sorted(place for of in sentence.constraints.source_words for place in of)
            if not words:
                continue
            forced = pool.forced(sentence.number)[: pool.lead_of(sentence.number)]
            ends = source[: words[0]], source[words[-1] + 1 :]
            for mention in sentence.mentions:
                term = [source[place] for place in mention.tokens]
                open_terms.append((mention, ((*ends[0], *term, self.setup.eos), forced)))
        found = self.renderings([term for _, term in open_terms], pool.length.device, pool.bos)
        for (mention, _), phrases in zip(open_terms, found, strict=True):
            mention.renderings = phrases
        for sentence in sentences:
            sentence.known_terms = {
                term
                for term in sentence.constraints.terms
                if not term.required
                and (
                    term.optional
                    or (term.case in ("any", "fitted") and sentence.share(term) >= KNOWN_SHARE)
                )
            }

    def score_versions_(
        self, pool: Pool, sources: Sources, versions: Sequence[Version], near_terms: bool = False
    ) -> None:
        """Score versions; the drafts' own log-probabilities are used up to the first changed token,
        and, for versions that are only compared (near_terms), from NEAR tokens behind the last one
        on."""
        drafts = [each.candidate.draft for each in versions]
        tokens = [draft.tokens.tolist() for draft in drafts]
        known, pairs, tails = [], [], []
        for version, draft, own in zip(versions, drafts, tokens, strict=True):
            first = len(commonprefix([version.tokens, own]))
            behind = 0
            if near_terms and self.reuses:
                same = len(commonprefix([version.tokens[:first:-1], own[:first:-1]]))
                behind = max(0, same - NEAR)
            known.append(draft.positional_scores[:first])
            tails.append(draft.positional_scores[len(own) - behind :].cpu())
            end = len(version.tokens) - behind
            pairs.append((version.sentence.source, version.tokens[:end]))
        given = (known, tokens) if self.reuses else ()
        scores = self.forced_decoding.log_probs(sources, pairs, pool.bos, *given)
        for version, each, tail in zip(versions, scores, tails, strict=True):
            version.scores = torch.cat([each, tail.to(each)])

    def align(
        self, pool: Pool, sources: Sources, given: Sequence[tuple[Sentence, Candidate]]
    ) -> None:
        """Find the words of all mentions in these candidates: by attention and renderings; where
        the models have no attention of all layers, by prediction difference as well."""
        targets = [candidate.draft.tokens.tolist() for _, candidate in given]
        pairs = [
            (sentence.source, target) for (sentence, _), target in zip(given, targets, strict=True)
        ]
        attention = (
            self.forced_decoding.attention(sources, pairs, pool.bos)
            if self.forced_decoding.attends
            else [None] * len(given)
        )
        jobs = []
        for (sentence, candidate), target, weights in zip(given, targets, attention, strict=True):
            lead = len(target) - len(candidate.tokens)
            candidate.spans = token_spans(candidate.tokens, self.text.text, self.text.own_texts)
            words = candidate.words = WordAlignment(
                candidate.text,
                candidate.spans,
                sentence.mentions,
                candidate.standing(sentence.constraints.terms),
                self.target_functions,
            )
            words.attend_(
                None if weights is None else weights[lead:], sentence.constraints.source_words
            )
            if self.inflect.has_agreement:
                words.take_parts_()
            candidate.other_forms = {
                term: span
                for term, span in sentence.all_places(candidate)
                if span is not None and not term.required
                if (
                    is_form(term.targets[0], candidate.text[slice(*span)])
                    if self.writer.is_english
                    else self.inflect.has_agreement and has_verb(term, candidate.text, span)
                )
            }
            candidate.unfit |= {
                term
                for term, span in sentence.all_places(candidate)
                if not term.required and self.is_unfit(sentence, candidate, term, span)
            }
            if sentence.entry is not None:
                words.span_of_mention[0] = 0, len(candidate.text)
            elif weights is None:
                jobs += [(sentence, candidate, mention, target) for mention in words.unsure]
        if not jobs:
            return
        sources_without = [
            remove_tokens(pool.source(s.number).tolist(), s.mentions[mention].tokens)
            for s, _, mention, _ in jobs
        ]
        shortened = self.forced_decoding.encode(sources_without, pool.length.device)
        scores = self.forced_decoding.log_probs(
            shortened, [(i, target) for i, (*_, target) in enumerate(jobs)], pool.bos
        )
        drops: dict[Candidate, dict[int, Tensor]] = {}
        for (_, candidate, mention, _), each in zip(jobs, scores, strict=True):
            drops.setdefault(candidate, {})[mention] = (
                candidate.draft.positional_scores.cpu() - each
            )[-len(candidate.tokens) :]
        for candidate, of_mention in drops.items():
            assert candidate.words is not None
            candidate.words.differ_(of_mention)

    def is_unfit(
        self, sentence: Sentence, candidate: Candidate, term: SourceTerm, span: Span | None
    ) -> bool:
        """Return whether a term does not fit the place that was found for it, or none."""
        if span is None:
            return is_function_word(term, self.source_functions)
        words, mention = candidate.words, sentence.aligned_mention(candidate, term)
        assert words is not None
        if not self.inflect.has_agreement:
            own = candidate.text[slice(*span)]
            return self.writer.is_from_german and is_verb_of_noun(term, own)
        if mention in words.parts and not any(map(has_noun, term.targets)):
            return True
        return is_other_class(term, candidate.text, span, words.is_own(mention))

    def written(self, pool: Pool, sentence: Sentence) -> list[Version]:
        """Return the versions of the candidates that have a word for each term: the chosen one, and
        those with another form of the term that was chosen last."""
        limit = pool.max_len[sentence.number]
        out = []
        incomplete = sentence.incomplete(len(sentence.candidates))
        for candidate in filter(sentence.is_complete, incomplete):
            if candidate.finals:  # written before
                continue
            rewrites = {term: candidate.rewrites[term] for term, _ in sentence.places(candidate)}
            # further mentions of a term that the draft has; a term of another source is needed too
            left = sentence.left_terms(candidate).keys()
            is_answer = not rewrites or bool(left)
            for version in (
                self.writer.version(sentence, candidate, rewrites),
                *candidate.alternatives,
            ):
                known = candidate.scores.get(tuple(version.tokens))
                version.scores = version.scores if known is None else known
                is_new = version.tokens != candidate.draft.tokens.tolist()
                if (is_new or is_answer) and self.setup.min_len < len(version.tokens) <= limit + 1:
                    out.append(version)
        return out

    def ranked_hypotheses(self, pool: Pool, sentence: Sentence) -> list[Hypothesis] | None:
        """Return the usable hypotheses: the answer, which does not depend on how many are wanted,
        and those that score no better, best first; None where there is none."""
        count = len(sentence.candidates)
        if not (out := usable_hypotheses(pool, sentence, count, self.meets(pool), self.setup.unk)):
            return None
        best, *rest = out
        return [best, *sorted((h for h in rest if h.score <= best.score), key=lambda h: -h.score)]
