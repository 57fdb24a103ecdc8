"""The full softmax from weights of half the bytes, checked: the same output, provably (`--softmax screened`).

All logits come from one product with the output weights in half precision, which at few rows is bound by the bytes it reads. Where
half precision holds the weights exactly, as in checkpoints that were trained or stored with --fp16, nothing is lost and nothing need
be checked. Elsewhere every word's error is bounded: with D = W - half(W), a logit is wrong by at most |D_j| |x|. So

1. the m words that look best, EOS and unk are scored again with the full weights;
2. the others' sum of probabilities is wrong by at most the smaller of sum_j p_j (exp(|D_j| |x|) - 1) and, by the largest singular
   value s of D, s |x| (sum_j p_j^2)^1/2 + exp(b) b^2 / 2 sum_j p_j with b = max_j |D_j| |x|: an interval for log Z;
3. a row whose interval is wider than TOLERANCE, or whose k best words are not all above what any word left out can reach, is
   computed in full, and counted (recomputed_rows of --stats-file). Where that becomes more than one row in five, as with models
   trained with label smoothing whose weights half precision does not hold, the full softmax takes over.

Neutral setting: every one; the output is that of --softmax full. Only the rounding of float32 differs.
Why not int8: the k best words can be certified from int8 products, but scores need log Z of all words to 1e-4. By estimate
the errors of int8 weights bound it to 1e-3 to 1e-2 where a model was trained with label smoothing, so that nearly every row would be
computed in full as well. High and low bytes of weights and states would do, and take three int8 products: at 40,000 words one int8
product is 2.5 to 3.4 times as fast as float32, three together 2.2 times at one row, 1.0 at 16 and 0.9 at 64, about what half precision
gives (scripts/bench/softmax.py --engines).

The product and the bounds are in half_screen.py. FBGEMM's kernels run the product; they use no AMX. Where they are missing, on a GPU,
for weights other than float32, and for numbers of rows at which a start-up probe finds it slower, the full softmax runs.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.decoders.output_layer import output_layers
from fairseq_ext.errors import UsageError
from fairseq_ext.half_screen import Screen
from fairseq_ext.list_softmax import needs_beam
from fairseq_ext.registry import register
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.log_probs import LogProbs, blockwise_topk
from fairseq_ext.search.plugs import Decoder
from fairseq_ext.search.pool import Pool
from fairseq_ext.stats import Stats

logger = logging.getLogger("fairseq_ext")
TOLERANCE = 5e-5  # of log Z, in nats
PROBE_TIMES = 5
GAIN = 0.97  # the share of the full softmax's time that half precision must stay under to be used
MOST_OPEN = 0.2  # share of rows computed in full from which screening no longer pays
ENOUGH = 200  # rows to judge it by
LEAST = 256  # words of a row that are scored again, at least: what they leave makes the interval


class ScreenedLogProbs(LogProbs):
    """Log-probabilities of which the best words' are exact; what the search asks for is exact, or made so.

    subtle: what rules do to `value` is kept where a row is computed in full, by adding the difference of the logits.
    """

    settled = False  # `topk` decides which rows must be computed in full

    def __init__(self, value: Tensor, logits: Tensor, x: Tensor, screen: Screen, ceiling: Tensor, count: Any):
        super().__init__(value)
        self.logits = logits  # (n, V) that `value` was made from
        self.x = x
        self.screen = screen
        self.ceiling = ceiling  # (n,) log-probability that no word beyond the m scored again can exceed
        self.count = count  # told how many rows are computed in full

    def complete_(self, rows: Tensor) -> None:
        """Compute rows (a mask (n,)) in full."""
        which = rows.nonzero()[:, 0]
        if not which.numel():
            return
        self.count(which.numel())
        full = self.screen.full(self.x[which]) / self.screen.temperature
        change = (full - full.logsumexp(-1, keepdim=True)) - (self.logits[which] - self.logits[which].logsumexp(-1, keepdim=True))
        self.value[which] += change
        self.logits[which] = full
        self.ceiling[which] = -torch.inf

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        score, token = super().topk(k)
        unsure = (score[:, -1] <= self.ceiling) & (self.ceiling > -torch.inf)
        if bool(unsure.any()):
            self.complete_(unsure)
            score, token = super().topk(k)
        return score, token

    def at(self, token: Tensor) -> Tensor:
        value = super().at(token)
        exact = self.screen.logits(self.x, token) - self.logits.gather(1, token)
        return value + torch.where((self.ceiling > -torch.inf)[:, None], exact, 0.0)

    def only_(self, token: Tensor, rows: Tensor) -> None:
        value = self.value
        super().only_(token, rows)
        # what is left in those rows is exact, and nothing else is possible there
        self.value = torch.where(rows[:, None], self.value, value)
        self.ceiling = self.ceiling.masked_fill(rows, -torch.inf)

    def reorder_(self, row: Tensor) -> None:
        super().reorder_(row)
        self.logits, self.x, self.ceiling = self.logits[row], self.x[row], self.ceiling[row]


class Screened:
    """The softmax plug."""

    def __init__(self, screen: Screen | None, temperature: float, k: int, always: list[int], stats: Stats):
        self.screen = screen
        self.temperature = temperature
        self.m = max(LEAST, 4 * k + 48)  # twice the candidates of a row, and some for words that rules forbid
        self.always = torch.tensor(always)
        self.section = stats.extra.setdefault("softmax", {"rows": 0, "screened_rows": 0, "recomputed_rows": 0})
        self.faster: dict[int, bool] = {}  # by the power of two that the number of rows rounds up to

    def __call__(self, decoder: Decoder, features: list[Tensor], beam: Beam | None = None, pool: Pool | None = None) -> LogProbs:
        x = features[0]
        self.section["rows"] += x.size(0)
        screen = self.screen
        if screen is None or not self.is_faster(decoder, x, screen):
            return LogProbs(decoder.log_probs(features, self.temperature))
        self.section["screened_rows"] += x.size(0)
        if self.section["screened_rows"] > ENOUGH and self.section["recomputed_rows"] > MOST_OPEN * self.section["screened_rows"]:
            logger.info("--softmax screened leaves too many rows open for this model: the full softmax takes over")
            self.screen = None
        return self.screened(x, self.screen or screen)

    def is_faster(self, decoder: Decoder, x: Tensor, screen: Screen) -> bool:
        """Whether half precision pays for so many rows: both timed in turns when that number first comes up."""
        size = (x.size(0) - 1).bit_length()
        if size not in self.faster:
            ways = (lambda: decoder.log_probs([x], self.temperature), lambda: self.screened(x, screen))
            times: list[list[float]] = [[], []]
            recomputed = self.section["recomputed_rows"]
            for turn in range(PROBE_TIMES + 1):
                for way, spent in zip(ways, times, strict=True):
                    start = time.perf_counter()
                    way()
                    if turn:
                        spent.append(time.perf_counter() - start)
            self.section["recomputed_rows"] = recomputed
            self.faster[size] = min(times[1]) < GAIN * min(times[0])
        return self.faster[size]

    def recomputed(self, rows: int) -> None:
        self.section["recomputed_rows"] += rows

    def screened(self, x: Tensor, screen: Screen) -> LogProbs:
        """Log-probabilities of x (n, d)."""
        logits = screen.half(x)
        if self.temperature != 1.0:
            logits /= self.temperature
        V = logits.size(1)
        if screen.exact or self.m >= V:
            return LogProbs(torch.log_softmax(logits, dim=-1, out=logits)) if screen.exact else self.in_full(x, screen)
        best, ids = blockwise_topk(logits, self.m)  # (n, m)
        ids = torch.cat([ids, self.always.expand(x.size(0), -1)], dim=1)
        logits.scatter_(1, ids, screen.logits(x, ids))
        log_z = logits.logsumexp(-1, keepdim=True)
        value = logits - log_z
        norm = x.norm(dim=1) / self.temperature
        ceiling = best[:, -1] + norm * screen.largest - log_z[:, 0]
        out = ScreenedLogProbs(value, logits, x, screen, ceiling, self.recomputed)
        out.complete_(screen.log_z_error(norm, value.exp().scatter_(1, ids, 0.0)) > TOLERANCE)
        return out

    def in_full(self, x: Tensor, screen: Screen) -> LogProbs:
        """For vocabularies that are hardly larger than what would be scored twice."""
        self.recomputed(x.size(0))
        return LogProbs((screen.full(x) / self.temperature).log_softmax(-1))


def unavailable(weight: Tensor) -> str | None:
    """Why weights cannot be screened, in words; None when they can."""
    if weight.device.type != "cpu":
        return "it is measured on CPUs only"
    if weight.dtype != torch.float32:
        return f"the weights are {str(weight.dtype).removeprefix('torch.')}"
    return None if "fbgemm" in torch.backends.quantized.supported_engines else "this torch has no FBGEMM"


def check(flags, generation) -> None:
    """Refuse what raises words that were screened out (raises UsageError)."""
    needs_beam(flags)
    if getattr(generation, "lm_path", None):
        raise UsageError("--lm-path can raise words that --softmax screened has ruled out: use --softmax full")


@register("softmax", "screened", check=check)
def build(flags, context) -> Screened:
    if len(context.models) > 1:
        raise UsageError("--softmax screened bounds one output layer and an ensemble has several: use one model, or --softmax full")
    [(weight, bias)] = output_layers(context.models, "--softmax screened")
    reason, screen = unavailable(weight), None
    temperature = getattr(context.generation, "temperature", 1.0)
    if reason is None:
        try:
            screen = Screen(weight, bias, temperature)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
    if reason is not None:
        logger.info("--softmax screened computes every word in full precision, because %s", reason)
    return Screened(screen, temperature, context.k, [context.eos, context.unk], context.stats)
