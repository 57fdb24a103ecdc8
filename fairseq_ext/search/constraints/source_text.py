"""Source sentences as text, recovered from their tokens.

A word that the source dictionary lacks is `<unk>` among the tokens. If the line itself is known
(everywhere but in the data sets of fairseq-generate), its pieces replace these tokens, so that a
glossary's terms are found in the written text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from unicodedata import normalize

import regex
from torch import Tensor

from fairseq_ext.core.errors import counted
from fairseq_ext.core.words import LANGUAGE, Matcher, has_own_case, starts_of, words_of
from fairseq_ext.search.phrases.places import overlapping, token_spans
from fairseq_ext.search.phrases.segmenter import Segmenter
from fairseq_ext.search.phrases.sentence import Dictionary

Tokens = Tensor | Sequence[int]  # (L,), padded or not


class SourceText:
    """The text of source tokens. segmenter: from text to pieces and back; dictionary: of the
    source.

    Argument `unknown` of methods: the pieces of the line that the dictionary lacks, in their order
    (`unknown_pieces`).
    """

    def __init__(self, dictionary: Dictionary, segmenter: Segmenter):
        self.dictionary, self.segmenter = dictionary, segmenter
        self.own_texts: dict[int, str] = {}  # of tokens: the cache of token_spans

    def text(self, tokens: Tokens, unknown: Sequence[str] = ()) -> str:
        """Return a source sentence without the language tag that it may begin with; its pieces if
        the command does not join pieces."""
        return self.decoded(self.numbered(tokens, unknown), unknown)

    def words(self, tokens: Tokens, unknown: Sequence[str] = ()) -> list[str]:
        """Return the words among which terms are searched."""
        return words_of(self.text(tokens, unknown), self.segmenter.takes_pieces)

    def tokens_of_words(
        self, tokens: Tokens, unknown: Sequence[str] = ()
    ) -> tuple[Callable[[int, int], list[int]], Callable[[int, int], str], list[str]]:
        """Return a function from `words` [start, end) to the places of their tokens, one to the
        path, URL or identifier that they are a part of (`code_around`), and the words."""
        ids = self.numbered(tokens, unknown)

        def read(part: Sequence[int]) -> str:
            return self.decoded(part, unknown)

        spans = token_spans(
            [token for token in ids if token != self.dictionary.pad()],
            read,
            {} if unknown else self.own_texts,
        )
        text = normalize("NFKC", read(ids))
        words = words_of(text, self.segmenter.takes_pieces)
        starts = starts_of(text, words)

        def characters(start: int, end: int) -> tuple[int, int]:
            return starts[start], starts[end - 1] + len(words[end - 1])

        return (
            lambda start, end: overlapping(spans, *characters(start, end)),
            lambda start, end: code_around(text, *characters(start, end)),
            words,
        )

    def numbered(self, tokens: Tokens, unknown: Sequence[str]) -> list[int]:
        """Return the tokens; the i-th unknown one is the number i after the dictionary's last."""
        ids = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
        unk = self.dictionary.unk()
        if not unknown or ids.count(unk) != len(unknown):
            return ids
        behind = iter(range(len(self.dictionary), len(self.dictionary) + len(unknown)))
        return [next(behind) if token == unk else token for token in ids]

    def decoded(self, ids: Sequence[int], unknown: Sequence[str]) -> str:
        """Return the text of `numbered` tokens."""
        known = self.dictionary
        # like the dictionary's `string`, which is slower
        left_out = (known.pad(), known.bos(), known.eos())
        pieces = [
            known[i] if i < len(known) else unknown[i - len(known)]
            for i in ids
            if i not in left_out
        ]
        return self.segmenter.decode(
            " ".join(pieces[1:] if pieces and LANGUAGE.fullmatch(pieces[0]) else pieces)
        )


QUOTES = "()[]{}<>\"'“”„‚‘’,;:!?."  # around a path
# of a path, a URL or an identifier: a scheme, a sign that only code has, a dot inside of a word,
# two slashes, or a sign at its start
CODE = regex.compile(r"://|[\\_@]|\w\.\p{L}|/.*/|^[/~]\w|^--?\w")


def code_around(text: str, start: int, end: int) -> str:
    """Return the path, URL or identifier of a text that characters [start, end) are a part of; ""
    for none."""
    first = max((i + 1 for i in range(start) if text[i].isspace()), default=0)
    behind = next((i for i in range(end, len(text)) if text[i].isspace()), len(text))
    chunk = text[first:behind].strip(QUOTES)
    return chunk if len(chunk) > end - start and CODE.search(chunk) else ""


def neighbours(words: Sequence[str], start: int, end: int) -> tuple[str, str]:
    """Return the words before and behind words [start, end), "" for none."""
    return "".join(words[max(0, start - 1) : start]), "".join(words[end : end + 1])


def unknown_pieces(
    line: str, tokens: Tensor, dictionary: Dictionary | None, encoders: Sequence[Any]
) -> tuple[str, ...]:
    """Return the pieces of a line that the dictionary of its tokens (L,) lacks, in their order;
    none for speech, which has no dictionary. encoders: --tokenizer and --bpe, or None."""
    if dictionary is None or dictionary.unk() not in tokens.tolist():
        return ()
    for step in encoders:
        line = step.encode(line) if step is not None else line
    return tuple(piece for piece in line.split() if dictionary.index(piece) == dictionary.unk())


# ---- Whether a glossary fits the texts, by their first sentences


logger = logging.getLogger("fairseq_ext")
SENTENCES = 200  # that are looked at
LEAST = 5  # terms that would be found; of a smaller glossary half of them


class GlossaryFit:
    """Warns once of a glossary whose columns are the wrong way round, whose terms have another
    letter case than the texts, or are in none of them.

    path: its name; terms: returns its source terms and their targets; segmented: texts are pieces.
    """

    def __init__(
        self, path: str, terms: Callable[[], Iterable[tuple[str, Iterable[str]]]], segmented: bool
    ):
        self.path, self.terms, self.segmented = path, terms, segmented
        self.terms_found: set[int] = set()  # terms that are in the sentences
        self.sentences: list[Sequence[str]] = []
        self.is_done = False

    def add(self, words: Sequence[str], terms: Iterable[int]) -> None:
        """Add a sentence and the numbers of the terms that are found in it."""
        if not self.is_done:
            self.sentences.append(words)
            self.terms_found.update(terms)
            if len(self.sentences) == SENTENCES:
                self.warn()

    def warn(self) -> None:
        """Warn where twice as many terms as now would be found, or none is."""
        if self.is_done:
            return
        self.is_done = True
        wrong_way, any_case, number = Matcher("surface"), Matcher("casefold"), 0
        for number, (source, targets) in enumerate(self.terms(), 1):
            for matcher, texts in ((any_case, [source]), (wrong_way, targets)):
                for text in texts:
                    words = words_of(text, self.segmented)
                    # "IT" is not "it"
                    if words and not (matcher is any_case and any(map(has_own_case, words))):
                        matcher.add(words, number)
        sentences, self.sentences = self.sentences, []
        now = f"{self.path} has {counted(len(self.terms_found), 'term')}"
        now += f" in the first {counted(len(sentences), 'sentence')}"
        least = max(min(LEAST, (number + 1) // 2), 2 * len(self.terms_found))
        for matcher, what, advice in (
            (any_case, "in another letter case", "add --glossary-match casefold"),
            (wrong_way, "by their targets", "name its columns in a header, or swap them"),
        ):
            would = {each.term for words in sentences for each in matcher.matches(words)}
            if len(would) >= least:
                logger.warning("%s, and %d would be found %s: %s", now, len(would), what, advice)
                return
        if sentences and not self.terms_found:
            logger.warning("%s", now)
