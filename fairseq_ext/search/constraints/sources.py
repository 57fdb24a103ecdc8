"""Which flags give constraints, and which strategies these choose."""

from typing import Any

from fairseq_ext.core.errors import UsageError

STOCKS = {"sampling": "--sampling", "diverse": "--diverse-beam-groups"}  # selections that flags of fairseq's ask for


def constraint_flag(flags: Any, generation: Any) -> str | None:
    """A flag by which the command gives constraints of any kind; None where there is none."""
    # files first: where there are any, the task has set the stock flag itself
    own = ("constraints_file", "avoid_file", "glossary")
    given = [name for name in own if getattr(flags, name)] + ["constraints"] * bool(getattr(generation, "constraints", None))
    return "--" + given[0].replace("_", "-") if given else None


def constrained(flags: Any, generation: Any) -> bool:
    """Whether the command gives constraints of any kind."""
    return constraint_flag(flags, generation) is not None


def select_flag(flags: Any, generation: Any) -> str:
    """How the user asked for the present selection: constraints ask for dba by themselves."""
    own = STOCKS.get(str(flags.select), f"--select {flags.select}")
    return constraint_flag(flags, generation) or own if str(flags.select) == "dba" else own


def choose_strategies(flags: Any, generation: Any) -> None:
    """Name the strategies that constraints choose where the command names none: --select dba, or bonus where they are preferred only;
    --stop early where they are forced, unless there is a --patience, which belongs to --stop count."""
    own = "sampling" if generation.sampling else "diverse" if generation.diverse_beam_groups > 0 else flags.select
    if str(own) in STOCKS:
        if str(flags.select or own) != own:
            raise UsageError(f"{STOCKS[str(own)]} and --select {flags.select} both choose continuations: leave one of the two out")
        flags.select, generation.sampling = own, own == "sampling"
    elif constrained(flags, generation):
        flags.select = flags.select or ("bonus" if flags.constraint_bonus is not None else "dba")
    if str(flags.select or "topk") not in ("topk", "bonus", "gumbel", *STOCKS) and not flags.stop and flags.patience == -1:
        flags.stop = "early"


def is_ordered(flags: Any, generation: Any) -> bool:
    """Whether phrases must appear in the order given: the stock flag says so; alone, our files mean unordered."""
    return str(getattr(generation, "constraints", None) or "") == "ordered"
