"""What one sentence's translation must and must not contain, as target tokens: made by constraints/files.py, read by the searches.

Here too is what needs no text: merging, fairseq's packed tensors, and which constraints a finished hypothesis meets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from fairseq.token_generation_constraints import pack_constraints
from torch import Tensor

from fairseq_ext.errors import UsageError

if TYPE_CHECKING:
    from fairseq.data import Dictionary

    from fairseq_ext.constraints.segmenter import Segmenter

Phrase = tuple[int, ...]  # target token ids, at least one
MAX_CONSTRAINTS = 64  # of a sentence
MAX_TOKENS = 512  # of a sentence's constraints, all alternatives counted


@dataclass(frozen=True)
class SentenceConstraints:
    """The constraints of one sentence. A phrase is in a hypothesis when its tokens stand there side by side."""

    any_of: tuple[tuple[Phrase, ...], ...]  # each constraint is met by any one of its phrases; order and duplicates are the user's
    text: tuple[str, ...]  # how the user wrote each constraint, "a|b" for alternatives
    avoid: tuple[Phrase, ...] = ()  # must not appear; often one object for all sentences
    avoid_text: tuple[str, ...] = ()
    prefix: Phrase = ()  # what the translation starts with, without <s>
    unmet: tuple[tuple[str, str], ...] = ()  # constraints that were dropped: text, reason
    prefix_text: str = ""


EMPTY = SentenceConstraints((), ())


def merge(a: SentenceConstraints, b: SentenceConstraints) -> SentenceConstraints:
    """The constraints of both, a's first; those that the other's avoided phrases rule out become unmet.

    Errors: UsageError for two different prefixes, or for more constraints than the limits allow.
    """
    if a.prefix and b.prefix and a.prefix != b.prefix:
        raise UsageError(f"a sentence has two target prefixes, '{a.prefix_text}' and '{b.prefix_text}': give one")
    prefix = (a.prefix, a.prefix_text) if a.prefix else (b.prefix, b.prefix_text)
    avoid = dict(zip(a.avoid + b.avoid, a.avoid_text + b.avoid_text, strict=True)) if a.avoid and b.avoid else None
    both = SentenceConstraints(
        a.any_of + b.any_of,
        a.text + b.text,
        a.avoid or b.avoid if avoid is None else tuple(avoid),
        a.avoid_text or b.avoid_text if avoid is None else tuple(avoid.values()),
        prefix[0],
        a.unmet + b.unmet,
        prefix[1],
    )
    return within_limits(without_conflicts(both), "a sentence")


def within_limits(constraints: SentenceConstraints, where: str) -> SentenceConstraints:
    """The same constraints; UsageError when they are too many."""
    tokens = size(constraints.any_of)
    if len(constraints.any_of) > MAX_CONSTRAINTS:
        raise UsageError(f"{where} has {len(constraints.any_of)} phrases and {MAX_CONSTRAINTS} are allowed in a sentence: leave some out")
    if tokens > MAX_TOKENS:
        raise UsageError(f"{where} has {tokens} constraint tokens and {MAX_TOKENS} are allowed in a sentence: shorten its phrases")
    return constraints


def size(any_of: Sequence[Sequence[Phrase]]) -> int:
    """Tokens of all phrases."""
    return sum(len(phrase) for alternatives in any_of for phrase in alternatives)


@lru_cache(maxsize=4)
def avoid_index(avoid: tuple[Phrase, ...], text: tuple[str, ...]) -> tuple[dict[Phrase, str], list[int]]:
    """Avoided phrase -> its text, and the lengths that occur."""
    return dict(zip(avoid, text, strict=True)), sorted({len(p) for p in avoid})


def without_conflicts(constraints: SentenceConstraints) -> SentenceConstraints:
    """Phrases that contain an avoided phrase taken out; a constraint none of whose phrases is left becomes unmet."""
    if not constraints.avoid or not (constraints.any_of or constraints.prefix):
        return constraints
    text_of, lengths = avoid_index(constraints.avoid, constraints.avoid_text)

    def avoided_in(phrase: Phrase) -> str | None:
        parts = (phrase[i : i + n] for n in lengths for i in range(len(phrase) - n + 1))
        return next((text_of[part] for part in parts if part in text_of), None)

    any_of, text, unmet = [], [], list(constraints.unmet)
    for alternatives, written in zip(constraints.any_of, constraints.text, strict=True):
        left = tuple(phrase for phrase in alternatives if avoided_in(phrase) is None)
        if left:
            any_of.append(left)
            text.append(written)
        else:
            unmet.append((written, f"conflicts with the avoided phrase '{avoided_in(alternatives[0])}'"))
    prefix, prefix_text = constraints.prefix, constraints.prefix_text
    clash = avoided_in(prefix)
    if clash is not None:
        unmet.append((prefix_text, f"conflicts with the avoided phrase '{clash}'"))
        prefix, prefix_text = (), ""
    return replace(
        constraints, any_of=tuple(any_of), text=tuple(text), unmet=tuple(unmet), prefix=prefix, prefix_text=prefix_text
    )


def unusable(phrase: Phrase, pieces: Sequence[str], dictionary: Dictionary) -> str | None:
    """Why a phrase of these pieces cannot be a constraint, or None when it can."""
    for token, piece in zip(phrase, pieces, strict=True):
        if token in (dictionary.eos(), dictionary.pad(), dictionary.bos()):
            return f"contains '{piece}', a symbol that no translation holds: remove it"
        if token == dictionary.unk():
            return f"contains the piece '{piece}', which the target dictionary lacks: reword or remove it"
    return None


def pack(
    sentences: Sequence[SentenceConstraints],
    keys: Sequence[int],
    shown: Callable[[tuple[Phrase, ...]], Phrase] = lambda alternatives: alternatives[0],
) -> Tensor:
    """fairseq's packed constraints (N, W) of what is shown of each constraint, with key + 1 as the last column, which
    `unpack_constraints` does not read: so C- lines come out as fairseq prints them and `keys_of` finds the rest."""
    packed = pack_constraints([[torch.tensor(shown(alternatives)) for alternatives in s.any_of] for s in sentences])
    return torch.cat([packed, torch.tensor(keys, dtype=torch.long)[:, None] + 1], dim=1)


def keys_of(packed: Tensor) -> list[int]:
    """The key of each row (N, W) of `pack`, zeros added behind or not; -1 for a row of fairseq's own packing."""
    keys = []
    for row in packed.tolist():
        end = 1
        for _ in range(row[0]):
            end = row.index(0, end) + 1
        keys.append(next((value for value in reversed(row[end:]) if value), 0) - 1)
    return keys


def from_packed(
    row: Tensor, dictionary: Dictionary, number: int, segmenter: Segmenter | None = None, unknown: Sequence[str] = ()
) -> SentenceConstraints:
    """One row (W,) of fairseq's packed constraints, as `fairseq-interactive --constraints` makes them of tab-separated fields.

    number: of the sentence, from 0, for messages. segmenter: recovers the text, for the report and for the form that a word has
    inside a sentence where that differs from its form alone (segmenter.py); without it phrases are taken as they are. unknown: what the
    first `<unk>` stood for, for the message.
    Errors: UsageError for empty phrases, `<unk>`, `</s>`, `<pad>`, and more than the limits allow.
    """
    where = f"line {number + 1} of the input"
    found = EMPTY
    for phrase in unpack(row, dictionary.bos(), where):
        is_prefix = phrase[0] == dictionary.bos()
        phrase = phrase[is_prefix:]
        names = iter(unknown)
        pieces = [next(names, dictionary[token]) if token == dictionary.unk() else dictionary[token] for token in phrase]
        reason = unusable(phrase, pieces, dictionary)
        text = " ".join(pieces)
        if reason:
            raise UsageError(f"in {where}, the phrase '{text if segmenter is None else segmenter.decode(text)}' {reason}")
        forms: tuple[Phrase, ...] = (phrase,)
        if segmenter is not None:
            text = segmenter.decode(text)
            again = segmenter.phrases(text, where)
            forms = again if phrase in again else forms  # decoding does not always lead back
        if is_prefix:
            found = merge(found, SentenceConstraints((), (), prefix=phrase, prefix_text=text))
        else:
            found = replace(found, any_of=(*found.any_of, forms), text=(*found.text, text))
    return within_limits(found, where)


def unpack(row: Tensor, bos: int, where: str) -> list[Phrase]:
    """The phrases of a packed row (W,), all of which fairseq's `unpack_constraints` would return too, save those with `<s>`.

    subtle: `<s>` is token 0, which also ends a phrase. No phrase may be empty, so a 0 where a phrase starts is `<s>`; if it was an
    empty phrase after all, the phrases do not come out even.
    """
    values, at, phrases = row.tolist(), 1, []
    for _ in range(values[0]):
        starts = at < len(values) and values[at] == 0 == bos
        try:
            end = values.index(0, at + starts)
        except ValueError:
            end = at
        phrase = tuple(values[at:end])
        if len(phrase) <= starts:
            raise UsageError(f"{where} has an empty phrase: remove one of the tabs around it")
        phrases.append(phrase)
        at = end + 1
    return phrases


def met(hypothesis: Sequence[int], constraints: SentenceConstraints, ordered: bool) -> list[bool]:
    """Whether a hypothesis (a sequence of tokens) meets each constraint: by containment, whatever the search believes.

    Equal constraints given m times need m disjoint occurrences; if fewer are found, the first of them count as met. Different
    constraints may overlap. ordered: they must come one behind the other; after the first that does not come, none is met.
    """
    tokens = tuple(hypothesis)
    reached: dict[frozenset[Phrase] | None, int] = {}  # where the last occurrence ended; -1: none is left
    out = []
    for alternatives in constraints.any_of:
        kind = None if ordered else frozenset(alternatives)
        start = reached.get(kind, 0)
        # taking the occurrence that ends first leaves the most room for the others
        ends = [end_of(phrase, tokens, start) for phrase in alternatives] if start >= 0 else []
        reached[kind] = min((end for end in ends if end >= 0), default=-1)
        out.append(reached[kind] >= 0)
    return out


def end_of(phrase: Phrase, tokens: tuple[int, ...], start: int) -> int:
    """Where the first occurrence of a phrase at or behind start ends, -1 when there is none."""
    n = len(phrase)
    return next((i + n for i in range(start, len(tokens) - n + 1) if tokens[i : i + n] == phrase), -1)
