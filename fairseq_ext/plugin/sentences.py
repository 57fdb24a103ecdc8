"""The requests of a task's sentences: their numbers, constraints and drafts."""

from __future__ import annotations

import functools
import logging
import weakref
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from unicodedata import normalize

import torch
from fairseq.data import Dictionary
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE
from fairseq.utils import split_paths
from torch import Tensor

from fairseq_ext.core import command_line
from fairseq_ext.core.errors import LONE_SURROGATE, UsageError, counted, cut, explain
from fairseq_ext.core.exit import at_process_end
from fairseq_ext.core.stats import Stats
from fairseq_ext.core.words import LANGUAGE
from fairseq_ext.plugin.flags_dataclass import RunFlags
from fairseq_ext.plugin.loading.data_folder import (
    SegmentationCheck,
    TargetDictionary,
    print_alternatives_of,
    warn_segmented_output,
)
from fairseq_ext.plugin.loading.settings import Task, languages_of, of_some_tasks
from fairseq_ext.plugin.options import GivenByCalls, is_constrained
from fairseq_ext.plugin.results import GlossaryReport
from fairseq_ext.plugin.stock import SentencepiecePair
from fairseq_ext.search.constraints.allowed import AllowedFlags, AllowedOutputs
from fairseq_ext.search.constraints.banned import AvoidFlags
from fairseq_ext.search.constraints.documents import Documents
from fairseq_ext.search.constraints.glossary import (
    Glossary,
    GlossaryFlags,
    glossary_options,
    places_terms,
)
from fairseq_ext.search.constraints.report import (
    ConstraintCounts,
    GlossaryCounts,
    Reporter,
    as_listed,
)
from fairseq_ext.search.constraints.required import ConstraintFlags
from fairseq_ext.search.constraints.source_text import unknown_pieces
from fairseq_ext.search.constraints.sources import ConstraintSource, Matching, is_ordered
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.phrases.pieces import kind_of, normal
from fairseq_ext.search.phrases.segmenter import Segmenter, TargetText
from fairseq_ext.search.phrases.sentence import EMPTY, Phrase, SentenceConstraints, SourceTerm
from fairseq_ext.search.report import ConstraintReport, Outcome
from fairseq_ext.search.request import Request
from fairseq_ext.search.settings import Settings

logger = logging.getLogger("fairseq_ext")
Batch = tuple[dict, Tensor | None, Tensor | None]  # sample, prefix tokens, constraints
LINE_BITS = (1 << 32) - 1


class Sentences:
    """Numbers, constraints and drafts of a task's sentences."""

    def __init__(self, task: Task):
        self.task = task
        self.source: ConstraintSource | None = None
        self.target_text: TargetText | None = None  # the generator's
        self.constrained = False
        self.calls = GivenByCalls()  # what calls pass in addition to the flags' own
        self.corpus_size = 0  # sentences of the data set that fairseq-generate translates
        self.report_path: str | None = None  # --glossary-report
        self.glossary_report: GlossaryReport | None = None
        self.documents: Documents | None = None  # --glossary-documents
        # of the lines of a Translator's call or of a buffer of fairseq-interactive, by number
        self.requests: dict[int, Request] = {}
        self.lines_read = 0  # of an interactive session
        # errors of sentences of the current batch, by their places
        self.batch_errors: dict[int, UsageError] = {}
        self.tokenizer: object = None
        self.bpe: object = None

    def use_settings(self, settings: Settings) -> None:
        """Read a generator's settings for sentences."""
        self.constrained = is_constrained(settings)
        glossary = settings.get(GlossaryFlags)
        self.report_path = glossary.glossary_report
        if self.constrained and glossary.glossary_documents is not None:
            target = settings.command.languages.target or ""
            self.documents = Documents(glossary.glossary_documents, target)
        if self.constrained:
            print_alternatives_of(self.task)

    def set_bpe(self, bpe: SentencepieceBPE | None) -> None:
        """Use the command's segmentation of text."""
        self.bpe = bpe
        command = self.task.session.settings.command
        if bpe is None and self.corpus_size and not command.undoes_bpe:
            warn_segmented_output(self.task.target_dictionary, split_paths(command.data)[0])
        if isinstance(bpe, SentencepiecePair):
            bpe.word = self.language_word
        # lines are checked (input.py), phrases are not; calls may add phrases to any run
        if bpe is not None and (self.constrained or self.task.session.command is None):
            bpe.encode = functools.partial(encode_valid, bpe.encode)

    @functools.cached_property
    def language_words(self) -> tuple[str, ...]:
        """Tags of target languages (>>fra<<) that a source may begin with."""
        return tuple(
            filter(LANGUAGE.fullmatch, self.task.source_dictionary.symbols)
            if isinstance(self.bpe, SentencepiecePair)
            else ()
        )

    def language_word(self) -> str:
        """Return the tag of --target-lang; "" if it has none."""
        word = f">>{languages_of(self.task.flags()).target}<<"
        return word if word in self.language_words else ""

    @functools.cached_property
    def segmentation_check(self) -> SegmentationCheck:
        """The check for text that is not segmented, for input without --bpe."""
        words, command = self.task.source_dictionary, self.task.session.settings.command
        kind = kind_of(words, None) if self.bpe is None and isinstance(words, Dictionary) else None
        has_word = words.__contains__ if kind is not None and command.undoes_bpe else None
        return SegmentationCheck(kind, split_paths(command.data)[0], has_word)

    def is_corpus(self, dataset: object) -> bool:
        """Return whether it is a loaded data set, and not an interactive session's buffer."""
        return any(dataset is known for known in self.task.datasets.values())

    def with_requests(self, sample: dict) -> dict:
        """Return a batch with each sentence's request."""
        self.batch_errors = {}
        if "requests" not in sample:
            sample = {**sample, "requests": self.of_batch(sample)}
        if self.documents is not None:
            narrowed, documents = self.constraint_source().narrowed, self.documents
            requests = []
            for each in sample["requests"]:
                forms = functools.partial(documents.forms, each.number)
                requests.append(replace(each, constraints=narrowed(each.all_constraints, forms)))
            sample = {**sample, "requests": requests}
        return sample

    def with_constraints(
        self,
        request: Request,
        where: str,
        own: SentenceConstraints | None = None,
        glossaries: Sequence[Glossary] = (),
    ) -> Request:
        """Return a request, which has its tokens, with its constraints, those of the flags' files
        included. where: its place, for messages; own: its own constraints, where they are not
        given as text; glossaries: its own.

        Errors: UsageError for constraints that cannot be used.
        """
        source = self.constraint_source()
        if own is None:
            given = request.own_constraints
            own = source.of_text(given, where) if given else EMPTY
        unknown: tuple[str, ...] = ()
        tokens = request.tokens
        if tokens is None:  # speech has none
            tokens = torch.tensor([], dtype=torch.long)
        if request.source:
            encoders = (self.tokenizer, self.bpe)
            unknown = unknown_pieces(request.source, tokens, self.task.source_dictionary, encoders)
        # a piece of a long sentence has its number in the lower half (text/segments.py)
        number = request.number & LINE_BITS
        found = source.sentence(number, tokens, own, glossaries, unknown)
        return replace(request, constraints=found)

    @property
    def segmenter(self) -> Segmenter:
        """The conversion of text to target tokens and back, by --tokenizer and --bpe."""
        return Segmenter(self.task.target_dictionary, self.tokenizer, self.bpe)

    def constraint_source(self) -> ConstraintSource:
        """Return the source of the constraints of the command's files, which are read in the first
        call; the command's tokenizer and bpe segment their text."""
        if self.source is None:
            settings: Settings = self.task.session.settings
            flags, avoid = settings.get(ConstraintFlags), settings.get(AvoidFlags)
            case, glossary = flags.constraint_case, None
            if path := settings.get(GlossaryFlags).glossary:
                languages, strict = settings.command.languages, settings.get(RunFlags).strict
                glossary = glossary_options(settings, languages, path, strict, case)
            files = (flags.constraints_file, avoid.avoid_file, glossary)
            boundaries = None if self.target_text is None else self.target_text.boundaries
            matching = Matching(case or "exact", avoid.avoid_case, boundaries)
            segmenter = self.segmenter
            allowed = AllowedOutputs(settings.get(AllowedFlags), segmenter)
            self.source = ConstraintSource(
                *files, segmenter, self.task.source_dictionary, matching, allowed
            )
            self.source.locates_terms = places_terms(settings) and not self.segmenter.takes_pieces
            try:
                self.source.check_lines()
            except UsageError as error:  # raised again for its sentence
                logger.warning("%s; the sentence of such a line is not translated", error)
        return self.source

    def printed_phrase(self, alternatives: tuple[Phrase, ...]) -> Phrase:
        """Return a constraint as fairseq's C- lines print it: its phrase, or a number that is
        printed as all its alternatives."""
        dictionary = self.task.target_dictionary
        if len(alternatives) == 1 or not isinstance(dictionary, TargetDictionary):
            return alternatives[0]
        decode = self.constraint_source().segmenter.decode
        # forms of one phrase (segmenter.py) have the same text and are printed once
        distinct = {
            decode(dictionary.string(torch.tensor(phrase))).strip(): phrase
            for phrase in reversed(alternatives)
        }
        return (
            alternatives[0]
            if len(distinct) == 1
            else (dictionary.number_of(tuple(reversed(distinct.values()))),)
        )

    def of_batch(self, sample: dict) -> list[Request]:
        """Return the request of each sentence of a batch."""
        numbers = numbers_of(sample)
        if self.requests:
            return [self.requests[number] for number in numbers]
        source = self.constraint_source()
        if self.corpus_size and not source:
            raise UsageError(
                "--constraints alone gives fairseq-generate no phrases: add "
                "--constraints-file, --avoid-file or --glossary, or leave --constraints out"
            )
        if self.corpus_size:
            source.check_size(self.corpus_size)
        rows = sample["net_input"]["src_tokens"]
        given = [
            self.of_sentence(i, n, row)
            for i, (n, row) in enumerate(zip(numbers, rows, strict=True))
        ]
        if self.corpus_size:
            for each in given:
                for text in each.all_constraints.text:
                    print(f"C-{each.number}\t{text}")
        return given

    def of_sentence(self, place: int, number: int, row: Tensor) -> Request:
        """Return the request of a sentence of the data set, with padded source tokens (T,); an
        error is noted by the place in its batch."""
        words = self.task.source_dictionary  # speech has none
        request = Request(number, tokens=None if words is None else row[row != words.pad()])
        try:
            return self.with_constraints(request, f"sentence {number + 1}")
        except UsageError as error:
            self.batch_errors[place] = error
            return request

    @functools.cached_property
    def reporter(self) -> Reporter:
        """The reports of sentences' constraints."""
        assert self.target_text is not None
        ordered = is_ordered(self.task.session.settings)
        return Reporter(self.target_text, self.constraint_source().source_text, ordered)

    def report(self, request: Request, best: Outcome, text: str) -> list[ConstraintReport]:
        """Return the reports of a request's constraints. text: of the best hypothesis."""
        wanted = request.all_constraints
        if not (wanted.required or wanted.prefix or wanted.unmet):
            return []
        source = request.source or self.source_of(request)
        return [each for _, each in self.reporter(request, best, text, source)]

    def source_of(self, request: Request) -> str:
        """Return the text that the tokens of a request stand for; "" for speech."""
        if request.tokens is None:
            return ""
        unknown = request.all_constraints.unknown
        return self.constraint_source().source_text.text(request.tokens, unknown)

    def report_glossary(
        self, requests: Sequence[Request], translations: list[str], best: Sequence[Hypothesis]
    ) -> None:
        """Write a batch's lines of --glossary-report, and have their documents keep their forms;
        best: the best hypothesis of each of its sentences, or of the first few; translations: as
        text."""
        if self.glossary_report is None and self.report_path:
            self.glossary_report = GlossaryReport(self.report_path)
            end = self.glossary_report.end
            # another program may write the file with a further model, when this one is gone
            kept = (lambda: end) if command_line.own_command else weakref.WeakMethod(end)
            at_process_end(lambda: 0 if (found := kept()) is None else found())
        for request, translation, hypothesis in zip(requests, translations, best, strict=False):
            text = normal(normalize("NFKC", translation))
            source = normalize("NFKC", self.source_of(request))
            reports = self.reporter(request, hypothesis, text, source)
            terms = [(term, of) for term, of in reports if isinstance(term, SourceTerm)]
            if self.glossary_report is not None:
                self.glossary_report.add(request.number, source, text, terms)
            if self.documents is not None:
                for term, span in ((term, span) for term, of in terms for span in of.spans):
                    form = as_listed(text[slice(*span)], term)
                    self.documents.record_form(request.number, term.source, form)

    def report_unmet(self, stats: Stats) -> None:
        """Log the results of the glossary's terms; warn of unmet constraints, and of lines of the
        constraints file without a sentence."""
        if self.source is not None and self.source.glossary is not None:
            self.source.glossary.fit.warn()
        terms = stats.find_section(GlossaryCounts)
        if terms is not None:
            results = (
                f"{count} {name.replace('_', ' ')}"
                for name, count in terms.as_dict().items()
                if name not in ("terms", "sentences")
            )
            unseen = (
                []
                if self.source is None or self.source.glossary is None
                else self.source.glossary.unused_terms
            )
            never = f"; never in the input: {cut(', '.join(unseen))}" if unseen else ""
            found = (
                f"{counted(terms.terms, 'glossary term')} in {counted(terms.sentences, 'sentence')}"
            )
            logger.info("%s: %s%s", found, ", ".join(results), never)
        counts = stats.find_section(ConstraintCounts)
        if counts is not None and counts.unmet:
            number, phrase, reason = counts.unmet[0]
            logger.warning(
                "constraints not met: %d of %d, the first in sentence %d, '%s': %s "
                "(all: --stats-file)",
                len(counts.unmet),
                counts.given,
                number + 1,
                cut(phrase),
                reason,
            )
        if self.source is not None and 0 < self.lines_read < len(self.source):
            lines, read = counted(len(self.source), "line"), counted(self.lines_read, "sentence")
            logger.warning("the constraints file has %s, and the input %s", lines, read)


def segmentation(build: Callable[[object], object], args: Namespace) -> SentencepieceBPE | None:
    """Return the segmentation that `build`, the stock task's, makes of --bpe.

    Errors: UsageError for a file that is damaged.
    """
    try:
        return build(args)
    except (RuntimeError, OSError, ValueError, LookupError) as error:
        # errors of the segmentation's own reader
        if explain(error) is not None:
            raise
        path = of_some_tasks(args, "sentencepiece_model")
        kind = of_some_tasks(args, "_name")
        named = f"--sentencepiece-model {path}" if path else f"what --bpe {kind} names"
        raise UsageError(
            f"{named} cannot be read ({cut(str(error))}): it is damaged or of another "
            "kind; copy it again"
        ) from None


def numbers_of(sample: dict) -> list[int]:
    """Return the numbers of a batch's sentences."""
    return sample["id"].tolist()


def encode_valid(encode: Callable[[str], str], text: str) -> str:
    """Return segmented text; invalid Unicode is returned unchanged, since segmentations fail on it
    in various ways; its line is reported."""
    return text if LONE_SURROGATE.search(text) else encode(text)
