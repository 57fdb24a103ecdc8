"""An output layer with weights of half the bytes, and rigorous bounds of what that changes (search/strategies/softmax/screened.py says what for).

On a CPU the weights are whole numbers of 16 bits, times a scale of each word's, and states stay in float32. On a GPU the weights are in
half precision and states the sum of two halves, whose products tensor cores sum in float32.

Shapes: n rows, V vocabulary, d features, m words of a row that are scored again with the full weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.shortlist import ScreenedLinear
from fairseq_ext.kernels.transformer import quantised
from fairseq_ext.search.log_probs import blockwise_topk

SAFETY = 1.001  # for the rounding of the bounds themselves
WHOLE = 32512  # largest of 16 bits whose high byte is one of -127 to 127
ROUNDING = 1e-6  # of float32, in sums of probabilities


def rounded(weight: Tensor) -> Tensor:
    """What weights (..., d) become: float32 numbers that 16 bits hold."""
    if weight.device.type != "cpu":
        return weight.half().float()
    whole, scale = quantised(weight.reshape(-1, weight.size(-1)), 16)
    return (whole * scale[:, None]).view_as(weight)


def half_product(x: Tensor, weight: Tensor) -> Tensor:
    """x (n, d) times weight (V, d) in half precision, summed in float32, on a GPU."""
    high = x.half()
    low = (x - high).half()
    both = torch.mm(torch.cat([high, low]), weight.t(), out_dtype=torch.float32)  # type: ignore[call-overload]
    return both[: x.size(0)] + both[x.size(0) :]


class Screen:
    """Log-probabilities from rounded weights, the best words' from the weights themselves, and bounds of what the others are wrong by.

    weight (V, d) and bias (V,) or None, float32; always: ids that are scored again in every row. A log Z that may be wrong by more than
    `tolerance` nats makes the compiled screen score more words of that row again. Raises RuntimeError for weights it cannot take.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, temperature: float, m: int, always: list[int], tolerance: float):
        if not bool(torch.isfinite(weight).all()):
            raise RuntimeError("the weights are not finite")
        self.weight, self.bias = weight.contiguous(), None if bias is None else bias.contiguous()
        self.temperature, self.m, self.tolerance = temperature, m, tolerance
        self.always = torch.tensor(sorted(set(always)), device=weight.device)
        near = rounded(weight)
        error = weight - near  # (V, d)
        self.largest = float(error.norm(dim=1).max()) * SAFETY
        # largest singular value, from the (d, d) products
        self.spread = float(torch.linalg.eigvalsh((error.t() @ error).double())[-1].clamp(min=0).sqrt()) * SAFETY
        self.near = near if weight.device.type == "cpu" else near.half()
        self.compiled: ScreenedLinear | None = None
        if weight.device.type == "cpu" and library() is not None:
            del self.near  # it is packed
            self.compiled = ScreenedLinear(self, tolerance)
        self.self_check(near)

    def self_check(self, near: Tensor) -> None:
        """What is not scored again must be the rounded weights' own, to the rounding of float32. Raises RuntimeError."""
        d = self.weight.size(1)
        x = torch.arange(3 * d, dtype=torch.float32, device=near.device).mul(0.37).sin().view(3, -1)
        x = x.mul(WHOLE).round().index_fill(1, torch.tensor([0], device=near.device), WHOLE) / WHOLE  # what 16 bits hold
        value, known, _, _ = self.log_probs(x)
        some = slice(0, min(512, near.size(0)))
        logits = F.linear(x.double(), near[some].double(), None if self.bias is None else self.bias[some].double()) / self.temperature
        unknown = ~known[:, some] & logits.isfinite()  # a bias may rule words out
        difference = (value[:, some] - logits).masked_fill(~unknown, 0.0)  # all by as much, log Z
        difference = (difference - difference.sum(1, keepdim=True) / unknown.sum(1, keepdim=True).clamp(min=1)) * unknown
        worst = float(difference.abs().max() / logits.abs().max().clamp(min=1e-30))
        if not worst <= 1e-5:
            raise RuntimeError(f"the linear layer of rounded weights is off by {worst:.0e}")

    def rounded_logits(self, x: Tensor) -> Tensor:
        """Logits (n, V) of the rounded weights."""
        logits = F.linear(x, self.near) if x.device.type == "cpu" else half_product(x, self.near)
        logits = logits if self.bias is None else logits.add_(self.bias)
        return logits.div_(self.temperature) if self.temperature != 1.0 else logits

    def exact(self, x: Tensor, ids: Tensor) -> Tensor:
        """Logits (n, m) of words ids (n, m), of the weights themselves."""
        return self.of_words(self.weight[ids], x, None if self.bias is None else self.bias[ids])

    def change(self, x: Tensor, ids: Tensor) -> Tensor:
        """What the rounding of the weights took off the logits (n, m) of words ids (n, m)."""
        return self.of_words(self.weight[ids] - rounded(self.weight[ids]), x, None)

    def of_words(self, weight: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """weight (n, m, d), x (n, d), bias (n, m) -> logits (n, m)"""
        out = torch.bmm(weight, x[:, :, None])[:, :, 0]
        return (out if bias is None else out + bias) / self.temperature

    def log_probs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return log-probabilities (n, V) of states x (n, d), and what is known of their errors.

        Behind them: which come from the full weights (n, V); a bound (n,) that no other word's log-probability exceeds; a bound (n,) of
        the error of log Z.
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
        """Bound (n,) of the error of log Z. norm (n,): |x| / temperature; p (n, V): probabilities of the words that were not scored
        again, 0 for the others."""
        rest = p.sum(1) + ROUNDING
        b = norm * self.largest
        each = rest * torch.expm1(b)
        together = norm * self.spread * p.norm(dim=1) + 0.5 * b.exp() * b.square() * rest
        share = torch.minimum(each, together)  # |Z / Z' - 1|
        return torch.where(share < 0.5, -torch.log1p(-share.clamp(max=0.5)) * SAFETY, torch.inf)
