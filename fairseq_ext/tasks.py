"""The *_ext tasks: a stock task with our flags, whose generator is ours.

`--task translation_ext` is fairseq's `translation`; other stock tasks follow the same rule (name + `_ext`). A checkpoint of the
stock task loads as it is.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from argparse import Namespace
from functools import partial
from typing import Any

from fairseq.data import Dictionary
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.tasks import TASK_REGISTRY, FairseqTask, register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from torch import Tensor

from fairseq_ext import config, validate
from fairseq_ext.aligned_generator import AlignedBeamSearchGenerator
from fairseq_ext.constraints.flags import choose_strategies, constrained
from fairseq_ext.decoders.refused import refuse_architecture
from fairseq_ext.errors import UsageError
from fairseq_ext.generator import BeamSearchGenerator
from fairseq_ext.kernels.library import give_back_memory
from fairseq_ext.parallel_generator import ParallelGenerator
from fairseq_ext.registry import choice
from fairseq_ext.session.cpu_workers import Workers
from fairseq_ext.session.interactive import Sentences
from fairseq_ext.session.results_file import ResultsFile, run_key
from fairseq_ext.session.target_dictionary import TargetDictionary
from fairseq_ext.stats import Stats

logger = logging.getLogger("fairseq_ext")
SECONDS_BETWEEN_WRITES = 20.0  # of the statistics file
SENTENCES_BETWEEN_TRIMS = 4_000  # after so many the memory that is kept for the next step goes back to the system, which costs some 50 ms
POOL = 10_000  # sentences among which a stream finds its next ones

Flags = config.flags_dataclass()


class Extended(Sentences):
    """What an *_ext task adds to its stock task."""

    cfg: Any
    args: Any
    tgt_dict: Any = None
    datasets: dict[str, Any]
    dataset_to_epoch_iter: dict[Any, Any]  # batches that fairseq keeps
    since_trim = 0  # sentences decoded since memory was given back
    checkpoint: str | None = None  # --path, where it is not the command's
    workers: Workers | None = None
    # flags that every batch asks for, as plain values: a look into fairseq's configuration takes 40 us
    draft_file: str | None = None
    stats_file: str | None = None
    cpu_workers = 1

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        if isinstance(self.tgt_dict, Dictionary):
            self.tgt_dict = TargetDictionary.of(self.tgt_dict)

    def flags(self) -> Any:
        """Our flags: the task's configuration, or the legacy tasks' namespace."""
        return self.cfg if hasattr(self.cfg, "decoder_backend") else self.args

    def build_model(self, cfg, from_checkpoint=False):
        """The stock task's model, unless it is one that no search of ours runs (raises UsageError)."""
        refuse_architecture(cfg, self)
        return super().build_model(cfg, from_checkpoint)  # type: ignore[misc]

    def build_generator(self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, prefix_allowed_tokens_fn=None):
        """Our generator under the stock signature. A class that the caller brings, or scoring a reference, stays stock."""
        build = super().build_generator  # type: ignore[misc]
        if getattr(args, "score_reference", False):
            validate.refuse_reference(self.flags())
        if seq_gen_cls is not None or getattr(args, "score_reference", False):
            return build(models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn)
        flags = self.flags()
        if constrained(flags, args) and not getattr(args, "constraints", None):
            args.constraints = "unordered"  # fairseq-interactive then reads tab-separated phrases and prints C- lines
        choose_strategies(flags, args)
        validate.validate(flags, args)
        self.constrained = constrained(flags, args) and not validate.stock_search(args)
        extra = {**(extra_gen_cls_kwargs or {}), "flags": flags, "generation": args, "task": self}
        print_alignment = getattr(args, "print_alignment", None)
        if print_alignment:
            extra["print_alignment"] = str(print_alignment)
        parallel = choice(flags, "decoding") != "beam"
        kind = ParallelGenerator if parallel else AlignedBeamSearchGenerator if print_alignment else BeamSearchGenerator
        generator = build(models, args, kind, extra, prefix_allowed_tokens_fn)
        logger.info(generator.stats.signature)
        if flags.results_file:
            generator.results = ResultsFile(flags.results_file, flags.resume, run_key(generator.stats.signature, args, models))
            generator.text = lambda tokens: self.text(tokens, generator)
        self.numbered = self.constrained or bool(flags.results_file) or bool(getattr(flags, "ddg_dir", None))
        atexit.register(self.leave_with_held)  # first, so that it runs last
        self.draft_file, self.stats_file, self.cpu_workers = flags.draft_file, flags.stats_file, getattr(flags, "cpu_workers", 1)
        self.stats, self.written = generator.stats, time.monotonic()
        if self.constrained:
            if isinstance(self.tgt_dict, TargetDictionary):
                self.tgt_dict.noting = True
            atexit.register(self.tell_unmet)
        if flags.stats_file:
            try:
                self.stats.write(flags.stats_file)  # a place that cannot be written is better known now than at the end
            except OSError as error:
                raise UsageError(f"--stats-file {flags.stats_file} cannot be written ({error.strerror}): name another file") from error
            atexit.register(self.stats.write, flags.stats_file)
        return generator

    def checkpoint_path(self) -> str | None:
        """Where the first checkpoint lies: as told by who loads it, else by the command's --path."""
        named = self.checkpoint
        for i, argument in enumerate(sys.argv[:-1] if named is None else []):
            named = sys.argv[i + 1] if argument == "--path" else named
        return None if named is None else named.split(os.pathsep)[0]

    def text(self, tokens: Tensor, generator) -> str:
        """Target tokens (L,) as text, without segmentation where the command undoes it by --bpe and --tokenizer."""
        out = self.target_dictionary.string(tokens.int().cpu(), extra_symbols_to_ignore=generator.symbols_to_strip_from_output)
        for step in (self.bpe_used, self.tokenizer_used):
            out = step.decode(out) if step is not None else out
        return out

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
        """One batch; the statistics file follows along."""
        if (self.constrained or (self.numbered and constraints is not None)) and "sentence_constraints" not in sample:
            sample, constraints = self.add_constraints(sample, constraints), None
        if self.draft_file and "id" not in sample:
            sample = {**sample, "draft_lines": self.draft_lines(sample["net_input"]["src_tokens"])}
        decode = super().inference_step  # type: ignore[misc]
        count = self.cpu_workers
        if count > 1 and isinstance(getattr(generator, "stats", None), Stats):
            if self.workers is None or self.workers.generator is not generator:
                if self.workers is not None:
                    self.workers.stop()
                self.workers = Workers(count, models, self.source_dictionary.pad(), generator, partial(decode, generator, models))
            out = self.workers(sample, prefix_tokens, constraints)
        else:
            out = decode(generator, models, sample, prefix_tokens, constraints)
        self.since_trim += len(out)
        if self.since_trim >= SENTENCES_BETWEEN_TRIMS:
            give_back_memory()
            self.since_trim = 0
        path = self.stats_file
        if path and time.monotonic() - self.written > SECONDS_BETWEEN_WRITES:
            self.stats.write(path)
            self.written = time.monotonic()
        return out


def extend_legacy(stock: type[FairseqTask]) -> type:
    """A task of fairseq's argparse kind with our flags."""

    class LegacyExtended(Extended, stock):  # type: ignore[misc, valid-type]
        @staticmethod
        def add_args(parser):
            stock.add_args(parser)  # type: ignore[attr-defined]
            gen_parser_from_dataclass(parser, Flags())

        def flags(self) -> Namespace:
            return self.args

    LegacyExtended.__name__ = f"{stock.__name__}Ext"
    return LegacyExtended


def refuse_unknown(name: str) -> None:
    """Refuse a task of our kind that there is not, in one line that lists those there are (raises UsageError)."""
    ours = sorted(task for task in TASK_REGISTRY if task.endswith("_ext"))
    if name not in ours:
        raise UsageError(f"--task {name} is none of fairseq_ext's tasks: use {', '.join(ours)}")


def register_tasks() -> None:
    """Register the tasks, once."""
    if "translation_ext" in TASK_REGISTRY:
        return
    dataclass = config.task_dataclass(TranslationConfig, Flags)
    register_task("translation_ext", dataclass=dataclass)(type("TranslationExtTask", (Extended, TranslationTask), {}))
    for name, stock in (
        ("translation_from_pretrained_bart", TranslationFromPretrainedBARTTask),
        ("translation_multi_simple_epoch", TranslationMultiSimpleEpochTask),
    ):
        register_task(f"{name}_ext")(extend_legacy(stock))


register_tasks()
