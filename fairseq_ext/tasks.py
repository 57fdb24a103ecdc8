"""The *_ext tasks: a stock task with our flags, whose generator is ours.

`--task translation_ext` is fairseq's `translation`; other stock tasks follow the same rule (name + `_ext`). A checkpoint of the
stock task loads as it is. Every method here is called by fairseq and hands the work on: to config.py, generator.py and session/.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY, FairseqTask, LegacyFairseqTask, register_task
from fairseq.tasks.translation import TranslationTask
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask

from fairseq_ext import config, validate
from fairseq_ext.constraints.flags import choose_strategies, constrained
from fairseq_ext.decoders.refused import refuse_architecture
from fairseq_ext.errors import UsageError
from fairseq_ext.generator import AlignedBeamSearchGenerator, BeamSearchGenerator
from fairseq_ext.registry import choice
from fairseq_ext.session.checkpoint import checkpoint_of, longest_source
from fairseq_ext.session.command import Command
from fairseq_ext.session.sentences import Sentences

POOL = 10_000  # sentences among which a stream finds its next ones

Flags = config.flags_dataclass()


class Extended(Sentences):
    """What an *_ext task adds to its stock task. `Sentences` (session/sentences.py) reads constraint files and draft lines."""

    kind: type | None = None  # the generator class that `build_ours` asks `Innermost` for, while it does
    cfg: Any
    args: Any
    datasets: dict[str, Any]
    dataset_to_epoch_iter: dict[Any, Any]  # batches that fairseq keeps
    command: Command | None = None

    def flags(self) -> Any:
        """Our flags, in the task's configuration."""
        return self.args if isinstance(self, LegacyFairseqTask) else self.cfg

    def build_model(self, cfg, from_checkpoint=False):
        """The stock task's model, unless it is one that no search of ours runs (raises UsageError)."""
        refuse_architecture(cfg, self)
        return super().build_model(cfg, from_checkpoint)  # type: ignore[misc]

    def build_generator(self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, prefix_allowed_tokens_fn=None):
        """Our generator, under the stock signature; the stock one where the caller names a class, or with --score-reference."""
        flags = self.flags()
        references = getattr(args, "score_reference", False)
        if references:
            validate.refuse_reference(flags)
        if seq_gen_cls is not None or references:
            return self.build_stock(models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn)
        if constrained(flags, args) and not getattr(args, "constraints", None):
            args.constraints = "unordered"  # fairseq-interactive then reads tab-separated phrases and prints C- lines
        choose_strategies(flags, args)
        validate.validate(flags, args)
        self.use_flags(flags, constrained(flags, args) and not validate.stock_search(args))
        extra = dict(flags=flags, generation=args, source=self.source_dictionary, checkpoint=checkpoint_of(flags))
        extra |= extra_gen_cls_kwargs or {}
        print_alignment = getattr(args, "print_alignment", None)
        if print_alignment:
            extra["print_alignment"] = str(print_alignment)
        kind = AlignedBeamSearchGenerator if print_alignment else BeamSearchGenerator
        generator = self.build_ours(models, args, kind, extra, prefix_allowed_tokens_fn)
        self.longest = longest_source(flags, self, models)
        self.command = self.command or Command(flags, self.tell_at_end)
        generator.boundaries = lambda: self.boundaries
        generator.plain = lambda tokens: self.plain(tokens, generator.symbols_to_strip_from_output)
        self.command.use(generator, models, lambda tokens: self.text(tokens, generator.symbols_to_strip_from_output))
        return generator

    def build_stock(self, models, args, seq_gen_cls, extra, prefix_allowed_tokens_fn):
        """The stock task's generator; it is given the arguments that its build_generator takes."""
        build = super().build_generator  # type: ignore[misc]
        given = dict(seq_gen_cls=seq_gen_cls, extra_gen_cls_kwargs=extra, prefix_allowed_tokens_fn=prefix_allowed_tokens_fn)
        taken = inspect.signature(build).parameters
        return build(models, args, **{name: value for name, value in given.items() if name in taken and value is not None})

    def build_ours(self, models, args, kind: type, extra: dict, prefix_allowed_tokens_fn):
        """A generator of our class, built by the stock task's own build_generator, whose settings it keeps.

        subtle: some stock tasks do not pass a class on (translation_multi_simple_epoch), so `Innermost` puts it in where they end.
        """
        self.kind, self.kind_arguments = kind, extra  # of Innermost
        try:
            return self.build_stock(models, args, kind, None, prefix_allowed_tokens_fn)
        finally:
            self.kind = None

    def get_batch_iterator(self, dataset, max_tokens=None, max_sentences=None, *args, **kwargs):
        """fairseq's batches; a stream takes its sentences from batches of many thousand, of which it encodes few at a time."""
        if choice(self.flags(), "schedule") == "stream":  # fairseq-generate asks for batches before it builds a generator
            max_tokens, max_sentences = None, max(POOL, max_sentences or 0)
            kwargs["required_batch_size_multiple"] = 1  # else the last few sentences are a batch of their own
        batches = super().get_batch_iterator(dataset, max_tokens, max_sentences, *args, **kwargs)  # type: ignore[misc]
        if not any(dataset is known for known in self.datasets.values()):
            # lines of an interactive session, never asked for again: fairseq would keep all of them to the end
            self.dataset_to_epoch_iter.pop(dataset, None)
        return batches

    def build_tokenizer(self, args):
        self.tokenizer_used = super().build_tokenizer(args)  # type: ignore[misc]
        return self.tokenizer_used

    def build_bpe(self, args):
        self.bpe_used = super().build_bpe(args)  # type: ignore[misc]
        return self.bpe_used

    def load_dataset(self, split, *args, **kwargs):
        super().load_dataset(split, *args, **kwargs)  # type: ignore[misc]
        self.corpus_size = len(self.datasets[split])

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """The hypotheses of one batch."""
        decode = partial(super().inference_step, generator, models)  # type: ignore[misc]
        if self.command is None or not isinstance(generator, BeamSearchGenerator):  # a stock generator
            return decode(sample, prefix_tokens, constraints)
        sample, constraints = self.complete(sample, constraints)
        run = partial(self.command.decode, generator, decode, models, self.source_dictionary.pad())
        found = self.decode_usable((sample, prefix_tokens, constraints), run)
        if self.report_path:
            self.report_glossary(sample, [self.text(each[0]["tokens"], generator.symbols_to_strip_from_output) for each in found])
        return found


class Innermost(FairseqTask):
    """Stands behind the stock task: where it builds a generator without a class, ours is built, with all arguments of both."""

    kind: type | None = None
    kind_arguments: dict

    def build_generator(self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, prefix_allowed_tokens_fn=None):
        if self.kind is not None:
            seq_gen_cls, extra_gen_cls_kwargs = self.kind, {**self.kind_arguments, **(extra_gen_cls_kwargs or {})}
        return super().build_generator(models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn)


class InnermostLegacy(Innermost, LegacyFairseqTask):
    """The same behind a task of fairseq's argparse kind."""


class PretrainedBART(TranslationFromPretrainedBARTTask):
    """mBART's task: sentences end in the target language's token, in the generator too, which stock builds without asking anybody."""

    def build_generator(self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, prefix_allowed_tokens_fn=None):
        if getattr(args, "score_reference", False):
            return super().build_generator(models, args)
        extra = {"eos": self.tgt_dict.index(f"[{self.args.target_lang}]"), **(extra_gen_cls_kwargs or {})}
        past_stock = super(TranslationFromPretrainedBARTTask, self)
        return past_stock.build_generator(models, args, seq_gen_cls, extra, prefix_allowed_tokens_fn)


def extend(stock: type[FairseqTask], name: str | None = None) -> type:
    """Register the twin of a task: its name + `_ext`, with our flags. Return the twin, a subclass of the task.

    stock: a task class that fairseq's `register_task` knows, or a subclass of one, given with its name. Errors: UsageError for a class
    without a name.
    """
    name = name or next((n for n, task in TASK_REGISTRY.items() if task is stock), None)
    if name is None:
        raise UsageError(f"{stock.__name__} is not registered as a task: register it first, or give a name, extend({stock.__name__}, NAME)")
    if f"{name}_ext" in TASK_REGISTRY:
        return TASK_REGISTRY[f"{name}_ext"]
    dataclass = TASK_DATACLASS_REGISTRY.get(name)
    legacy = issubclass(stock, LegacyFairseqTask)
    bases = (Extended, stock, InnermostLegacy if legacy else Innermost)
    if dataclass is not None:
        twin = type(f"{stock.__name__}Ext", bases, {})
        return register_task(f"{name}_ext", dataclass=config.task_dataclass(dataclass, Flags))(twin)

    def add_args(parser) -> None:
        stock.add_args(parser)  # type: ignore[attr-defined]
        gen_parser_from_dataclass(parser, Flags())

    return register_task(f"{name}_ext")(type(f"{stock.__name__}Ext", bases, {"add_args": staticmethod(add_args)}))


def refuse_unknown(name: str) -> None:
    """Refuse a task of our kind that there is not, in one line that lists those there are (raises UsageError)."""
    ours = sorted(task for task in TASK_REGISTRY if task.endswith("_ext"))
    if name not in ours:
        raise UsageError(f"--task {name} is none of fairseq_ext's tasks: use {', '.join(ours)}")


extend(TranslationTask, "translation")
extend(TranslationMultiSimpleEpochTask, "translation_multi_simple_epoch")
extend(PretrainedBART, "translation_from_pretrained_bart")
