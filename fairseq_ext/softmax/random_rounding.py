"""An output layer with weights of a quarter of the bytes, rounded at random, and bounds of what that changes (`--screen-bits 8`).

To the nearest whole number of 8 bits the errors of a word's weights are what they are, and only their worst case is known: that bounds
log Z to 1e-2. Here each weight is rounded up or down by a draw whose mean is the weight. Then errors of different words are independent,
have mean zero and cancel in a sum over words, and Hoeffding's inequality says how well: tenfold better than the worst case.

    W. Hoeffding. Probability inequalities for sums of bounded random variables. JASA 58, 1963.

With scale D_j = max |W_j| / 127 a rounded logit is off by e_j, sub-Gaussian with deviation s_j = D_j |x| / 2. With probability
1 - FAILURE over the draw, for a state x that does not depend on it,

1. every |e_j| <= h = max s_j (2 ln(6 V / FAILURE))^1/2: so a word whose rounded logit is below t has a logit below t + h;
2. the words A with (true) logits above t + h are among those with rounded logits above t. These are scored again, A counts in Z with its
   true logits, and the sum over all other words, p their shares in Z, is off by at most
       e^h ((2 L)^1/2 (sum_j p_j^2 s_j^2)^1/2 + e^h / 2 max s_j^2 (sum_j p_j + 8 max((L max p sum_j p_j)^1/2, L max p))),
   the first and the second order of sum_j p_j (exp(e_j) - 1), with L = ln(6 THRESHOLDS / FAILURE).

subtle: A must not depend on the draw. So t + h is one of THRESHOLDS numbers, for each of which the bound holds, and a word below it counts
as rounded even if it was scored again.
The state itself is a whole number of 16 bits, two lines of bytes; what that loses adds |x - rounded x| max |W_j| to each |e_j|.

Shapes: n rows, V vocabulary, d features. On a CPU with 8-bit products kernels/softmax/screen_int8.cpp computes this.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.softmax.screen_int8 import ScreenedInt8
from fairseq_ext.softmax.error_bounds import ROUNDING, SAFETY, WHOLE, Screen

FAILURE = 1e-9  # probability that a row's bounds do not hold
THRESHOLDS = 1024  # eighths of a nat, from -64 to 64
GRID = 8
TAIL = math.log(6 * THRESHOLDS / FAILURE)  # L
TOGETHER = 4096  # words that are rounded at once


def randomly_rounded(weight: Tensor, seed: int = 1) -> tuple[Tensor, Tensor]:
    """weight (V, d) -> whole numbers of 8 bits (V, d) and scale (V,), whose product's mean over seeds is the weight."""
    scale = (weight.abs().amax(1) / 127).clamp_(min=torch.finfo(weight.dtype).tiny)
    generator = torch.Generator().manual_seed(seed)
    whole = torch.empty(weight.shape, dtype=torch.int8)
    for i in range(0, weight.size(0), TOGETHER):
        exact = weight[i : i + TOGETHER] / scale[i : i + TOGETHER, None]
        whole[i : i + TOGETHER] = exact.add_(torch.rand(exact.shape, generator=generator)).floor_().clamp_(-127, 127).to(torch.int8)
    return whole, scale


class RandomScreen(Screen):
    """As Screen, from weights of 8 bits. About m words of a row are scored again; a log Z that may be wrong by more than `tolerance` nats
    makes the compiled screen score more. Raises RuntimeError for weights that it cannot take."""

    def __init__(self, weight: Tensor, bias: Tensor | None, temperature: float, m: int, always: list[int], tolerance: float):
        if not bool(torch.isfinite(weight).all()):
            raise RuntimeError("the weights are not finite")
        self.weight, self.bias = weight.contiguous(), None if bias is None else bias.contiguous()
        self.temperature, self.m, self.tolerance = temperature, m, tolerance
        self.always = torch.tensor(sorted(set(always)))
        self.whole, self.scale = randomly_rounded(self.weight)
        self.coarsest = float(self.scale.max())
        self.longest = float(self.weight.norm(dim=1).max()) * SAFETY
        self.reach = math.sqrt(2 * math.log(6 * weight.size(0) / FAILURE))
        self.compiled: ScreenedInt8 | None = None  # type: ignore[assignment]
        near = self.whole[: min(512, weight.size(0))].float() * self.scale[: min(512, weight.size(0)), None]
        if library() is not None:
            bounds = dict(temperature=temperature, tolerance=tolerance, coarsest=self.coarsest, longest=self.longest)
            self.compiled = ScreenedInt8(
                self.whole, self.scale, self.weight, self.bias, self.always, m, tail=TAIL, reach=self.reach, **bounds
            )  # fmt: skip
            del self.whole  # it is packed
        self.self_check(near)

    def rounded_words(self, ids: Tensor) -> Tensor:
        whole = self.whole[ids] if self.compiled is None else self.compiled.words(ids)
        return whole.float() * self.scale[ids, None]

    def log_probs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As Screen.log_probs. This is the definition; the compiled screen looks at the largest logits of panels for its threshold."""
        if self.compiled is not None:
            return self.compiled(x)
        unit = x.abs().amax(1, keepdim=True) / WHOLE
        state = (x / unit).round().nan_to_num_() * unit  # (n, d)
        near = state @ (self.whole.float() * self.scale[:, None]).t()
        near = (near if self.bias is None else near + self.bias) / self.temperature
        norm, lost = (part.norm(dim=1) / self.temperature * SAFETY for part in (state, x - state))
        deviation, moved = 0.5 * norm * self.coarsest, lost * self.longest  # (n,)
        h = self.reach * deviation
        lowest = near.topk(self.m)[0][:, -1:]  # (n, 1)
        known = near >= lowest
        known[:, self.always] = True
        exact = torch.where(known, (x @ self.weight.t() + (0.0 if self.bias is None else self.bias)) / self.temperature, near)
        threshold = ((lowest + (h + moved)[:, None] * SAFETY) * GRID).ceil() / GRID
        above = known & (exact > threshold)
        log_z = torch.where(above, exact, near).logsumexp(-1, keepdim=True)
        p = (near - log_z).exp().masked_fill(above, 0.0)
        rest = p.sum(1) + ROUNDING
        most = (threshold - log_z)[:, 0].add(h + moved).exp().minimum(rest)
        together = math.sqrt(2 * TAIL) * 0.5 * norm * (p * self.scale).norm(dim=1)
        squares = rest + 8 * torch.maximum((TAIL * most * rest).sqrt(), TAIL * most)
        share = (h + moved).exp() * (together + 0.5 * h.exp() * deviation.square() * squares + rest * torch.expm1(moved))
        error = torch.where(share < 0.5, -torch.log1p(-share.clamp(max=0.5)) * SAFETY, torch.inf)
        return exact - log_z, known, (threshold - log_z)[:, 0], error
