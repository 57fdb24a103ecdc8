"""The flags that say which constraints each sentence has, shared by every constrained search.

fairseq reads a flag's type from the annotation itself, so annotations are not postponed here.
"""

from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass


@dataclass
class ConstraintFlags(FairseqDataclass):
    constraints_file: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "phrases that must appear: one line a sentence in corpus order, tab-separated, or JSONL "
            "(default: none; alone it means --constraints unordered)"
        },
    )
    avoid_file: Optional[str] = field(  # noqa: UP045
        default=None, metadata={"help": "phrases that must never appear, one a line (default: none)"}
    )
    glossary: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={"help": "source term, tab, target term (or a|b), for every sentence that holds the source term (default: none)"},
    )


def constraint_flag(flags: Any, generation: Any) -> str | None:
    """A flag by which the command gives constraints of any kind; None where there is none."""
    # files first: where there are any, the task has set the stock flag itself
    own = ("constraints_file", "avoid_file", "glossary")
    given = [name for name in own if getattr(flags, name, None)] + ["constraints"] * bool(getattr(generation, "constraints", None))
    return "--" + given[0].replace("_", "-") if given else None


def constrained(flags: Any, generation: Any) -> bool:
    """Whether the command gives constraints of any kind."""
    return constraint_flag(flags, generation) is not None


def select_flag(flags: Any, generation: Any) -> str:
    """How the user asked for the present selection: constraints ask for dba by themselves."""
    own = f"--select {flags.select}"
    return constraint_flag(flags, generation) or own if str(flags.select) == "dba" else own


def choose_strategies(flags: Any, generation: Any) -> None:
    """Name the strategies that constraints choose where the command names none: --select dba; --stop early, unless there is a --patience,
    which belongs to --stop count."""
    if constrained(flags, generation):
        flags.select = flags.select or "dba"
    if str(flags.select or "topk") != "topk" and not flags.stop and flags.patience == -1:
        flags.stop = "early"


def is_ordered(flags: Any, generation: Any) -> bool:
    """Whether phrases must appear in the order given: the stock flag says so; alone, our files mean unordered."""
    return str(getattr(generation, "constraints", None) or "") == "ordered"
