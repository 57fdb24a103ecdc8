"""The full softmax from weights of half the bytes, with checked scores (`--softmax screened`).

All logits come from one product with the output weights rounded to 16 bits; for few rows, its time
is that of reading the weights. With D = W - rounded(W), a logit of a state x is wrong by at most
|D_j| |x|. So

1. the m words that look best, EOS and unk are scored again with the full weights;
2. the others' sum of probabilities is wrong by at most the smaller of sum_j p_j (exp(|D_j| |x|) -
   1) and, by the largest singular value s of D, s |x| (sum_j p_j^2)^1/2 + exp(b) b^2 / 2 sum_j p_j
   with b = max_j |D_j| |x|: an interval for log Z;
3. if that interval is wider than TOLERANCE, all words within one nat of the m-th are scored again
   too, then within two, three and four (2,048 words at most);
4. a row whose interval is still wider, or whose k best words are not all above the bound of the
   other words, is computed in full, and counted (recomputed_rows of --stats-file). If that happens
   for more than one row in five, the full softmax is used from then on.

Neutral setting: every one; the output is that of --softmax full, each token's score to within
TOLERANCE by the bounds, and to some 1e-6 as measured. Two hypotheses whose sums differ by less can
change places, as they do between two ways of summing in float32.
With fewer bits the bounds are too wide: with 8-bit weights of a model trained with label smoothing
every row is computed in full, with 12 bits 60%, with 14 bits 11%, with 16 bits none, with 256 words
scored again. With many rows it gains nothing, since a product then takes as long as its
multiplications.

The bounds and their definition are below (`Screen`); kernels/shortlist.cpp computes them. The full
softmax runs without the compiled library, on a GPU, for weights other than float32, and for numbers
of rows at which a start-up probe finds screening slower.

Compiled twin: kernels/shortlist.cpp.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.stats import Section, Stats
from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.shortlist import ScreenedLinear
from fairseq_ext.kernels.transformer import quantised
from fairseq_ext.model.protocol import Decoder
from fairseq_ext.model.transformer.supported import output_layers
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.log_probs import MANY, LogProbs, blockwise_topk, is_compiled
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup, Softmax
from fairseq_ext.search.registry import register
from fairseq_ext.search.settings import NoFlags

logger = logging.getLogger("fairseq_ext")
TOLERANCE = 5e-5  # of log Z, in nats
PROBE_TIMES = 5
MAX_TIME_SHARE = (
    0.97  # screening is used if it takes less than this share of the full softmax's time
)
MAX_RECOMPUTED_SHARE = 0.2  # share of rows computed in full from which the full softmax is used
MIN_ROWS_TO_JUDGE = 200  # rows before that share is judged
MIN_RESCORED = 24  # words of a row that are scored again, at least


def words_scored_again(k: int) -> int:
    """Return m for a beam of k: twice the candidates of a row, or some more for words that logits
    processors forbid."""
    return max(MIN_RESCORED, 4 * k)


class ScreenedLogProbs(LogProbs):
    """Log-probabilities of which only the best words' are exact; those that the search reads are
    exact, or are made exact.

    subtle: changes by logits processors are kept when a row is computed in full: the difference to
    the row's first values is added.
    """

    def __init__(self, softmax: Screened, decoder: Decoder, x: Tensor, screen: Screen):
        # known (n, V), ceiling (n,): see Screen.log_probs
        value, self.is_exact, self.ceiling, error = screen.log_probs(x)
        super().__init__(value)
        self.softmax, self.decoder, self.x, self.screen = softmax, decoder, x, screen
        self.complete_(~(error <= screen.tolerance), fresh=True)

    def complete_(self, rows: Tensor, fresh: bool = False) -> None:
        """Compute rows (a mask (n,)) in full; fresh: no logits processor has changed the rows."""
        which = rows.nonzero()[:, 0]
        if not which.numel():
            return
        self.softmax.recomputed(which.numel())
        x = self.x[which]
        full = self.decoder.log_probs([x], self.screen.temperature)
        if not fresh:
            first = self.screen.log_probs(x)[0]
            full = self._value[which] + torch.where(first > -torch.inf, full - first, 0.0)
        self._value[which] = full
        self.is_exact[which] = True
        self.ceiling[which] = -torch.inf

    def topk(self, k: int, without: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        score, token = super().topk(k, without)
        unsure = (score[:, -1] <= self.ceiling) & (self.ceiling > -torch.inf)
        if bool(unsure.any()):
            self.complete_(unsure)
            score, token = super().topk(k, without)
        return score, token

    def best_of_sentences(self, c: int, before: Tensor, first: Tensor) -> tuple[Tensor, ...] | None:
        if c > MANY or not is_compiled(self._value):
            return None
        # subtle: rows computed in full can lower the last candidate's score, so that candidates of
        # other rows may become better
        while True:
            found = self._compiled_best(c, before, first)
            # (n,)
            last = found[2][:, -1].repeat_interleave(first.diff(), output_size=before.numel())
            reached = before + self.ceiling
            unsure = (reached >= last) & (reached > -torch.inf)
            if not bool(unsure.any()):
                return found
            self.complete_(unsure)

    def scores_at(self, token: Tensor) -> Tensor:
        token = token.expand(self._value.size(0), -1)
        return super().scores_at(token) + self.screen.rounding_error(self.x, token).masked_fill_(
            self.is_exact.gather(1, token), 0.0
        )

    def dense(self) -> Tensor:
        self.make_exact_(torch.ones_like(self.ceiling, dtype=torch.bool))
        return super().dense()

    def make_exact_(self, rows: Tensor) -> None:
        self.complete_(rows & ~self.is_exact.all(1))

    def only_(self, token: Tensor, rows: Tensor) -> None:
        super().only_(token, rows)
        # the remaining words of those rows are exact, and no others are possible
        self.is_exact |= rows[:, None]
        self.ceiling = self.ceiling.masked_fill(rows, -torch.inf)

    def only_each_(self, row: Tensor, token: Tensor, rows: Tensor) -> None:
        self.make_exact_(rows)
        super().only_each_(row, token, rows)

    def reorder_(self, row: Tensor) -> None:
        super().reorder_(row)
        self.x, self.is_exact, self.ceiling = self.x[row], self.is_exact[row], self.ceiling[row]


@dataclass
class ScreenedCounts(Section):
    """The `softmax` section of the statistics."""

    key = "softmax"
    rows: int = 0
    screened_rows: int = 0  # rows that screening was used for
    recomputed_rows: int = 0  # screened rows that were computed in full


class Screened(Softmax):
    """The softmax strategy."""

    def __init__(self, screen: Screen | None, temperature: float, stats: Stats):
        self.screen, self.temperature = screen, temperature
        self.counts = stats.section(ScreenedCounts)
        self.screened = self.rows_recomputed = (
            0  # rows of this process, by which screening is judged
        )
        # whether screening is faster, by the number of rows, rounded up to a power of two
        self.faster: dict[int, bool] = {}

    def __call__(
        self,
        decoder: Decoder,
        features: list[Tensor],
        beam: Beam | None = None,
        pool: Pool | None = None,
    ) -> LogProbs:
        x = features[0]
        self.counts.rows += x.size(0)
        screen = self.screen
        if screen is None or not self.is_faster(decoder, x, screen):
            return LogProbs(decoder.log_probs(features, self.temperature))
        self.counts.screened_rows += x.size(0)
        self.screened += x.size(0)
        if (
            self.screened > MIN_ROWS_TO_JUDGE
            and self.rows_recomputed > MAX_RECOMPUTED_SHARE * self.screened
        ):
            logger.info(
                "--softmax screened leaves too many rows open for this model: the full "
                "softmax takes over"
            )
            self.screen = None
        return ScreenedLogProbs(self, decoder, x, screen)

    def is_faster(self, decoder: Decoder, x: Tensor, screen: Screen) -> bool:
        """Return whether screening is faster for this number of rows: both are timed in turns when
        the number first occurs."""
        size = (x.size(0) - 1).bit_length()
        if size not in self.faster:
            ways = (
                lambda: decoder.log_probs([x], screen.temperature),
                lambda: ScreenedLogProbs(self, decoder, x, screen),
            )
            before = self.rows_recomputed, self.counts.recomputed_rows
            times = seconds_in_turns(ways, PROBE_TIMES)
            # rows of the probe are not rows of the search
            self.rows_recomputed, self.counts.recomputed_rows = before
            self.faster[size] = min(times[1]) < MAX_TIME_SHARE * min(times[0])
        return self.faster[size]

    def recomputed(self, rows: int) -> None:
        """Count rows that were computed in full."""
        self.rows_recomputed += rows
        self.counts.recomputed_rows += rows


def seconds_in_turns(ways: Sequence[Callable[[], object]], times: int) -> list[list[float]]:
    """Return the seconds of each way in `times` calls; the ways take turns, after one call of
    each."""
    seconds: list[list[float]] = [[] for _ in ways]
    for turn in range(times + 1):
        for way, spent in zip(ways, seconds, strict=True):
            start = time.perf_counter()
            way()
            if turn:
                spent.append(time.perf_counter() - start)
    return seconds


def unavailable_reason(weight: Tensor, m: int) -> str | None:
    """Return why weights cannot be screened; None if they can."""
    if weight.dtype != torch.float32:
        return f"the weights are {str(weight.dtype).removeprefix('torch.')}"
    if weight.size(0) < 4 * m:
        return f"there are only {weight.size(0):,} words"
    if weight.device.type != "cpu":
        return "the model is on a GPU"
    return "there is no compiled library" if library() is None else None


@register(
    "softmax",
    "screened",
    needs=("search loop", "rows of a beam", "output layer", "softmax's own order", "one model"),
    neutral=({"softmax": "screened"},),
    example=({"softmax": "screened"},),
    paper="the full softmax from half the bytes, with certified bounds",
)
def build(flags: NoFlags, setup: Setup) -> Screened:
    if len(setup.models) > 1:
        raise UsageError(
            "--softmax screened bounds one output layer and an ensemble has several: use one "
            "model, or --softmax full"
        )
    [(weight, bias)] = output_layers(setup.models, "--softmax screened")
    m = words_scored_again(setup.k)
    reason, screen = unavailable_reason(weight, m), None
    if reason is None:
        try:
            screen = Screen(weight, bias, setup.temperature, m, [setup.eos, setup.unk], TOLERANCE)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
    if reason is not None:
        logger.info("--softmax screened computes every word in full precision, because %s", reason)
    return Screened(screen, setup.temperature, setup.stats)


# ---- Weights of half the bytes, and rigorous bounds of the resulting errors
#
# The weights are 16-bit integers times a scale for each word, and states are in float32.
#
# Shapes: n rows, V vocabulary, d features, m words of a row that are scored again with the full
# weights.


SAFETY = 1.001  # for the rounding of the bounds themselves
MAX_INT16 = 32512  # largest 16-bit number whose high byte is -127 to 127
ROUNDING = 1e-6  # of float32, in sums of probabilities


def rounded(weight: Tensor) -> Tensor:
    """Return weights (..., d) rounded to float32 numbers that 16 bits can hold."""
    whole, scale = quantised(weight.reshape(-1, weight.size(-1)), 16)
    return (whole * scale[:, None]).view_as(weight)


class Screen:
    """Log-probabilities from rounded weights, those of the best words from the weights themselves,
    and bounds of the others' errors.

    weight (V, d) and bias (V,) or None, float32; always: ids that are scored again in every row. If
    log Z may be wrong by more than `tolerance` nats, the compiled screen scores more words of that
    row again. Raises RuntimeError for weights that cannot be rounded.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        temperature: float,
        m: int,
        always: list[int],
        tolerance: float,
    ):
        if not bool(torch.isfinite(weight).all()):
            raise RuntimeError("the weights are not finite")
        self.weight, self.bias = weight.contiguous(), None if bias is None else bias.contiguous()
        self.temperature, self.m, self.tolerance = temperature, m, tolerance
        self.always = torch.tensor(sorted(set(always)), device=weight.device)
        near = rounded(weight)
        error = weight - near  # (V, d)
        self.largest = float(error.norm(dim=1).max()) * SAFETY
        # largest singular value, from the (d, d) products
        self.spread = (
            float(torch.linalg.eigvalsh((error.t() @ error).double())[-1].clamp(min=0).sqrt())
            * SAFETY
        )
        self.near = near
        self.compiled: ScreenedLinear | None = None
        if library() is not None:
            del self.near  # it is packed
            self.compiled = ScreenedLinear(self, tolerance)
        self.self_check(near)

    def self_check(self, near: Tensor) -> None:
        """Check that words which are not scored again have the rounded weights' logits, to the
        rounding of float32 (raises RuntimeError).
        """
        d = self.weight.size(1)
        x = torch.arange(3 * d, dtype=torch.float32, device=near.device).mul(0.37).sin().view(3, -1)
        # a sample of what 16 bits hold
        x = (
            x.mul(MAX_INT16).round().index_fill(1, torch.tensor([0], device=near.device), MAX_INT16)
            / MAX_INT16
        )
        value, known, _, _ = self.log_probs(x)
        some = slice(0, min(512, near.size(0)))
        logits = (
            F.linear(
                x.double(),
                near[some].double(),
                None if self.bias is None else self.bias[some].double(),
            )
            / self.temperature
        )
        unknown = ~known[:, some] & logits.isfinite()  # a bias may rule words out
        difference = (value[:, some] - logits).masked_fill(~unknown, 0.0)  # all by log Z
        difference = (
            difference - difference.sum(1, keepdim=True) / unknown.sum(1, keepdim=True).clamp(min=1)
        ) * unknown
        worst = float(difference.abs().max() / logits.abs().max().clamp(min=1e-30))
        if not worst <= 1e-5:
            raise RuntimeError(f"the linear layer of rounded weights is off by {worst:.0e}")

    def rounded_logits(self, x: Tensor) -> Tensor:
        """Return logits (n, V) of the rounded weights."""
        logits = F.linear(x, self.near)
        logits = logits if self.bias is None else logits.add_(self.bias)
        return logits.div_(self.temperature) if self.temperature != 1.0 else logits

    def exact(self, x: Tensor, ids: Tensor) -> Tensor:
        """Return logits (n, m) of words ids (n, m), of the weights themselves."""
        return self.logits_of_words(
            self.weight[ids], x, None if self.bias is None else self.bias[ids]
        )

    def rounding_error(self, x: Tensor, ids: Tensor) -> Tensor:
        """Return the error (n, m) that rounding causes in the logits of words ids (n, m)."""
        return self.logits_of_words(self.weight[ids] - rounded(self.weight[ids]), x, None)

    def logits_of_words(self, weight: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return logits (n, m) of weight (n, m, d), x (n, d), bias (n, m)."""
        out = torch.bmm(weight, x[:, :, None])[:, :, 0]
        return (out if bias is None else out + bias) / self.temperature

    def log_probs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return log-probabilities (n, V) of states x (n, d), and bounds of their errors: which
        words' are from the full weights (n, V); a bound (n,) of every other word's log-probability;
        a bound (n,) of the error of log Z.
        """
        if self.compiled is not None:
            return self.compiled(x)
        logits = self.rounded_logits(x)
        best, ids = blockwise_topk(logits, self.m)  # (n, m)
        ids = torch.cat([ids, self.always.expand(x.size(0), -1)], dim=1)
        logits.scatter_(1, ids, self.exact(x, ids))
        known = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, ids, True)
        log_z = logits.logsumexp(-1, keepdim=True)
        value = logits.sub_(log_z)
        norm = x.norm(dim=1) / self.temperature * SAFETY
        ceiling = best[:, -1] + norm * self.largest - log_z[:, 0]
        return value, known, ceiling, self.log_z_error(norm, value.exp().masked_fill_(known, 0.0))

    def log_z_error(self, norm: Tensor, p: Tensor) -> Tensor:
        """Return a bound (n,) of the error of log Z. norm (n,): |x| / temperature; p (n, V):
        probabilities of the words that were not scored again, 0 for the others."""
        rest = p.sum(1) + ROUNDING
        b = norm * self.largest
        each = rest * torch.expm1(b)
        together = norm * self.spread * p.norm(dim=1) + 0.5 * b.exp() * b.square() * rest
        share = torch.minimum(each, together)  # |Z / Z' - 1|
        return torch.where(share < 0.5, -torch.log1p(-share.clamp(max=0.5)) * SAFETY, torch.inf)
