"""The fast decoder for plain fairseq Transformer decoders, one model or an ensemble: the same interface as `fairseq.py`.

On a CPU in float32 all layers of a step are one call of a compiled library (kernels/transformer.cpp); layers.py defines it, and
runs everywhere else. Besides its products (linear.py), three things make it fast. The source's keys and values are kept once per
sentence, in the layout of attention (kv_cache.py). So are the target's: all rows of a sentence are the queries of one
product with the sentence's store (rows.py). And there is little else: some twenty tensor operations a layer, which on
a GPU are launched together (graphs.py).

Shapes: S sentences, n rows, V words.
"""

from __future__ import annotations

import math

import torch
from fairseq.models.fairseq_model import BaseFairseqModel
from torch import Tensor

from fairseq_ext.decoders.transformer.cuda_graph_cache import MakeGraphs
from fairseq_ext.decoders.transformer.encoder import FastEncoder, fast_encoder, is_plain_input
from fairseq_ext.decoders.transformer.kv_cache import remember
from fairseq_ext.decoders.transformer.layers import read_tokens
from fairseq_ext.decoders.transformer.one_row import RowReader
from fairseq_ext.decoders.transformer.rows import State
from fairseq_ext.decoders.transformer.weights import Weights, read
from fairseq_ext.kernels.topk import log_softmax_


class TransformerBackend:
    """The loop's view of one or several Transformer models (see decoders/protocol.py, Decoder)."""

    name = "transformer"
    joins = mixes = True  # every row has its own length and mask

    def __init__(
        self,
        models: list[BaseFairseqModel],
        need_attention: bool = False,
        int8: bool = False,
        make_graphs: MakeGraphs | None = None,
    ):
        """int8: products rounded to 8 bits. make_graphs: where steps are to be recorded (graphs.py, cuda_graphs)."""
        self.models = models
        self.need_attention = need_attention
        self.int8 = int8
        self.make_graphs = None if need_attention else make_graphs
        self.name = "transformer,int8" if int8 else "transformer"
        self.read()
        self.state: State | None = None
        self.attentions: list[Tensor] = []  # of the last step, each model's

    def read(self) -> None:
        """Take the weights from the models."""
        self.weights: list[Weights] = [read(model.decoder, self.int8) for model in self.models]
        compiled = any(weights.compiled is not None for weights in self.weights)
        self.graphs = None if self.make_graphs is None or compiled else self.make_graphs(self.weights)
        self.encoders: list[FastEncoder | None] = [fast_encoder(model, self.int8) for model in self.models]

    @property
    def rows(self) -> int:
        return 0 if self.state is None else self.state.rows

    @property
    def width(self) -> int:
        """Rows of every sentence, 0 when they differ."""
        return 1 if self.state is None else self.state.width if self.state.place is None else 0

    def admit(self, inputs: dict[str, Tensor]) -> None:
        self.state = self.encode(inputs)

    @torch.no_grad()
    def encode(self, inputs: dict[str, Tensor]) -> State:
        """These sentences as a group of rows of their own, one row each."""
        if any(part is not None and part.watch.stale() for part in (*self.weights, *self.encoders)):
            self.read()
        encoded = [self.encode_one(i, inputs) for i in range(len(self.models))]
        memories = [remember(w, out, self.may_fold(w)) for w, out in zip(self.weights, encoded, strict=True)]
        compiled = all(self.runs_compiled(weights) for weights in self.weights)
        return State.start(memories, self.graphs is not None or compiled, may_share=self.graphs is None and compiled)

    def runs_compiled(self, weights: Weights) -> bool:
        """Whether this model's layers are one call of the compiled library, which keeps no attention weights."""
        return weights.compiled is not None and not self.need_attention

    def may_fold(self, weights: Weights) -> bool:
        """Whether attention weights are not asked for, and there are digits to spare for products in another order."""
        if weights.compiled is not None or self.graphs is not None or self.need_attention:
            return False
        return weights.embedding.dtype in (torch.float32, torch.float64)

    def encode_one(self, model: int, inputs: dict[str, Tensor]) -> dict:
        """One model's encoder output, as fairseq's encoders give it."""
        encoder = self.encoders[model]
        if encoder is None or not is_plain_input(inputs):
            return self.models[model].encoder.forward_torchscript(inputs)
        return encoder(inputs["src_tokens"])

    def step(self, tokens: Tensor, new: int = 1, length: int | Tensor | None = None) -> list[Tensor]:
        """Read the last `new` of tokens (n, T) in every row; return each model's features, (n, d), or (n, new, d) when new > 1.

        length (n,): verified tokens of each row, when rows stand at different lengths; what was read beyond is forgotten.
        """
        state = self.state
        assert state is not None, "no sentence has been admitted"
        if length is not None:
            state.truncate_(length)
        out, self.attentions = read_tokens(self.weights, state, tokens[:, -new:], self.need_attention, self.graphs)
        return out if new == 1 else [x.view(state.rows, new, -1) for x in out]

    def truncate(self, length: int | Tensor) -> None:
        """Forget what each row has read beyond its first length (n,) tokens."""
        assert self.state is not None, "no sentence has been admitted"
        self.state.truncate_(length)

    def log_probs(self, features: list[Tensor], temperature: float) -> Tensor:
        scores = []
        for weights, x in zip(self.weights, features, strict=True):
            logits = weights.output(x if x.dim() == 2 else x.flatten(0, 1)).view(*x.shape[:-1], -1)
            if weights.compiled is not None:
                log_softmax_(logits, temperature)
                scores.append(logits)
                continue
            if temperature != 1.0:
                logits = logits.div_(temperature)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            scores.append(torch.log_softmax(logits, dim=-1, out=logits))  # in place: a fresh (n, V) would cost as much again
        if len(scores) == 1:
            return scores[0]
        return torch.logsumexp(torch.stack(scores), dim=0) - math.log(len(scores))

    def row_reader(self, pad: int, eos: int) -> RowReader | None:
        """A quicker way to read the present row, where it is the only one and all is compiled; the state is the reader's from then on."""
        assert self.state is not None, "no sentence has been admitted"
        return None if self.need_attention else RowReader.of(self.weights, self.state, pad, eos)

    def output_weight(self) -> list[tuple[Tensor, Tensor | None]]:
        """Each model's output layer: weight (V, features), bias (V,) or None."""
        return [(weights.output.weight, weights.output.bias) for weights in self.weights]

    def select(self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor) -> None:
        """See decoders/protocol.py. width: rows of every sentence, 0 when they differ."""
        assert self.state is not None, "no sentence has been admitted"
        self.state.select_(row, sentence, width, sentence_of_row)

    def set_aside(self) -> State:
        """Give away the present rows as a group; none are left."""
        assert self.state is not None, "no sentence has been admitted"
        group, self.state = self.state, None
        return group

    def resume(self, group: State) -> None:
        """Go on with a group that was set aside."""
        self.state = group

    def join(self, group: State) -> None:
        """Add a group's rows behind the present ones."""
        assert self.state is not None, "no sentence has been admitted"
        self.state = State.merge(self.state, group)

    def part(self, row: Tensor, sentence: Tensor, width: int, sentence_of_row: Tensor) -> State:
        """A copy of some rows as a group; arguments as in `select`. The present rows stay."""
        assert self.state is not None, "no sentence has been admitted"
        group = self.state.copy()
        group.select_(row, sentence, width, sentence_of_row)
        return group

    def attention(self) -> Tensor | None:
        if not self.need_attention:
            return None
        return torch.stack(self.attentions).mean(0)
