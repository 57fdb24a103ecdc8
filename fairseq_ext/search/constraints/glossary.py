"""Glossary terms as required phrases (`--glossary`).

If the source of a sentence has a term of the file, its translation is required. Formats:
core/glossary.py. How a term is found (--glossary-match): core/words.py. Its constraint:
- Any one of the term's targets. Lines of the file with the same source term are alternatives; a
  line that is there twice counts once.
- --glossary-repeat once: a term gives its constraint once, however often it occurs, as the second
  mention may well be a pronoun in the translation. each: n mentions give it n times; where terms
  are placed, a further one for which the draft has no word is left. Two different terms with the
  same translation give it twice in either case.
- Where the source is known in subword pieces only (no --tokenizer or --bpe given), terms are
  matched piece by piece.
Targets are segmented when their term is first met; that the target dictionary has all of their
pieces is checked when the file is read.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal

from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.glossary import Entry, Languages, LineErrors, read
from fairseq_ext.core.language_codes import two_letters
from fairseq_ext.core.lemmas import has_lemmas
from fairseq_ext.core.words import Match, matcher, words_of
from fairseq_ext.search.constraints.source_text import GlossaryFit
from fairseq_ext.search.phrases.agreement import LANGUAGES
from fairseq_ext.search.phrases.forms import Forms, forms_of_language
from fairseq_ext.search.phrases.letter_case import NOUNS_HAVE_CAPITALS, keeps_case, lowered
from fairseq_ext.search.phrases.places import PLURAL, plural_of
from fairseq_ext.search.phrases.segmenter import Segmenter
from fairseq_ext.search.phrases.sentence import EXACT, Cased, Phrase, Unwritable
from fairseq_ext.search.registry import is_given, register_feature, typed
from fairseq_ext.search.settings import Settings

logger = logging.getLogger("fairseq_ext")
FEW_TERMS = 8  # with fewer terms, capitals are taken for those of labels
LABELS = 0.25  # least share of targets with a capital in a file of labels


@dataclass
class GlossaryFlags:
    glossary: str | None = field(
        default=None,
        metadata={
            "help": "terms for every sentence whose source holds them: TSV, CSV, XLSX, TBX-Basic, "
            "TMX or JSONL of source and target term (or a|b) (default: none; in any order unless "
            "--constraints is ordered)",
            "file": True,
            "needs": ("source sentence",),
            "gives": "required phrases",
        },
    )
    glossary_match: Literal["surface", "casefold", "lemma"] | None = field(
        default=None,
        metadata={
            "help": "how --glossary finds terms in sources: as written, in any case, or also in "
            "other forms of the words (default: lemma, where --bpe or --tokenizer is given and "
            "simplemma knows the source language and the glossary lists no forms of its terms; "
            "else surface)",
            "implemented": "core/words.py",
        },
    )
    glossary_repeat: Literal["each", "once"] | None = field(
        default=None,
        metadata={
            "help": "a term of --glossary that a source has n times is required n times (each), or "
            "once (default: each with --glossary-placement align, where a further mention may be "
            "left that the translation has no word for; else once)"
        },
    )
    glossary_forms: Literal["auto", "off"] = field(
        default="auto",
        metadata={
            "help": "inflected forms of --glossary's target terms as further alternatives: auto, "
            "where simplemma knows the target language, except for English; or off (default: auto)",
            "implemented": "search/phrases/forms.py",
        },
    )
    glossary_placement: Literal["align", "free"] | None = field(
        default=None,
        metadata={
            "help": "where a term of --glossary stands: in the place of the words that translate "
            "its source term (align), or wherever the search puts it (free) (default: align with "
            "--select dba where --bpe or --tokenizer is given and no other flag needs the search's "
            "own hypotheses, else free)",
            "needs": {"align": ("search loop", "beam")},
            "implemented": "search/constraints/placement.py",
        },
    )
    glossary_documents: str | None = field(
        default=None,
        metadata={
            "help": "keep the target form that a document first has for a source term: blank "
            "(blank lines separate documents), or a file with the name of each line's document, "
            "in the order of the lines (default: each line has a form of its own)",
            "file": True,
            "engine": "looks back to earlier lines, and requests have no order",
            "corpus": "has a line wait for the lines before it, which another worker may have",
            "implemented": "search/constraints/documents.py",
        },
    )
    glossary_report: str | None = field(
        default=None,
        metadata={
            "help": "write to this JSONL file which terms of --glossary each sentence has, their "
            "forms, how they were placed, and which are doubtful (default: none)",
            "file": True,
            "written": True,
            "same_results": True,
            "engine": "writes a line a sentence to a file: each answer says the same of its terms",
            "corpus": "writes a file of its own, and workers share none",
            "implemented": "plugin/results.py",
        },
    )


@dataclass(frozen=True)
class GlossaryOptions:
    """The settings of the glossary, from the flags."""

    path: str  # --glossary
    match: str | None = None  # --glossary-match; None: its default
    repeat: str = "once"  # --glossary-repeat
    languages: Languages = Languages()
    case: str | None = None  # --constraint-case; None: of each term
    forms: bool = True  # --glossary-forms auto
    strict: bool = False  # --strict: lines that cannot be used are refused


@dataclass(slots=True)
class Term:
    """A source term of the file."""

    source: str  # as in its first line
    line: int  # number of that line
    targets: dict[str, int] = field(default_factory=dict)  # target -> its line
    # tokens of the targets, once they are needed; none if the dictionary cannot write them
    forms: tuple[Phrase, ...] | None = None
    # the targets that the dictionary can write, and then their inflected forms
    writable: tuple[str, ...] = ()
    size: int = 0  # tokens of the targets, without their inflected forms
    lacks: str = ""  # why it can write none
    cased: Cased = EXACT  # the case in which they count, with other spellings
    case: str = ""  # the same, by the file
    optional: bool = False  # it may be left where it does not fit

    @property
    def text(self) -> str:
        """The targets as the user may write them, a|b."""
        return "|".join(self.targets)


@dataclass
class Required:
    """The requirement of one mention of a term."""

    term: Term
    phrases: tuple[Phrase, ...]  # alternatives
    matches: list[Match]  # the mention, or all of them with --glossary-repeat once
    cased: Cased  # in which case they count


class Glossary:
    """The terms of a file. merged: lines whose source term an earlier line has.

    Lines that cannot be used are left out, with a warning. Errors: UsageError for them with
    --strict, and if no line is left; for a match `lemma` without lemmas.
    """

    def __init__(self, options: GlossaryOptions, segmenter: Segmenter):
        self.options, self.segmenter = options, segmenter
        self.terms: list[Term] = []
        self.merged = 0
        self.used_terms: set[int] = set()  # terms that a sentence had
        self.unusable: set[int] = set()  # lines with a target that cannot be required
        language = options.languages.target or ""
        self.inflected: Forms | None = forms_of_language(language) if options.forms else None
        with without_garbage_collection():
            match = match_mode(options.match, options.languages, not segmenter.takes_pieces)
            self.matcher = matcher(match, options.languages.source)
            self.read()
            if options.match is None:
                self.matcher.only_as_written_if_listed()
        self.fit = GlossaryFit(
            options.path,
            lambda: ((term.source, term.targets) for term in self.terms),
            segmenter.takes_pieces,
        )
        merged = (
            f", {counted(self.merged, 'line')} merged with earlier ones of the same source term"
            if self.merged
            else ""
        )
        logger.info(
            "glossary %s: %s%s", options.path, counted(len(self.terms), "source term"), merged
        )

    def read(self) -> None:
        """Read the file."""
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
        """Return the name of a line in messages."""
        return f"line {line} of {self.options.path}"

    def add(self, entry: Entry, words: Sequence[str], errors: LineErrors) -> None:
        """Add one line of the file."""
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
        self.terms[number].case = self.terms[number].case or entry.case
        self.terms[number].optional |= entry.optional
        for target in entry.targets:
            self.terms[number].targets.setdefault(target, entry.line)

    def check_targets(self, entries: Sequence[Entry], errors: LineErrors) -> None:
        """Report targets that cannot be required, and warn of those that the dictionary cannot
        write. Many lines are checked together; single lines only if new words of them fail."""
        known: set[str] = set()  # words that can be written
        unwritable = LineErrors()
        for some in batches(entries):
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
                        self.segmenter.phrases(target, self.where(entry.line))
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
        """Yield the words of each source term, after the encoders of sources, which may normalise
        them."""
        segmented = self.segmenter.takes_pieces
        for some in batches(terms):
            texts = some if segmented else encode_batch(some, self.segmenter.normalised)
            for text in texts:
                yield words_of(text, segmented)

    def forms(self, term: Term) -> tuple[Phrase, ...]:
        """Return the token phrases of a term's targets."""
        if term.forms is None:
            each = {
                target: self.segmenter.alternatives([target], self.where(line))
                for target, line in term.targets.items()
            }
            term.forms = tuple(dict.fromkeys(form for forms, _ in each.values() for form in forms))
            term.writable = tuple(target for target, (forms, _) in each.items() if forms)
            term.lacks = "" if term.forms else next(lacks for _, lacks in each.values())
            term.size = sum(map(len, term.forms))
            self.inflect(term)
            term.cased = self.cased(term)
        return term.forms

    def inflect(self, term: Term) -> None:
        """Add the inflected forms of a term's targets to its alternatives."""
        if term.case == "exact" or not self.options.forms:
            return
        inflected = self.inflected
        if inflected is None:
            # the mention may be a plural
            is_needed = self.matcher.inflections is not None
            is_english = two_letters(self.options.languages.target or "") == "en"
            if not is_needed or not is_english or any(map(PLURAL.search, term.targets)):
                return
            inflected = plurals
        writable, phrases = dict.fromkeys(term.writable), dict.fromkeys(term.forms or ())
        for form in dict.fromkeys(form for each in term.writable for form in inflected(each)):
            found, _ = self.segmenter.alternatives([form], "")
            if form not in writable and found:
                writable[form] = None
                phrases |= dict.fromkeys(found)
        term.writable, term.forms = tuple(writable), tuple(phrases)

    def cased(self, term: Term) -> Cased:
        """Return the case in which a term's targets count, with the search's spellings."""
        case, targets = self.case_of(term), list(term.targets)
        low = [lowered(target) for target in targets] if case == "fitted" else []
        language = two_letters(self.options.languages.target or "")
        if language in NOUNS_HAVE_CAPITALS:
            low = []
        spelled = (
            form for target in [*targets, *low] for form in self.segmenter.spellings(target, case)
        )
        running, _ = self.segmenter.alternatives([each for each in low if each not in targets], "")
        return Cased(
            case,
            tuple(dict.fromkeys(spelled)),
            running,
            self.inflected is not None and language in LANGUAGES and case in ("any", "fitted"),
        )

    def case_of(self, term: Term) -> str:
        """Return the case in which a term's targets count: by --constraint-case, by its entry, else
        that of the sentence, except for targets with a case of their own."""
        if self.options.case is not None:
            return self.options.case
        has_capital = any(target[:1].isupper() for target in term.targets)
        is_name = has_capital and not self.has_labels
        return term.case or (
            "initial" if is_name or all(map(keeps_case, term.targets)) else "fitted"
        )

    @cached_property
    def has_labels(self) -> bool:
        """Whether capitals in the file are those of labels; false for a long file that has few, in
        which they belong to names."""
        targets = [target for term in self.terms for target in term.targets]
        capitals = sum(target[:1].isupper() and not keeps_case(target) for target in targets)
        return len(self.terms) < FEW_TERMS or capitals >= LABELS * len(targets)

    @property
    def unused_terms(self) -> list[str]:
        """The source terms that no sentence had."""
        return [term.source for i, term in enumerate(self.terms) if i not in self.used_terms]

    def required(self, words: Sequence[str]) -> list[Required]:
        """Return the requirements of a sentence of these words, in the order of the terms' first
        places."""
        found: list[Required] = []
        once: dict[int, Required] = {}
        matches = self.matcher.matches(words)
        self.fit.add(words, (match.term for match in matches))
        for match in matches:
            self.used_terms.add(match.term)
            if self.options.repeat == "once" and match.term in once:
                once[match.term].matches.append(match)
                continue
            term = self.terms[match.term]
            found.append(Required(term, self.forms(term), [match], term.cased))
            once[match.term] = found[-1]
        return found


def plurals(target: str) -> tuple[str, ...]:
    """Return the plural of an English target, where it has one."""
    plural = plural_of(target)
    return (plural,) if plural else ()


def places_terms(settings: Settings) -> bool:
    """Return whether terms of the glossary replace the words that translate their source terms,
    after `choose_placement`."""
    return settings.get(GlossaryFlags).glossary_placement == "align"


def match_mode(match: str | None, languages: Languages, has_words: bool) -> str:
    """Return --glossary-match, or its default for the source language. has_words: whether sources
    are known in words, and not in pieces only."""
    return match or ("lemma" if has_words and has_lemmas(languages.source) else "surface")


def check_glossary(settings: Settings, of_requests: bool = False) -> None:
    """Raise UsageError for a flag of the glossary without a glossary.

    of_requests: glossaries may be passed with requests.
    """
    given = [each.name for each in fields(GlossaryFlags) if is_given(settings, each)]
    if given and not settings.get(GlossaryFlags).glossary and not of_requests:
        raise UsageError(f"{typed(given[0])} needs a glossary: add --glossary, or leave it out")


def glossary_options(
    settings: Settings, languages: Languages, path: str, strict: bool, case: str | None
) -> GlossaryOptions:
    """Return the settings of a glossary file, from --glossary or from a request. case:
    --constraint-case."""
    flags = settings.get(GlossaryFlags)
    by_placement = "each" if flags.glossary_placement == "align" else "once"
    return GlossaryOptions(
        path,
        flags.glossary_match,
        flags.glossary_repeat or by_placement,
        languages,
        case,
        flags.glossary_forms == "auto",
        strict,
    )


def signature(settings: Settings) -> str:
    """Return the part of the signature for placed terms; "" if terms are not placed."""
    return "glossary:align" if places_terms(settings) else ""


register_feature(
    "constraints: glossary",
    GlossaryFlags,
    constrains=True,
    signature=signature,
    page="glossaries.md",
    example="--glossary FILE",
)


# ---- Many terms of a glossary at once: encoders take most of their time to start

SEPARATOR = "‖"  # parts terms that go through an encoder together
BATCH_SIZE = 250  # terms in one call of an encoder


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch off garbage collection: with over 100,000 new terms, all of which stay, it would take
    longer than the rest."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def batches(items: Sequence) -> Iterator[Sequence]:
    """Yield the items in batches for one call of an encoder each."""
    for start in range(0, len(items), BATCH_SIZE):
        yield items[start : start + BATCH_SIZE]


def encode_batch(texts: Sequence[str], step: Callable[[str], str]) -> list[str]:
    """Return each text after `step`, which is called once for all: an encoder takes most of its
    time to start.

    subtle: the texts are separated by a sign; if the step did not keep all of them, it is called
    for each text.
    """
    found = step(f" {SEPARATOR} ".join(texts)).split(SEPARATOR)
    return found if len(found) == len(texts) else [step(text) for text in texts]
