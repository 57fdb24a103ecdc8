"""One decoder call of the parallel driver: a block of tokens in, each position's best word out.

Shapes: n live rows, w block width, m = n x w positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.model.protocol import BlockDecoder
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.parallel.block_processors import process_blocks
from fairseq_ext.search.parallel.rows import NONE, Rows
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.processors import LogitsProcessors
from fairseq_ext.search.protocols import Softmax
from fairseq_ext.search.upload import upload


@dataclass
class Best:
    """Each position's best word, on the host."""

    word: np.ndarray  # (n, w)
    score: np.ndarray  # (n, w) its log-probability
    margin: np.ndarray  # (n, w) how far that is before the second best, in nats; the log-probability where nobody asks for it
    dtype: torch.dtype  # of the log-probabilities


@dataclass
class BlockReader:
    """The decoder with what follows it: the softmax and the logits processors."""

    decoder: BlockDecoder
    softmax: Softmax
    processors: LogitsProcessors

    def best(self, pool: Pool, rows: Rows, draft: np.ndarray, read: np.ndarray, margin: bool = False) -> Best:
        """Read each row's last token and its draft (n, w - 1). read (n,): tokens that each row of the decoder has read, of which those
        beyond the verified ones are forgotten; margin: whether the second best is asked for."""
        n, w = len(rows), draft.shape[1] + 1
        block = np.concatenate([rows.last(1), np.where(draft == NONE, self.processors.pad, draft)], 1)  # (n, w)
        device = pool.length.device
        length: int | Tensor | None = None
        if (read != rows.length).any():
            first = int(rows.length[0])
            length = first if (rows.length == first).all() else upload(rows.length, device)
        features = self.decoder.step(upload(block, device), w, length)
        log_probs = self.softmax(self.decoder, [x.reshape(n * w, -1) for x in features], None)  # (n, w, d) -> (m, d)
        process_blocks(self.processors, log_probs, pool, rows, draft)
        word, score, apart = (part.reshape(n, w) for part in fetch(log_probs, margin))
        return Best(word, score, apart, log_probs.dtype)


def fetch(log_probs: LogProbs, margin: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every position's best word (m,), its log-probability and its margin, on the host after one transfer."""
    if margin:
        best, words = log_probs.topk(2)
        value, token, apart = best[:, 0], words[:, 0], best[:, 0] - best[:, 1]
    else:
        best, words = log_probs.topk(1)
        value = apart = best[:, 0]
        token = words[:, 0]
    if value.device.type == "cpu":
        score = value.double().numpy()
        return token.numpy(), score, apart.double().numpy() if margin else score
    host = torch.stack([token.double(), value.double(), apart.double()]).cpu().numpy()
    return host[0].astype(np.int64), host[1], host[2]
