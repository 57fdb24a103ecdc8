"""The answers of a sentence: its drafts with terms that meet all of its constraints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fairseq_ext.search.constraints.drafts import Sentence
from fairseq_ext.search.constraints.prefix import met_with_prefix
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.phrases.places import banned_in_texts
from fairseq_ext.search.phrases.sentence import (
    Meets,
    Phrase,
    SentenceConstraints,
    banned_in_tokens,
)
from fairseq_ext.search.pool import Pool


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
            others = tuple(term.text for term in (*sentence.required, *candidate.inserted))
            out[tokens] = replace(
                final,
                tokens=final.tokens.to(pool.length.device),
                elsewhere=others,
                left_terms=tuple((term.text, why) for term, why in left.items()),
            )
    return list(out.values())


def banned_in(pool: Pool) -> Callable[[SentenceConstraints], Callable[[Phrase], str | None]]:
    """Return the function that finds banned phrases in tokens as the search does."""
    if pool.boundaries is None:
        return banned_in_tokens
    return banned_in_texts(pool.boundaries, "any" if pool.banned_in_any_case else "exact")
