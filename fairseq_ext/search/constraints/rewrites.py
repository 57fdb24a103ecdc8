"""Drafts with terms written into them, and whether a term fits the words around it.

A Rewrite (drafts.py) writes one form of a term, with the words that go with it, in the place of a
span of the draft. TermWriter.choices makes those for the words that translate the source term. A
Rewrite may be wider than these words and have words of its own around the form ("dem Verband" for
"der Gruppe"). To add candidates, such as further forms of a term with their determiners, let
TermWriter.choices return more of them: the Version with the best score of the whole sentence stays.

The model decides whether a term fits where it can compare the term with a rival, the draft's own
word. A word that the model itself writes for the source term (renderings.py) loses where the next
tokens become less probable than in the draft by `RIVAL`. The term's own tokens count too where less
speaks for it: a label whose source word is of another kind (Use: verwenden), a common word (one
token) with a doubtful alignment, or another form of the draft's word. An English word of which the
draft has another form than a plural ("using" for "use") always loses: the words that need that form
may stand anywhere in the sentence. A term that the model does not know has no rival: it and the
words behind it are improbable wherever it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from fairseq_ext.core.words import is_word, words_of
from fairseq_ext.search.constraints.drafts import Candidate, Rewrite, Sentence
from fairseq_ext.search.phrases.function_words import stem
from fairseq_ext.search.phrases.pieces import folded
from fairseq_ext.search.phrases.places import PLURAL, Span
from fairseq_ext.search.phrases.sentence import SourceTerm

RIVAL = 3.0  # nats
NUMBER = 0.3, 5.0  # nats, for a singular in the place of its plural, and the reverse
NO_RIVAL = 8.0  # of a term that is inserted
NEXT = 4  # tokens after a term whose probability counts


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


class Loss(NamedTuple):
    """By how much (in nats) a term's tokens, and the next ones behind it, are less probable than
    the draft's in their place."""

    own: float
    next: float
    tokens: int  # of the term


def losses(version: Version, spans: Sequence[Span]) -> dict[SourceTerm, Loss]:
    """Return what each term that a version writes loses. spans: the characters of each token of the
    version's text, forced tokens left out."""
    candidate, shift, written = version.candidate, 0, []
    lead = len(candidate.draft.tokens) - len(candidate.tokens)
    new, old = version.scores.tolist()[lead:], candidate.draft.positional_scores.tolist()[lead:]
    for (start, end), text in version.changes:
        written.append((start + shift, start + shift + len(text)))
        shift += len(text) - (end - start)
    in_new = changed_by(spans, written)
    in_old = changed_by(candidate.spans, [span for span, _ in version.changes])
    kept = [i for i, change in enumerate(in_new) if change is None]
    same = list(zip(kept, (i for i, each in enumerate(in_old) if each is None), strict=False))
    out = {}
    for term, (first, behind) in ((t, each.span) for t, each in version.rewrites.items()):
        # the change that writes the term ends where the term's span does; the last of several
        change = max(
            i
            for i, (span, _) in enumerate(version.changes)
            if span[0] <= first and span[1] == behind
        )
        own = [i for i, each in enumerate(in_new) if each == change]
        after = [(i, j) for i, j in same if own and i > own[-1]][:NEXT]
        displaced = sum(old[j] for j, each in enumerate(in_old) if each == change)
        following = sum(old[j] - new[i] for i, j in after)
        out[term] = Loss(displaced - sum(new[i] for i in own), following, len(own))
    return out


def changed_by(spans: Sequence[Span], changes: Sequence[Span]) -> list[int | None]:
    """Return for each token the first change with which it shares a character."""
    return [
        next((i for i, (start, end) in enumerate(changes) if a < end and b > start), None)
        for a, b in spans
    ]


def unfit(version: Version, spans: Sequence[Span], is_english: bool) -> set[SourceTerm]:
    """Return the terms of a version that the draft's own words are preferred to. spans: as for
    `losses`; is_english: whether the target is."""
    return {
        term
        for term, lost in losses(version, spans).items()
        if not term.required and loses(version, term, lost, is_english)
    }


def loses(version: Version, term: SourceTerm, lost: Loss, is_english: bool) -> bool:
    """Return whether the draft's own words are preferred to a term."""
    sentence, candidate, rewrite = version.sentence, version.candidate, version.rewrites[term]
    displaced, numbers = candidate.text[slice(*rewrite.span)], sentence.mention_numbers(term)
    is_word = len(words(rewrite.form)) == 1
    is_rendered = any(sentence.mentions[i].share(*words(rewrite.form)) > 0 for i in numbers)
    if term in candidate.inserted:
        return is_word and is_rendered and lost.own + lost.next > NO_RIVAL
    if is_inflection(rewrite.form, displaced):
        old_is_plural, new_is_plural = (
            PLURAL.search(each) is not None for each in (displaced, rewrite.form)
        )
        if is_english and is_word and not old_is_plural and not new_is_plural:
            return True
        limit = RIVAL if old_is_plural == new_is_plural else NUMBER[new_is_plural]
        return lost.own + lost.next > limit
    is_phrase = (term.is_label or term.is_interface_label) and " " in term.mention
    if is_phrase and len(words(displaced)) == 1 and sentence.is_doubtful(candidate, term):
        return lost.own + lost.next > RIVAL  # "Match Automatically" for "automatically"
    is_common = lost.tokens == 1 and sentence.is_doubtful(candidate, term)
    if is_word and (is_common or (is_rendered and term.is_label)):
        return lost.own + lost.next > RIVAL
    return is_word and is_rendered and lost.next > RIVAL


def words(text: str) -> list[str]:
    """Return the words of a text, folded."""
    return [folded(word) for word in words_of(text) if is_word(word)]


def is_inflection(one: str, other: str) -> bool:
    """Return whether two texts are forms of the same English words: "use" and "using"."""
    pairs = words(one), words(other)
    return (
        pairs[0] != pairs[1]
        and len(pairs[0]) == len(pairs[1])
        and all(stem(a) == stem(b) for a, b in zip(*pairs, strict=True))
    )
