"""`Settings`: the values of all flags of a run, frozen; plugin/options.py reads them, once.

Every reader takes the dataclass that it needs: `settings.get(GlossaryFlags).glossary`. A builder of
a strategy gets its own (registry.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from fairseq_ext.core.glossary import Languages

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kind = TypeVar("Kind", bound="DataclassInstance")
Value = str | int | float | bool | list[str] | None

# fairseq's own behaviour
DEFAULT = {
    "select": "topk",
    "stop": "count",
    "schedule": "batch",
    "softmax": "full",
    "decoding": "beam",
}
POINTS = tuple(DEFAULT)


@dataclass(frozen=True)
class NoFlags:
    """The flags of a strategy that has none."""


@dataclass(frozen=True)
class Choices:
    """The strategy of each extension point.

    None: not given, which differs from the default's name where constraints choose the strategy.
    """

    select: str | None = field(
        default=None,
        metadata={
            "help": "how continuations are chosen (default: dba where there are constraints, else "
            "topk, as fairseq)"
        },
    )
    stop: str | None = field(
        default=None,
        metadata={
            "help": "when a sentence is final (default: early where there are constraints, else "
            "count, as fairseq: beam-many finished hypotheses)"
        },
    )
    schedule: str = field(
        default="batch",
        metadata={"help": "when sentences start (default: batch, as fairseq: all together)"},
    )
    softmax: str = field(
        default="full", metadata={"help": "which words are scored (default: full, all of them)"}
    )
    decoding: str = field(
        default="beam", metadata={"help": "what drives the decoder (default: beam, beam search)"}
    )


@dataclass(frozen=True)
class Generation:
    """fairseq's flags of a search, with its defaults: those of its group "generation" that this
    package reads."""

    beam: int = 5
    nbest: int = 1
    match_source_len: bool = False
    unnormalized: bool = False
    lenpen: float = 1.0
    unkpen: float = 0.0
    no_repeat_ngram_size: int = 0
    sampling: bool = False
    sampling_topk: int = -1
    sampling_topp: float = -1.0
    constraints: str | None = None
    diverse_beam_groups: int = -1
    diverse_beam_strength: float = 0.5
    diversity_rate: float = -1.0
    print_alignment: str | None = None
    lm_path: str | None = None
    retain_dropout: bool = False
    print_step: bool = False
    retain_iter_history: bool = False


@dataclass(frozen=True)
class CommandSettings:
    """fairseq's other settings that a run reads, of the task and of the command."""

    languages: Languages = Languages(None, None)
    left_pad_source: bool = True
    data: str = ""  # directories, joined by colons
    checkpoint: str | None = None  # the first model's file, if it exists
    seed: int = 1
    max_tokens: int | None = None  # of a batch; None: no limit
    subset: str | None = None  # --gen-subset
    input: str | None = None  # --input of fairseq-interactive
    undoes_bpe: bool = False  # --remove-bpe
    scores_reference: bool = False  # --score-reference
    skips_invalid: bool = False  # --skip-invalid-size-inputs-valid-test
    segments_text: bool = False  # --bpe or --tokenizer is given
    shows_bar: bool = False
    keeps_language_token: bool = False  # --keep-inference-langtok


@dataclass(frozen=True)
class Settings:
    """All settings of a run.

    values: of our flags and of fairseq's group "generation", by name; a flag that is missing has
    its default. They name the strategies, also if constraints have chosen them. has_typed:
    --constraints is given, so that phrases may follow a line.
    """

    values: Mapping[str, Value] = field(default_factory=dict)
    command: CommandSettings = CommandSettings()
    has_typed: bool = False

    def get(self, kind: type[Kind]) -> Kind:
        """Return the flags that a dataclass declares."""
        names = {each.name for each in dataclasses.fields(kind)} & self.values.keys()
        return dataclasses.replace(kind(), **{name: self.values[name] for name in names})

    def value(self, flag: dataclasses.Field) -> Value:
        """Return the value of a flag."""
        return self.values.get(flag.name, flag.default)  # type: ignore[arg-type]

    def changed(self, **values: Value) -> Settings:
        """Return the settings with other values of some flags."""
        return dataclasses.replace(self, values={**self.values, **values})

    @property
    def generation(self) -> Generation:
        """fairseq's flags of a search."""
        return self.get(Generation)

    def choice(self, point: str) -> str:
        """Return the name of the strategy of an extension point."""
        return str(self.values.get(point) or DEFAULT[point])
