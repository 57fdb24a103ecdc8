"""The *_ext tasks: a stock task with our flags, whose generator is ours.

`--task translation_ext` is fairseq's `translation`; other stock tasks follow the same pattern (name + `_ext`). A checkpoint of the
stock task loads as it is. Every method here is called by fairseq and hands the work on: to config.py, generator.py and session/.

The way of a sentence: fairseq reads it (a line of fairseq-interactive passes session/interactive.py) and asks `inference_step` for
its batch. `complete` (session/sentences.py) adds its constraints, `decode_usable` (session/bad_sentences.py) leaves out what cannot be
translated, `Command.decode` (session/command.py) has the others decoded, here or in another process, by generator.py, which makes a
`Pool` for search/loop.py or parallel/driver.py and fairseq's dictionaries of what they find.
"""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

from fairseq.tasks import FairseqTask, LegacyFairseqTask
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from fairseq.tasks.translation import TranslationTask

from fairseq_ext import config, validate
from fairseq_ext.capabilities import Part
from fairseq_ext.compat.own_process import decodes_alone
from fairseq_ext.constraints.flags import boundary_mode, check_glossary, check_phrases, choose_placement, constrained, expect_phrases
from fairseq_ext.constraints.target_text import TargetText
from fairseq_ext.decoders.refused import refuse_architecture
from fairseq_ext.generator import AlignedBeamSearchGenerator, BeamSearchGenerator
from fairseq_ext.kernels.library import give_back_memory
from fairseq_ext.loading.languages import name_languages_
from fairseq_ext.models import marian_transformer, moses_normalized, sentencepiece_pair  # noqa: F401  which they register
from fairseq_ext.models.translation_bart import TranslationBart
from fairseq_ext.session.batches import Batches
from fairseq_ext.session.checkpoint import checkpoint_of, longest_source, segments_text, shows_bar
from fairseq_ext.session.command import Command
from fairseq_ext.session.dictionaries import warn_of_other_words
from fairseq_ext.session.outputs import check_outputs
from fairseq_ext.session.stock_settings import check_stock_settings
from fairseq_ext.session.stock_tasks import (
    LanguageModeling,
    MultilingualLanguageModeling,
    MultiSimpleEpoch,
    PretrainedBART,
    SpeechToText,
)
from fairseq_ext.session.task_languages import check_languages
from fairseq_ext.session.twin import BuildsGenerators, register_twin

Flags = config.flags_dataclass()


class Extended(Batches, BuildsGenerators):
    """What an *_ext task adds to its stock task. session/batches.py makes batches; session/interactive.py takes lines, and
    session/sentences.py knows their constraints."""

    cfg: Any
    args: Any
    registered: str  # --task
    lacks: frozenset[str]
    command: Command | None = None
    trained_on: str | None = None  # the data folder that the checkpoint's settings name
    task_state: Any = None  # the checkpoint's, of its task

    def flags(self) -> Any:
        """Our flags, in the task's configuration."""
        return self.args if isinstance(self, LegacyFairseqTask) else self.cfg

    @classmethod
    def setup_task(cls, cfg, **kwargs):
        """The stock task; its languages may also be told by the dictionaries and the checkpoint (raises UsageError)."""
        check_stock_settings(cfg)
        check_outputs(cfg)
        if decodes_alone():
            gc.freeze()  # what is imported stays
        if issubclass(cls, TranslationTask):
            name_languages_(cfg, checkpoint_of(cfg))
        check_languages(cls, cls.registered, cfg)
        return super().setup_task(cfg, **kwargs)  # type: ignore[misc]

    def build_model(self, cfg, from_checkpoint=False):
        """The stock task's model, unless it is one that no search of ours runs (raises UsageError)."""
        refuse_architecture(cfg, self)
        data = getattr(cfg, "data", None)
        self.trained_on = data if isinstance(data, str) else None
        return super().build_model(cfg, from_checkpoint)  # type: ignore[misc]

    def build_generator(self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, prefix_allowed_tokens_fn=None):
        """Our generator, under the stock signature; the stock one where the caller names a class, or with --score-reference."""
        flags = self.flags()
        references = getattr(args, "score_reference", False)
        if references:
            validate.refuse_reference(flags, Flags)
        if seq_gen_cls is not None or references:
            return self.build_stock(models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn)
        self.typed = bool(getattr(args, "constraints", None))
        if self.phrases_of_calls and (shaping := expect_phrases(flags, args)):
            validate.refuse_stock_search(shaping, args)
        check_glossary(flags, self.glossaries_of_calls)
        config.complete_flags(flags, args, Part(f"--task {self.registered}", denies=self.lacks))
        choose_placement(flags, args, segments_text(flags), self.glossaries_of_calls)
        if self.translates_corpus:
            check_phrases(flags, self.typed, True)
        self.use_flags(flags, constrained(flags, args) and not validate.stock_search(args))
        extra = dict(flags=flags, generation=args, source=self.source_dictionary)
        extra |= extra_gen_cls_kwargs or {}
        kind = BeamSearchGenerator
        if getattr(args, "print_alignment", None):
            kind, extra["print_alignment"] = AlignedBeamSearchGenerator, str(args.print_alignment)
        if decodes_alone():
            gc.collect()  # what reading the checkpoint leaves behind holds all of its weights
            give_back_memory()
        generator = self.build_ours(models, args, kind, extra, prefix_allowed_tokens_fn)
        self.longest, self.draws = longest_source(flags, self, models), generator.runs_stock_loop
        self.alignment = str(getattr(args, "print_alignment", None))
        if self.command is None:
            warn_of_other_words(self, flags)
        self.command = self.command or Command(flags, self.tell_at_end)
        self.target_text = TargetText(lambda: self.segmenter, generator.symbols_to_strip_from_output, boundary_mode(flags))
        generator.target_text = self.target_text
        generator.show_bar = shows_bar(flags)
        self.command.use(generator, models)
        # a command does nothing but decode, and a compiled encoder reads all of this task's batches
        if self.registered == "translation_ext" and decodes_alone() and generator.release_models():
            give_back_memory()
        return generator

    def load_state_dict(self, state_dict):
        self.task_state = state_dict
        super().load_state_dict(state_dict)  # type: ignore[misc]

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """The hypotheses of one batch."""
        step = super().inference_step  # type: ignore[misc]

        def decode(sample, prefix_tokens, constraints):  # by name: some tasks have parameters of their own between these
            with self.known_words(sample):
                return step(generator, models, sample, prefix_tokens=prefix_tokens, constraints=constraints)

        if self.command is None or not isinstance(generator, BeamSearchGenerator):  # a stock generator
            return decode(sample, prefix_tokens, constraints)
        sample, constraints = self.complete(sample, constraints)
        run = partial(self.command.decode, generator, decode, models, generator.pad)
        found = self.decode_usable((sample, prefix_tokens, constraints), run)
        if self.report_path:
            self.report_glossary(sample, [generator.target_text.text(each[0]["tokens"]) for each in found])
        return found


def extend(stock: type[FairseqTask], name: str | None = None) -> type:
    """Register the twin of a task, its name + `_ext`, with our flags; return it (session/twin.py: arguments, errors)."""
    return register_twin(stock, name, Extended, Flags)


extend(TranslationTask, "translation")
extend(TranslationBart, "translation_bart")
extend(MultiSimpleEpoch, "translation_multi_simple_epoch")
extend(PretrainedBART, "translation_from_pretrained_bart")
extend(MultilingualTranslationTask, "multilingual_translation")
extend(LanguageModeling, "language_modeling")
extend(MultilingualLanguageModeling, "multilingual_language_modeling")
extend(SpeechToText, "speech_to_text")
