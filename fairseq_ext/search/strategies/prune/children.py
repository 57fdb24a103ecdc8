"""Continue a hypothesis in at most M ways (`--prune-children M`): the other half of the variable width of streaming search.

    M. Freitag and Y. Al-Onaizan. Beam Search Strategies for Neural Machine Translation. 2017, https://aclanthology.org/W17-3207/
    as in K. Yang et al., EMNLP 2020 (search/strategies/schedule/stream.py)

M = --prune-children. The select strategy itself takes no more than M children of a row: SearchSpec.children, which
search/strategies/select/_best.py obeys. With constraints, continuations that are there for a constraint's sake do not count.
Neutral setting: M >= --beam, since no more than k children of a row ever count.
"""

from dataclasses import dataclass, field

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.registry import register


@dataclass
class ChildrenFlags:
    prune_children: int | None = field(
        default=None, metadata={"help": "continue a hypothesis in at most so many ways (default: off, or --beam; the paper: 5)"}
    )


def check(flags, generation) -> None:
    """Refuse a beam without children (raises UsageError)."""
    if flags.prune_children is not None and flags.prune_children < 1:
        raise UsageError(f"--prune-children {flags.prune_children} would leave no hypothesis: use 1 or more")


@register(
    "prune",
    "children",
    ChildrenFlags,
    check=check,
    needs=("search loop", "beam"),
    neutral=({"prune_children": 60},),
    example=({"prune_children": 2},),
    paper="Freitag and Al-Onaizan 2017; Yang et al. 2020",
)
def build(flags, context) -> None:
    """Nothing: the select strategy is given the number."""
