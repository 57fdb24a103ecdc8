"""One run of a task: it decodes sentences, keeps statistics, and knows what results depend on."""

from __future__ import annotations

import dataclasses
import gc
import logging
import math
import os
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fairseq_ext.core.command_line import is_fairseq_command
from fairseq_ext.core.errors import SentenceError, UsageError, report
from fairseq_ext.core.exit import at_process_end
from fairseq_ext.core.files import fingerprint, fingerprint_of_dictionary
from fairseq_ext.kernels.library import give_back_memory
from fairseq_ext.plugin.alignment import AlignedBeamSearchGenerator
from fairseq_ext.plugin.generator import BeamSearchGenerator
from fairseq_ext.plugin.input import Batches, Lines
from fairseq_ext.plugin.loading.data_folder import warn_of_other_words
from fairseq_ext.plugin.loading.settings import longest_source, setting
from fairseq_ext.plugin.options import (
    MADE_WITH,
    CommandSettings,
    GivenByCalls,
    Options,
    command_settings,
    fingerprint_of_weights,
    options_of,
    own_flags,
)
from fairseq_ext.plugin.results import ResultsFile, StatsFile
from fairseq_ext.plugin.sentences import Batch, Sentences, numbers_of
from fairseq_ext.plugin.target_dictionary import note_unknown_words
from fairseq_ext.plugin.workers import Workers
from fairseq_ext.search.constraints.required import boundary_mode, check_phrases
from fairseq_ext.search.phrases.segmenter import TargetText
from fairseq_ext.search.registry import STRATEGIES, Part, choice, declared, gives_constraints
from fairseq_ext.search.strategies.decoding._parallel import table_path

if TYPE_CHECKING:
    from fairseq_ext.core.stats import Stats


class Session:
    """The parts of one task's run.

    `sentences` knows numbers, constraints and drafts; `lines` takes what is typed and keeps
    bad sentences apart; `batches` makes batches; `command`, made with the first generator,
    lasts as long as the process.
    """

    def __init__(self, task: Any):
        self.task = task
        self.sentences = Sentences(task)
        self.lines = Lines(task, self.sentences)
        self.batches = Batches(task, self.lines)
        self.command: Command | None = None
        self.options: Options | None = None  # of the generator in use
        if setting(task.flags(), "generation", "constraints") or gives_constraints(self.flags):
            note_unknown_words(task)  # before a command takes its dictionaries

    @cached_property
    def flags(self) -> Any:
        """Our flags as they are given, frozen; `options` has those that constraints choose."""
        return own_flags(self.task.flags())

    @cached_property
    def settings(self) -> CommandSettings:
        """fairseq's settings of the task and the command, frozen."""
        return command_settings(self.task.flags())

    def translates(self, dataset: Any) -> bool:
        """Whether it is the data set that fairseq-generate translates."""
        return self.lines.translates_corpus and self.sentences.is_corpus(dataset)

    def generator(
        self,
        models: list,
        args: Any,
        extra: dict[str, Any],
        build: Callable[[type, dict[str, Any]], Any],
    ) -> Any:
        """A generator of ours, by `build` (class, arguments), in use from now on. args: fairseq's
        GenerationConfig; extra: more arguments.

        Errors: UsageError for flags that do not fit together.
        """
        task, sentences = self.task, self.sentences
        calls = GivenByCalls(sentences.phrases_of_calls, sentences.glossaries_of_calls)
        part = Part(f"--task {task.registered}", denies=task.lacks)
        options = options_of(self.flags, args, self.settings, calls, part)
        flags, alignment = options.flags, options.generation.print_alignment
        if self.lines.translates_corpus:
            check_phrases(flags, options.typed, True)
        self.lines.use_options(options)
        sentences.use_options(options)
        kind: type = BeamSearchGenerator
        if alignment:
            kind, extra = AlignedBeamSearchGenerator, {"print_alignment": alignment, **extra}
        if is_fairseq_command():
            gc.collect()  # what reading the checkpoint leaves behind holds all of its weights
            give_back_memory()
        generator = build(kind, dict(options=options, source=task.source_dictionary) | extra)
        self.options = options
        self.lines.longest = None if self.settings.skips_invalid else longest_source(task, models)
        self.batches.samples = generator.runs_stock_loop
        if self.command is None:
            warn_of_other_words(task, self.settings)
            self.command = Command(flags, self.lines.tell_at_end)
        sentences.target_text = TargetText(
            lambda: sentences.segmenter,
            generator.symbols_to_strip_from_output,
            boundary_mode(flags),
        )
        generator.target_text = sentences.target_text
        generator.show_bar = self.settings.shows_bar
        self.command.use(generator, models)
        # a command does nothing but decode, and a compiled encoder reads all of this task's batches
        if (
            task.registered == "translation_ext"
            and is_fairseq_command()
            and generator.release_models()
        ):
            give_back_memory()
        return generator

    def decode(self, generator: Any, models: list, batch: Batch, step: Callable[..., list]) -> list:
        """The hypotheses of one batch, by `step`, the stock task's. A sentence that fails does not
        affect the others (bad_sentences.py)."""
        decode = partial(self.call_stock, step, generator, models)
        if self.command is None or not isinstance(generator, BeamSearchGenerator):
            return decode(*batch)  # a stock generator
        sample, lines = batch[0], self.lines
        if self.sentences.completes or batch[2] is not None:
            batch = self.sentences.complete(batch, lines.carry_numbers)
            sample = batch[0]
        run = partial(self.command.decode, generator, decode, models)
        if lines.has_errors or self.sentences.errors_here:
            found = lines.decode_usable(batch, run)
        else:
            try:
                found = run(batch)
            except SentenceError as error:
                found = lines.decode_usable(batch, run, error)
        if generator.options.flags.print_utility:
            for number, (best, *_) in zip(numbers_of(sample), found, strict=False):
                print(f"U-{number}\t{best.get('utility', math.nan):.4f}")
        if self.sentences.report_path or self.sentences.documents is not None:
            self.sentences.report_glossary(
                sample,
                [generator.target_text.text(each[0]["tokens"]) for each in found],
                [each[0] for each in found],
            )
        return found

    def call_stock(
        self,
        step: Callable[..., list],
        generator: Any,
        models: list,
        sample: dict,
        prefix_tokens: Tensor | None,
        constraints: Tensor | None,
    ) -> list:
        """One batch by the stock task's `step`. Errors: UsageError for words that no dictionary
        has."""
        try:  # by name: some tasks have parameters of their own between these
            return step(
                generator, models, sample, prefix_tokens=prefix_tokens, constraints=constraints
            )
        except IndexError as error:
            self.lines.refuse_unknown_words(sample, error)
            raise


# ---- What lasts as long as a command (or a Translator)
#
# Its statistics and their file, its worker processes, what it says at its end.


logger = logging.getLogger("fairseq_ext")
# after so many the memory that is kept for the next step goes back to the system,
# which costs some 50 ms
SENTENCES_BETWEEN_TRIMS = 4_000


class Command:
    """One run: batches go through `decode`, and `end` runs once, when the process ends.

    at_end: called then, with the statistics, after they are written; it returns the status.
    Nothing here keeps a generator or its models alive.
    """

    def __init__(self, flags: Any, at_end: Callable[[Stats], int]):
        self.stats_path: str | None = flags.stats_file
        self.cpu_workers: int = flags.cpu_workers
        self.at_end = at_end
        self.stats: Stats | None = None
        self.workers: Workers | None = None
        self.stats_file: StatsFile | None = None
        self.since_trim = 0  # sentences decoded since memory was given back
        at_process_end(self.end)

    def use(self, generator: BeamSearchGenerator, models: list) -> None:
        """Go on with this generator.

        Errors: UsageError for a results file or a statistics file that cannot be written.
        """
        flags, stats = generator.options.flags, generator.stats
        logger.info(stats.signature)
        if flags.results_file:
            made_from, words = run_key(generator, models), len(generator.context.dictionary)
            generator.results = ResultsFile(
                flags.results_file, flags.resume, stats.signature, made_from, words
            )
        if self.stats_path:
            self.stats_file = StatsFile(self.stats_path, stats)
        self.stats = stats

    def decode(
        self,
        generator: BeamSearchGenerator,
        decode: Callable[..., list],
        models: list,
        batch: tuple,
    ) -> list:
        """The hypotheses of one batch (sample, prefix tokens, constraints), from `decode`
        or from worker processes that call it."""
        if self.cpu_workers > 1:
            if self.workers is None or self.workers.generator is not generator:
                if self.workers is not None:
                    self.workers.stop()
                self.workers = Workers(self.cpu_workers, models, generator, decode)
            out = self.workers(*batch)
        else:
            out = decode(*batch)
        self.since_trim += len(out)
        if self.since_trim >= SENTENCES_BETWEEN_TRIMS:
            give_back_memory()
            self.since_trim = 0
        if self.stats_file is not None:
            self.stats_file.follow()
        return out

    def end(self) -> int:
        """Stop the worker processes, write the statistics a last time, then what the caller wants;
        the status. Statistics that cannot be written make it 1."""
        if self.workers is not None:
            self.workers.stop()
        if self.stats is None:
            return 0
        failed = None
        try:
            if self.stats_file is not None:
                self.stats_file.write()
        except UsageError as error:
            failed = error
        status = self.at_end(self.stats)
        if failed is not None:
            report(type(failed), failed, None)
            return 1
        return status


# ---- What the results of a run depend on besides its sentences
#
# It is kept by the name of the flag, and `--resume` compares it with the file's.
# A flag that names a file counts with the content of the file, whatever its name. Flags that
# change no result are left out: a run that was too large for the machine may go on with
# fewer sentences at once.


# fairseq's flags that change no result; the signature, which is compared too, names the schedule
SAME_RESULTS = {"print_step", "score_reference", "retain_iter_history", "schedule"}


def run_key(generator: BeamSearchGenerator, models: list) -> dict[str, str]:
    """Name -> value, or fingerprint of the file that is named: our flags, fairseq's generation
    flags, the dictionaries, the weights.

    Errors: UsageError for a file that cannot be read.
    """
    flags, context = generator.options.flags, generator.context
    same_results = SAME_RESULTS | declared("same_results").keys()
    of_schedule = {
        f.name
        for s in STRATEGIES["schedule"].values()
        if s.flags
        for f in dataclasses.fields(s.flags)
    }
    ours = vars(flags)
    settings = {
        **vars(generator.options.generation),
        **{name: value for name, value in ours.items() if name not in of_schedule},
    }
    if choice(flags, "decoding") != "beam":
        settings["draft_table"] = table_path(flags, context)
    found = {
        "--" + name.replace("_", "-"): told(name, value)
        for name, value in settings.items()
        if name not in same_results
    }
    found = {name: value for name, value in sorted(found.items()) if value}
    # the schedule changes no result; the others are compared on their own, versions may change
    left_out = ("schedule", *MADE_WITH)
    search = [
        part
        for part in generator.stats.signature.split("|")
        if part.partition(":")[0] not in left_out
    ]
    found["the search"] = without_paths("|".join(search), ours.values())
    if context.source_dictionary is not None:
        found["the source dictionary"] = fingerprint_of_dictionary(context.source_dictionary)
    found["the target dictionary"] = fingerprint_of_dictionary(context.dictionary)
    found["the model"] = fingerprint_of_weights(models)
    return found


def without_paths(signature: str, values: Iterable[Any]) -> str:
    """The signature without the names of files, whose contents are compared instead."""
    for path in sorted(
        {value for value in values if isinstance(value, str) and os.path.exists(value)},
        key=len,
        reverse=True,
    ):
        signature = signature.replace(f"={path}", "=FILE")
    return signature


def told(name: str, value: Any) -> str:
    """A flag's value in a line; "" where it is off."""
    if value is None or value is False:
        return ""
    if isinstance(value, str) and os.path.isfile(value):
        try:
            return fingerprint(value)
        except OSError as error:
            raise UsageError(
                f"--{name.replace('_', '-')}: cannot read {value} ({error.strerror}): name a "
                "file that is readable"
            ) from None
    if isinstance(value, str) and os.path.exists(value) and not os.path.isdir(value):
        return "a pipe"  # what comes out of it is in the checksums of the sentences
    return "given" if value is True else str(value)
