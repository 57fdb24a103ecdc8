"""The flags of minimum Bayes risk decoding, and what is refused of them."""

from dataclasses import dataclass, field
from typing import Any, Literal

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.registry import samples

MODEL = "comet"  # the utility that needs one


@dataclass
class CandidateFlags:
    mbr: str | None = field(
        default=None,
        metadata={
            "help": "answer with the hypothesis of the highest expected chrf, bleu, ter, comet or module:function "
            "(default: with that of the highest score)"
        },
    )
    mbr_model: str | None = field(
        default=None, metadata={"help": "--mbr comet: file of the model's checkpoint (default: none)"}
    )
    mbr_candidates: int = field(
        default=0, metadata={"help": "the hypotheses that may be the answer: so many of the highest score (default: 0, all)"}
    )
    mbr_references: int = field(default=0, metadata={"help": "the hypotheses that they are compared with: so many (default: 0, all)"})
    mbr_weights: Literal["uniform", "prob"] = field(
        default="uniform", metadata={"help": "what a hypothesis counts: the same as all others, or its probability (default: uniform)"}
    )
    mbr_aggregate: bool = field(
        default=False, metadata={"help": "--mbr chrf: compare with all hypotheses as one: faster, nearly the same (default: off)"}
    )
    mbr_prune: float = field(
        default=0.0,
        metadata={"help": "drop candidates early that lose in this share of resamplings of what they met (default: 0, none)"},
    )
    print_utility: bool = field(
        default=False, metadata={"help": "print each answer's expected utility as a line U-<number> (default: off)"}
    )


def check_seed(seed: Any, flags: Any) -> None:
    """Refuse a seed of a request or a call that is none, or that no sample is drawn by (raises UsageError)."""
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**32):
        raise UsageError(f"seed is {seed!r}: give a whole number from 0 to 4294967295")
    if seed is not None and not samples(flags):
        raise UsageError("seed is of samples, and this search draws none: leave it out, or use --select sampling or gumbel")


NAMES = tuple(name for name in CandidateFlags.__dataclass_fields__ if name != "_name")


def given(flags: Any) -> dict[str, Any]:
    """The flags that differ from their defaults."""
    return {name: getattr(flags, name) for name in NAMES if getattr(flags, name) != getattr(CandidateFlags, name)}


def check(flags: Any, generation: Any) -> None:
    """Refuse what --mbr cannot do, and its flags without it (raises UsageError)."""
    if flags.mbr is None:
        for name in given(flags):
            raise UsageError(f"--{name.replace('_', '-')} belongs to --mbr, which is not switched on: add it or leave this flag out")
        return
    if getattr(generation, "beam", 5) < 2:
        raise UsageError("--mbr chooses among the hypotheses of a sentence, and --beam 1 finds one: raise --beam or leave --mbr out")
    for name in ("mbr_candidates", "mbr_references"):
        if getattr(flags, name) < 0:
            raise UsageError(f"--{name.replace('_', '-')} (number of hypotheses) must be 0 or more, not {getattr(flags, name)}")
    if not 0 <= flags.mbr_prune < 1:
        raise UsageError(f"--mbr-prune (share of resamplings) must be 0 or more and below 1, not {flags.mbr_prune}")
    if (flags.mbr == MODEL) != bool(flags.mbr_model):
        raise UsageError("--mbr comet and --mbr-model, the file of its checkpoint, belong together: give both or none")
    if flags.mbr_aggregate and (flags.mbr != "chrf" or str(flags.mbr_weights) == "prob"):
        raise UsageError("--mbr-aggregate joins the n-grams of hypotheses that count the same: use it with --mbr chrf and uniform weights")
    if flags.mbr_aggregate and flags.mbr_prune:
        raise UsageError("--mbr-aggregate compares each candidate once, so --mbr-prune has nothing to save: leave one of the two out")
