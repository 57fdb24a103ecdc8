"""The key `prefix`: a given beginning of the translation."""

from __future__ import annotations

from fairseq_ext.search.phrases.sentence import Meets, SentenceConstraints


def met_with_prefix(
    tokens: list[int], constraints: SentenceConstraints, ordered: bool, meets: Meets, lead: int = 0
) -> list[bool]:
    """Return which constraints these tokens meet; the last entry is for the prefix after `lead`
    tokens, if there is one, which counts as one constraint."""
    starts = (
        [tuple(tokens[lead : lead + len(constraints.prefix)]) == constraints.prefix]
        if constraints.prefix
        else []
    )
    return meets(tokens, constraints, ordered) + starts
