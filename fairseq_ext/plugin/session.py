"""What a run of a task needs around the search: what is known of its sentences, its lines, its batches, its command."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from fairseq_ext.core.command_line import decodes_alone
from fairseq_ext.kernels.library import give_back_memory
from fairseq_ext.plugin import config
from fairseq_ext.plugin.bad_sentences import Batch
from fairseq_ext.plugin.batches import Batches
from fairseq_ext.plugin.command import Command
from fairseq_ext.plugin.generator import AlignedBeamSearchGenerator, BeamSearchGenerator
from fairseq_ext.plugin.interactive import Lines
from fairseq_ext.plugin.loading.dictionaries import warn_of_other_words
from fairseq_ext.plugin.loading.settings import longest_source, segments_text, shows_bar
from fairseq_ext.plugin.sentences import Sentences, numbers_of
from fairseq_ext.search import checks
from fairseq_ext.search.constraints.glossary import check_glossary, choose_placement
from fairseq_ext.search.constraints.required import boundary_mode, check_phrases, expect_phrases
from fairseq_ext.search.constraints.sources import constrained
from fairseq_ext.search.phrases.segmenter import TargetText
from fairseq_ext.search.registry import Part


class Session:
    """The parts of one task's run. `sentences` knows numbers, constraints and drafts; `lines` takes what is typed and keeps bad sentences
    apart; `batches` makes batches; `command`, made with the first generator, lasts as long as the process."""

    def __init__(self, task: Any):
        self.task = task
        self.sentences = Sentences(task)
        self.lines = Lines(task, self.sentences)
        self.batches = Batches(task, self.lines)
        self.command: Command | None = None

    def translates(self, dataset: Any) -> bool:
        """Whether it is the data set that fairseq-generate translates."""
        return self.lines.translates_corpus and self.sentences.is_corpus(dataset)

    def generator(self, models: list, args: Any, extra: dict[str, Any], build: Callable[[type, dict[str, Any]], Any]) -> Any:
        """A generator of ours, by `build` (class, arguments), in use from now on. args: fairseq's GenerationConfig; extra: more arguments.

        Errors: UsageError for flags that do not fit together.
        """
        task, flags, sentences = self.task, self.task.flags(), self.sentences
        sentences.typed = bool(getattr(args, "constraints", None))
        if sentences.phrases_of_calls and (shaping := expect_phrases(flags, args)):
            checks.refuse_stock_search(shaping, args)
        check_glossary(flags, sentences.glossaries_of_calls)
        config.complete_flags(flags, args, Part(f"--task {task.registered}", denies=task.lacks))
        choose_placement(flags, args, segments_text(flags), sentences.glossaries_of_calls)
        if self.lines.translates_corpus:
            check_phrases(flags, sentences.typed, True)
        self.lines.use_flags(flags)
        sentences.use_flags(flags, constrained(flags, args) and not checks.stock_search(args))
        kind: type = BeamSearchGenerator
        if getattr(args, "print_alignment", None):
            kind, extra = AlignedBeamSearchGenerator, {"print_alignment": str(args.print_alignment), **extra}
        if decodes_alone():
            gc.collect()  # what reading the checkpoint leaves behind holds all of its weights
            give_back_memory()
        generator = build(kind, dict(flags=flags, generation=args, source=task.source_dictionary) | extra)
        self.lines.longest, self.batches.samples = longest_source(flags, task, models), generator.runs_stock_loop
        self.lines.alignment = str(getattr(args, "print_alignment", None))
        if self.command is None:
            warn_of_other_words(task, flags)
            self.command = Command(flags, self.lines.tell_at_end)
        sentences.target_text = TargetText(lambda: sentences.segmenter, generator.symbols_to_strip_from_output, boundary_mode(flags))
        generator.target_text = sentences.target_text
        generator.show_bar = shows_bar(flags)
        self.command.use(generator, models)
        # a command does nothing but decode, and a compiled encoder reads all of this task's batches
        if task.registered == "translation_ext" and decodes_alone() and generator.release_models():
            give_back_memory()
        return generator

    def decode(self, generator: Any, models: list, batch: Batch, step: Callable[..., list]) -> list:
        """The hypotheses of one batch, by `step`, the stock task's."""

        def decode(sample, prefix_tokens, constraints):  # by name: some tasks have parameters of their own between these
            with self.lines.known_words(sample):
                return step(generator, models, sample, prefix_tokens=prefix_tokens, constraints=constraints)

        if self.command is None or not isinstance(generator, BeamSearchGenerator):  # a stock generator
            return decode(*batch)
        sample, prefix_tokens, constraints = batch
        sample, constraints = self.sentences.complete(sample, constraints, self.lines.carry_numbers)
        run = partial(self.command.decode, generator, decode, models, generator.pad)
        found = self.lines.decode_usable((sample, prefix_tokens, constraints), run)
        if generator.flags.print_utility:
            for number, (best, *_) in zip(numbers_of(sample), found, strict=False):
                print(f"U-{number}\t{best.get('utility', math.nan):.4f}")
        if self.sentences.report_path or self.sentences.documents is not None:
            self.sentences.report_glossary(sample, [generator.target_text.text(each[0]["tokens"]) for each in found])
        return found
