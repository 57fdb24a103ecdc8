"""fairseq's kind of the plain dataclasses of flags that strategies bring: plugin/flags_dataclass.py
makes it, and it means the same."""

from __future__ import annotations

from argparse import Action, ArgumentParser, _StoreTrueAction
from dataclasses import dataclass, field, fields, make_dataclass
from typing import List, Literal, Optional  # noqa: UP035

import pytest
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from omegaconf import OmegaConf

from fairseq_ext import UsageError
from fairseq_ext.plugin.flags_dataclass import fairseq_fields, flags_dataclass
from fairseq_ext.search.registry import all_strategies


@dataclass
class Common:
    """Under the future import, as this whole file is."""

    shape: Literal["flat", "deep"] = field(
        default="flat", metadata={"help": "the shape (default: flat)"}
    )
    loud: bool = field(default=False, metadata={"help": "loud or not (default: off)"})


@dataclass
class Special(Common):
    limit: float | None = field(
        default=None, metadata={"help": "a limit (default: none)", "range": (0, 1, "share")}
    )
    mode: Optional[Literal["one", "two"]] = None  # noqa: UP045
    sizes: list[int] = field(default_factory=lambda: [1, 2])
    names: list[str] | None = None


@dataclass
class SpecialOfFairseq(FairseqDataclass):
    """The same in fairseq's own words."""

    shape: ChoiceEnum(["flat", "deep"]) = field(  # type: ignore[valid-type]
        default="flat", metadata={"help": "the shape (default: flat)"}
    )
    loud: bool = field(default=False, metadata={"help": "loud or not (default: off)"})
    limit: Optional[float] = field(  # noqa: UP045
        default=None, metadata={"help": "a limit (default: none)", "range": (0, 1, "share")}
    )
    mode: Optional[ChoiceEnum(["one", "two"])] = None  # type: ignore[valid-type]  # noqa: UP045
    sizes: List[int] = field(default_factory=lambda: [1, 2])  # noqa: UP006
    names: Optional[List[str]] = None  # noqa: UP006, UP045


TYPES = {  # what fairseq reads there, as the annotations above are postponed
    "shape": ChoiceEnum(["flat", "deep"]),
    "loud": bool,
    "limit": Optional[float],  # noqa: UP045
    "mode": Optional[ChoiceEnum(["one", "two"])],  # noqa: UP045
    "sizes": List[int],  # noqa: UP006
    "names": Optional[List[str]],  # noqa: UP006, UP045
}


def fairseq_dataclass(kind: type) -> type:
    """fairseq's kind of a dataclass of flags, as `flags_dataclass` makes it of all of them."""
    return make_dataclass(kind.__name__, fairseq_fields(kind).values(), bases=(FairseqDataclass,))


def parser_of(kind: type) -> ArgumentParser:
    parser = ArgumentParser(prog="command", add_help=False)
    gen_parser_from_dataclass(parser, kind())
    return parser


def kind_of(action: Action) -> str | None:
    return getattr(action.type, "__name__", None)


def actions_of(kind: type) -> list[tuple]:
    """Everything that a command takes in."""
    return [
        (type(a), a.option_strings, a.dest, a.default, a.choices, a.help, a.nargs, kind_of(a))
        for a in parser_of(kind)._actions
    ]


def plain_types(kind: type) -> dict[str, str]:
    found = {each.name: each.type for each in fields(kind)}
    return {name: str(found[name]) for name in TYPES}


def test_plain_flags_are_read_as_fairseqs_own_are():
    ours, own = fairseq_dataclass(Special), fairseq_dataclass(SpecialOfFairseq)
    assert [each.name for each in fields(ours)] == ["_name", *TYPES]
    types = {name: str(kind) for name, kind in TYPES.items()}
    assert plain_types(ours) == plain_types(own) == types
    assert actions_of(ours) == actions_of(own)
    assert parser_of(ours).format_help() == parser_of(own).format_help()
    actions = {a.dest: a for a in parser_of(ours)._actions}
    assert (actions["shape"].choices, actions["mode"].choices) == (["flat", "deep"], ["one", "two"])
    assert isinstance(actions["loud"], _StoreTrueAction)
    reported = [each.metadata for each in fields(ours) if each.name != "_name"]
    assert reported == [each.metadata for each in fields(Special)]


def test_plain_flags_are_configured_as_fairseqs_own_are():
    kinds = fairseq_dataclass(Special), fairseq_dataclass(SpecialOfFairseq)
    ours, own = map(OmegaConf.structured, kinds)
    assert OmegaConf.to_yaml(ours) == OmegaConf.to_yaml(own)
    for each in (ours, own):
        each.shape, each.limit, each.sizes = "deep", 1, [3]
        with pytest.raises(Exception, match="Invalid value 'round'"):
            each.shape = "round"
    assert str(ours.shape) == str(own.shape) == "deep" and ours.limit == own.limit == 1.0


@dataclass
class Both(Common, FairseqDataclass):
    """Plain flags below fairseq's kind."""

    more: int = 1


def test_plain_flags_below_fairseqs_kind_are_read_too():
    given = parser_of(fairseq_dataclass(Both)).parse_args(["--shape", "deep", "--more", "3"])
    assert vars(given) == {"shape": "deep", "loud": False, "more": 3}


@dataclass
class TwoKinds:
    size: int | str = 1


@dataclass
class Numbers:
    size: Literal[1, 2] = 1


@dataclass
class NotThere:
    size: Absent = 1  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("kind", [TwoKinds, Numbers, NotThere], ids=lambda kind: kind.__name__)
def test_a_type_that_fairseq_has_no_form_for_is_reported(kind):
    reported = (
        f"test_fairseq_flags.py: fairseq cannot read a type of {kind.__name__} .*: use int, float"
    )
    with pytest.raises(UsageError, match=reported):
        fairseq_dataclass(kind)


def test_the_flags_of_this_package_are_plain():
    kinds = {s.flags for s in all_strategies()}
    inside = [kind for kind in kinds if kind.__module__.startswith("fairseq_ext.")]
    assert inside and not [kind for kind in inside if issubclass(kind, FairseqDataclass)]
    assert issubclass(flags_dataclass(), FairseqDataclass)
