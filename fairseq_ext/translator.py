"""The Python API: `Translator(path, data, **flags).translate(lines)`, the commands' decoding
without the commands."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from fairseq_ext.core.errors import UsageError, counted, cut, in_one_sentence
from fairseq_ext.plugin.calls import (
    Generators,
    SearchingModel,
    check_task,
    score_pairs,
    width_and_length,
)
from fairseq_ext.plugin.loading.model import configuration, find_model
from fairseq_ext.plugin.loading.settings import as_arguments, checked, languages_of, text_of
from fairseq_ext.plugin.options import GivenByCalls
from fairseq_ext.plugin.workers import CallLock, with_torch_as_usual
from fairseq_ext.search.constraints.from_python import (
    Avoid,
    Call,
    ListOf,
    Phrases,
    check_list,
    check_texts,
)
from fairseq_ext.search.mbr import check_seed
from fairseq_ext.search.report import Translation
from fairseq_ext.search.request import Request
from fairseq_ext.text.alignment import Aligner
from fairseq_ext.text.atoms import Segment
from fairseq_ext.text.formats import Format, Pass, check_text, passes
from fairseq_ext.text.in_lines import TextTranslation, translated
from fairseq_ext.text.splitter import splitter, warning

if TYPE_CHECKING:
    from typing_extensions import Self

ALIGNED = 64  # translations at once
Errors = Literal["raise", "return"]


def check_default_dtype() -> None:
    """Raise UsageError for a default dtype of the calling program under which no model can be
    loaded."""
    dtype = torch.get_default_dtype()
    if dtype in (torch.float16, torch.bfloat16):
        raise UsageError(
            f"torch's default in this program is {dtype}, with which no model can be loaded: load "
            "it under torch.float32; for half precision give fp16=True"
        )


class Translator(SearchingModel):
    """A loaded checkpoint (or an ensemble: paths joined by colons) with one setting of the flags.

    Every flag of `fairseq-interactive` is a keyword with underscores: beam=5, bpe="sentencepiece",
    stop="optimal", cpu=True. source_lang and target_lang are needed if the directory's
    dictionaries do not show them. An empty line has an empty translation. Several threads may use
    one Translator: calls wait for each other, and do not affect each other's results.

    Errors: UsageError for wrong flags or combinations; what fairseq raises for
    files it cannot read.
    """

    aligner: Aligner | None = None
    # whether glossaries come with calls, so that their flags need no --glossary
    glossaries_of_calls = False

    @classmethod
    def from_folder(
        cls,
        folder: str | PathLike[str],
        path: str | PathLike[str] | None = None,
        task: str | None = None,
        **flags: object,
    ) -> Self:
        """Make a Translator from a folder with checkpoint, dictionaries and segmentation model;
        given keywords are not searched for there.

        path: a checkpoint in it, or several joined by colons, where it has more than one. Errors:
        UsageError, naming the choices, where the folder leaves one.
        """
        given = checked({"path": path, "task": task, **flags})
        return cls(**find_model(text_of("folder", folder), given))

    def __init__(
        self,
        path: str | PathLike[str],
        data: str | PathLike[str],
        task: str = "translation_ext",
        **flags: object,
    ) -> None:
        given = {"path": path, "task": task}
        arguments = as_arguments(
            {**{name: text_of(name, each) for name, each in given.items()}, **flags}
        )
        check_default_dtype()
        self.cfg = configuration([text_of("data", data), *arguments])
        generation = self.cfg.generation
        self.aligns = generation.print_alignment == "hard"
        # of calls that name none
        self.beam, self.nbest = width_and_length(None, None, (generation.beam, generation.nbest))
        self.lock = CallLock()  # held while a call uses task, generator or models
        # modules draw weights, which the checkpoint then replaces: not from the caller's numbers
        with torch.random.fork_rng(devices=[]), with_torch_as_usual(), in_one_sentence():
            super().__init__(self.cfg)
            self.sentences.calls = GivenByCalls(True, self.glossaries_of_calls)
            self.generator = self.build_generator()
        self.generators = Generators(self.task, self.models, generation, self.generator)

    def __repr__(self) -> str:
        cfg, pair = self.cfg, languages_of(self.task.flags())
        languages = f" {pair.source} to {pair.target}," if pair.source else ""
        where = "GPU" if self.cuda else "CPU"
        return (
            f"<Translator {cfg.common_eval.path},{languages} beam {self.beam}, on the {where}, "
            f"{self.signature}>"
        )

    def translate(
        self,
        lines: ListOf[str],
        nbest: int | None = None,
        constraints: ListOf[Phrases] | None = None,
        avoid: Avoid | None = None,
        prefixes: ListOf[str | None] | None = None,
        *,
        allowed: Avoid | None = None,
        errors: Errors = "raise",
        beam: int | None = None,
        progress: bool = False,
        seed: int | None = None,
    ) -> list[list[Translation]]:
        """Return each line's n-best list of `Translation`, best first (nbest, beam, seed of
        samples: those of the flags unless given). progress: a bar on standard error.

        constraints: for each line the phrases that must appear, as plain text; a list of phrases
        is met by any one of them. avoid: phrases that must not appear, in any line, or a list of
        them for each line. prefixes: what each line starts with. They add to those of the flags,
        and need none: without `select`, calls with constraints use `select="dba"`. Phrases are
        unordered unless the translator was made with `constraints="ordered"`. What was met is
        in `stats.as_dict()["constraints"]`. errors: a line that cannot be translated (too long,
        no valid Unicode, phrases that cannot be used, NaN in the model's output) raises its
        UsageError, which names the line; with "return" it has the UsageError in the place of its
        n-best list, and the other lines are translated. What is wrong with the call as a whole
        is raised in either case.
        """
        check_list(lines, "lines")
        return self.translate_part(
            lines,
            Call(constraints, avoid, prefixes, allowed, nbest, seed),
            errors,
            beam,
            progress,
        )

    def translate_iter(
        self,
        lines: Iterable[str],
        nbest: int | None = None,
        constraints: Iterable[Phrases] | None = None,
        avoid: ListOf[str] | None = None,
        prefixes: Iterable[str | None] | None = None,
        *,
        allowed: ListOf[str] | None = None,
        errors: Errors = "raise",
        beam: int | None = None,
        buffer: int = 1000,
        seed: int | None = None,
    ) -> Iterator[list[Translation]]:
        """Yield each line's n-best list, in the order of the lines, which are read as they are
        needed: at most `buffer` at a time.

        Arguments as in `translate`; constraints and prefixes may be read as they are needed,
        too, one for each line.
        """
        if type(buffer) is not int or buffer < 1:
            raise UsageError(
                f"buffer is {cut(repr(buffer))}: give the number of lines that are translated "
                "together, 1 or more"
            )
        others: dict[str, Iterator[object]] = {}
        for name, given in (("constraints", constraints), ("prefixes", prefixes)):
            if given is not None:
                check_list(given, name, once=True)
                others[name] = iter(given)
        for name, of_all in (("avoid", avoid), ("allowed", allowed)):
            if of_all is not None:
                check_texts(of_all, name)
        check_list(lines, "lines", once=True)
        reading, first = iter(lines), 0
        while part := list(itertools.islice(reading, buffer)):
            here: dict[str, Any] = {
                name: list(itertools.islice(each, len(part))) for name, each in others.items()
            }
            yield from self.translate_part(
                part,
                Call(avoid=avoid, allowed=allowed, nbest=nbest, seed=seed, first=first, **here),
                errors,
                beam,
            )
            first += len(part)

    def translate_part(
        self,
        lines: ListOf[str],
        given: Call,
        errors: Errors,
        beam: int | None,
        progress: bool = False,
    ) -> list[Any]:
        """Translate lines that need not be the first of their call, as `translate` does."""
        if not isinstance(errors, str) or errors not in get_args(Errors):
            raise UsageError(f"errors is {cut(repr(errors))}: use 'raise' or 'return'")
        with self.lock, with_torch_as_usual():
            check_seed(given.seed, self.generator.settings)
            self.generator, nbest = self.generators.use(beam, given.nbest)
            given = replace(given, nbest=nbest)
            if given.has_constraints:
                self.use_constraints()
            given.check(len(lines))
            self.sentences.segmentation_check.check(
                [line for line in lines if isinstance(line, str)]
            )
            texts = (
                (given.first + i + 1, line) for i, line in enumerate(lines) if isinstance(line, str)
            )
            if said := [
                each for number, line in texts if (each := warning(line, f"line {number}"))
            ]:
                more = f" ({counted(len(said) - 1, 'more such line')})" if len(said) > 1 else ""
                warnings.warn(said[0] + more, stacklevel=3)
            out: list[Any] = [None] * len(lines)
            if self.sentences.constrained:
                self.sentences.constraint_source()  # what is wrong with a file is no line's fault
            requests: dict[int, Request] = {}  # by place
            for place, line in enumerate(lines):
                try:
                    where = given.where(place)
                    requests[place] = self.prepared(given.request(place, line), where)
                except UsageError as error:
                    if errors == "raise":
                        raise
                    out[place] = error
            found = self.search([*requests.values()], errors == "return", progress)
            for place, answer in zip(requests, found, strict=True):
                out[place] = answer
            return out

    def translate_text(
        self,
        text: str,
        format: Format = "text",
        protect: ListOf[str] = (),
        progress: bool = False,
    ) -> TextTranslation:
        """Translate a whole text: its sentences are translated one by one and joined with the white
        space between them. A sentence that cannot be translated is not changed; it is in
        `untranslated` with the reason. A line break ends a sentence.

        format: "text", "html", "xml" or "markdown". protect: regular expressions of parts that are
        not changed, in addition to URLs, e-mail addresses, `{name}`, `%s` and similar ones. Errors:
        UsageError for another format, and for an invalid expression.
        """
        found = TextTranslation("")
        found.text = "".join(
            self.translate_text_iter(text, format, protect, found.untranslated, progress)
        )
        return found

    def translate_text_iter(
        self,
        text: str,
        format: Format = "text",
        protect: ListOf[str] = (),
        untranslated: list[tuple[str, str]] | None = None,
        progress: bool = False,
    ) -> Iterator[str]:
        """Yield the translation of a text in parts, the first of them soon.

        untranslated: gets what stays as it is; else as `translate_text`.
        """
        untranslated = [] if untranslated is None else untranslated
        check_text(text)
        *before, last = self.passes(format, protect)
        for items in before:
            text = "".join(
                translated(items(text), partial(self.of_segments, progress=progress), untranslated)
            )
        yield from translated(
            last(text), partial(self.of_segments, progress=progress), untranslated
        )

    def passes(
        self, format: str, protect: ListOf[str] = (), numbers: Iterator[int] | None = None
    ) -> list[Pass]:
        """Return the passes of a format, for the languages of the model (raises UsageError);
        numbers: of the segments."""
        return passes(
            format,
            splitter(languages_of(self.task.flags()).source),
            protect,
            self.sentences.language_words,
            numbers,
        )

    def of_segments(
        self, segments: Sequence[Segment], progress: bool = False
    ) -> list[Translation | UsageError]:
        """Return the best translation of each segment, aligned if marks are to be put back; the
        error of one that has none."""
        with self.lock:
            plain = [segment.plain for segment in segments]
            nbest = self.translate_part(
                plain,
                Call(nbest=1, numbers=[each.number for each in segments]),
                "return",
                None,
                progress,
            )
            found = [each if isinstance(each, UsageError) else each[0] for each in nbest]
            marked = [
                i
                for i, each in enumerate(found)
                if segments[i].marks and isinstance(each, Translation)
            ]
            self.align([plain[i] for i in marked], [found[i] for i in marked])  # type: ignore[misc]
        return found

    def align(self, sources: Sequence[str], hypotheses: Sequence[Translation]) -> None:
        """Find the `words` of translations that stand for those of their sources; None where the
        model does not say what it attends to."""
        with self.lock, with_torch_as_usual():
            self.aligner = self.aligner or Aligner(self)
            for part in range(0, len(sources), ALIGNED):
                here = hypotheses[part : part + ALIGNED]
                for hypothesis, pairs in zip(
                    here, self.aligner.pairs(sources[part : part + ALIGNED], here), strict=True
                ):
                    hypothesis.words = pairs

    def score(self, sources: ListOf[str], targets: ListOf[str]) -> list[Translation]:
        """Score each target as the model does, given its source: teacher-forced log probabilities,
        as in `--score-reference`.

        score: the mean of positional_scores, whatever the flags' length penalty. Errors: UsageError
        where a line is too long, where the numbers of lines differ, and for tasks whose sentences
        have more in them than text.
        """
        check_list(sources, "sources")
        check_list(targets, "targets")
        if len(sources) != len(targets):
            raise UsageError(
                f"there are {len(sources)} sources and {len(targets)} targets: give one "
                "target for each source"
            )
        check_task(self.task)
        with self.lock, with_torch_as_usual():
            source, target = (
                [
                    self.checked(line, f"the {('source', 'target')[side]} of line {number}", side)
                    for number, line in enumerate(given, 1)
                ]
                for side, given in enumerate((sources, targets))
            )
            found = score_pairs(self.task, self.models, source, target, self.cfg.dataset, self.cuda)
            return [self.translation_of(h) for h in found]
