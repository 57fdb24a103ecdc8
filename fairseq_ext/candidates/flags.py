"""The flags of minimum Bayes risk decoding, and what is refused of them."""

from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from fairseq_ext.errors import UsageError

MODEL = "comet"  # the utility that needs one


def flag(default: Any, text: str) -> Any:
    """A field and its help."""
    return field(default=default, metadata={"help": text})


@dataclass
class CandidateFlags(FairseqDataclass):
    mbr: Optional[str] = flag(  # noqa: UP045  (fairseq reads this form only)
        None, "answer with the hypothesis of the highest expected chrf, bleu, ter, comet, module:function (default: of the highest score)"
    )
    mbr_model: Optional[str] = flag(None, "--mbr comet: file of the model's checkpoint (default: none)")  # noqa: UP045
    mbr_candidates: int = flag(0, "the hypotheses that may be the answer: so many of the highest score (default: 0, all)")
    mbr_references: int = flag(0, "the hypotheses that they are compared with: so many (default: 0, all)")
    mbr_weights: ChoiceEnum(["auto", "uniform", "prob"]) = flag(  # type: ignore[valid-type]
        "auto", "what a hypothesis counts: the same as all others, or its probability (default: prob in n-best lists, uniform in samples)"
    )
    mbr_aggregate: bool = flag(False, "--mbr chrf: compare with all hypotheses as one: faster, nearly the same (default: off)")
    mbr_prune: float = flag(0.0, "drop candidates that are worse with this confidence after a part of the comparisons (default: 0, none)")
    print_utility: bool = flag(False, "print each answer's expected utility as a line U-<number> (default: off)")


def given(flags: Any) -> dict[str, Any]:
    """The flags that differ from their defaults."""
    defaults = {name: value.default for name, value in CandidateFlags.__dataclass_fields__.items() if name != "_name"}
    return {name: getattr(flags, name) for name, default in defaults.items() if getattr(flags, name) != default}


def check(flags: Any, generation: Any) -> None:
    """Refuse what --mbr cannot do, and its flags without it (raises UsageError)."""
    if not flags.mbr:
        for name in given(flags):
            raise UsageError(f"--{name.replace('_', '-')} belongs to --mbr, which is not switched on: add it or leave this flag out")
        return
    if getattr(generation, "beam", 5) < 2:
        raise UsageError("--mbr chooses among the hypotheses of a sentence, and --beam 1 finds one: raise --beam or leave --mbr out")
    for name in ("mbr_candidates", "mbr_references"):
        if getattr(flags, name) < 0:
            raise UsageError(f"--{name.replace('_', '-')} (number of hypotheses) must be 0 or more, not {getattr(flags, name)}")
    if not 0 <= flags.mbr_prune < 1:
        raise UsageError(f"--mbr-prune (confidence) must be 0 to 1, and below 1, not {flags.mbr_prune}")
    if (flags.mbr == MODEL) != bool(flags.mbr_model):
        raise UsageError("--mbr comet and --mbr-model, the file of its checkpoint, belong together: give both or none")
    if flags.mbr_aggregate and (flags.mbr != "chrf" or str(flags.mbr_weights) == "prob"):
        raise UsageError("--mbr-aggregate joins the n-grams of hypotheses that count the same: use it with --mbr chrf and uniform weights")
    if flags.mbr_aggregate and flags.mbr_prune:
        raise UsageError("--mbr-aggregate compares each candidate once, so --mbr-prune has nothing to save: leave one of the two out")
