"""The constraints of every sentence from files and flags, and the strategies for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import Lines
from fairseq_ext.core.words import is_word, words_of
from fairseq_ext.search.constraints.allowed import AllowedFlags, AllowedOutputs
from fairseq_ext.search.constraints.glossary import Glossary, GlossaryOptions, Required
from fairseq_ext.search.constraints.lines import NO_CONSTRAINTS, is_json, parse_json, parse_tabs
from fairseq_ext.search.constraints.required import ConstraintFlags
from fairseq_ext.search.constraints.source_text import SourceText, neighbours
from fairseq_ext.search.phrases.pieces import Boundaries
from fairseq_ext.search.phrases.places import banned_in_texts
from fairseq_ext.search.phrases.segmenter import Segmenter
from fairseq_ext.search.phrases.sentence import (
    EMPTY,
    MAX_CONSTRAINTS,
    MAX_TOKENS,
    Cased,
    Constraint,
    Dictionary,
    Phrase,
    SentenceConstraints,
    SourceTerm,
    banned_in_tokens,
    merge,
    size,
    within_limits,
    without_conflicts,
)
from fairseq_ext.search.registry import STOCKS, constraint_flag
from fairseq_ext.search.request import TextConstraints
from fairseq_ext.search.settings import Choices, Settings


def choose_strategies(settings: Settings) -> Settings:
    """Return the settings with the strategies for constraints if the command names none: --select
    dba, or bonus if constraints are only preferred; --stop early if they are forced, unless there
    is a --patience, which belongs to --stop count."""
    generation, choices = settings.generation, settings.get(Choices)
    stock = "diverse" if generation.diverse_beam_groups > 0 else None
    own = "sampling" if generation.sampling else stock or choices.select
    if own in STOCKS:
        if choices.select not in (None, own):
            raise UsageError(
                f"{STOCKS[own]} and --select {choices.select} both choose continuations: leave "
                "one of the two out"
            )
        settings = settings.changed(select=own, sampling=own == "sampling")
    elif constraint_flag(settings) and not own:
        bonus = settings.get(ConstraintFlags).constraint_bonus
        settings = settings.changed(select="dba" if bonus is None else "bonus")
    forces = settings.choice("select") not in ("topk", "bonus", *STOCKS)
    if forces and not choices.stop and settings.values.get("patience", -1) == -1:
        settings = settings.changed(stop="early")
    return settings


def is_ordered(settings: Settings) -> bool:
    """Return whether phrases must appear in the given order: if the stock flag says so; with our
    files alone they need not."""
    return settings.generation.constraints == "ordered"


# ---- Constraints from files, as target tokens of each sentence
#
# Formats
# - `--constraints-file`: lines.py. A corpus run has one for each shard and reads it itself
#   (corpus/shards.py).
# - `--avoid-file`: a phrase a line, for every sentence; blank lines are skipped.
# - `--glossary`: glossary.py.
# A sentence's constraints are ordered as written: `constraints`, `any_of`, then glossary terms in
# the order of the source.
#
# How text becomes tokens: search/phrases/segmenter.py.


logger = logging.getLogger("fairseq_ext")
KNOWN_BANNED = 20_000  # banned phrases whose forms are kept


@dataclass(frozen=True)
class Matching:
    """The case and the boundaries in which phrases count, except for terms of a glossary."""

    required: str = "exact"  # --constraint-case
    banned: str = "exact"  # --avoid-case
    boundaries: Boundaries | None = None  # of the target's words, if phrases count as words


class ConstraintSource:
    """The constraints of every sentence of a corpus, or of an interactive session. Lines of the
    constraints file are read and checked for their sentence; --avoid-file and --glossary at once.

    Files that are None give nothing. segmenter: of the target side; source: the source dictionary;
    allowed: the allowed outputs, by flags and of lines.
    `len` counts the lines of the constraints file.
    Errors: UsageError, one sentence that names file and line, for everything in a file that cannot
    be used.
    """

    def __init__(
        self,
        constraints_file: str | None,
        avoid_file: str | None,
        glossary: GlossaryOptions | None,
        segmenter: Segmenter,
        source: Dictionary,
        matching: Matching = Matching(),
        allowed: AllowedOutputs | None = None,
    ):
        self.segmenter, self.matching = segmenter, matching
        # the forms of banned phrases: the lines of a call share a list of them
        self.known_banned: dict[str, dict[Phrase, str]] = {}
        self.source_text = SourceText(source, segmenter)
        self.look = (
            banned_in_tokens
            if matching.boundaries is None
            else banned_in_texts(matching.boundaries, matching.banned)
        )
        self.lines = Lines(constraints_file, "--constraints-file") if constraints_file else None
        self.parse = parse_json if self.lines is not None and is_json(self.lines) else parse_tabs
        banned: dict[Phrase, str] = {}
        if avoid_file:
            Lines(avoid_file, "--avoid-file").for_each(
                lambda line, where: banned.update(self.banned_forms(line, where))
            )
        self.allowed = allowed
        self.common = SentenceConstraints((), banned) if banned else EMPTY
        self.glossary = Glossary(glossary, self.segmenter) if glossary else None
        self.named = bool(constraints_file or avoid_file or glossary or allowed)
        # whether a sentence's constraints contain the places of its source terms
        self.locates_terms = False
        if avoid_file and not banned:
            logger.warning("--avoid-file %s has no phrases, so nothing is banned", avoid_file)

    def __len__(self) -> int:
        return 0 if self.lines is None else len(self.lines)

    def __bool__(self) -> bool:
        return self.named

    def check_size(self, sentences: int) -> None:
        """Raise UsageError unless the constraints file, if there is one, has as many lines as there
        are sentences."""
        if self.lines is not None and len(self.lines) != sentences:
            self.lines.refuse_number(sentences, NO_CONSTRAINTS)
        if self.allowed is not None:
            self.allowed.check_size(sentences)

    def sentence(
        self,
        number: int,
        source_tokens: Tensor | Sequence[int],
        call: SentenceConstraints = EMPTY,
        glossaries: Sequence[Glossary] = (),
        unknown: Sequence[str] = (),
    ) -> SentenceConstraints:
        """Return all constraints of sentence `number` (from 0, fairseq's sample id), whose source
        is source_tokens (L,), padded or not; unknown: see SourceText.

        call: constraints that were typed after the line, or passed with a call or a request;
        glossaries: of a request, in addition to that of the flags. A phrase of the line or of the
        call that is also the target of a term is required once, in the place of the term.
        Errors: UsageError for a file that has no such line, a second prefix, too many phrases.
        """
        line = self.of_number(number)
        found = line if call is EMPTY else merge(line, call, self.consistent)
        if self.allowed is not None and found.allowed is None:
            outputs = self.allowed.of_number(number)
            found = found if outputs is None else replace(found, allowed=outputs)
        words = None
        for glossary in filter(None, (self.glossary, *glossaries)):
            if words is None:
                words = self.source_text.words(source_tokens, unknown)
            found = self.with_terms(found, glossary.required(words), source_tokens, unknown)
        found = self.consistent(found)
        if found.allowed is not None:
            found = found.without_places()
        return replace(found, unknown=tuple(unknown)) if unknown else found

    def of_number(self, number: int) -> SentenceConstraints:
        """Return the constraints of the files for sentence `number`, without terms."""
        found = self.common
        if self.lines is not None:
            if number >= len(self.lines):
                self.lines.refuse_number(number + 1, NO_CONSTRAINTS, "the input has at least")
            found = self.of_line(self.lines[number], self.lines.where(number))
        return found

    def consistent(self, found: SentenceConstraints) -> SentenceConstraints:
        """Return the constraints without those that banned phrases exclude: by their texts if the
        target's words are known."""
        return without_conflicts(found, self.look) if found.banned else found

    def check_lines(self) -> None:
        """Raise UsageError for a line of the constraints file that cannot be used, before anything
        is translated."""

        def check(line: str, where: str) -> None:
            self.of_line(line, where)

        if self.lines is not None:
            self.lines.for_each(check)

    def of_line(self, line: str, where: str) -> SentenceConstraints:
        """Return the constraints of a line of the file, and those of --avoid-file."""
        if not line.strip(" "):
            return self.common
        return self.of_text(self.parse(line, where), where)

    def of_text(self, text: TextConstraints, where: str) -> SentenceConstraints:
        """Return constraints that are given as text, and those of --avoid-file."""
        # a phrase that starts with <s> is a prefix as well
        bos = self.segmenter.dictionary.bos_word
        plain = [each for each in text.constraints if each.split()[0] != bos]
        begun = [each for each in text.constraints if each.split()[0] == bos]
        split = (each.split() for each in (*begun, *text.prefix))
        starts = list(dict.fromkeys(" ".join(words[words[0] == bos :]) for words in split))
        if len(starts) > 1:
            raise UsageError(
                f"{where} has two target prefixes, '{starts[0]}' and '{starts[1]}': give one"
            )
        given = [*((each,) for each in plain), *text.any_of]
        segmented = [("|".join(g), g, *self.segmenter.alternatives(g, where)) for g in given]
        banned = dict[Phrase, str]()
        for phrase in text.avoid:
            banned |= self.banned_forms(phrase, where)
        found = SentenceConstraints(
            required=tuple(
                Constraint(said, forms, self.cased(texts, self.matching.required))
                for said, texts, forms, _ in segmented
                if forms
            ),
            banned={**self.common.banned, **banned} if banned else self.common.banned,
            prefix=tuple(
                Constraint(each, self.segmenter.phrases(each, where, leads=[""])[:1])
                for each in starts
            ),
            unmet=tuple((said, reason) for said, _, forms, reason in segmented if not forms),
            allowed=self.outputs.of_list(text.allowed, f"allowed of {where}")
            if text.allowed
            else None,
        )
        return within_limits(found, where)

    @property
    def outputs(self) -> AllowedOutputs:
        """The allowed outputs of the run."""
        if self.allowed is None:
            self.allowed = AllowedOutputs(AllowedFlags(), self.segmenter)
        return self.allowed

    def banned_forms(self, text: str, where: str) -> dict[Phrase, str]:
        """Return the forms of a banned phrase, none if the dictionary cannot write it.

        Errors: UsageError for a phrase longer than any translation.
        """
        text = text.strip()
        if text in self.known_banned:
            return self.known_banned[text]
        found, _ = self.segmenter.alternatives([text], where)
        if found and len(found[0]) > MAX_TOKENS:
            raise UsageError(
                f"{where} has a banned phrase of {len(found[0])} tokens and {MAX_TOKENS} are "
                "allowed: shorten it"
            )
        spelled = self.segmenter.spellings(text, self.matching.banned) if found else ()
        if len(self.known_banned) == KNOWN_BANNED:
            self.known_banned.clear()
        return self.known_banned.setdefault(text, dict.fromkeys((*found, *spelled), text))

    def cased(self, texts: Sequence[str], case: str) -> Cased:
        """Return in which case a constraint's phrases count, with the search's forms of it."""
        return Cased(
            case,
            tuple(
                dict.fromkeys(
                    form for text in texts for form in self.segmenter.spellings(text, case)
                )
            ),
        )

    def with_terms(
        self,
        given: SentenceConstraints,
        required: Sequence[Required],
        source: Tensor | Sequence[int] = (),
        unknown: Sequence[str] = (),
    ) -> SentenceConstraints:
        """Add the glossary terms of a source (tokens (L,), unknown: see SourceText).

        A phrase that is required already and meets a term is used for that term, unless another
        term has it; terms that another glossary has added are left out. If the limits are reached,
        further terms are unmet, so that a long line does not end a corpus run.
        """
        known = {(term.source, frozenset(term.phrases)) for term in given.terms}
        all_required, unmet, dropped = list(given.required), list(given.unmet), list(given.dropped)
        own = [i for i, each in enumerate(all_required) if not isinstance(each, SourceTerm)]
        tokens = size(all_required)
        tokens_of, code_of, words = (
            self.source_text.tokens_of_words(source, unknown)
            if self.locates_terms and required and len(source)
            else (None, None, [])
        )
        for each in required:
            if (each.term.source, frozenset(each.phrases)) in known:
                continue
            spans = tuple((match.start, match.end) for match in each.matches)
            first = spans[0]
            term = SourceTerm(
                each.term.text,
                each.phrases,
                each.cased,
                each.term.source,
                tuple(each.term.targets),
                each.term.line,
                each.term.writable,
                spans,
                () if tokens_of is None else tuple(tuple(tokens_of(*span)) for span in spans),
                " ".join(words[slice(*first)]),
                neighbours(words, *first),
                "" if code_of is None else code_of(*first),
                each.term.optional,
            )
            fitting = [i for i in own if set(all_required[i].phrases) <= set(each.phrases)]
            if each.phrases and fitting:
                # the same phrases, else the first that are a subset of them
                i = max(fitting, key=lambda i: set(all_required[i].phrases) == set(each.phrases))
                own.remove(i)
                held = all_required[i]
                forms = tuple(filter(self.segmenter.writable, held.text.split("|")))
                of_line = replace(term, **vars(held), targets=forms, required=True)
                all_required[i] = replace(of_line, mention="", around=("", ""), code="")
                continue
            reason = each.term.lacks
            tokens += each.term.size
            if len(all_required) == MAX_CONSTRAINTS or tokens > MAX_TOKENS:
                reason = (
                    f"more than {MAX_CONSTRAINTS} phrases or {MAX_TOKENS} tokens in the sentence"
                )
            if reason:
                unmet.append((each.term.text, reason))
                dropped.append(replace(term, phrases=()))
            else:
                all_required.append(term)
        return replace(
            given,
            required=tuple(all_required),
            unmet=tuple(unmet),
            dropped=tuple(dropped),
            source_words=given.source_words
            or tuple(
                tuple(tokens_of(i, i + 1))
                for i, word in enumerate(words)
                if tokens_of is not None and is_word(word)
            ),
        )

    def narrowed(
        self, given: SentenceConstraints, forms: Callable[[str, Sequence[str]], tuple[str, ...]]
    ) -> SentenceConstraints:
        """Return the constraints with fewer target forms for their glossary terms. forms: returns
        the allowed target forms, from the source term and its target forms."""
        required = list(given.required)
        for i, term in enumerate(required):
            left = forms(term.source, term.targets) if isinstance(term, SourceTerm) else ()
            if isinstance(term, SourceTerm) and left and left != term.targets:
                spelled = self.cased(left, term.case).forms
                cased = replace(term.cased, forms=spelled, running=())
                phrases = self.segmenter.alternatives(left, term.source)[0]
                required[i] = replace(term, phrases=phrases, cased=cased, targets=left)
        return replace(given, required=tuple(required))

    def required(self, source: str) -> list[Required]:
        """Return what the glossary requires for a source sentence (`SourceText.text`)."""
        return (
            []
            if self.glossary is None
            else self.glossary.required(words_of(source, self.segmenter.takes_pieces))
        )
