"""An output layer in half precision, and rigorous bounds of what that changes (strategies/screened.py says what for).

Shapes: n rows, V vocabulary, d features, m words of a row that are scored again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_ext.decoders.products import Product

SAFETY = 1.001  # for the rounding of the bounds themselves


class HalfProduct:
    """x (n, d) -> logits (n, V) from weights in half precision, float32 sums. Raises RuntimeError where torch cannot."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        if float(weight.abs().max()) > torch.finfo(torch.float16).max:
            raise RuntimeError("the weights are beyond half precision")
        engine = torch.backends.quantized.engine
        try:
            torch.backends.quantized.engine = "fbgemm"
            self.packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
        finally:
            torch.backends.quantized.engine = engine

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


class Screen:
    """The output layer in half precision and the bounds of its errors."""

    def __init__(self, weight: Tensor, bias: Tensor | None, temperature: float):
        self.weight, self.bias = weight, bias
        self.temperature = temperature
        self.half = HalfProduct(weight, bias)
        self.full = Product(weight, bias)
        error = weight - weight.half().float()  # (V, d)
        self.largest = float(error.norm(dim=1).max()) * SAFETY
        self.exact = self.largest == 0.0
        # largest singular value, from the (d, d) products
        gram = error.t() @ error
        self.spread = 0.0 if self.exact else float(torch.linalg.eigvalsh(gram.double())[-1].clamp(min=0).sqrt()) * SAFETY
        self.self_check()

    def self_check(self) -> None:
        """The product must be the half weights' own, to the rounding of float32."""
        x = torch.arange(3 * self.weight.size(1), dtype=torch.float32).mul(0.37).sin().view(3, -1)
        some = slice(0, min(512, self.weight.size(0)))
        expected = torch.nn.functional.linear(x.double(), self.weight[some].half().double())
        expected = expected if self.bias is None else expected + self.bias[some]
        worst = float((self.half(x)[:, some] - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
        if worst > 1e-5:
            raise RuntimeError(f"the half-precision product is off by {worst:.0e}")

    def logits(self, x: Tensor, ids: Tensor) -> Tensor:
        """Exact logits (n, m) of words ids (n, m)."""
        rows = self.weight.index_select(0, ids.flatten()).view(*ids.shape, -1)  # (n, m, d)
        out = torch.bmm(rows, x[:, :, None])[:, :, 0]
        out = out if self.bias is None else out + self.bias[ids]
        return out / self.temperature

    def log_z_error(self, norm: Tensor, p: Tensor) -> Tensor:
        """Bound (n,) of the error of log Z. norm (n,): |x| / temperature; p (n, V): probabilities of the words that were not scored
        again, 0 for the others."""
        rest = p.sum(1) + 1e-6  # the rounding of float32
        b = norm * self.largest
        each = rest * torch.expm1(b)
        together = norm * self.spread * p.norm(dim=1) + 0.5 * b.exp() * b.square() * rest
        share = torch.minimum(each, together)
        return torch.where(share < 0.5, -torch.log1p(-share.clamp(max=0.5)) * SAFETY, torch.inf)  # |Z / Z' - 1| <= share
