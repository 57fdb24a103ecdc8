"""The dependency graph of any hypothesis, a beam's for instance, by Jacobi iterations with the search's own choices given.

Jacobi iteration (Santilli et al. 2023, https://arxiv.org/abs/2305.10427, algorithm 1) reads all positions at once and writes at each the
most likely token after what it has read; its fixed point is the greedy translation. A hypothesis y of a search differs from greedy decoding
at the positions G where the most likely token after y's own beginning is not y's. These are *given*: every iteration writes y there. The
fixed point is y then, and the iterations say what the other tokens of y wait for. For the greedy translation G is empty, and this is Jacobi
decoding from a draft of padding.

Shapes: L target positions, EOS included; V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.errors import UsageError
from fairseq_ext.parallel.rows import Iteration
from fairseq_ext.session.pool_of import pool_of
from fairseq_ext.translator import Translator
from fairseq_ext.viz.graph import Graph

Read = Callable[[Tensor], Tensor]  # target tokens (L,) -> log-probabilities (L, V) of each, after those before it


def graph_of(translator: Translator, source: str, pieces: Sequence[str], name: str = "0") -> Graph:
    """The graph of a hypothesis of a source; translator: one that decodes in blocks (`decoding="jacobi"`); pieces: the tokens, without
    </s>. Errors: UsageError for tokens that the target dictionary lacks, and for more of them than the model takes."""
    target = translator.task.target_dictionary
    unknown = [piece for piece in pieces if target.index(piece) == target.unk() and piece != target.unk_word]
    if unknown:
        raise UsageError(f"the target dictionary lacks the token '{unknown[0]}': give the tokens of an answer")
    tokens = torch.tensor([*(target.index(piece) for piece in pieces), target.eos()])
    src = translator.checked(source, "the source")
    translator.check_length(tokens, "the translation", side=1)
    calls, given = iterations(reader(translator, src), tokens, target.pad())
    symbols, source_symbols = target.__getitem__, translator.task.source_dictionary.__getitem__
    words = [source_symbols(t) for t in src.tolist()[:-1]]
    graph = Graph.build(name, words, [symbols(t) for t in tokens.tolist()], "jacobi", calls, symbols, translator.decode)
    graph.given = given
    return graph


def reader(translator: Translator, src: Tensor) -> Read:
    """What reads target tokens behind a source (S,), by the decoder of a translator that decodes in blocks; padding has no probability."""
    decoder, pad = translator.generator.decoder, translator.task.target_dictionary.pad()
    pool = pool_of(translator, [src], [None])
    with torch.no_grad():
        decoder.admit(pool.inputs([0]))

    @torch.no_grad()
    def read(tokens: Tensor) -> Tensor:
        before = torch.cat([tokens.new_tensor([pool.bos]), tokens[:-1]])[None].to(pool.length.device)
        features = decoder.step(before, len(tokens), 0)
        out = decoder.log_probs([x.reshape(len(tokens), -1) for x in features], 1.0).cpu()  # (1, L, d) -> (L, V)
        out[:, pad] = -math.inf
        return out

    return read


def iterations(read: Read, tokens: Tensor, pad: int) -> tuple[list[Iteration], list[int]]:
    """The iterations that lead to these tokens (L,), and the positions that are given."""
    L = len(tokens)
    given = read(tokens).argmax(1) != tokens
    block = torch.full((L,), pad)
    calls: list[Iteration] = []
    while len(calls) < L:  # each makes one more position final, at least
        right = int((block == tokens).long().cumprod(0).sum())  # (L,) -> length of the right beginning that is read
        scores = read(block)
        out = torch.where(given, tokens, scores.argmax(1))
        score = scores.gather(1, out[:, None])[:, 0]
        verified = min(L, right + 1)
        calls.append(Iteration(0, 0, block[:-1].numpy(), out.numpy(), score.numpy().astype(np.float64), verified))
        if verified == L:
            break
        block = out
    return calls, given.nonzero()[:, 0].tolist()
