"""How a stock task becomes its *_ext twin: a subclass with our flags, whose own `build_generator` builds a generator of our class."""

from __future__ import annotations

import dataclasses
import inspect
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import Any

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY, FairseqTask, LegacyFairseqTask, register_task

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.plugin import config
from fairseq_ext.search.registry import all_strategies


def refuse_typed(parser: ArgumentParser) -> None:
    """Let a command that searches refuse a default that stands for "not given" where it is typed: afterwards the two look alike.

    A flag's metadata has what may be `typed`: the least, the most, and what it is.
    """
    known = {action.dest: action for action in parser._actions}
    flags = [f for s in all_strategies() if s.flags for f in dataclasses.fields(s.flags) if "typed" in f.metadata]
    for flag in flags if "lenpen" in known else ():
        known[flag.name].type = typed(*flag.metadata["typed"])


def typed(least: int, most: int, meaning: str) -> Callable[[str], int]:
    """The type of a flag, for argparse."""

    def whole_number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ArgumentTypeError(f"({meaning}) must be {least} to {most}, not {cut(text)}, or be left out")
        return value

    return whole_number


class BuildsGenerators:
    """Stands in front of the stock task, gives the command its flags, and asks it for a generator."""

    kind: type | None = None  # the generator class that `build_ours` asks `Innermost` for, while it does
    kind_arguments: dict[str, Any]

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """The task's flags, ours among them."""
        super().add_args(parser)  # type: ignore[misc]
        refuse_typed(parser)

    def build_stock(self, models, args, seq_gen_cls, extra, prefix_allowed_tokens_fn):
        """The stock task's generator; it is given the arguments that its build_generator takes."""
        build = super().build_generator  # type: ignore[misc]
        given = dict(seq_gen_cls=seq_gen_cls, extra_gen_cls_kwargs=extra, prefix_allowed_tokens_fn=prefix_allowed_tokens_fn)
        taken = inspect.signature(build).parameters
        return build(models, args, **{name: value for name, value in given.items() if name in taken and value is not None})

    def build_ours(self, models, args, kind: type, extra: dict[str, Any], prefix_allowed_tokens_fn):
        """A generator of our class, built by the stock task's own build_generator, whose settings it keeps.

        subtle: some stock tasks do not pass a class on (translation_multi_simple_epoch), so `Innermost` puts it in where they end.
        """
        self.kind, self.kind_arguments = kind, extra
        try:
            return self.build_stock(models, args, kind, None, prefix_allowed_tokens_fn)
        finally:
            self.kind = None


class Innermost(FairseqTask):
    """Stands behind the stock task: where it builds a generator without a class, ours is built, with all arguments of both."""

    lacks: frozenset[str] = frozenset()  # what the task's batches do not have, of capabilities.py
    kind: type | None = None
    kind_arguments: dict[str, Any]

    def build_generator(self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, prefix_allowed_tokens_fn=None):
        if self.kind is not None:
            seq_gen_cls, extra_gen_cls_kwargs = self.kind, {**self.kind_arguments, **(extra_gen_cls_kwargs or {})}
        return super().build_generator(models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn)


class InnermostLegacy(Innermost, LegacyFairseqTask):
    """The same behind a task of fairseq's argparse kind."""


def register_twin(stock: type[FairseqTask], name: str | None, extended: type, flags: type) -> type:
    """Register the twin of a task: its name + `_ext`. Return it, a subclass of the task.

    stock: a task class that fairseq's `register_task` knows, or a subclass of one, given with its name. extended: what stands in front of
    it; flags: the dataclass of our flags. Errors: UsageError for a class without a name.
    """
    name = name or next((n for n, task in TASK_REGISTRY.items() if task is stock), None)
    if name is None:
        raise UsageError(f"{stock.__name__} is not registered as a task: register it first, or give a name, extend({stock.__name__}, NAME)")
    if f"{name}_ext" in TASK_REGISTRY:
        return TASK_REGISTRY[f"{name}_ext"]
    dataclass = TASK_DATACLASS_REGISTRY.get(name)
    legacy = issubclass(stock, LegacyFairseqTask)
    bases = (extended, stock, InnermostLegacy if legacy else Innermost)
    members: dict[str, Any] = {"registered": f"{name}_ext"}
    if dataclass is not None:
        twin = type(f"{stock.__name__}Ext", bases, members)
        return register_task(f"{name}_ext", dataclass=config.task_dataclass(dataclass, flags))(twin)

    def add_args(parser) -> None:
        stock.add_args(parser)  # type: ignore[attr-defined]
        gen_parser_from_dataclass(parser, flags())
        refuse_typed(parser)

    return register_task(f"{name}_ext")(type(f"{stock.__name__}Ext", bases, members | {"add_args": staticmethod(add_args)}))
