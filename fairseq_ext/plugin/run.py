"""One run of a task: `Session` and `Command` decode batches and keep statistics; `run_key` lists
what the results depend on."""

from __future__ import annotations

import dataclasses
import gc
import logging
import math
import os
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from fairseq.utils import resolve_max_positions
from torch import Tensor

from fairseq_ext.core import command_line
from fairseq_ext.core.command_line import is_fairseq_command
from fairseq_ext.core.errors import UsageError, report
from fairseq_ext.core.exit import at_process_end
from fairseq_ext.core.files import fingerprint, fingerprint_of_dictionary
from fairseq_ext.kernels.library import give_back_memory
from fairseq_ext.plugin.flags_dataclass import RunFlags
from fairseq_ext.plugin.generator import (
    AlignedBeamSearchGenerator,
    BeamSearchGenerator,
    hypothesis_of,
)
from fairseq_ext.plugin.input import InteractiveLines
from fairseq_ext.plugin.loading.data_folder import print_alternatives_of, warn_of_other_words
from fairseq_ext.plugin.loading.settings import Task, setting, source_limit
from fairseq_ext.plugin.options import (
    VERSION_PARTS,
    chosen_settings,
    fingerprint_of_weights,
    read_settings,
)
from fairseq_ext.plugin.results import ResultsFile, StatsFile
from fairseq_ext.plugin.sentences import Batch, Sentences, numbers_of
from fairseq_ext.plugin.workers import CpuWorkers
from fairseq_ext.search.constraints.required import ConstraintFlags, check_phrases
from fairseq_ext.search.mbr import CandidateFlags
from fairseq_ext.search.phrases.segmenter import TargetText
from fairseq_ext.search.registry import STRATEGIES, Part, declared, gives_constraints

if TYPE_CHECKING:
    from fairseq_ext.core.stats import Stats


class Session:
    """The parts of one task's run.

    `sentences` has numbers, constraints and drafts; `lines` reads typed lines, makes batches and
    isolates bad sentences; `command`, made with the first generator, lasts as long as the process.
    """

    def __init__(self, task: Task):
        self.task = task
        self.sentences = Sentences(task)
        self.lines = InteractiveLines(task, self.sentences)
        self.command: Command | None = None
        # as given; then those of the last generator, with fairseq's and what constraints choose
        self.settings = read_settings(task.flags())
        if setting(task.flags(), "generation", "constraints") or gives_constraints(self.settings):
            print_alternatives_of(task)  # before a command takes its dictionaries

    def translates(self, dataset: object) -> bool:
        """Return whether it is the data set that fairseq-generate translates."""
        return self.lines.is_generate and self.sentences.is_corpus(dataset)

    def generator(
        self,
        models: list,
        args: object,
        extra: dict[str, object],
        build: Callable[[type, dict[str, object]], BeamSearchGenerator],
    ) -> object:
        """Build a generator of ours, by `build` (class, arguments), and use it from now on. args:
        fairseq's GenerationConfig; extra: more arguments for the class, by name.

        Errors: UsageError for flags that cannot be combined.
        """
        task, sentences = self.task, self.sentences
        part = Part(f"--task {task.registered}", denies=task.lacks)
        settings = chosen_settings(read_settings(task.flags()), args, sentences.calls, part)
        alignment = settings.generation.print_alignment
        if self.lines.is_generate:
            check_phrases(settings, True)
        self.lines.use_settings(settings)
        sentences.use_settings(settings)
        kind: type = BeamSearchGenerator
        if alignment:
            kind, extra = AlignedBeamSearchGenerator, {"print_alignment": alignment, **extra}
        if is_fairseq_command():
            gc.collect()  # garbage of the checkpoint's reading refers to all of its weights
            give_back_memory()
        generator = build(kind, dict(settings=settings, source=task.source_dictionary) | extra)
        self.settings = settings
        self.lines.max_source_tokens = (
            None
            if settings.command.skips_invalid
            else source_limit(
                resolve_max_positions(task.max_positions(), *[m.max_positions() for m in models])
            )
        )
        self.lines.may_sample = generator.runs_stock_loop
        if self.command is None:
            warn_of_other_words(task, settings.command)
            self.command = Command(settings.get(RunFlags), self.lines.report_at_end)
        sentences.target_text = TargetText(
            lambda: sentences.segmenter,
            generator.symbols_to_strip_from_output,
            settings.get(ConstraintFlags).constraint_boundary,
        )
        generator.target_text, generator.report = sentences.target_text, sentences.report
        generator.show_bar = settings.command.shows_bar
        self.command.attach_generator(generator, models)
        # a command only decodes, and a compiled encoder reads all batches of this task
        if (
            task.registered == "translation_ext"
            and is_fairseq_command()
            and generator.release_models()
        ):
            give_back_memory()
        return generator

    def decode(
        self, generator: object, models: list, batch: Batch, stock_step: Callable[..., list]
    ) -> list:
        """Return the hypotheses of each sentence of a batch, best first. A sentence that fails does
        not affect the others (bad_sentences.py).

        stock_step: the stock task's inference_step, which calls `generator.generate`. The calls are
        `Command.run_batch` (statistics, workers), `call_stock`, `stock_step`,
        `generator._generate`.
        """
        decode = partial(self.call_stock, stock_step, generator, models)
        if self.command is None or not isinstance(generator, BeamSearchGenerator):
            return decode(*batch)  # a stock generator
        sample, prefix_tokens, packed = self.lines.with_numbers(batch[0]), *batch[1:]
        if self.sentences.constrained:
            sample, packed = self.sentences.with_requests(sample), None
        run = partial(self.command.run_batch, generator, decode, models)
        found = self.lines.decode_usable((sample, prefix_tokens, packed), run)
        if generator.settings.get(CandidateFlags).print_utility:
            for number, (best, *_) in zip(numbers_of(sample), found, strict=False):
                utility = hypothesis_of(best).utility
                print(f"U-{number}\t{math.nan if utility is None else utility:.4f}")
        if self.sentences.report_path or self.sentences.documents is not None:
            self.sentences.report_glossary(
                sample["requests"],
                [generator.target_text.text(each[0]["tokens"]) for each in found],
                [hypothesis_of(each[0]) for each in found],
            )
        return found

    def call_stock(
        self,
        stock_step: Callable[..., list],
        generator: object,
        models: list,
        sample: dict,
        prefix_tokens: Tensor | None,
        constraints: Tensor | None,
    ) -> list:
        """Return the hypotheses of one batch by the stock task's inference_step (raises UsageError
        for words that no dictionary has)."""
        try:  # by keyword: some tasks have parameters of their own between these
            return stock_step(
                generator, models, sample, prefix_tokens=prefix_tokens, constraints=constraints
            )
        except IndexError as error:
            self.lines.refuse_unknown_words(sample, error)
            raise


# ---- The run of a command (or of a Translator): statistics, worker processes, the end


logger = logging.getLogger("fairseq_ext")
# after this number of sentences, freed memory is returned to the system, which takes some 50 ms
SENTENCES_BETWEEN_TRIMS = 4_000


class Command:
    """One run: batches go through `run_batch`, and `end` runs once, when the process ends.

    at_end: called at the end with the statistics, after they are written; it returns the status.
    In a program that is not ours it is left out if its task is gone by then. No attribute keeps
    such a task alive, nor a generator or its models, unless they decode in worker processes.
    """

    def __init__(self, flags: RunFlags, at_end: Callable[[Stats], int]):
        self.stats_path, self.cpu_workers = flags.stats_file, flags.cpu_workers
        kept = command_line.own_command
        self.at_end = (lambda: at_end) if kept else weakref.WeakMethod(at_end)
        self.stats: Stats | None = None
        self.workers: CpuWorkers | None = None
        self.stats_file: StatsFile | None = None
        self.sentences_since_trim = 0  # sentences decoded since memory was returned
        at_process_end(self.end)

    def attach_generator(self, generator: BeamSearchGenerator, models: list) -> None:
        """Continue with this generator.

        Errors: UsageError for a results file or a statistics file that cannot be written.
        """
        flags, stats = generator.settings.get(RunFlags), generator.stats
        logger.info(stats.signature)
        if flags.results_file:
            made_from, words = run_key(generator, models), len(generator.setup.dictionary)
            generator.results = ResultsFile(
                flags.results_file, flags.resume, stats.signature, made_from, words
            )
        if self.stats_path:
            self.stats_file = StatsFile(self.stats_path, stats)
        self.stats = stats

    def run_batch(
        self,
        generator: BeamSearchGenerator,
        decode: Callable[..., list],
        models: list,
        batch: tuple,
    ) -> list:
        """Return the hypotheses of one batch (sample, prefix tokens, constraints), from `decode` or
        from worker processes that call it."""
        if self.cpu_workers > 1:
            if self.workers is None or self.workers.generator is not generator:
                if self.workers is not None:
                    self.workers.stop()
                self.workers = CpuWorkers(self.cpu_workers, models, generator, decode)
            out = self.workers(*batch)
        else:
            out = decode(*batch)
        self.sentences_since_trim += len(out)
        if self.sentences_since_trim >= SENTENCES_BETWEEN_TRIMS:
            give_back_memory()
            self.sentences_since_trim = 0
        if self.stats_file is not None:
            self.stats_file.write_occasionally()
        return out

    def end(self) -> int:
        """Stop the worker processes, write the statistics a last time and call `at_end`; return
        the status, which is 1 if the statistics cannot be written."""
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
        at_end = self.at_end()
        status = 0 if at_end is None else at_end(self.stats)
        if failed is not None:
            report(type(failed), failed, None)
            return 1
        return status


# ---- What the results of a run depend on besides its sentences
#
# Values are kept by the name of the flag; `--resume` compares them with the file's. A flag that
# names a file counts with the content of the file. Flags that change no result are left out: after
# a run that was too large for the machine, fewer sentences at once are allowed.


# fairseq's flags that change no result; the schedule is in the signature, which is compared too
SAME_RESULTS = {"print_step", "score_reference", "retain_iter_history", "schedule"}


def run_key(generator: BeamSearchGenerator, models: list) -> dict[str, str]:
    """Return name -> value, or the fingerprint of a named file: our flags, fairseq's generation
    flags, the dictionaries, the weights.

    Errors: UsageError for a file that cannot be read.
    """
    setup, ours = generator.setup, generator.settings.values
    same_results = SAME_RESULTS | declared("same_results").keys()
    of_schedule = {
        f.name for s in STRATEGIES["schedule"].values() for f in dataclasses.fields(s.flags)
    }
    found = {
        "--" + name.replace("_", "-"): flag_value(name, value)
        for name, value in ours.items()
        if name not in same_results | of_schedule
    }
    found = {name: value for name, value in sorted(found.items()) if value}
    # the schedule changes no result, the parts below are compared one by one, versions may change
    left_out = ("schedule", *VERSION_PARTS)
    search = [
        part
        for part in generator.stats.signature.split("|")
        if part.partition(":")[0] not in left_out
    ]
    found["the search"] = without_paths("|".join(search), ours.values())
    if setup.source_dictionary is not None:
        found["the source dictionary"] = fingerprint_of_dictionary(setup.source_dictionary)
    found["the target dictionary"] = fingerprint_of_dictionary(setup.dictionary)
    found["the model"] = fingerprint_of_weights(models)
    return found


def without_paths(signature: str, values: Iterable[object]) -> str:
    """Return the signature without names of files, whose contents are compared instead."""
    for path in sorted(
        {value for value in values if isinstance(value, str) and os.path.exists(value)},
        key=len,
        reverse=True,
    ):
        signature = signature.replace(f"={path}", "=FILE")
    return signature


def flag_value(name: str, value: object) -> str:
    """Return a flag's value in one line; "" if it is off."""
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
        return "a pipe"  # its content is in the checksums of the sentences
    return "given" if value is True else str(value)
