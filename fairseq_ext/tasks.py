"""The *_ext tasks: a stock task with our flags, whose generator is ours.

`--task translation_ext` is fairseq's `translation`; other stock tasks follow the same pattern (name + `_ext`). A checkpoint of the
stock task loads as it is. Every method here is called by fairseq and hands the work on: to config.py, generator.py and session/.

The way of a sentence: fairseq reads it (a line of fairseq-interactive passes session/interactive.py) and asks `inference_step` for
its batch. `complete` (session/sentences.py) adds its constraints, `Command.decode` (session/command.py) has it decoded, here or in another
process, by generator.py, which makes a `Pool` for search/loop.py or parallel/driver.py and fairseq's dictionaries of what they find.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from fairseq.tasks import TASK_REGISTRY, FairseqTask, LegacyFairseqTask
from fairseq.tasks.translation import TranslationTask
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask

from fairseq_ext import config, validate
from fairseq_ext.constraints.flags import boundary_mode, constrained
from fairseq_ext.constraints.target_text import TargetText
from fairseq_ext.decoders.refused import refuse_architecture
from fairseq_ext.errors import UsageError
from fairseq_ext.generator import AlignedBeamSearchGenerator, BeamSearchGenerator
from fairseq_ext.registry import refills
from fairseq_ext.session.checkpoint import checkpoint_of, longest_source, shows_bar
from fairseq_ext.session.command import Command
from fairseq_ext.session.interactive import Interactive
from fairseq_ext.session.twin import BuildsGenerators, register_twin

POOL = 10_000  # sentences among which a stream finds its next ones

Flags = config.flags_dataclass()


class Extended(Interactive, BuildsGenerators):
    """What an *_ext task adds to its stock task. session/interactive.py takes lines; session/sentences.py knows their constraints."""

    cfg: Any
    args: Any
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
        config.settle(flags, args)
        self.use_flags(flags, constrained(flags, args) and not validate.stock_search(args))
        extra = dict(flags=flags, generation=args, source=self.source_dictionary, checkpoint=checkpoint_of(flags))
        extra |= extra_gen_cls_kwargs or {}
        kind = BeamSearchGenerator
        if getattr(args, "print_alignment", None):
            kind, extra["print_alignment"] = AlignedBeamSearchGenerator, str(args.print_alignment)
        generator = self.build_ours(models, args, kind, extra, prefix_allowed_tokens_fn)
        self.longest = longest_source(flags, self, models)
        self.command = self.command or Command(flags, self.tell_at_end)
        generator.target_text = TargetText(lambda: self.segmenter, generator.symbols_to_strip_from_output, boundary_mode(flags))
        generator.show_bar = shows_bar(flags)
        self.command.use(generator, models)
        return generator

    def get_batch_iterator(self, dataset, max_tokens=None, max_sentences=None, *args, **kwargs):
        """fairseq's batches; a stream takes its sentences from batches of many thousand, of which it encodes few at a time."""
        if refills(self.flags()):  # fairseq-generate asks for batches before it builds a generator
            max_tokens, max_sentences = None, max(POOL, max_sentences or 0)
            kwargs["required_batch_size_multiple"] = 1  # else the last few sentences are a batch of their own
        batches = super().get_batch_iterator(dataset, max_tokens, max_sentences, *args, **kwargs)  # type: ignore[misc]
        self.forget(dataset)
        return batches

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """The hypotheses of one batch."""
        decode = partial(super().inference_step, generator, models)  # type: ignore[misc]
        if self.command is None or not isinstance(generator, BeamSearchGenerator):  # a stock generator
            return decode(sample, prefix_tokens, constraints)
        sample, constraints = self.complete(sample, constraints)
        run = partial(self.command.decode, generator, decode, models, self.source_dictionary.pad())
        found = self.decode_usable((sample, prefix_tokens, constraints), run)
        if self.report_path:
            self.report_glossary(sample, [generator.target_text.text(each[0]["tokens"]) for each in found])
        return found


class PretrainedBART(TranslationFromPretrainedBARTTask):
    """mBART's task: sentences end in the target language's token, in the generator too, which stock builds without asking anybody."""

    def build_generator(self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, prefix_allowed_tokens_fn=None):
        if getattr(args, "score_reference", False):
            return super().build_generator(models, args)
        extra = {"eos": self.tgt_dict.index(f"[{self.args.target_lang}]"), **(extra_gen_cls_kwargs or {})}
        past_stock = super(TranslationFromPretrainedBARTTask, self)
        return past_stock.build_generator(models, args, seq_gen_cls, extra, prefix_allowed_tokens_fn)


def extend(stock: type[FairseqTask], name: str | None = None) -> type:
    """Register the twin of a task, its name + `_ext`, with our flags; return it (session/twin.py: arguments, errors)."""
    return register_twin(stock, name, Extended, Flags)


def refuse_unknown(name: str) -> None:
    """Refuse a task of our kind that there is not, in one line that lists those there are (raises UsageError)."""
    ours = sorted(task for task in TASK_REGISTRY if task.endswith("_ext"))
    if name not in ours:
        raise UsageError(f"--task {name} is none of fairseq_ext's tasks: use {', '.join(ours)}")


extend(TranslationTask, "translation")
extend(TranslationMultiSimpleEpochTask, "translation_multi_simple_epoch")
extend(PretrainedBART, "translation_from_pretrained_bart")
