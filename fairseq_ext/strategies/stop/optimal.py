"""Optimal ending: stop as soon as no live hypothesis can win, provably; and a bounded length reward (`--stop optimal`).

    L. Huang, K. Zhao and M. Ma. When to Finish? Optimal Beam Search for Neural Text Generation (modulo beam size).
    EMNLP 2017. https://aclanthology.org/D17-1227/

Eq. 3 (raw scores) and Eq. 4 (with the reward) are one test here: the n-th best finished score against the best that any live
hypothesis can still reach (`Scoring.bound`). A finished hypothesis never grows, so only live ones enter the bound; ties stop.

| symbol | flag |
| --- | --- |
| b | --beam |
| r | --length-reward |
| l = ratio x source length | --length-ratio, and --length-offset to add a constant (0 in the paper) |
| expansion of B_i | --stop-expansion paper: a finished candidate takes a slot of the step; fairseq: it does not |

Baselines: `count` (fairseq; with --patience p, J. Kasai et al. 2022, https://arxiv.org/abs/2204.05424), `first` (stop when the top
candidate is complete, and return it), `shrink` (every finished hypothesis narrows the beam, as in RNNsearch).
Neutral setting: --stop count without --length-reward and with --patience -1 or 1. The certificate holds for this beam's search (the
paper's "modulo beam size"), not for the model; where the length limit cuts the search it stays open, and the gap is reported.
"""

import math
from dataclasses import dataclass, field

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor

from fairseq_ext.errors import UsageError
from fairseq_ext.registry import register
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.finished import Finished
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Stop
from fairseq_ext.search.scoring import Scoring
from fairseq_ext.stats import Stats
from fairseq_ext.strategies.stop._certificates import Certificates, Saved


@dataclass
class StopFlags(FairseqDataclass):
    length_reward: float = field(
        default=0.0, metadata={"help": "added for each target token up to the wanted length, in nats (neutral: 0; needs --unnormalized)"}
    )
    length_ratio: float = field(
        default=1.0,
        metadata={"help": "wanted target length over source length, in subwords without EOS (neutral: 1; measure it on a dev set)"},
    )
    length_offset: float = field(
        default=0.0,
        metadata={"help": "added to the wanted target length, in subwords (neutral: 0; scripts/tune_length_reward.py fits both)"},
    )
    length_reward_unbounded: bool = field(default=False, metadata={"help": "reward every target token, however many (neutral: off)"})
    stop_expansion: ChoiceEnum(["fairseq", "paper"]) = field(  # type: ignore[valid-type]
        default="fairseq",
        metadata={"help": "whether a candidate that ends takes a slot of its step's beam (paper) or not (neutral: fairseq)"},
    )
    # fairseq has an integer flag of this name already (for training), whose type and default hold on the command line
    patience: int = field(
        default=-1,
        metadata={
            "help": "--stop count waits for patience x beam finished hypotheses (neutral: 1; default -1: 1, and less where phrases "
            "are required)"
        },
    )
    prune_bound: bool = field(
        default=False,
        metadata={"help": "with --stop optimal: drop live hypotheses that provably cannot enter the n-best list (neutral: off)"},
    )


class OptimalEnding(Stop):
    """Final when the n-th best finished hypothesis is at least as good as any live one can become."""

    def __init__(self, eos: int, scoring: Scoring, stats: Stats, paper: bool, prune: bool):
        self.eos = eos
        self.scoring = scoring
        self.stats, self.certificates, self.saved = stats, stats.section(Certificates), stats.section(Saved)
        self.paper = paper  # expansion
        self.prune = prune
        self.variable = paper or prune

    def __call__(self, candidates: Candidates, beam: Beam, pool: Pool, finished: Finished, at_limit: Tensor | None) -> StopDecision:
        live = beam.live_index()
        wanted = self.scoring.wanted(pool, live)[:, None]
        longest = pool.limit()[live][:, None] + 1.0
        ends, goes_on = candidates.ends_and_goes_on(self.eos)
        # a candidate is finished among the k best; the k best others go on, or in the paper's expansion those of the k best
        first_k = torch.arange(ends.size(1), device=ends.device) < candidates.width
        done = ends & first_k
        stays = goes_on & first_k if self.paper else goes_on & (goes_on.cumsum(1) <= candidates.width)
        score = self.scoring(candidates.score, beam.step + 1, wanted).masked_fill(~done, -torch.inf)
        best = finished.rank_(live, score)
        # the certificate: no live hypothesis can reach the n-th best finished score
        reach = self.scoring.bound(candidates.score, beam.step + 1, longest, wanted).masked_fill(~stays, -torch.inf)  # (S, c)
        worst = best[:, -1:]  # (S, 1)
        if self.prune:
            self.stats.drop(stays & (reach <= worst))
            stays = stays & (reach > worst)
        final = reach.amax(1) <= worst[:, 0]
        self.tally(final, at_limit, beam, best, longest, wanted)
        self.count_saved(final, candidates, beam, longest)
        if at_limit is not None:
            final = final | at_limit
        return StopDecision(done, stays if self.variable else ~ends, final)

    def tally(self, final: Tensor, at_limit: Tensor | None, beam: Beam, best: Tensor, longest: Tensor, wanted: Tensor) -> None:
        """Count certificates: a sentence that its length limit cut is open unless no row of the last step could have won."""
        proved, gap = final, torch.zeros_like(best[:, 0])
        if at_limit is not None:
            top = beam.by_sentence(beam.last_score(), -torch.inf).amax(1, keepdim=True)
            reach = self.scoring.bound(top, beam.step, longest, wanted)[:, 0]
            proved = torch.where(at_limit, reach <= best[:, -1], final)
            gap = (reach - best[:, -1]).masked_fill(~at_limit | proved, 0.0)
            cut = at_limit & ~proved
        else:
            cut = torch.zeros_like(final)
        # fewer finished than the n-best list asks for leaves no finite gap
        counts = torch.stack([proved.sum(), cut.sum(), gap.masked_fill(~gap.isfinite(), 0.0).sum()]).double()
        self.certificates.count(counts)

    def count_saved(self, final: Tensor, candidates: Candidates, beam: Beam, longest: Tensor) -> None:
        """Count what the run to the length limit would have taken beyond this step, and the rows that this step has not had."""
        steps = (longest - (beam.step + 1))[:, 0] * final  # (S,)
        width = torch.full_like(steps, candidates.width) if candidates.widths is None else candidates.widths
        missing = width - (beam.width if beam.counts is None else beam.counts)
        begun = beam.step > 0  # one row a sentence is all that the first step has
        begun = begun[:, 0] if isinstance(begun, Tensor) else begun
        self.saved.count(steps.sum(), (steps * width + missing * begun).sum())


class First(Stop):
    """Final when the best candidate is complete; that candidate is the answer."""

    def __init__(self, eos: int):
        self.eos = eos

    def __call__(self, candidates: Candidates, beam: Beam, pool: Pool, finished: Finished, at_limit: Tensor | None) -> StopDecision:
        ends, goes_on = candidates.ends_and_goes_on(self.eos)
        done = ends.clone()
        done[:, 1:] = False
        final = done[:, 0] | ~goes_on.any(1)
        if at_limit is not None:
            final = final | at_limit
        return StopDecision(done, ~ends, final)


class Shrink(Stop):
    """Every finished hypothesis takes its slot with it; final when no slot is left."""

    variable = True

    def __init__(self, k: int, eos: int):
        self.k = k
        self.eos = eos

    def __call__(self, candidates: Candidates, beam: Beam, pool: Pool, finished: Finished, at_limit: Tensor | None) -> StopDecision:
        ends, goes_on = candidates.ends_and_goes_on(self.eos)
        slots = self.k - finished.count[beam.live_index()][:, None]  # (S, 1)
        place = torch.arange(ends.size(1), device=ends.device)
        done = ends & (place < slots)
        stays = goes_on & (goes_on.cumsum(1) <= slots - done.sum(1, keepdim=True))
        final = ~stays.any(1)
        if at_limit is not None:
            final = final | at_limit
        return StopDecision(done, stays, final)


def check(flags, generation) -> None:
    """Refuse what the rewards and certificates cannot hold for (raises UsageError)."""
    if not 0 <= flags.length_reward < math.inf:
        raise UsageError(f"--length-reward {flags.length_reward} is not a number of 0 or more, and no bound holds for others: use one")
    if flags.length_reward and not generation.unnormalized:
        raise UsageError("--length-reward adds to raw scores: add --unnormalized, or leave --length-reward out and keep normalised scores")
    if not 0 < flags.length_ratio < math.inf:
        raise UsageError(f"--length-ratio {flags.length_ratio} is not a length ratio: use a number above 0")
    if not math.isfinite(flags.length_offset):
        raise UsageError(f"--length-offset {flags.length_offset} is not a number of subwords: use one, or leave it out")
    shaped = {
        "--length-ratio": flags.length_ratio != 1.0,
        "--length-offset": flags.length_offset != 0.0,
        "--length-reward-unbounded": flags.length_reward_unbounded,
    }
    unused = [flag for flag, given in shaped.items() if given]
    if unused and not flags.length_reward:
        raise UsageError(f"{unused[0]} shapes --length-reward, which is 0: set it or leave {unused[0]} out")
    stop = str(flags.stop)
    if flags.patience < 1 and flags.patience != -1:
        raise UsageError(f"--patience {flags.patience} would wait for no hypothesis: use 1 or more, or leave it out")
    if flags.patience > 1 and stop != "count":
        raise UsageError(f"--patience belongs to --stop count, not to --stop {stop}: leave one of the two out")
    if stop != "optimal" and (flags.prune_bound or str(flags.stop_expansion) != "fairseq"):
        flag = "--prune-bound" if flags.prune_bound else "--stop-expansion"
        raise UsageError(f"{flag} belongs to --stop optimal, not to --stop {stop}: add --stop optimal or leave {flag} out")
    if stop == "optimal" and not math.isfinite(generation.lenpen):
        raise UsageError(f"--lenpen {generation.lenpen} gives no score that --stop optimal could compare: use a number")
    if stop == "optimal" and generation.unkpen < 0:
        raise UsageError(
            f"--unkpen {generation.unkpen} can make a token's score positive, so --stop optimal proves nothing: "
            "use --stop count or --unkpen 0"
        )
    if stop == "optimal" and generation.lm_path is not None:
        raise UsageError("--lm-path adds a language model whose scores no bound covers: use --stop count with it, or leave --lm-path out")


def certificate(flags, generation) -> str:
    """What the certificate of --stop optimal holds for: sums of log-probabilities, those with the reward, or either over length**lenpen
    (whose bound is exact and loose)."""
    if not generation.unnormalized and generation.lenpen:
        return "certificate=normalised"
    return "certificate=reward" if flags.length_reward else "certificate=raw"


@register("stop", "optimal", StopFlags, check, certificate)
def optimal(flags, context) -> OptimalEnding:
    paper = str(flags.stop_expansion) == "paper"
    return OptimalEnding(context.eos, context.scoring, context.stats, paper, flags.prune_bound)


@register("stop", "first", StopFlags, check)
def first(flags, context) -> First:
    return First(context.eos)


@register("stop", "shrink", StopFlags, check)
def shrink(flags, context) -> Shrink:
    return Shrink(context.k, context.eos)
