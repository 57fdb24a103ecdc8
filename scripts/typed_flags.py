"""Write fairseq_ext/plugin/typed_flags.py: every flag of the commands with its type, so that
editors complete the keywords of `Translator` and `Engine`.

    python scripts/typed_flags.py    # after a flag has changed; a test says when the file is old
"""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
from argparse import Action, ArgumentParser
from collections.abc import Iterator
from pathlib import Path

from fairseq import options
from fairseq.data.encoders import BPE_REGISTRY, TOKENIZER_REGISTRY
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.tasks import TASK_REGISTRY

from fairseq_ext.plugin.tasks import Flags
from fairseq_ext.search.checks import refused_by_engine

FILE = Path(__file__).resolve().parents[1] / "fairseq_ext" / "plugin" / "typed_flags.py"
NAMED = ("help", "path", "data", "task")  # arguments of Translator
# fairseq's flags that matter to decoding, besides its group "Generation" and those of tokenizers;
# the others are of training
KEPT = {
    "batch_size",
    "bpe",
    "buffer_size",
    "checkpoint_shard_count",
    "checkpoint_suffix",
    "cpu",
    "fp16",
    "log_format",
    "log_interval",
    "max_tokens",
    "no_progress_bar",
    "num_workers",
    "required_batch_size_multiple",
    "seed",
    "skip_invalid_size_inputs_valid_test",
    "tokenizer",
    "user_dir",
}
OF_TASKS = {  # the same of the flags that tasks add
    "add_data_source_prefix_tags",
    "config_yaml",
    "constraints",
    "decoder_langtok",
    "enable_lang_ids",
    "encoder_langtok",
    "eos_token",
    "fixed_dictionary",
    "free_start",
    "keep_inference_langtok",
    "lang_dict",
    "lang_pairs",
    "lang_tok_behind_eos",
    "lang_tok_replacing_bos_eos",
    "lang_tok_style",
    "langs",
    "langtoks",
    "langtoks_specs",
    "left_pad_source",
    "left_pad_target",
    "max_source_positions",
    "max_target_positions",
    "prepend_bos",
    "source_dict",
    "source_lang",
    "target_dict",
    "target_lang",
    "truncate_source",
}
OF_COMMANDS = {"cpu_workers", *refused_by_engine()}  # flags that Engine does not take as they are
HEAD = '''"""Every flag of decoding as a typed keyword.

scripts/typed_flags.py writes this file from the dataclasses.

`python -m fairseq_ext flags NAME` prints what a flag of this package means.
"""

from __future__ import annotations

{sequence}from os import PathLike
from typing import Literal

from typing_extensions import TypedDict

# a flag that is None is not given
Text = str | PathLike[str] | None
Number = int | None
Real = float | None
Switch = bool | None

'''


def actions() -> Iterator[Action]:
    """The arguments of fairseq-interactive with every *_ext task, tokenizer and bpe."""
    for group in options.get_interactive_generation_parser()._action_groups:
        yield from (
            action
            for action in group._group_actions
            if group.title == "Generation" or action.dest in KEPT
        )
    ours = {field.name for field in dataclasses.fields(Flags)}
    tasks = [TASK_REGISTRY[name] for name in sorted(TASK_REGISTRY) if name.endswith("_ext")]
    for kind in [
        *tasks,
        *(
            registry[name]
            for registry in (TOKENIZER_REGISTRY, BPE_REGISTRY)
            for name in sorted(registry)
        ),
    ]:
        parser = ArgumentParser(add_help=False, conflict_handler="resolve")
        if hasattr(kind, "add_args"):
            kind.add_args(parser)
        else:
            gen_parser_from_dataclass(parser, getattr(kind, "__dataclass")())  # noqa: B009
        yield from (
            action
            for action in parser._actions
            if kind not in tasks or keyword(action) in OF_TASKS | ours
        )


def keyword(action: Action) -> str | None:
    """A flag's keyword; None for a positional argument."""
    long = [name for name in action.option_strings if name.startswith("--")]
    return long[0][2:].replace("-", "_") if long else None


def type_of(action: Action) -> str:
    """A flag's type, as it is written in Python."""
    if isinstance(action, (argparse._StoreTrueAction, argparse._StoreFalseAction)):
        return "Switch"
    if action.choices is not None:
        kind = (
            f"Literal[{', '.join(repr(each) for each in sorted(map(str, action.choices)))}, None]"
        )
        kind = kind.replace("'", '"')
    else:
        numbers = {int: "Number", float: "Real"}
        kind = numbers.get(action.type, "Text")  # type: ignore[call-overload]
    if action.nargs in ("+", "*"):
        return f"Sequence[{kind}] | None"
    return f"{kind} | bool" if action.nargs == "?" else kind


def written(name: str, action: Action) -> str:
    """A flag's line."""
    line = f"    {name}: {type_of(action)}"
    if len(line) > 100:  # a long list of choices
        head, _, rest = line.partition("Literal[")
        choices, _, tail = rest.rpartition("]")
        listed = textwrap.wrap(
            choices + ",",
            90,
            initial_indent=" " * 8,
            subsequent_indent=" " * 8,
            break_on_hyphens=False,
        )
        line = "\n".join([f"{head}Literal[", *listed, f"    ]{tail}"])
    return line


def source() -> str:
    """The whole file."""
    found: dict[str, Action] = {}
    for action in actions():
        name = keyword(action)
        if name is not None and name not in NAMED:
            found.setdefault(name, action)
    ours = {field.name for field in dataclasses.fields(Flags)}
    parts = []
    for kind, base, doc, names in (
        (
            "StockFlags",
            "TypedDict, total=False",
            "fairseq's own flags of decoding.",
            found.keys() - ours - OF_COMMANDS,
        ),
        (
            "EngineFlags",
            "StockFlags, total=False",
            "The keywords of `Engine`: fairseq's own flags and those of this package.",
            ours - OF_COMMANDS,
        ),
        (
            "Flags",
            "EngineFlags, total=False",
            "The keywords of `Translator`.",
            found.keys() & OF_COMMANDS,
        ),
    ):
        fields = "\n".join(written(name, found[name]) for name in sorted(names & found.keys()))
        parts.append(f'\nclass {kind}({base}):\n    """{doc}"""\n\n{fields}\n')
    body = "\n".join(parts)
    return (
        HEAD.format(
            sequence="from collections.abc import Sequence\n" if "Sequence[" in body else ""
        )
        + body
    )


if __name__ == "__main__":
    FILE.write_text(source(), encoding="utf-8")
