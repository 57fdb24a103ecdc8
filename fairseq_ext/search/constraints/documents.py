"""Consistent forms of terms in a document (`--glossary-documents`): a document keeps the first
target form of each source term of the glossary.

The first line of a document with a term decides, in the order of the text: the form in its
translation is kept, with its inflections (`dressing`: also `dressings`, by their lemmas), and the
other target forms are not allowed in later lines. So a line is decoded after the lines that decide
for it, however lines are batched: a line that waits for no other has level 0, one that waits for
lines of level n has level n + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_ext.core.files import Lines
from fairseq_ext.core.lemmas import has_lemmas, lemmatizer
from fairseq_ext.core.words import words_of

FLAG = "--glossary-documents"
BLANK = "blank"
Key = tuple[str | int, str]  # a document and a source term


def lemmas_of(language: str) -> Callable[[str], str]:
    """Return a function that returns the lemma of a word of a language; the word itself if
    simplemma has none."""
    return lemmatizer(language, FLAG) if has_lemmas(language) else str.lower


class Documents:
    """The documents of a text, whose lines are read in one or several parts.

    where: `blank`, or a file with the name of each line's document; language: of the target.
    """

    def __init__(self, where: str, language: str):
        self.names = None if where == BLANK else Lines(where, FLAG)
        self.lemma = lemmas_of(language)
        self.clear()

    def clear(self) -> None:
        """Start a text."""
        self.number = 0  # of the document, if blank lines separate documents
        self.document_of_line: dict[int, str | int] = {}  # document by line, in the current part
        self.deciding: dict[Key, int] = {}  # the line that decides
        self.kept_form: dict[Key, str] = {}  # the form in its translation

    def levels(self, lines: Iterable[tuple[int, Sequence[str] | None]]) -> dict[int, int]:
        """Return the level of each line of the next part, by its number. lines: number and source
        terms; None for the terms of a blank line.

        Errors: UsageError if the file has fewer lines.
        """
        found: dict[int, int] = {}
        for number, terms in lines:
            if not found:
                self.begin(number)
            if terms is None and self.names is None:
                self.number += 1
            document = self.document_of_line[number] = self.document(number)
            waits_for = {
                self.deciding.setdefault((document, term), number) for term in terms or ()
            } - {number}
            found[number] = max((found[line] + 1 for line in waits_for if line in found), default=0)
        return found

    def check_size(self, sentences: int) -> None:
        """Raise UsageError unless a file of documents has as many lines as there are sentences."""
        if self.names is not None and len(self.names) != sentences:
            self.names.refuse_number(sentences)

    def begin(self, first: int) -> None:
        """Begin a part; drop the data of documents that are complete."""
        if first == 0:
            self.clear()
        self.document_of_line.clear()
        if self.names is None:
            for of_key in (self.deciding, self.kept_form):
                for key in [key for key in of_key if key[0] != self.number]:
                    del of_key[key]  # type: ignore[attr-defined]

    def document(self, line: int) -> str | int:
        """Return the document of a line."""
        if self.names is None:
            return self.number
        if line >= len(self.names):
            self.check_size(line + 1)
        return self.names[line]

    def forms(self, line: int, term: str, targets: Sequence[str]) -> tuple[str, ...]:
        """Return the target forms of a term that a line may have."""
        kept = self.kept_form.get((self.document_of_line.get(line, ""), term))
        return tuple(
            form for form in targets if kept is None or self.lemmas(form) == self.lemmas(kept)
        )

    def lemmas(self, form: str) -> list[str]:
        """Return the lemmas of a target form, in lower case."""
        return [self.lemma(word).lower() for word in words_of(form)]

    def record_form(self, line: int, term: str, form: str) -> None:
        """Note the form of a term in a line's translation."""
        key = self.document_of_line.get(line, ""), term
        if self.deciding.get(key) == line:
            self.kept_form.setdefault(key, form)


@dataclass
class BatchesByLevel:
    """Replaces fairseq's EpochBatchIterator: each sentence comes after the sentences that decide
    the form of one of its terms.

    levels: returns the level of each sentence of the data set; called at the first batch.
    """

    dataset: Any
    batches: Sequence[Sequence[int]]
    levels: Callable[[object], list[int]]

    def next_epoch_itr(self, shuffle: bool = True) -> BatchesByLevel:
        return self

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, object]]:
        level = self.levels(self.dataset)
        for each in range(max(level, default=0) + 1):
            for batch in self.batches:
                if part := [i for i in batch if level[i] == each]:
                    yield self.dataset.collater([self.dataset[i] for i in part])
