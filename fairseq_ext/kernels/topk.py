"""Log-softmax and the best next words by the compiled library (`topk.cpp`) behind torch tensors, for float32 on a CPU. Definition: the
torch path of search/log_probs.py.

Shapes: N lines, n rows, S sentences, V words.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_ext.kernels.library import loaded


def log_softmax_(x: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probabilities of logits x (..., V), in place."""
    assert x.is_contiguous() and x.dtype == torch.float32
    loaded().log_softmax(x.data_ptr(), x.numel() // x.size(-1), x.size(-1), temperature)
    return x


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """torch.topk(x, k) of x (N, V) along its last dimension, scores and columns (N, k), best first; of equals the first columns."""
    assert x.is_contiguous() and x.dtype == torch.float32 and 0 < k <= x.size(1)
    score, column = x.new_empty(x.size(0), k), torch.empty(x.size(0), k, dtype=torch.long)
    loaded().topk(x.data_ptr(), x.size(0), x.size(1), k, score.data_ptr(), column.data_ptr())
    return score, column


def best_of_sentences(x: Tensor, before: Tensor, first: Tensor, c: int) -> tuple[Tensor, ...]:
    """The c best continuations of each sentence, best first: row, column and cumulative score (S, c).

    x (n, V): scores of each row's next word; before (n,): the row's own; first (S + 1,): each sentence's first row, and n. Of equals
    the first; where there are fewer than c, -inf and the sentence's first row.
    """
    assert x.is_contiguous() and x.dtype == before.dtype == torch.float32 and before.is_contiguous() and first.dtype == torch.long
    V, S = x.size(1), first.numel() - 1
    row, column = torch.empty(2, S, c, dtype=torch.long)
    found = row, column, x.new_empty(S, c)
    loaded().best_of_sentences(x.data_ptr(), V, before.data_ptr(), first.data_ptr(), S, c, *(value.data_ptr() for value in found))
    return found
