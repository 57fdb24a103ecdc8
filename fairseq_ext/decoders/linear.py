"""What the fast encoder and decoder consist of: products by fixed weights, layer normalisation, attention.

On a CPU in float32 weights are packed, which is 2-3x faster than `F.linear` where MKL does not know the processor, and takes the
activation along: by the compiled library (kernels/transformer.py), which also runs all layers in one call; without a compiler by oneDNN.
Elsewhere a product is `F.linear`.

Shapes: S sentences, H heads, Q queries of a sentence, C cells, h features a head, d = H x h.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.transformer import Packed

PACKED_FOR = 64  # rows that the packed layout is chosen for: any number but 1 gives the same one
MANY = 32  # from so many (sentence, head) pairs on, batched products beat the fused attention on a CPU


def has_packed_products() -> bool:
    """Whether this build of torch can multiply by packed weights on the CPU."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(torch.eye(16), 2)
        x = torch.ones(2, 16)
        plain = torch.ops.mkldnn._linear_pointwise.default(x, packed, None, "relu", [], "")
        return torch.equal(plain, x)
    except (AttributeError, RuntimeError):
        return False


class Product:
    """x -> x W' + b, with or without an activation. weight (out, in), bias (out,) or None.

    On a CPU in float32 it is the compiled product (kernels/transformer.py), in int8 if wished; without a compiler oneDNN's packed one; else
    `F.linear`. Weights are packed when they are needed first; is_copy: nobody else needs `weight`, which is dropped then.
    """

    packs: bool | None = None  # whether oneDNN does, asked once a process

    def __init__(self, weight: Tensor, bias: Tensor | None = None, int8: bool = False, is_copy: bool = False):
        self.weight = weight.detach()
        self.inputs = weight.size(1)
        self.bias = None if bias is None else bias.detach()
        self.int8, self.is_copy = int8, is_copy
        on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
        self.is_compiled = on_cpu and library() is not None
        if Product.packs is None:
            Product.packs = has_packed_products()
        self.may_pack = Product.packs and on_cpu and not self.is_compiled
        self.packed: Any = None

    def pack(self) -> Any:
        """The packed weights: a compiled product (`Packed`), or a tensor in oneDNN's layout."""
        if self.packed is None:
            if self.is_compiled:
                self.packed = Packed(self.weight, self.bias, 8 if self.int8 else 32)
                if self.is_copy:
                    del self.weight
            else:
                self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), PACKED_FOR)
        return self.packed

    def apply(self, x: Tensor, activation: str) -> Tensor:
        """The packed product; activation: none or relu."""
        if self.is_compiled:
            return self.pack()(x, activation)
        return torch.ops.mkldnn._linear_pointwise.default(x, self.pack(), self.bias, activation, [], "")

    def __call__(self, x: Tensor) -> Tensor:
        return self.apply(x, "none") if self.may_pack or self.is_compiled else F.linear(x, self.weight, self.bias)

    def relu(self, x: Tensor) -> Tensor:
        return self.apply(x, "relu") if self.may_pack or self.is_compiled else F.linear(x, self.weight, self.bias).relu_()


class Norm:
    """Layer normalisation over the last dimension."""

    def __init__(self, module: nn.LayerNorm):
        self.arguments = (module.normalized_shape, module.weight.detach(), module.bias.detach(), module.eps)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, *self.arguments)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """query (S, H, Q, h), scaled; key, value (S, H, C, h); mask broadcast to (S, H, Q, C) -> (S x Q, d)."""
    S, H, Q, h = query.shape
    if S * H < MANY or query.device.type != "cpu":
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)
    else:
        score = torch.bmm(query.reshape(S * H, Q, h), key.flatten(0, 1).transpose(1, 2))  # (S x H, Q, C)
        if mask is not None:
            score.view(S, H, Q, -1).add_(mask)
        out = torch.bmm(score.softmax(-1), value.flatten(0, 1)).view(S, H, Q, h)
    return out.transpose(1, 2).reshape(S * Q, H * h)
