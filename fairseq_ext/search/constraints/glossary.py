"""Glossary terms as required phrases (`--glossary`), and forms that documents keep.

Where the source of a sentence holds a term of the file, its translation is required.
Formats: core/glossary.py. How a term is found (--glossary-match): core/words.py. What it asks for:
- Any one of the term's targets. Lines of the file with the same source term are alternatives; a
  line that is there twice counts once.
- --glossary-repeat once: a term gives its constraint once, however often it occurs, as the second
  mention may well be a pronoun in the translation. each: n mentions give it n times. Two different
  terms with the same translation give it twice in either case.
- Where the source is known in subword pieces only (no --tokenizer or --bpe given), terms are
  matched piece by piece.
Targets are segmented when their term is first met; that the target dictionary has all of their
pieces is checked when the file is read.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.files import Lines
from fairseq_ext.core.glossary import Entry, Languages, LineErrors, read
from fairseq_ext.core.words import Match, Matcher, lemmatizer, words_of
from fairseq_ext.search.constraints.required import case_of
from fairseq_ext.search.phrases.segmenter import Segmenter
from fairseq_ext.search.phrases.sentence import EXACT, Cased, Phrase, Unwritable

# defaults of flags that need --glossary
GLOSSARY = {
    "glossary_match": "surface",
    "glossary_repeat": "once",
    "glossary_placement": None,
    "glossary_report": None,
}
logger = logging.getLogger("fairseq_ext")
SEPARATOR = "‖"  # parts terms that go through an encoder together
TOGETHER = 250  # terms in one call of an encoder


@dataclass(frozen=True)
class GlossaryOptions:
    """What the flags say of the glossary."""

    path: str  # --glossary
    match: str = "surface"  # --glossary-match
    repeat: str = "once"  # --glossary-repeat
    languages: Languages = Languages()
    case: str = "initial"  # --constraint-case
    strict: bool = False  # --strict: lines that cannot be used are refused


@dataclass(slots=True)
class Term:
    """A source term of the file."""

    source: str  # as the file first has it
    line: int  # where
    targets: dict[str, int] = field(default_factory=dict)  # as the file has them, with their lines
    # their tokens, once they were asked for; none where the dictionary cannot write them
    forms: tuple[Phrase, ...] | None = None
    writable: tuple[str, ...] = ()  # the targets that it can write
    lacks: str = ""  # why it can write none
    cased: Cased = EXACT  # the same in the case of the options

    @property
    def text(self) -> str:
        """The targets as the user may write them, a|b."""
        return "|".join(self.targets)


@dataclass
class Required:
    """What one mention of a term asks for."""

    term: Term
    phrases: tuple[Phrase, ...]  # any one of them
    matches: list[Match]  # the mention, or all of them with --glossary-repeat once
    cased: Cased  # in which case they count


class Glossary:
    """The terms of a file. merged: lines whose source term an earlier line has.

    Lines that cannot be used are left out, with a warning. Errors: UsageError for them with
    --strict, and where no line is left; for a match `lemma` without lemmas.
    """

    def __init__(self, options: GlossaryOptions, segmenter: Segmenter):
        self.options, self.segmenter = options, segmenter
        self.terms: list[Term] = []
        self.merged = 0
        self.seen: set[int] = set()  # terms that a sentence had
        self.unusable: set[int] = set()  # lines with a target that cannot be required
        with without_garbage_collection():
            lemma = (
                lemmatizer(options.languages.source or "", "--glossary-match lemma")
                if options.match == "lemma"
                else None
            )
            self.matcher = Matcher(options.match, lemma)
            self.read()
        merged = (
            f", {counted(self.merged, 'line')} merged with earlier ones of the same source term"
            if self.merged
            else ""
        )
        logger.info(
            "glossary %s: %s%s", options.path, counted(len(self.terms), "source term"), merged
        )

    def read(self) -> None:
        """Take in the file."""
        options, errors = self.options, LineErrors()
        entries = read(options.path, "--glossary", options.languages, errors)
        self.check_targets(entries, errors)
        for entry, words in zip(
            entries, self.source_words([entry.source for entry in entries]), strict=True
        ):
            if entry.line not in self.unusable:
                self.add(entry, words, errors)
        if options.strict or not self.terms:
            errors.raise_first()
        errors.warn(options.path)

    def __reduce__(self):
        return Glossary, (self.options, self.segmenter)

    def where(self, line: int) -> str:
        """How messages name a line."""
        return f"line {line} of {self.options.path}"

    def add(self, entry: Entry, words: Sequence[str], errors: LineErrors) -> None:
        """One line of the file."""
        if not words:
            errors.add(
                UsageError(
                    f"{self.where(entry.line)} has the term '{entry.source}', of which "
                    "segmentation leaves nothing: correct or remove it"
                )
            )
            return
        number = self.matcher.add(words, len(self.terms))
        if number == len(self.terms):
            self.terms.append(Term(entry.source, entry.line))
        else:
            self.merged += 1
        for target in entry.targets:
            self.terms[number].targets.setdefault(target, entry.line)

    def check_targets(self, entries: Sequence[Entry], errors: LineErrors) -> None:
        """Report targets that cannot be required, and warn of those that the dictionary cannot
        write. Lines are looked at one by one only where words that no line before them had are
        such, many lines together."""
        known: set[str] = set()  # words that can be written
        unwritable = LineErrors()
        for some in together(entries):
            new = dict.fromkeys(
                word
                for entry in some
                for target in entry.targets
                for word in target.split()
                if word not in known
            )
            if not new or self.segmenter.writable(" ".join(new)):
                known.update(new)
                continue
            for entry in some:
                try:
                    for target in entry.targets:
                        self.segmenter.phrases(
                            target, self.where(entry.line), suggest=unwritable.first is None
                        )
                except Unwritable as error:
                    unwritable.add(error)
                except UsageError as error:
                    errors.add(error)
                    self.unusable.add(entry.line)
        if unwritable.first is not None:
            more = (
                f" ({counted(unwritable.lines - 1, 'more such line')} in the file)"
                if unwritable.lines > 1
                else ""
            )
            logger.warning(
                "%s; sentences with its term are translated without it%s", unwritable.first, more
            )

    def source_words(self, terms: Sequence[str]) -> Iterator[list[str]]:
        """The words of each source term, sent through the encoders as sources are
        (they may normalise)."""
        segmented = self.segmenter.takes_pieces
        for some in together(terms):
            texts = some if segmented else encoded_together(some, self.segmenter.normalised)
            for text in texts:
                yield words_of(text, segmented)

    def forms(self, term: Term) -> tuple[Phrase, ...]:
        """The token phrases of a term's targets."""
        if term.forms is None:
            each = {
                target: self.segmenter.alternatives([target], self.where(line))
                for target, line in term.targets.items()
            }
            term.forms = tuple(dict.fromkeys(form for forms, _ in each.values() for form in forms))
            term.writable = tuple(target for target, (forms, _) in each.items() if forms)
            term.lacks = "" if term.forms else next(lacks for _, lacks in each.values())
            spelled = (
                form
                for target in term.targets
                for form in self.segmenter.spellings(target, self.options.case)
            )
            term.cased = Cased(self.options.case, tuple(dict.fromkeys(spelled)))
        return term.forms

    @property
    def unseen(self) -> list[str]:
        """The source terms that no sentence has had."""
        return [term.source for number, term in enumerate(self.terms) if number not in self.seen]

    def required(self, words: Sequence[str]) -> list[Required]:
        """What a sentence of these words asks for, in the order of the terms' first places."""
        found: list[Required] = []
        once: dict[int, Required] = {}
        for match in self.matcher.matches(words):
            self.seen.add(match.term)
            if self.options.repeat == "once" and match.term in once:
                once[match.term].matches.append(match)
                continue
            term = self.terms[match.term]
            found.append(Required(term, self.forms(term), [match], term.cased))
            once[match.term] = found[-1]
        return found


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """A time in which Python does not look for garbage: over 100,000 new terms, all of which stay,
    that takes longer than the rest."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def together(items: Sequence) -> Iterator[Sequence]:
    """The items in runs that go through an encoder in one call."""
    for start in range(0, len(items), TOGETHER):
        yield items[start : start + TOGETHER]


def encoded_together(texts: Sequence[str], step: Callable[[str], str]) -> list[str]:
    """Each text after `step`, which is called once for all: an encoder takes most
    of its time to start.

    subtle: the texts are parted by a sign of its own; where the step did not keep every one of
    them, each text goes by itself.
    """
    found = step(f" {SEPARATOR} ".join(texts)).split(SEPARATOR)
    return found if len(found) == len(texts) else [step(text) for text in texts]


GLOSSARY |= {"glossary_documents": None}


def places_terms(flags: Any) -> bool:
    """Whether terms of the glossary are written in the place of what translates their source terms,
    once `choose_placement` has run."""
    return str(flags.glossary_placement) == "align"


def choose_placement(flags: Any, generation: Any, segmented: bool, of_requests: bool) -> Any:
    """Return the flags with a placement of the glossary's terms where the command names none.

    segmented: --bpe or --tokenizer says what words are; of_requests: glossaries come with requests.

    Errors: UsageError for --glossary-placement align beside what it would not keep to.
    """
    if not (flags.glossary or of_requests) or str(flags.glossary_placement) == "free":
        return flags
    own = {
        "--constraint-bonus": flags.constraint_bonus is not None,
        "--constraint-end": flags.constraint_end,
        f"--select {flags.select}": str(flags.select) != "dba",
    }
    names = ("print_alignment", "lm_path", "retain_dropout", "no_repeat_ngram_size")
    stock = {"--" + name.replace("_", "-"): bool(vars(generation)[name]) for name in names}
    against = next((flag for flag, is_on in (own | stock).items() if is_on), None)
    if flags.glossary_placement is None:
        placement = "align" if segmented and against is None else "free"
        return replace(flags, glossary_placement=placement)
    if against is not None:
        raise UsageError(
            f"--glossary-placement align writes terms behind the search, in which {against} works: "
            "leave one of the two out"
        )
    if not segmented:
        raise UsageError(
            "--glossary-placement align needs to know what words are: add --bpe or --tokenizer, "
            "or use free in its place"
        )
    return flags


def check_glossary(flags: Any, of_requests: bool = False) -> None:
    """UsageError for a flag of the glossary's without a glossary.

    of_requests: glossaries may come with requests.
    """
    given = [
        name for name, default in GLOSSARY.items() if (vars(flags)[name] or default) != default
    ]
    if given and not flags.glossary and not of_requests:
        raise UsageError(
            f"--{given[0].replace('_', '-')} needs a glossary: add --glossary, or leave it out"
        )


def glossary_options(flags: Any, languages: Languages) -> GlossaryOptions | None:
    """The glossary that the flags name; languages: those of the run."""
    path = flags.glossary
    case = case_of(flags, "initial")
    return (
        GlossaryOptions(
            path,
            str(flags.glossary_match),
            str(flags.glossary_repeat),
            languages,
            case,
            flags.strict,
        )
        if path
        else None
    )


# ---- Forms that a document keeps (`--glossary-documents`)
#
# A document keeps the target form that it first has for a source term of the glossary.
#
# The first line of a document that holds a term decides, in the order of the text: what its
# translation has is kept, with its inflections (`dressing`: `dressings` too, by their lemmas), and
# the other target forms are left out for the lines behind it. So a line is decoded after those that
# decide for it, however lines are batched: a line that waits for none is of level 0, one that waits
# for lines of level n of n + 1.


FLAG = "--glossary-documents"
BLANK = "blank"
Key = tuple[str | int, str]  # a document and a source term


def lemmas_of(language: str) -> Callable[[str], str]:
    """The lemmas of a language; its words where simplemma has none.

    Errors: UsageError where simplemma is not installed.
    """
    try:
        return lemmatizer(language, FLAG)
    except UsageError:
        if importlib.util.find_spec("simplemma") is None:
            raise
        return str.lower


class Documents:
    """The documents of a text, whose lines come in one or several parts.

    where: `blank`, or a file with the name of each line's document; language: of the target.
    """

    def __init__(self, where: str, language: str):
        self.names = None if where == BLANK else Lines(where, FLAG)
        self.lemma = lemmas_of(language)
        self.clear()

    def clear(self) -> None:
        """Start a text."""
        self.number = 0  # of the document, where blank lines part them
        self.of_line: dict[int, str | int] = {}  # of the part at hand
        self.deciding: dict[Key, int] = {}  # the line
        self.kept: dict[Key, str] = {}  # what it has

    def levels(self, lines: Iterable[tuple[int, Sequence[str] | None]]) -> dict[int, int]:
        """The level of each line of the next part, by its number. lines: number and source terms;
        None for the terms of a blank line.

        Errors: UsageError where the file has fewer lines.
        """
        found: dict[int, int] = {}
        for number, terms in lines:
            if not found:
                self.begin(number)
            if terms is None and self.names is None:
                self.number += 1
            document = self.of_line[number] = self.document(number)
            waits_for = {
                self.deciding.setdefault((document, term), number) for term in terms or ()
            } - {number}
            found[number] = max((found[line] + 1 for line in waits_for if line in found), default=0)
        return found

    def check_size(self, sentences: int) -> None:
        """UsageError unless a file of documents has a line for each of so many sentences."""
        if self.names is not None and len(self.names) != sentences:
            raise UsageError(
                f"{FLAG} {self.names.path} has {counted(len(self.names), 'line')} and the input "
                f"has {counted(sentences, 'sentence')}: write one line for each"
            )

    def begin(self, first: int) -> None:
        """Begin a part; what is over is forgotten."""
        if first == 0:
            self.clear()
        self.of_line.clear()
        if self.names is None:
            for of_key in (self.deciding, self.kept):
                for key in [key for key in of_key if key[0] != self.number]:
                    del of_key[key]  # type: ignore[attr-defined]

    def document(self, line: int) -> str | int:
        """The document of a line."""
        if self.names is None:
            return self.number
        if line >= len(self.names):
            self.check_size(line + 1)
        return self.names[line]

    def forms(self, line: int, term: str, targets: Sequence[str]) -> tuple[str, ...]:
        """Those of a term's target forms that a line may have."""
        kept = self.kept.get((self.of_line.get(line, ""), term))
        return tuple(
            form for form in targets if kept is None or self.lemmas(form) == self.lemmas(kept)
        )

    def lemmas(self, form: str) -> list[str]:
        """The lemmas of a target form, in small letters."""
        return [self.lemma(word).lower() for word in words_of(form)]

    def keep(self, line: int, term: str, form: str | None) -> None:
        """A line's translation has this form of a term, or none."""
        key = self.of_line.get(line, ""), term
        if form is not None and self.deciding.get(key) == line:
            self.kept.setdefault(key, form)
