"""Text to target tokens, the nearest spelling that a dictionary has, and tokens to text.

Text becomes tokens as the model's own text did (tokenizer, bpe, dictionary).
Where the command has neither --tokenizer nor --bpe, text is taken as segmented already. Byte-level
BPE (gpt2, hf_byte_bpe, byte_bpe) writes a word inside a sentence otherwise than alone, since the
space before it is part of its first piece: a phrase then has two forms, alternatives of each other,
and both are banned. Encoders whose space is a piece of its own (bytes, characters) need no second
form, as the phrase alone is inside it. This is the segmentation that a search proposes; where the
target's words are known (pieces.py), every other segmentation of the phrase's text counts as well
(automaton.py).
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.phrases.pieces import (
    SEPARATOR,
    Boundaries,
    capitalised,
    find_boundaries,
    kind_of,
    plain,
    separator_of,
    without_entities,
)
from fairseq_ext.search.phrases.sentence import Dictionary, Phrase, Unwritable, end_of, unusable


class Segmenter:
    """Text to target tokens and back, by the task's tokenizer and bpe; either may be None.

    A bpe may have another for the target.
    """

    def __init__(self, dictionary: Dictionary, tokenizer: Any = None, bpe: Any = None):
        self.dictionary, self.tokenizer, self.bpe = (
            dictionary,
            tokenizer,
            getattr(bpe, "target", bpe),
        )
        # and the command has segmented typed phrases as source text
        self.is_of_target = self.bpe is not bpe

    @cached_property
    def sentencepiece(self) -> Any:
        """The encoder's SentencePiece model where pieces joined are the normalised text; None where
        they are not, and for other encoders.

        subtle: with byte pieces a character that the model lacks comes back as several `<0xE2>`.
        """
        model = getattr(self.bpe, "sp", None)
        if (
            type(self.bpe).__name__ != "SentencepieceBPE"
            or self.tokenizer is not None
            or model is None
            or not hasattr(model, "normalize")
        ):
            return None
        return (
            None if any(model.is_byte(piece) for piece in range(model.get_piece_size())) else model
        )

    @property
    def takes_pieces(self) -> bool:
        """Whether text is taken as segmented already."""
        return self.tokenizer is None and self.bpe is None

    def pieces(self, text: str, lead: str = "") -> list[str]:
        """Text as the dictionary's symbols; lead: what stands before it once it is tokenized."""
        text = self.tokenizer.encode(text) if self.tokenizer is not None else text
        return (self.bpe.encode(lead + text) if self.bpe is not None else text).split()

    def known_pieces(self, text: str, lead: str = "") -> list[str]:
        """The same; a piece that the dictionary lacks is cut into the fewest that it has,
        where there are such."""
        pieces, mark = self.pieces(text, lead), self.mark
        return (
            pieces
            if mark is None
            else [part for piece in pieces for part in self.fewest(piece, mark)]
        )

    @cached_property
    def mark(self) -> str | None:
        """What ends a piece that the next one continues, "" where nothing does (SentencePiece);
        None where that is not known."""
        if self.bpe is None:
            return None
        kind = kind_of(self.dictionary, self.bpe)
        return {"sentencepiece": "", "subword-nmt": separator_of(self.bpe)}.get(kind or "")

    def fewest(self, piece: str, mark: str) -> list[str]:
        """A piece as the fewest pieces of the dictionary; itself where it is one, and where there
        are none. mark: what ends a piece that the next one continues."""
        if self.has(piece):
            return [piece]
        end = mark if mark and piece.endswith(mark) else ""
        body = piece.removesuffix(end)
        # of each beginning: how many pieces, and where the last of them starts
        best: list[tuple[int, int] | None] = [(0, 0)]
        for stop in range(1, len(body) + 1):
            last = end if stop == len(body) else mark
            starts = range(max(0, stop - self.longest), stop)
            cuts = (
                (before[0] + 1, start)
                for start in starts
                if (before := best[start]) and self.has(body[start:stop] + last)
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
        """Tokens (L,), EOS included, of a text in which spans of characters are written anew: the
        tokens that share no character with a span stay as they are.

        spans: of each token in the text, the space in front included; changes: from left to right,
        the span [start, end) and what is written there; an empty span inserts. None where it is
        not known how tokens become words, or where a token is in two spans.
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
            first = (
                touched[0]
                if touched
                else next(
                    i
                    for i, token in enumerate(tokens)
                    if spans[i][1] > start or token == self.dictionary.eos()
                )
            )
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
                pieces = [*(self.fewest(head, "") if head else []), *pieces[1:]]
            elif kind == "subword-nmt" and symbols and symbols[-1].endswith(self.mark or ""):
                pieces = [*pieces[:-1], *self.fewest(pieces[-1] + str(self.mark), str(self.mark))]
            if not all(map(self.has, pieces)):
                return None
            out[first:behind] = map(self.dictionary.index, pieces)
        return out

    @cached_property
    def longest(self) -> int:
        """The length of the dictionary's longest piece, in characters."""
        return max(map(len, self.dictionary.symbols))

    def has(self, piece: str) -> bool:
        """Whether the dictionary has a piece that translations may hold."""
        dictionary = self.dictionary
        unknown = dictionary.unk()
        return dictionary.indices.get(piece, unknown) not in (
            unknown,
            dictionary.bos(),
            dictionary.eos(),
            dictionary.pad(),
        )

    def decode(self, text: str) -> str:
        """Pieces parted by spaces to plain text."""
        for step in (self.bpe, self.tokenizer):
            text = step.decode(text) if step is not None else text
        return text

    def there_and_back(self, text: str) -> str:
        """Text as it comes back from its pieces: encoders may normalise."""
        return self.decode(" ".join(self.pieces(text)))

    def normalised(self, text: str) -> str:
        """The same in less time where the encoder is SentencePiece alone: it normalises a
        text before it cuts it."""
        return (
            self.there_and_back(text)
            if self.sentencepiece is None
            else self.bpe.decode(self.sentencepiece.normalize(text))
        )

    def symbols(self, text: str) -> set[str]:
        """The words of a text that are symbols which no translation holds: <s>, </s>, <pad>."""
        known = self.dictionary
        return {known.bos_word, known.eos_word, known.pad_word}.intersection(text.split())

    def writable(self, text: str) -> bool:
        """Whether the dictionary has all pieces of a text, as it stands alone or after a space, and
        none of its words is one of `symbols`."""
        return not self.symbols(text) and any(
            all(map(self.has, self.known_pieces(text, lead))) for lead in ("", " ")
        )

    def spellings(self, text: str, case: str) -> tuple[Phrase, ...]:
        """The forms of a phrase in the case that --constraint-case allows beside its own: initial,
        a capital at the start of a text; any, small and capital letters. What the dictionary
        cannot write is left out."""
        marks = text[: len(text) - len(text.lstrip("▁"))] if self.takes_pieces else ""
        words = text[len(marks) :]
        found, leads = [capitalised(words)], [""]
        if case == "any":
            found, leads = (
                [words.lower(), capitalised(words.lower()), *found, words.title(), words.upper()],
                ["", " "],
            )
        forms: dict[Phrase, None] = {}
        for spelling in (
            dict.fromkeys(marks + each for each in found if each != words)
            if case != "exact"
            else ()
        ):
            with contextlib.suppress(UsageError):
                forms |= dict.fromkeys(self.phrases(spelling, "", leads, suggest=False))
        return tuple(forms)

    def nearest(self, text: str) -> str:
        """What a message says of the nearest spelling that works; nothing where none is found."""
        near = nearest_spelling(text, self.writable, self.dictionary.symbols)
        return f"; the nearest spelling that works is '{near}'" if near else ""

    def alternatives(
        self, texts: Sequence[str], where: str, suggest: bool = True
    ) -> tuple[tuple[Phrase, ...], str]:
        """The forms of phrases any of which is meant; where the dictionary can write none of
        them, none and the reason.

        Errors: UsageError as `phrases`, but none for what the dictionary cannot write.
        """
        forms: dict[Phrase, None] = {}
        reason = ""
        for text in texts:
            try:
                forms |= dict.fromkeys(self.phrases(text, where, suggest=suggest))
            except Unwritable as error:
                reason = reason or error.reason
        return tuple(forms), "" if forms else reason

    def phrases(
        self, text: str, where: str, leads: Sequence[str] = ("", " "), suggest: bool = True
    ) -> tuple[Phrase, ...]:
        """A phrase's forms: as at the start of a text, and as after a space where that differs.
        A form that contains the first is left out (the first says the same), and so is one that the
        dictionary cannot write, as long as another is left.

        Errors: UsageError, naming `where`, for an empty phrase, `<s>`, `</s>` and `<pad>`; for
        a piece outside the dictionary, with the nearest spelling that works (suggest), which takes
        a moment to find: Unwritable where it was segmented here.
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
                unusable(form, pieces, dictionary)
                if form
                else "is nothing once it is segmented: remove it"
            )
            reason = reason or problem
            if not problem and not any(end_of(other, form, 0) >= 0 for other in forms):
                forms.append(form)
        if not forms:
            hint = self.nearest(text) if suggest else ""
            hint += (
                "; without --bpe and --tokenizer, phrases are taken as segmented already"
                * self.takes_pieces
            )
            if (
                dictionary.unk() in form
                and not self.takes_pieces
                and not any("\ud800" <= sign <= "\udfff" for sign in text)
            ):
                raise Unwritable(where, text, f"{reason}{hint}")
            raise UsageError(f"in {where}, the phrase '{text}' {reason}{hint}")
        return tuple(forms)


# ---- The nearest spelling of a phrase that a dictionary can write


TYPED = str.maketrans(
    {
        **dict.fromkeys("’‘‛", "'"),
        **dict.fromkeys("“”„«»", '"'),
        **dict.fromkeys("–—‑", "-"),
        "‚": ",",
        "…": "...",
    }
)
CLOSE = 0.6  # least similarity of a word that is put in another's place (difflib)
WORDS = 3  # such words that are tried
# characters: for a longer text, which is no phrase, the comparison would take seconds
LONGEST = 500


def nearest_spelling(
    text: str, writable: Callable[[str], bool], symbols: Iterable[str]
) -> str | None:
    """The most similar spelling of `text` that is writable; None where none of those tried is,
    or the text is too long to try.

    Tried are the text in NFKC, with typewriter punctuation, without accents, in other case, and two
    of these together; then, for each word that cannot be written, the symbols of the dictionary
    that are most similar to it.
    """
    if len(text) > LONGEST:
        return None
    tried = list(dict.fromkeys(second(first(text)) for first in CHANGES for second in CHANGES))
    tried.sort(key=lambda each: -similarity(text, each))
    found = next((each for each in tried if each != text and each.strip() and writable(each)), None)
    return found or with_other_words(text, writable, symbols)


def with_other_words(
    text: str, writable: Callable[[str], bool], symbols: Iterable[str]
) -> str | None:
    """The text with its unwritable words replaced by similar ones of the dictionary;
    None where one has none."""
    known: Sequence[str] | None = None
    words = []
    for word in text.split():
        if not writable(word):
            # sentencepiece and subword-nmt mark where a word starts or goes on: a symbol that is a
            # whole word counts without the mark
            known = known or list(
                dict.fromkeys(
                    symbol.removeprefix("▁") for symbol in symbols if not symbol.endswith(SEPARATOR)
                )
            )
            similar = difflib.get_close_matches(word, known, n=WORDS, cutoff=CLOSE)
            replaced = next((each for each in similar if writable(each)), None)
            if replaced is None:
                return None
            word = replaced
        words.append(word)
    return " ".join(words) if writable(" ".join(words)) else None


def similarity(one: str, other: str) -> float:
    """1 for equal texts, 0 for texts that share nothing."""
    return difflib.SequenceMatcher(None, one, other).ratio()


def without_accents(text: str) -> str:
    """The text without combining marks."""
    return "".join(
        character
        for character in unicodedata.normalize("NFKD", text)
        if not unicodedata.combining(character)
    )


CHANGES: tuple[Callable[[str], str], ...] = (
    str,
    lambda text: unicodedata.normalize("NFKC", text),
    lambda text: text.translate(TYPED),
    without_accents,
    lambda text: text.replace("ß", "ss"),
    str.lower,
    lambda text: text[:1].upper() + text[1:],
    str.title,
)


# ---- Target tokens as text
#
# As the command prints them, and as words.


class TargetText:
    """What a reader sees of a generator's tokens.

    segmenter: gives the target side's, which fairseq's commands complete only after they have built
    a generator; left_out: symbols that no reader sees; mode: of --constraint-boundary.
    """

    def __init__(self, segmenter: Callable[[], Segmenter], left_out: Any, mode: str | None = None):
        self.segmenter, self.left_out, self.mode = segmenter, left_out, mode
        self.own_texts: dict[int, str] = {}  # of tokens, as token_spans keeps them

    def pieces(self, tokens: Tensor | Sequence[int]) -> str:
        """Tokens (L,) as the dictionary's symbols, parted by spaces."""
        numbers = tokens.tolist() if isinstance(tokens, Tensor) else tokens
        dictionary = self.segmenter().dictionary
        # as by the dictionary's `string`, which is slower
        left_out = {*self.left_out, dictionary.bos(), dictionary.eos()}
        return " ".join(dictionary[i] for i in numbers if i not in left_out)

    def text(self, tokens: Tensor | Sequence[int]) -> str:
        """Tokens (L,) as text, without segmentation where the command undoes it by
        --bpe and --tokenizer."""
        return self.segmenter().decode(self.pieces(tokens))

    @functools.cached_property
    def boundaries(self) -> Boundaries | None:
        """Where words begin and end, if phrases count as words; None where they do not, or
        where that is not known."""
        segmenter = self.segmenter()
        return find_boundaries(segmenter.dictionary, segmenter.bpe, self.mode, self.left_out)

    def words(self, tokens: Sequence[int]) -> str:
        """Tokens (L,) as plain text, also where the command does not undo their segmentation."""
        segmenter = self.segmenter()
        if segmenter.bpe is not None:
            out = self.text(tokens)
            return without_entities(out) if segmenter.mark and not segmenter.tokenizer else out
        out = self.pieces(tokens)
        return plain(out, self.boundaries.kind) if self.boundaries is not None else out
