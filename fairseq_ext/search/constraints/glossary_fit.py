"""Whether a glossary fits the texts, by their first sentences."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from fairseq_ext.core.errors import counted
from fairseq_ext.core.words import Matcher, has_own_case, words_of

logger = logging.getLogger("fairseq_ext")
SENTENCES = 200  # that are looked at
LEAST = 5  # terms that would be found


class GlossaryFit:
    """Warns once of a glossary whose columns are the wrong way round, or whose terms have another
    letter case than the texts.

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
        """Warn where twice as many terms as now would be found."""
        if self.is_done:
            return
        self.is_done = True
        wrong_way, any_case = Matcher("surface"), Matcher("casefold")
        for number, (source, targets) in enumerate(self.terms()):
            for matcher, texts in ((any_case, [source]), (wrong_way, targets)):
                for text in texts:
                    words = words_of(text, self.segmented)
                    # "IT" is not "it"
                    if words and not (matcher is any_case and any(map(has_own_case, words))):
                        matcher.add(words, number)
        sentences, self.sentences = self.sentences, []
        now = counted(len(self.terms_found), "term")
        now += f" in the first {counted(len(sentences), 'sentence')}"
        for matcher, what, advice in (
            (any_case, "in another letter case", "add --glossary-match casefold"),
            (wrong_way, "by their targets", "name its columns in a header, or swap them"),
        ):
            would = {each.term for words in sentences for each in matcher.matches(words)}
            if len(would) >= max(LEAST, 2 * len(self.terms_found)):
                logger.warning(
                    "%s has %s, and %d would be found %s: %s",
                    self.path,
                    now,
                    len(would),
                    what,
                    advice,
                )
                return
