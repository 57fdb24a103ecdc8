"""Text to target tokens, and tokens to text.

Text becomes tokens as for the model's own input (tokenizer, bpe, dictionary). Without --tokenizer
and --bpe, text counts as segmented already. Byte-level BPE (gpt2, hf_byte_bpe, byte_bpe) segments a
word inside a sentence differently than alone, since the space before it is part of its first piece:
a phrase then has two forms, alternatives of each other, and both are banned. Encoders with a piece
for each space (bytes, characters) need no second form, as it contains the phrase alone. This is the
segmentation that a search proposes; if the target's words are known (pieces.py), every other
segmentation of the phrase's text counts as well (automaton.py).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

from fairseq_ext.core.errors import LONE_SURROGATE, UsageError
from fairseq_ext.search.phrases.letter_case import capitalised
from fairseq_ext.search.phrases.pieces import (
    Boundaries,
    find_boundaries,
    join_pieces,
    kind_of,
    separator_of,
    without_entities,
)
from fairseq_ext.search.phrases.sentence import (
    Dictionary,
    Phrase,
    Unwritable,
    occurrences,
    unusable_reason,
)


class Segmenter:
    """The conversion of text to target tokens and back, by the task's tokenizer and bpe; either may
    be None. A bpe may have another for the target.
    """

    def __init__(self, dictionary: Dictionary, tokenizer: Any = None, bpe: Any = None):
        self.dictionary, self.tokenizer = dictionary, tokenizer
        self.bpe = getattr(bpe, "target", bpe)

    @cached_property
    def sentencepiece(self) -> Any:
        """The encoder's SentencePiece model if joined pieces are the normalised text; None if they
        are not, and for other encoders.

        subtle: with byte pieces a character that the model lacks comes back as several `<0xE2>`.
        """
        model: Any = getattr(self.bpe, "sp", None)
        is_alone = type(self.bpe).__name__ == "SentencepieceBPE" and self.tokenizer is None
        if not is_alone or not hasattr(model, "normalize"):
            return None
        return None if any(map(model.is_byte, range(model.get_piece_size()))) else model

    @property
    def takes_pieces(self) -> bool:
        """Whether text counts as segmented already."""
        return self.tokenizer is None and self.bpe is None

    def pieces(self, text: str, lead: str = "") -> list[str]:
        """Return text as the dictionary's symbols; lead: the tokenized text before it."""
        text = self.tokenizer.encode(text) if self.tokenizer is not None else text
        return (self.bpe.encode(lead + text) if self.bpe is not None else text).split()

    def known_pieces(self, text: str, lead: str = "") -> list[str]:
        """Return the same pieces as `pieces`; one that the dictionary lacks is split minimally, if
        possible."""
        pieces, mark = self.pieces(text, lead), self.mark
        if mark is None:
            return pieces
        return [part for piece in pieces for part in self.split_minimally(piece, mark)]

    @cached_property
    def mark(self) -> str | None:
        """The end of a piece that the next one continues, "" without such a mark (SentencePiece);
        None if it is not known."""
        if self.bpe is None:
            return None
        marks = {"sentencepiece": "", "subword-nmt": separator_of(self.bpe)}
        return marks.get(kind_of(self.dictionary, self.bpe) or "")

    def split_minimally(self, piece: str, mark: str) -> list[str]:
        """Split a piece into the fewest pieces of the dictionary; return it unchanged if it is one,
        or if that is impossible. mark: the end of a piece that the next one continues."""
        if self.has_piece(piece):
            return [piece]
        end = mark if mark and piece.endswith(mark) else ""
        body = piece.removesuffix(end)
        # for each prefix: number of pieces, and start of the last one
        best: list[tuple[int, int] | None] = [(0, 0)]
        for stop in range(1, len(body) + 1):
            last = end if stop == len(body) else mark
            starts = range(max(0, stop - self.longest), stop)
            cuts = (
                (before[0] + 1, start)
                for start in starts
                if (before := best[start]) and self.has_piece(body[start:stop] + last)
            )
            best.append(min(cuts, default=None))
        parts: list[str] = []
        while body and (cut := best[len(body)]):
            parts.append(body[cut[1] :] + (mark if parts else end))
            body = body[: cut[1]]
        return parts[::-1] or [piece]

    def replaced(
        self,
        tokens: Sequence[int],
        spans: Sequence[tuple[int, int]],
        text: str,
        changes: Sequence[tuple[tuple[int, int], str]],
    ) -> list[int] | None:
        """Return tokens (L,), EOS included, of a text in which spans of characters are replaced;
        tokens that share no character with a span are unchanged.

        spans: of each token in the text, with the space before it; changes: from left to right, the
        span [start, end) and its new text; an empty span inserts. None if it is not known how
        tokens become words, or if a token is in two spans.
        """
        kind = "words" if self.bpe is None else kind_of(self.dictionary, self.bpe)
        if kind is None or self.takes_pieces:
            return None
        out, limit = list(tokens), len(tokens)
        for (start, end), written in reversed(changes):
            touched = [
                i
                for i, (a, b) in enumerate(spans)
                if (a < end and b > start if start < end else a < start < b)
            ]
            following = (
                i
                for i, token in enumerate(tokens)
                if spans[i][1] > start or token == self.dictionary.eos()
            )
            first = touched[0] if touched else next(following)
            behind = touched[-1] + 1 if touched else first
            if behind > limit:
                return None
            limit = first
            if touched:
                written = text[spans[first][0] : start] + written + text[end : spans[behind - 1][1]]
            symbols = [self.dictionary[token] for token in tokens[first:behind]]
            pieces = self.known_pieces(written.strip(), " " * written.startswith(" "))
            if kind == "sentencepiece" and first and symbols and symbols[0][0] != "▁":
                head = pieces[0].removeprefix("▁")
                pieces = [*(self.split_minimally(head, "") if head else []), *pieces[1:]]
            elif kind == "subword-nmt" and symbols and symbols[-1].endswith(self.mark or ""):
                last = pieces[-1] + str(self.mark)
                pieces = [*pieces[:-1], *self.split_minimally(last, str(self.mark))]
            if not all(map(self.has_piece, pieces)):
                return None
            out[first:behind] = map(self.dictionary.index, pieces)
        return out

    @cached_property
    def longest(self) -> int:
        """Length of the dictionary's longest piece, in characters."""
        return max(map(len, self.dictionary.symbols))

    def has_piece(self, piece: str) -> bool:
        """Return whether the dictionary has a piece that translations may have."""
        known = self.dictionary
        special = (known.unk(), known.bos(), known.eos(), known.pad())
        return known.indices.get(piece, special[0]) not in special

    def decode(self, text: str) -> str:
        """Return the plain text of pieces separated by spaces."""
        for step in (self.bpe, self.tokenizer):
            text = step.decode(text) if step is not None else text
        return text

    def round_trip(self, text: str) -> str:
        """Return text after segmenting and joining: encoders may normalise."""
        return self.decode(" ".join(self.pieces(text)))

    def normalised(self, text: str) -> str:
        """Return what `round_trip` returns, faster if the encoder is SentencePiece alone, which
        normalises a text before it splits it."""
        model = self.sentencepiece
        return self.round_trip(text) if model is None else self.bpe.decode(model.normalize(text))

    def symbols(self, text: str) -> set[str]:
        """Return the words of a text that are symbols and not words: <s>, </s>, <pad>."""
        known = self.dictionary
        return {known.bos_word, known.eos_word, known.pad_word}.intersection(text.split())

    def writable(self, text: str) -> bool:
        """Return whether the dictionary has all pieces of a text, alone or after a space, and none
        of its words is one of `symbols`."""
        return not self.symbols(text) and any(
            all(map(self.has_piece, self.known_pieces(text, lead))) for lead in ("", " ")
        )

    def spellings(self, text: str, case: str) -> tuple[Phrase, ...]:
        """Return the forms of a phrase in the other cases that --constraint-case allows: initial, a
        capital at the start of a text; any, small and capital letters. Those that the dictionary
        cannot write are left out."""
        words = text.lstrip("▁") if self.takes_pieces else text
        low = words.lower()
        found = {
            "exact": [],
            "any": [low, capitalised(low), capitalised(words), words.title(), words.upper()],
        }.get(case, [capitalised(words)])
        forms: dict[Phrase, None] = {}
        for each in dict.fromkeys(found):
            spelling = text.removesuffix(words) + each
            if each != words:
                with contextlib.suppress(UsageError):
                    leads = ["", " "] if case == "any" else [""]
                    forms |= dict.fromkeys(self.phrases(spelling, "", leads))
        return tuple(forms)

    def alternatives(self, texts: Sequence[str], where: str) -> tuple[tuple[Phrase, ...], str]:
        """Return the forms of alternative phrases; if the dictionary can write none of them, none
        and the reason.

        Errors: UsageError as in `phrases`, except for phrases that the dictionary cannot write.
        """
        forms: dict[Phrase, None] = {}
        reason = ""
        for text in texts:
            try:
                forms |= dict.fromkeys(self.phrases(text, where))
            except Unwritable as error:
                reason = reason or error.reason
        return tuple(forms), "" if forms else reason

    def phrases(
        self, text: str, where: str, leads: Sequence[str] = ("", " ")
    ) -> tuple[Phrase, ...]:
        """Return a phrase's forms: that at the start of a text, and that after a space if it
        differs. A form that contains the first one is left out, and so is one that the dictionary
        cannot write, if it can write another.

        Errors: UsageError, which names `where`, for an empty phrase, `<s>`, `</s>` and `<pad>`; for
        a piece outside the dictionary: Unwritable if it was segmented here.
        """
        if not text.strip():
            raise UsageError(f"{where} has an empty phrase: write it, or remove its separator")
        dictionary = self.dictionary
        if symbols := self.symbols(text):
            raise UsageError(
                f"in {where}, the phrase '{text}' contains '{symbols.pop()}', a symbol that no "
                "translation holds: remove it"
            )
        forms: list[Phrase] = []
        reason = None
        for lead in leads:
            pieces = self.known_pieces(text, lead)
            form = tuple(dictionary.index(piece) for piece in pieces)
            problem = (
                unusable_reason(form, pieces, dictionary)
                if form
                else "is nothing once it is segmented: remove it"
            )
            reason = reason or problem
            if not problem and not any(occurrences(other, form) for other in forms):
                forms.append(form)
        if not forms:
            hint = ""
            if self.takes_pieces:
                hint = "; without --bpe and --tokenizer, phrases are taken as segmented already"
            if (
                dictionary.unk() in form
                and not self.takes_pieces
                and not LONE_SURROGATE.search(text)
            ):
                raise Unwritable(where, text, f"{reason}{hint}")
            raise UsageError(f"in {where}, the phrase '{text}' {reason}{hint}")
        return tuple(forms)


class TargetText:
    """The text of a generator's tokens.

    segmenter: returns that of the target side, which fairseq's commands complete only after they
    have built a generator; left_out: symbols that are not printed; mode: of --constraint-boundary.
    """

    def __init__(self, segmenter: Callable[[], Segmenter], left_out: Any, mode: str | None = None):
        self.segmenter, self.left_out, self.mode = segmenter, left_out, mode
        self.own_texts: dict[int, str] = {}  # of tokens: the cache of token_spans

    def pieces(self, tokens: Tensor | Sequence[int]) -> str:
        """Return tokens (L,) as the dictionary's symbols, separated by spaces."""
        numbers = tokens.tolist() if isinstance(tokens, Tensor) else tokens
        dictionary = self.segmenter().dictionary
        # like the dictionary's `string`, which is slower
        left_out = {*self.left_out, dictionary.bos(), dictionary.eos()}
        symbols = dictionary.symbols
        known = len(symbols)
        return " ".join(
            [symbols[i] if i < known else dictionary[i] for i in numbers if i not in left_out]
        )

    def text(self, tokens: Tensor | Sequence[int]) -> str:
        """Return tokens (L,) as text, without segmentation if the command undoes it by --bpe and
        --tokenizer."""
        return self.segmenter().decode(self.pieces(tokens))

    @functools.cached_property
    def boundaries(self) -> Boundaries | None:
        """The word boundaries, if phrases count as words; None if they do not, or if boundaries are
        not known."""
        segmenter = self.segmenter()
        return find_boundaries(segmenter.dictionary, segmenter.bpe, self.mode, self.left_out)

    def words(self, tokens: Sequence[int]) -> str:
        """Return tokens (L,) as plain text, also if the command does not undo their
        segmentation."""
        segmenter = self.segmenter()
        if segmenter.bpe is not None:
            out = self.text(tokens)
            return without_entities(out) if segmenter.mark and not segmenter.tokenizer else out
        out = self.pieces(tokens)
        return join_pieces(out, self.boundaries.kind) if self.boundaries is not None else out
