"""`--no-repeat-ngram-size`: words that would complete an n-gram a second time become impossible, as torch operations, which define it,
and by the compiled library (`ngrams.cpp`).

Shapes: n rows, T tokens of the longest history, C scored words.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_ext.kernels.library import loaded


def repeated(tokens: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """For each n-gram of histories tokens (n, T), where negative numbers stand for no token: its last word, and whether that word would
    complete the n-gram again; both (n, T - size + 1)."""
    grams = tokens.unfold(1, size, 1)  # (n, T - size + 1, size)
    tail = tokens[:, tokens.size(1) - size + 1 :]  # (n, size - 1)
    again = (grams[:, :, : size - 1] == tail[:, None]).all(-1) & (grams[:, :, 0] >= 0) & (grams[:, :, size - 1] >= 0)
    return grams[:, :, size - 1].clamp(min=0), again


def block_ngrams_(value: Tensor, tokens: Tensor, size: int, ids: Tensor | None) -> None:
    """Make those words impossible in scores value (n, C), contiguous float32 on a CPU. ids as in search/log_probs.py, LogProbs."""
    assert value.is_contiguous() and value.dtype == torch.float32 and tokens.dtype == torch.long and tokens.stride(1) == 1
    ids = None if ids is None else ids.contiguous()
    each = ids is not None and ids.dim() == 2
    loaded().block_ngrams(
        tokens.data_ptr(), tokens.size(0), tokens.size(1), tokens.stride(0), size, value.data_ptr(), value.size(1),
        None if ids is None else ids.data_ptr(), value.size(1) if each else 0,
    )  # fmt: skip
