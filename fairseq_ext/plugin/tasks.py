"""The *_ext tasks: a stock task with our flags, whose generator is ours.

`--task translation_ext` is fairseq's `translation`; other stock tasks follow the same pattern
(name + `_ext`). A checkpoint of the stock task loads unchanged. fairseq calls every method here,
and each passes the work to the task's `Session` (plugin/run.py).

The way of a sentence: fairseq reads it (plugin/input.py checks the lines of fairseq-interactive)
and calls `inference_step` with its batch. `Session.decode` (plugin/run.py) adds the constraints
(plugin/sentences.py), leaves out sentences that cannot be translated (plugin/bad_sentences.py), and
calls the stock task's `inference_step` for the others, in this process or in a worker process. That
method calls our generator (plugin/generator.py), which searches the batch as a `Pool` and returns
the hypotheses as the dicts that fairseq prints.
"""

from __future__ import annotations

import gc
import inspect
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from contextlib import nullcontext

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.tasks import (
    TASK_DATACLASS_REGISTRY,
    TASK_REGISTRY,
    FairseqTask,
    LegacyFairseqTask,
    register_task,
)
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from fairseq.tasks.translation import TranslationTask
from omegaconf import DictConfig

from fairseq_ext.core.command_line import is_fairseq_command
from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.model.choose import refusal_reason
from fairseq_ext.plugin.flags_dataclass import flags_dataclass, task_dataclass
from fairseq_ext.plugin.loading.checkpoint import no_first_weights
from fairseq_ext.plugin.loading.languages import (
    check_languages,
    dictionary_language,
    name_languages_,
)
from fairseq_ext.plugin.loading.settings import checkpoint_of, of_some_tasks
from fairseq_ext.plugin.options import check_outputs
from fairseq_ext.plugin.run import Session
from fairseq_ext.plugin.sentences import segmentation
from fairseq_ext.plugin.stock import (
    LanguageModeling,
    MultilingualLanguageModeling,
    MultiSimpleEpoch,
    PretrainedBART,
    SpeechToText,
    TranslationBart,
    check_stock_settings,
)
from fairseq_ext.search import checks
from fairseq_ext.search.constraints.allowed import restricts_outputs
from fairseq_ext.search.constraints.glossary import GlossaryFlags
from fairseq_ext.search.registry import OUTSIDE, POINTS, STRATEGIES, declared, names_of


def check_typed_values(parser: ArgumentParser) -> None:
    """Make a command that searches refuse typed values that stand for "not given", which look alike
    afterwards; and make it say how to use one's own strategy.

    `typed` in a flag's metadata: minimum, maximum and meaning of typed values.
    """
    known = {action.dest: action for action in parser._actions}
    for point in POINTS:
        known[point].type = strategy_type(point)
    for name, bounds in declared("typed").items() if "lenpen" in known else ():
        known[name].type = integer_in_range(*bounds)


def strategy_type(point: str) -> Callable[[str], str]:
    """Return the argparse type of a flag that names a strategy."""

    def strategy(name: str) -> str:
        if name not in STRATEGIES[point]:
            raise ArgumentTypeError(
                f"invalid choice: '{cut(name)}' (choose from {', '.join(names_of(point))}; for a "
                f"strategy of your own, {OUTSIDE} must name its file)"
            )
        return name

    return strategy


def integer_in_range(least: int, most: int, meaning: str) -> Callable[[str], int]:
    """Return the argparse type of a flag with an integer."""

    def whole_number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ArgumentTypeError(
                f"({meaning}) must be {least} to {most}, not {cut(text)}, or be left out"
            )
        return value

    return whole_number


class GeneratorClassHook(FairseqTask):
    """Comes after the stock task in the method resolution order: if the task builds a generator
    without a class, ours is built, with the arguments of both."""

    # CAPABILITIES (search/registry.py) that the task's batches lack
    lacks: frozenset[str] = frozenset()
    generator_class: type | None = None
    generator_arguments: dict[str, object]

    def build_generator(
        self,
        models,
        args,
        seq_gen_cls=None,
        extra_gen_cls_kwargs=None,
        prefix_allowed_tokens_fn=None,
    ):
        if self.generator_class is not None:
            seq_gen_cls = self.generator_class
            extra_gen_cls_kwargs = {**self.generator_arguments, **(extra_gen_cls_kwargs or {})}
        return super().build_generator(
            models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn
        )


class LegacyGeneratorClassHook(GeneratorClassHook, LegacyFairseqTask):
    """The same for a task of fairseq's argparse kind."""


Flags = flags_dataclass()


class Extended:
    """The methods of an *_ext task in front of its stock task in the method resolution order: each
    passes fairseq's call to `session`."""

    # the generator class during `build_ours`, for `GeneratorClassHook`, and its arguments
    generator_class: type | None
    generator_arguments: dict[str, object]
    cfg: DictConfig
    args: Namespace
    registered: str  # --task
    lacks: frozenset[str]
    session: Session
    trained_on: str | None = None  # the data folder that the checkpoint's settings name
    task_state: dict | None = None  # the task's state in the checkpoint

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.session = Session(self)

    def flags(self) -> DictConfig | Namespace:
        """Return the task's settings as fairseq keeps them: ours and the stock task's."""
        return self.args if isinstance(self, LegacyFairseqTask) else self.cfg

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the task's flags and ours."""
        super().add_args(parser)  # type: ignore[misc]
        check_typed_values(parser)

    @classmethod
    def setup_task(cls, cfg, **kwargs):
        """Build the stock task; dictionaries and checkpoint may name its languages, too (raises
        UsageError)."""
        check_stock_settings(cfg)
        check_outputs(cfg)
        if is_fairseq_command():
            gc.freeze()  # what is imported stays: no collection looks at it
        target = None
        if issubclass(cls, TranslationTask):
            name_languages_(cfg, checkpoint_of(cfg))
            target = cfg.target_lang
            cfg.target_lang = dictionary_language(cfg.data, checkpoint_of(cfg), cfg.target_lang)
        check_languages(cls, cls.registered, cfg)
        task = super().setup_task(cfg, **kwargs)  # type: ignore[misc]
        if target is not None:
            cfg.target_lang = target  # the dictionary is loaded
        return task

    def build_model(self, cfg, from_checkpoint=False):
        """Build the stock task's model, unless none of our searches runs it (raises UsageError)."""
        name = of_some_tasks(cfg, "_name") or of_some_tasks(cfg, "arch") or ""
        if reason := refusal_reason(name, self):
            raise UsageError(f"the checkpoint's architecture {name} {reason}")
        data = of_some_tasks(cfg, "data")
        self.trained_on = data if isinstance(data, str) else None
        with no_first_weights(name) if from_checkpoint else nullcontext():
            return super().build_model(cfg, from_checkpoint)  # type: ignore[misc]

    def build_generator(
        self,
        models,
        args,
        seq_gen_cls=None,
        extra_gen_cls_kwargs=None,
        prefix_allowed_tokens_fn=None,
    ):
        """Build our generator, with the stock signature; the stock generator if the caller names a
        class, or with --score-reference."""
        references = of_some_tasks(args, "score_reference")
        if references:
            checks.refuse_reference(self.session.settings)
        if seq_gen_cls is not None or references:
            return self.build_stock(
                models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn
            )
        return self.session.generator(
            models,
            args,
            extra_gen_cls_kwargs or {},
            lambda kind, extra: self.build_ours(
                models, args, kind, extra, prefix_allowed_tokens_fn
            ),
        )

    def build_stock(self, models, args, seq_gen_cls, extra, prefix_allowed_tokens_fn):
        """Return the stock task's generator, built with the arguments that its build_generator
        takes."""
        build = super().build_generator  # type: ignore[misc]
        given = dict(
            seq_gen_cls=seq_gen_cls,
            extra_gen_cls_kwargs=extra,
            prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
        )
        taken = inspect.signature(build).parameters
        return build(
            models,
            args,
            **{name: value for name, value in given.items() if name in taken and value is not None},
        )

    def build_ours(
        self, models, args, kind: type, extra: dict[str, object], prefix_allowed_tokens_fn
    ):
        """Return a generator of our class, built by the stock task's build_generator, with its
        settings.

        subtle: some stock tasks do not pass a class on (translation_multi_simple_epoch), so
        `GeneratorClassHook` adds it where their calls of `super()` end. The arguments may hold a
        generator and so a model: the task, which lives as long as the process, lets them go.
        """
        self.generator_class, self.generator_arguments = kind, extra
        try:
            return self.build_stock(models, args, kind, None, prefix_allowed_tokens_fn)
        finally:
            self.generator_class, self.generator_arguments = None, {}

    def build_tokenizer(self, args):
        self.session.sentences.tokenizer = super().build_tokenizer(args)  # type: ignore[misc]
        return self.session.sentences.tokenizer

    def build_bpe(self, args):
        sentences = self.session.sentences
        sentences.set_bpe(segmentation(super().build_bpe, args))  # type: ignore[misc]
        settings = self.session.settings
        early = settings.get(GlossaryFlags).glossary or restricts_outputs(settings)
        if early and sentences.target_text is not None:
            # the generator is built already: errors come before a command reads its first line
            sentences.constraint_source()
        return sentences.bpe

    def load_dataset(self, split, *args, **kwargs):
        super().load_dataset(split, *args, **kwargs)  # type: ignore[misc]
        self.session.sentences.corpus_size = len(self.datasets[split])
        self.session.lines.note_dataset(split)

    def filter_indices_by_size(
        self, indices, dataset, max_positions=None, ignore_invalid_inputs=False
    ):
        if ignore_invalid_inputs or not self.session.translates(dataset):
            return super().filter_indices_by_size(
                indices, dataset, max_positions, ignore_invalid_inputs
            )  # type: ignore[misc]
        return self.session.lines.filter(indices, dataset, max_positions)

    def get_batch_iterator(self, dataset, max_tokens=None, max_sentences=None, *args, **kwargs):
        build = super().get_batch_iterator  # type: ignore[misc]
        sizes = (max_tokens, max_sentences, *args)
        return self.session.lines.batches(build, dataset, *sizes, **kwargs)

    def get_interactive_tokens_and_lengths(self, lines, encode_fn):
        read = super().get_interactive_tokens_and_lengths  # type: ignore[misc]
        return self.session.lines.read(lines, lambda lines: read(lines, encode_fn))

    def build_dataset_for_inference(self, src_tokens, src_lengths, constraints=None):
        return self.session.lines.dataset(
            src_tokens, src_lengths, constraints, super().build_dataset_for_inference
        )  # type: ignore[misc]

    def load_state_dict(self, state_dict):
        self.task_state = state_dict
        super().load_state_dict(state_dict)  # type: ignore[misc]

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """Return each sentence's hypotheses as dicts, best first; sample: the batch."""
        return self.session.decode(
            generator, models, (sample, prefix_tokens, constraints), super().inference_step
        )  # type: ignore[misc]


def extend(stock: type[FairseqTask], name: str | None = None) -> type:
    """Register the twin of a task, its name + `_ext`, with our flags. Return it, a subclass of the
    task.

    stock: a task class that fairseq's `register_task` knows, or a subclass of one, given with its
    name. Errors: UsageError for a class without a name.
    """
    name = name or next((n for n, task in TASK_REGISTRY.items() if task is stock), None)
    if name is None:
        raise UsageError(
            f"{stock.__name__} is not registered as a task: register it first, or give a name, "
            f"extend({stock.__name__}, NAME)"
        )
    own = f"{name}_ext"
    if own in TASK_REGISTRY:
        return TASK_REGISTRY[own]
    legacy = issubclass(stock, LegacyFairseqTask)
    bases = (Extended, stock, LegacyGeneratorClassHook if legacy else GeneratorClassHook)
    members: dict[str, object] = {"registered": own}
    dataclass = TASK_DATACLASS_REGISTRY.get(name)
    if dataclass is None:

        def add_args(parser) -> None:
            stock.add_args(parser)  # type: ignore[attr-defined]
            gen_parser_from_dataclass(parser, Flags())
            check_typed_values(parser)

        members["add_args"] = staticmethod(add_args)
    else:
        dataclass = task_dataclass(dataclass, Flags)
    twin = type(f"{stock.__name__}Ext", bases, members)
    return register_task(own, dataclass=dataclass)(twin)


def extend_examples() -> None:
    """Register twins of the tasks of fairseq's examples/ that a --user-dir has registered."""
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
