"""Drafts with terms written into them, and whether a term fits the words around it.

A Rewrite (drafts.py) writes one form of a term, with the words that go with it, in the place of a
span of the draft. TermWriter.choices makes those for the words that translate the source term. A
Rewrite may be wider than these words and have words of its own around the form ("dem Verband" for
"der Gruppe"). To add candidates, such as further forms of a term with their determiners, let
TermWriter.choices return more of them: the Version with the best score of the whole sentence stays.

Whether a term fits is decided by the model where it knows the term: it writes the term itself for
the source term alone (renderings.py), or the draft's word is a form of the term, or the term is a
common word (one token) and little speaks for the alignment. Then the draft's own word is the rival:
a term loses if its tokens and the next ones are less probable than the draft's by `RIVAL`. An
unusual term is improbable wherever it stands, and has no rival.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fairseq_ext.core.words import is_word, words_of
from fairseq_ext.search.constraints.drafts import Candidate, Rewrite, Sentence
from fairseq_ext.search.phrases.pieces import folded
from fairseq_ext.search.phrases.places import Span
from fairseq_ext.search.phrases.sentence import SourceTerm

RIVAL = 3.0  # nats
NO_RIVAL = 8.0  # of a term that is inserted
NEXT = 4  # tokens after a term whose probability counts
ENDINGS = ("ing", "ed", "es", "s", "e")  # of English inflection


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


def losses(version: Version, spans: Sequence[Span]) -> dict[SourceTerm, tuple[float, int]]:
    """Return for each term that a version writes by how much its tokens and the next ones are less
    probable (in nats) than those of the draft in their place, and the number of its tokens. spans:
    the characters of each token of the version's text, forced tokens left out."""
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
    terms = sorted(version.rewrites, key=lambda term: version.rewrites[term].span)
    for change, term in enumerate(terms):
        own = [i for i, each in enumerate(in_new) if each == change]
        after = [(i, j) for i, j in same if own and i > own[-1]][:NEXT]
        loss = sum(old[j] - new[i] for i, j in after) - sum(new[i] for i in own)
        loss += sum(old[j] for j, each in enumerate(in_old) if each == change)
        out[term] = loss, len(own)
    return out


def changed_by(spans: Sequence[Span], changes: Sequence[Span]) -> list[int | None]:
    """Return for each token the first change with which it shares a character."""
    return [
        next((i for i, (start, end) in enumerate(changes) if a < end and b > start), None)
        for a, b in spans
    ]


def unfit(version: Version, spans: Sequence[Span]) -> set[SourceTerm]:
    """Return the terms of a version to which the model prefers the draft's own words. spans: as for
    `losses`."""
    return {
        term
        for term, (loss, tokens) in losses(version, spans).items()
        if loss > (RIVAL if term not in version.candidate.inserted else NO_RIVAL)
        and not term.required
        and is_known(version, term, tokens)
    }


def is_known(version: Version, term: SourceTerm, tokens: int) -> bool:
    """Whether the model can judge if a term, written in some tokens, fits."""
    sentence, candidate, rewrite = version.sentence, version.candidate, version.rewrites[term]
    displaced = candidate.text[slice(*rewrite.span)]
    numbers = sentence.mention_numbers(term)
    is_rendered = any(sentence.mentions[i].share(*words(rewrite.form)) > 0 for i in numbers)
    is_common = tokens == 1 and displaced != "" and sentence.is_doubtful(candidate, term)
    is_word = len(words(rewrite.form)) == 1
    return is_word and (is_rendered or is_common) or is_inflection(rewrite.form, displaced)


def words(text: str) -> list[str]:
    """The words of a text, folded."""
    return [folded(word) for word in words_of(text) if is_word(word)]


def is_inflection(one: str, other: str) -> bool:
    """Whether two texts are forms of the same English words: "use" and "using"."""
    pairs = words(one), words(other)
    return (
        pairs[0] != pairs[1]
        and len(pairs[0]) == len(pairs[1])
        and all(stem(a) == stem(b) for a, b in zip(*pairs, strict=True))
    )


def stem(word: str) -> str:
    """An English word without its ending: use, uses, used and using have one stem."""
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 2:
            word = word[: -len(ending)]
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls":
        word = word[:-1]  # setting
    return word[:-1] + "i" if word.endswith("y") else word
