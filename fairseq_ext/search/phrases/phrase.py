"""One phrase as target tokens: whether it can be a constraint, and where it stands in a hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.phrases.dictionary import Dictionary

Phrase = tuple[int, ...]  # target token ids, at least one


class Unwritable(UsageError):
    """A phrase that the target dictionary has no pieces for. reason: without its place."""

    def __init__(self, where: str, text: str, reason: str):
        super().__init__(f"in {where}, the phrase '{text}' {reason}")
        self.reason = reason


def unusable(phrase: Phrase, pieces: Sequence[str], dictionary: Dictionary) -> str | None:
    """Return why a phrase of these pieces cannot be a constraint; None when it can."""
    for token, piece in zip(phrase, pieces, strict=True):
        if token in (dictionary.eos(), dictionary.pad(), dictionary.bos()):
            return f"contains '{piece}', a symbol that no translation holds: remove it"
        if token == dictionary.unk():
            return f"contains the piece '{piece}', which the target dictionary lacks: reword or remove it"
    return None


def end_of(phrase: Phrase, tokens: tuple[int, ...], start: int) -> int:
    """Return where the first occurrence of a phrase at or behind `start` ends, -1 when there is none."""
    n = len(phrase)
    return next((i + n for i in range(start, len(tokens) - n + 1) if tokens[i : i + n] == phrase), -1)
