"""Constraints that fairseq's command has packed in its tensors; plugin/interactive.py packs ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.words import LANGUAGE
from fairseq_ext.search.phrases.dictionary import Dictionary
from fairseq_ext.search.phrases.phrase import Phrase, unusable
from fairseq_ext.search.phrases.segmenter import Segmenter
from fairseq_ext.search.phrases.sentence import EMPTY, Cased, SentenceConstraints, merge, within_limits


def keys_of(packed: Tensor) -> list[int]:
    """The key of each row (N, W) that `pack` of plugin/interactive.py made, zeros added behind or
    not; -1 for a row of fairseq's own packing."""
    keys = []
    for row in packed.tolist():
        end = 1
        for _ in range(row[0]):
            end = row.index(0, end) + 1
        keys.append(next((value for value in reversed(row[end:]) if value), 0) - 1)
    return keys


def from_packed(
    row: Tensor, dictionary: Dictionary, number: int, segmenter: Segmenter | None = None, unknown: Sequence[str] = (),
    case: str = "exact",
) -> SentenceConstraints:
    """One row (W,) of fairseq's packed constraints, as `fairseq-interactive --constraints` makes them of tab-separated fields.

    number: of the sentence, from 0, for messages. segmenter: recovers the text, for the report and for the form that a word has
    inside a sentence where that differs from its form alone (segmenter.py); without it phrases are taken as they are. unknown: what the
    first `<unk>` stood for, for the message. case: as --constraint-case.
    Errors: UsageError for empty phrases, `<unk>`, `</s>`, `<pad>`, and more than the limits allow.
    """
    where = f"line {number + 1} of the input"
    found = EMPTY
    for phrase in unpack(row, dictionary.bos(), where):
        is_prefix = phrase[0] == dictionary.bos()
        phrase = phrase[is_prefix:]
        names = iter(unknown)
        pieces = [next(names, dictionary[token]) if token == dictionary.unk() else dictionary[token] for token in phrase]
        text = " ".join(pieces) if segmenter is None else segmenter.decode(" ".join(pieces))
        if segmenter is not None and segmenter.is_of_target:
            text = LANGUAGE.sub("", text, count=1).lstrip()  # which the source's segmentation has put there
            pieces = segmenter.pieces(text)
            phrase = tuple(map(dictionary.index, pieces))
        forms: tuple[Phrase, ...] = (phrase,)
        if segmenter is not None and not is_prefix and dictionary.unk() in phrase:
            forms, reason = segmenter.alternatives([text], where)
            if not forms:
                found = replace(found, unmet=(*found.unmet, (text, reason)))
                continue
        elif wrong := unusable(phrase, pieces, dictionary):
            near = segmenter.nearest(text) if segmenter is not None and dictionary.unk() in phrase else ""
            raise UsageError(f"in {where}, the phrase '{text}' {wrong}{near}")
        elif segmenter is not None:
            again = segmenter.phrases(text, where)
            forms = again if phrase in again else forms  # decoding does not always lead back
        if is_prefix:
            found = merge(found, SentenceConstraints((), (), prefix=phrase, prefix_text=text))
        else:
            found = replace(found, any_of=(*found.any_of, forms), text=(*found.text, text))
            if segmenter is not None and case != "exact":
                found = replace(found, cased=(*found.cased, Cased(case, segmenter.spellings(text, case))))
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
