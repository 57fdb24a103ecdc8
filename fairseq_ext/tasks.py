"""The *_ext tasks: a stock task with our flags, whose generator is ours.

`--task translation_ext` is fairseq's `translation`; other stock tasks follow the same rule (name + `_ext`). A checkpoint of the
stock task loads as it is.
"""

from __future__ import annotations

import atexit
import logging
import time
from argparse import Namespace
from typing import Any

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.tasks import TASK_REGISTRY, FairseqTask, register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask

from fairseq_ext import config
from fairseq_ext.generator import generator_class

logger = logging.getLogger("fairseq_ext")
SECONDS_BETWEEN_WRITES = 20.0  # of the statistics file

Flags = config.flags_dataclass()


class Extended:
    """What an *_ext task adds to its stock task."""

    cfg: Any
    args: Any

    def flags(self) -> Any:
        """Our flags: the task's configuration, or the legacy tasks' namespace."""
        return self.cfg if hasattr(self.cfg, "decoder_backend") else self.args

    def build_generator(self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, prefix_allowed_tokens_fn=None):
        """Our generator under the stock signature. A class that the caller brings, or scoring a reference, stays stock."""
        build = super().build_generator  # type: ignore[misc]
        if seq_gen_cls is not None or getattr(args, "score_reference", False):
            return build(models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn)
        flags = self.flags()
        config.validate(flags, args)
        extra = {**(extra_gen_cls_kwargs or {}), "flags": flags, "generation": args}
        print_alignment = getattr(args, "print_alignment", None)
        if print_alignment:
            extra["print_alignment"] = str(print_alignment)
        generator = build(models, args, generator_class(print_alignment), extra, prefix_allowed_tokens_fn)
        logger.info(generator.stats.signature)
        self.stats, self.written = generator.stats, time.monotonic()
        if flags.stats_file:
            atexit.register(self.stats.write, flags.stats_file)
        return generator

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """One batch; the statistics file follows along."""
        out = super().inference_step(generator, models, sample, prefix_tokens, constraints)  # type: ignore[misc]
        path = self.flags().stats_file
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
