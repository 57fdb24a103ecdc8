"""What the layers of the transformer backend consist of: linear maps, layer normalisation, attention.

On a CPU in float32 the weights of a linear map are packed. That is 2-3x faster than `F.linear` where MKL does not know the processor, and
the activation is computed on the way. The compiled library (kernels/transformer.py) packs them, and without a compiler oneDNN does.
Elsewhere a linear map is `F.linear`.

Shapes: S sentences, H heads, Q queries of a sentence, P positions, h features a head, d = H x h.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.transformer import PackedLinear

PACKED_FOR = 64  # rows that the packed layout is chosen for: any number but 1 gives the same one
MANY_HEADS = 32  # from so many (sentence, head) pairs on, two `bmm` beat the fused attention on a CPU


def has_packed_linear() -> bool:
    """Return whether this build of torch can multiply by packed weights on the CPU."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(torch.eye(16), 2)
        x = torch.ones(2, 16)
        plain = torch.ops.mkldnn._linear_pointwise.default(x, packed, None, "relu", [], "")
        return torch.equal(plain, x)
    except (AttributeError, RuntimeError):
        return False


class Linear:
    """x -> x W' + b, with or without an activation. weight (out, in), bias (out,) or None.

    int8: the compiled map rounds its weights to 8 bits. Weights are packed at their first use. is_copy: nobody else needs `weight`, so it
    is dropped then.
    """

    packs: bool | None = None  # whether oneDNN can pack weights here, found out once a process

    def __init__(self, weight: Tensor, bias: Tensor | None = None, int8: bool = False, is_copy: bool = False):
        self.weight = weight.detach()
        self.inputs = weight.size(1)
        self.bias = None if bias is None else bias.detach()
        self.int8, self.is_copy = int8, is_copy
        on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
        self.is_compiled = on_cpu and library() is not None
        if Linear.packs is None and on_cpu and not self.is_compiled:
            Linear.packs = has_packed_linear()
        self.may_pack = on_cpu and not self.is_compiled and bool(Linear.packs)
        self.packed: Any = None

    def pack(self) -> Any:
        """Return the packed weights: a compiled map (`PackedLinear`), or a tensor in oneDNN's layout."""
        if self.packed is None:
            if self.is_compiled:
                self.packed = PackedLinear(self.weight, self.bias, 8 if self.int8 else 32)
                if self.is_copy:
                    del self.weight
            else:
                self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), PACKED_FOR)
        return self.packed

    def release_(self) -> None:
        """Drop the weights that were packed, where the compiled library has them."""
        if self.is_compiled:
            self.pack()
            self.__dict__.pop("weight", None)

    def apply(self, x: Tensor, activation: str) -> Tensor:
        """Return the activation (none or relu) of the map by packed weights."""
        if self.is_compiled:
            return self.pack()(x, activation)
        return torch.ops.mkldnn._linear_pointwise.default(x, self.pack(), self.bias, activation, [], "")

    def __call__(self, x: Tensor) -> Tensor:
        return self.apply(x, "none") if self.may_pack or self.is_compiled else F.linear(x, self.weight, self.bias)

    def relu(self, x: Tensor) -> Tensor:
        """Return ReLU of the map."""
        return self.apply(x, "relu") if self.may_pack or self.is_compiled else F.linear(x, self.weight, self.bias).relu_()


class Norm:
    """Layer normalisation over the last dimension."""

    def __init__(self, module: nn.LayerNorm):
        self.arguments = (module.normalized_shape, module.weight.detach(), module.bias.detach(), module.eps)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, *self.arguments)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Return what scaled queries (S, H, Q, h) find in key and value (S, H, P, h) under a mask broadcast to (S, H, Q, P): (S x Q, d)."""
    S, H, Q, h = query.shape
    if S * H < MANY_HEADS or query.device.type != "cpu":
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)
    else:
        score = torch.bmm(query.reshape(S * H, Q, h), key.flatten(0, 1).transpose(1, 2))  # (S x H, Q, P)
        if mask is not None:
            score.view(S, H, Q, -1).add_(mask)
        out = torch.bmm(score.softmax(-1), value.flatten(0, 1)).view(S, H, Q, h)
    return out.transpose(1, 2).reshape(S * Q, H * h)
