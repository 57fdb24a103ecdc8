"""A fairseq model that shows the attention of each decoder layer, for the searches and the
alignments of placement.py.

`in_step` is the search of

    K. Song, K. Wang, H. Yu, Y. Zhang, Z. Huang, W. Luo, X. Duan and M. Zhang. Alignment-Enhanced
    Transformer for Constraining NMT with Pre-Specified Translations. AAAI 2020.
    https://doi.org/10.1609/aaai.v34i05.6418
    G. Chen, Y. Chen and V. O. K. Li. Lexically Constrained Neural Machine Translation with Explicit
    Alignment Guidance. AAAI 2021. https://doi.org/10.1609/aaai.v35i14.17496

without their training: a hypothesis whose next word would translate a term's span goes on with
the term. The span is being translated where the step that predicts the word gives it LEAST of the
attention, on average over layers and heads.

Shapes: n rows, L target and T source tokens, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import checkpoint_utils
from torch import Tensor

# of the attention; the best of 0.25, 0.4, 0.5 and 0.6 on 80 lines of Multi30k's validation set
LEAST = 0.5


class AttentiveModel:
    """A checkpoint on the CPU, a sentence at a time."""

    def __init__(self, path: str, task: Any):
        models, _ = checkpoint_utils.load_model_ensemble([path], task=task)
        self.model = models[0].eval()
        self.source, self.target = task.source_dictionary, task.target_dictionary
        self.seen: list[Tensor] = []  # attention (n, L, T) of each layer in one call
        for layer in self.model.decoder.layers:
            layer.need_attn = True
            layer.encoder_attn.register_forward_hook(self.keep)

    def keep(self, module: torch.nn.Module, given: Any, out: tuple[Tensor, Tensor]) -> None:
        """Keep a layer's attention; fairseq gives that of the last layer for each
        head (heads, n, L, T)."""
        self.seen.append(out[1].mean(0) if out[1].dim() == 4 else out[1])

    @torch.no_grad()
    def encode(self, source: Sequence[int]) -> Any:
        """A source (tokens, EOS included)."""
        return self.model.encoder(torch.tensor([source]), torch.tensor([len(source)]))

    @torch.no_grad()
    def read(self, source: Sequence[int], target: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Of target tokens, EOS included: log-probabilities (L,), and attention (layers, L, T) in
        the steps that predict them."""
        self.seen.clear()
        inputs = torch.tensor([[self.target.eos(), *target[:-1]]])
        log_probs = self.model.decoder(inputs, encoder_out=self.encode(source))[0].log_softmax(-1)[
            0
        ]
        return log_probs[torch.arange(len(target)), torch.tensor(target)], torch.cat(self.seen)

    def step(self, inputs: Tensor, encoded: Any, state: dict) -> tuple[Tensor, Tensor]:
        """Log-probabilities (n, V) of what follows the inputs (n, L), and the
        mean attention (n, T)."""
        self.seen.clear()
        logits = self.model.decoder(inputs, encoder_out=encoded, incremental_state=state)[0][:, -1]
        return logits.log_softmax(-1), torch.stack([each[:, -1] for each in self.seen]).mean(0)


@dataclass(frozen=True)
class Row:
    """A hypothesis.

    open: numbers of the terms that have not begun; due: tokens that follow; behind_term:
    whether it ends in a term.
    """

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    open: frozenset[int] = frozenset()
    due: tuple[int, ...] = ()
    behind_term: bool = False


@dataclass(frozen=True)
class SpanTerm:
    """A term's target forms in tokens, and the source tokens of its mention."""

    forms: tuple[tuple[int, ...], ...]
    span: tuple[int, ...]


class Words:
    """Which tokens (V,) start a word, and which continue one, by SentencePiece's mark."""

    def __init__(self, symbols: Sequence[str]):
        self.starts = torch.tensor([symbol.startswith("\u2581") for symbol in symbols])
        self.continues = torch.tensor([symbol[0].isalnum() for symbol in symbols])


@torch.no_grad()
def in_step(
    model: AttentiveModel,
    source: Sequence[int],
    terms: Sequence[SpanTerm],
    beam: int,
    words: Words,
    least: float = LEAST,
) -> list[int]:
    """The best hypothesis without EOS, by length-normalised score; a term's tokens cost nothing."""
    eos, pad = model.target.eos(), model.target.pad()
    encoded, state, most = model.encode(source), {}, 2 * len(source) + 50
    rows, finished = [Row(open=frozenset(range(len(terms))))], []
    for length in range(most):
        inputs = torch.tensor([[eos, *row.tokens] for row in rows])
        log_probs, attention = model.step(inputs, encoded, state)
        log_probs[:, pad] = -torch.inf
        if length == most - 1:
            log_probs[:, :eos], log_probs[:, eos + 1 :] = -torch.inf, -torch.inf
        found: list[tuple[int, Row]] = []  # with the row that each continues
        for i, row in enumerate(rows):
            found += [
                (i, each)
                for each in continuations(
                    row, log_probs[i], attention[i], terms, words, beam, least
                )
            ]
        best = sorted(found, key=lambda each: -each[1].score)[: 2 * beam]
        finished += [row for _, row in best[:beam] if row.tokens[-1] == eos]
        kept = [(i, row) for i, row in best if row.tokens[-1] != eos][:beam]
        if len(finished) >= beam or not kept:
            break
        order = torch.tensor([i for i, _ in kept])
        model.model.decoder.reorder_incremental_state_scripting(state, order)
        encoded = model.model.encoder.reorder_encoder_out(encoded, order)
        rows = [row for _, row in kept]
    return list(max(finished, key=lambda row: row.score / len(row.tokens)).tokens[:-1])


def continuations(
    row: Row,
    log_probs: Tensor,
    attention: Tensor,
    terms: Sequence[SpanTerm],
    words: Words,
    beam: int,
    least: float,
) -> list[Row]:
    """What may follow a row: the term that it is in or is about to translate, else its likeliest
    tokens; none that lengthens a term."""
    if row.due:
        first, *due = row.due
        return [Row((*row.tokens, first), row.score, row.open, tuple(due), not due)]
    if row.behind_term:
        log_probs = log_probs.masked_fill(words.continues, -torch.inf)
    if words.starts[log_probs.argmax()]:
        attended = {term: float(attention[list(terms[term].span)].sum()) for term in row.open}
        term = max(attended, key=attended.__getitem__, default=None)
        if term is not None and attended[term] >= least:
            form = max(terms[term].forms, key=lambda form: float(log_probs[form[0]]))
            return [
                Row((*row.tokens, form[0]), row.score, row.open - {term}, form[1:], len(form) == 1)
            ]
    scores, tokens = log_probs.topk(min(2 * beam, len(log_probs)))
    pairs = zip(scores.tolist(), tokens.tolist(), strict=True)
    return [
        Row((*row.tokens, token), row.score + score, row.open)
        for score, token in pairs
        if score > -torch.inf
    ]
