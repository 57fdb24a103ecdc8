"""How many tokens a sentence may have, and the refusal of one that has more."""

from __future__ import annotations

from typing import Any

from fairseq_ext.core.errors import SentenceError


class TooLong(SentenceError):
    """A sentence has more tokens than there may be; its halves may have fewer."""


def source_limit(limits: Any) -> int | None:
    """The most source tokens, from what fairseq says of source and target, or of each pair of languages; None for any number."""
    if isinstance(limits, dict):
        return min((limit for limit in map(source_limit, limits.values()) if limit is not None), default=None)
    return limits[0] if isinstance(limits, tuple) else limits


def limit_of(most: int | None) -> int | None:
    """--max-tokens as a limit: fairseq takes 0 and what is below for none."""
    return most if most and most > 0 else None


def too_long(where: str, tokens: int, of_model: int | None, of_batch: int | None) -> TooLong | None:
    """The error of a sentence of so many tokens; None for one that fits. where: how messages name it; of_model, of_batch: the most that
    the model and --max-tokens take, None for any number."""
    for most, who in ((of_model, "the model"), (limit_of(of_batch), "--max-tokens")):
        if most is not None and tokens > most:
            return TooLong(f"{where} has {tokens} tokens and {who} takes {most}: shorten or split it")
    return None
