"""The *_ext tasks: a stock task with our flags, whose generator is ours.

`--task translation_ext` is fairseq's `translation`; other stock tasks follow the same pattern (name + `_ext`). A checkpoint of the
stock task loads as it is. Every method here is called by fairseq and hands the work on to the task's `Session` (plugin/session.py).

The way of a sentence: fairseq reads it (a line of fairseq-interactive passes plugin/interactive.py) and asks `inference_step` for
its batch. plugin/sentences.py adds its constraints, plugin/bad_sentences.py leaves out what cannot be translated, plugin/command.py has
the others decoded, here or in another process, by generator.py, which makes a `Pool` for a search and fairseq's dictionaries of what it
finds.
"""

from __future__ import annotations

import gc
from typing import Any

from fairseq.tasks import TASK_REGISTRY, FairseqTask, LegacyFairseqTask
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from fairseq.tasks.translation import TranslationTask

from fairseq_ext.core.command_line import decodes_alone
from fairseq_ext.model.choose import refuse_architecture
from fairseq_ext.plugin import config, marian_transformer, moses_normalized, sentencepiece_pair  # noqa: F401  which they register
from fairseq_ext.plugin.loading.languages import name_languages_, own_target
from fairseq_ext.plugin.loading.settings import checkpoint_of
from fairseq_ext.plugin.loading.task_languages import check_languages
from fairseq_ext.plugin.outputs import check_outputs
from fairseq_ext.plugin.sentences import segmentation
from fairseq_ext.plugin.session import Session
from fairseq_ext.plugin.stock_settings import check_stock_settings
from fairseq_ext.plugin.stock_tasks import LanguageModeling, MultilingualLanguageModeling, MultiSimpleEpoch, PretrainedBART, SpeechToText
from fairseq_ext.plugin.stock_twin import BuildsGenerators, register_twin
from fairseq_ext.plugin.translation_bart import TranslationBart
from fairseq_ext.search import checks

Flags = config.flags_dataclass()


class Extended(BuildsGenerators):
    """What an *_ext task adds to its stock task: its `session`, to which it hands on what fairseq asks of it."""

    cfg: Any
    args: Any
    registered: str  # --task
    lacks: frozenset[str]
    session: Session
    trained_on: str | None = None  # the data folder that the checkpoint's settings name
    task_state: Any = None  # the checkpoint's, of its task

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.session = Session(self)

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
        target = None
        if issubclass(cls, TranslationTask):
            name_languages_(cfg, checkpoint_of(cfg))
            target, cfg.target_lang = cfg.target_lang, own_target(cfg.data, checkpoint_of(cfg), cfg.target_lang)
        check_languages(cls, cls.registered, cfg)
        task = super().setup_task(cfg, **kwargs)  # type: ignore[misc]
        if target is not None:
            cfg.target_lang = target  # its dictionary is loaded
        return task

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
            checks.refuse_reference(flags, Flags)
        if seq_gen_cls is not None or references:
            return self.build_stock(models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn)
        return self.session.generator(
            models, args, extra_gen_cls_kwargs or {},
            lambda kind, extra: self.build_ours(models, args, kind, extra, prefix_allowed_tokens_fn),
        )  # fmt: skip

    def build_tokenizer(self, args):
        self.session.sentences.tokenizer = super().build_tokenizer(args)  # type: ignore[misc]
        return self.session.sentences.tokenizer

    def build_bpe(self, args):
        self.session.sentences.segment_by(segmentation(super().build_bpe, args))  # type: ignore[misc]
        return self.session.sentences.bpe

    def load_dataset(self, split, *args, **kwargs):
        super().load_dataset(split, *args, **kwargs)  # type: ignore[misc]
        self.session.sentences.corpus_size = len(self.datasets[split])
        self.session.lines.look(split)

    def filter_indices_by_size(self, indices, dataset, max_positions=None, ignore_invalid_inputs=False):
        if ignore_invalid_inputs or not self.session.translates(dataset):
            return super().filter_indices_by_size(indices, dataset, max_positions, ignore_invalid_inputs)  # type: ignore[misc]
        return self.session.lines.filter(indices, dataset, max_positions)

    def get_batch_iterator(self, dataset, max_tokens=None, max_sentences=None, *args, **kwargs):
        build = super().get_batch_iterator  # type: ignore[misc]
        return self.session.batches.make(build, dataset, max_tokens, max_sentences, *args, **kwargs)

    def get_interactive_tokens_and_lengths(self, lines, encode_fn):
        read = super().get_interactive_tokens_and_lengths  # type: ignore[misc]
        return self.session.lines.read(lines, lambda lines: read(lines, encode_fn))

    def build_dataset_for_inference(self, src_tokens, src_lengths, constraints=None):
        return self.session.lines.dataset(src_tokens, src_lengths, constraints, super().build_dataset_for_inference)  # type: ignore[misc]

    def load_state_dict(self, state_dict):
        self.task_state = state_dict
        super().load_state_dict(state_dict)  # type: ignore[misc]

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """The hypotheses of one batch."""
        return self.session.decode(generator, models, (sample, prefix_tokens, constraints), super().inference_step)  # type: ignore[misc]


def extend(stock: type[FairseqTask], name: str | None = None) -> type:
    """Register the twin of a task, its name + `_ext`, with our flags; return it (plugin/stock_twin.py: arguments, errors)."""
    return register_twin(stock, name, Extended, Flags)


def extend_examples() -> None:
    """The same for the tasks of fairseq's examples/ that a --user-dir has registered."""
    for name in ("translation_moe", "multilingual_translation_latent_depth"):
        if name in TASK_REGISTRY:
            extend(TASK_REGISTRY[name])


extend(TranslationTask, "translation")
extend(TranslationBart, "translation_bart")
extend(MultiSimpleEpoch, "translation_multi_simple_epoch")
extend(PretrainedBART, "translation_from_pretrained_bart")
extend(MultilingualTranslationTask, "multilingual_translation")
extend(LanguageModeling, "language_modeling")
extend(MultilingualLanguageModeling, "multilingual_language_modeling")
extend(SpeechToText, "speech_to_text")
