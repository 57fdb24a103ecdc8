"""Sampling: each of --beam rows of a sentence is continued by a word drawn at random (`--sampling`,
or `--select sampling`).

    A. Fan, M. Lewis and Y. Dauphin. Hierarchical Neural Story Generation. ACL 2018.
    (--sampling-topk)
    A. Holtzman, J. Buys, L. Du, M. Forbes and Y. Choi. The Curious Case of Neural Text
    Degeneration. ICLR 2020. (--sampling-topp)
    J. Hewitt, C. D. Manning and P. Liang. Truncation Sampling as Language Model Desmoothing.
    Findings of EMNLP 2022. (--sampling-epsilon)

As in fairseq, a hypothesis' score is that of the full distribution, at --temperature, also if words
are cut off. Unlike in fairseq, the samples of a sentence depend on --seed and on its number
(kernels/log_probs.py), not on other sentences.

Shapes: S live sentences, n rows, d draws: k of a sentence that has no token yet, then one a row.

Compiled twin: kernels/sampling.hpp.
"""

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.kernels.beam import Selection
from fairseq_ext.kernels.log_probs import SamplingCut, draw, draw_compiled, uniform
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, pad_by_sentence
from fairseq_ext.search.log_probs import LogProbs, is_compiled
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Select, Setup
from fairseq_ext.search.registry import register
from fairseq_ext.search.settings import Generation


def noise_of(beam: Beam, pool: Pool) -> tuple[Tensor, Tensor, Tensor]:
    """Return (n,) each row's seed, its sentence's number and its step."""
    live, sentence = beam.live_index(), beam.sentence_of_row()
    seed, number = (
        each.to(beam.device)[live][sentence] for each in (torch.tensor(pool.seeds), pool.ids)
    )
    return seed, number, torch.tensor(beam.steps(), device=beam.device)[sentence]


class Sampling(Select):
    """k samples of each sentence."""

    variable = True  # a sample that ends has no row any more

    def __init__(self, k: int, cut: SamplingCut):
        self.k, self.cut = k, cut

    @property
    def rules(self) -> dict[str, object] | None:
        return {"selection": Selection.SAMPLES, "sampling_cut": self.cut.fields()}

    def start(self, beam: Beam, pool: Pool) -> None:
        # all samples of a sentence start from one row
        beam.aux["sample"] = torch.full((beam.rows,), -1, device=beam.device)

    def __call__(self, beam: Beam, log_probs: LogProbs, pool: Pool) -> Candidates:
        sample, sentence = beam.aux["sample"], beam.sentence_of_row()
        times = torch.where(sample < 0, self.k, 1)
        row = torch.arange(beam.rows, device=beam.device).repeat_interleave(times)  # (d,)
        sample = torch.where(
            sample[row] < 0,
            torch.arange(row.numel(), device=beam.device) - (times.cumsum(0) - times)[row],
            sample[row],
        )
        seed, number, step = (each[row] for each in noise_of(beam, pool))
        value, u = log_probs.dense(), uniform(seed, number, sample, step)
        token = (draw_compiled if is_compiled(value) else draw)(value, row, u, self.cut)
        score = value[row, token.clamp(min=0)] + beam.last_score()[row]
        lay = partial(pad_by_sentence, len(beam.live), sentence[row])
        found = (
            lay(row, beam.first_row()),
            lay(token.clamp(min=0), 0),
            lay(score.masked_fill(token < 0, -torch.inf), -torch.inf),
        )
        return Candidates(*found, self.k, aux={"sample": lay(sample, 0)})


@dataclass
class SamplingFlags:
    sampling_epsilon: float | None = field(
        default=None,
        metadata={
            "help": "sample words of at least this probability only (default: all words)",
            "range": (0, 1, "probability"),
            "page": "candidates.md",
        },
    )


def cuts(flags: SamplingFlags, generation: Generation) -> dict[str, float]:
    """Return the flags that cut off words, and their values."""
    given = {
        "topk": generation.sampling_topk,
        "topp": generation.sampling_topp,
        "epsilon": flags.sampling_epsilon or 0,
    }
    return {f"--sampling-{name}": value for name, value in given.items() if value > 0}


def check(flags: SamplingFlags, generation: Generation) -> None:
    """Refuse two ways of cutting off words (raises UsageError)."""
    if len(given := list(cuts(flags, generation))) > 1:
        raise UsageError(
            f"{given[0]} and {given[1]} both say which words are sampled: leave one of the two out"
        )


def signature_part(flags: SamplingFlags, generation: Generation) -> str:
    """Return the part of the signature for fairseq's flags."""
    return f"topk={max(0, generation.sampling_topk)},topp={max(0, generation.sampling_topp):g}"


@register(
    "select",
    "sampling",
    SamplingFlags,
    check=check,
    signature_part=signature_part,
    needs=("search loop",),
    denies=("beam", "repeatable calls"),
    samples=True,
    neutral=({"select": "sampling", "sampling": True, "sampling_topk": 1},),
    example=({"select": "sampling", "sampling": True, "sampling_epsilon": 0.05},),
    paper="fairseq's own; Hewitt et al. 2022 (--sampling-epsilon)",
)
def build(flags: SamplingFlags, setup: Setup) -> Sampling:
    floor = float(torch.tensor(flags.sampling_epsilon or 0.0, dtype=torch.float32).log())
    given = setup.settings.generation
    mass = given.sampling_topp if given.sampling_topp > 0 else 1.0
    return Sampling(setup.k, SamplingCut(max(0, given.sampling_topk), mass, floor))
