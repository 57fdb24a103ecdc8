"""The fast decoder for plain fairseq Transformer decoders, one model or an ensemble.

On a CPU in float32 all layers of a step are one call of a compiled library (kernels/transformer.cpp). layers.py defines it, and
runs everywhere else. Besides the packed linear maps (linear.py), three things make it fast. The source's keys and values are kept once per
sentence, in the layout of attention (key_values.py). So are the target's: all rows of a sentence are the queries of one product with the
sentence's keys (rows.py). And there is little else: some twenty tensor operations a layer, which a GPU launches together
(cuda_graph_step.py).

Shapes: S sentences, n rows, V words.
"""

from __future__ import annotations

import copy
import math

import torch
from fairseq.models.fairseq_model import BaseFairseqModel
from torch import Tensor

from fairseq_ext.kernels.library import give_back_memory
from fairseq_ext.kernels.log_probs import log_softmax_
from fairseq_ext.model.transformer.batch_reader import CompiledBatchReader
from fairseq_ext.model.transformer.cuda_graph_cache import MakeGraphs
from fairseq_ext.model.transformer.encoder import FastEncoder, KeptStates, fast_encoder, is_plain_input, kept_or_made
from fairseq_ext.model.transformer.key_values import KeyValues
from fairseq_ext.model.transformer.one_row import CompiledRowReader, is_compiled_throughout
from fairseq_ext.model.transformer.release import release_
from fairseq_ext.model.transformer.rows import RowGroup
from fairseq_ext.model.transformer.step import read_attention, read_tokens
from fairseq_ext.model.transformer.weights import Weights, read_weights


class TransformerBackend:
    """One or several Transformer models as model/protocol.py asks: a Regroupable and a BlockDecoder."""

    joins = joins_any_step = True  # every row has its own length and mask

    def __init__(
        self,
        models: list[BaseFairseqModel],
        need_attention: bool = False,
        int8: bool = False,
        make_graphs: MakeGraphs | None = None,
    ):
        """int8: linear maps round their weights to 8 bits. make_graphs: what records steps (cuda_graph_cache.py, cuda_graphs)."""
        self.models = models
        self.need_attention = need_attention
        self.int8 = int8
        self.make_graphs = None if need_attention else make_graphs
        self.name = "transformer,int8" if int8 else "transformer"
        self.folds = not need_attention
        self.read_weights()
        self.kept: KeptStates = {}
        self.group: RowGroup | None = None
        self.attentions: list[Tensor] = []  # of the last step, each model's

    def beside(self) -> TransformerBackend:
        other = copy.copy(self)
        other.group, other.folds = None, False
        return other

    def read_weights(self) -> None:
        """Take the weights from the models."""
        self.weights: list[Weights] = [read_weights(model.decoder, self.int8) for model in self.models]
        compiled = any(weights.compiled is not None for weights in self.weights)
        self.graphs = None if self.make_graphs is None or compiled else self.make_graphs(self.weights)
        if compiled:
            give_back_memory()  # of the copies from which weights were packed
        self.encoders: list[FastEncoder | None] = [fast_encoder(model, self.int8) for model in self.models]
        if compiled:
            give_back_memory()

    def follow_weights(self) -> None:
        """Take the weights from the models again where they have changed."""
        if any(part is not None and part.watch.stale() for part in (*self.weights, *self.encoders)):
            self.read_weights()

    def release_(self) -> bool:
        if self.need_attention:
            return False
        return any([release_(*each) for each in zip(self.models, self.weights, self.encoders, strict=True)])

    @property
    def rows(self) -> int:
        return 0 if self.group is None else self.group.rows

    @property
    def width(self) -> int:
        """Rows of every sentence, 0 when the numbers differ."""
        return 1 if self.group is None else self.group.width if self.group.place is None else 0

    @torch.no_grad()
    def admit(self, inputs: dict[str, Tensor]) -> None:
        self.follow_weights()
        encoded = [self.encode(i, inputs) for i in range(len(self.models))]
        models = [KeyValues.of(w, out, self.may_fold(w)) for w, out in zip(self.weights, encoded, strict=True)]
        compiled = all(self.runs_compiled(weights) for weights in self.weights)
        self.group = RowGroup.start(models, self.graphs is not None or compiled, may_share=self.graphs is None and compiled)

    def runs_compiled(self, weights: Weights) -> bool:
        """Return whether this model's layers are one call of the compiled library, which keeps no attention weights."""
        return weights.compiled is not None and not self.need_attention

    def may_fold(self, weights: Weights) -> bool:
        """Return whether attention weights are not asked for, and there are digits to spare for products in another order."""
        if weights.compiled is not None or self.graphs is not None or not self.folds:
            return False
        return weights.embedding.dtype in (torch.float32, torch.float64)

    def encode(self, model: int, inputs: dict[str, Tensor]) -> dict:
        """Return one model's encoder output, as fairseq's encoders give it."""
        encoder = self.encoders[model]
        if encoder is None or not is_plain_input(inputs):
            return self.models[model].encoder.forward_torchscript(inputs)
        return encoder(inputs["src_tokens"]) if not self.kept else kept_or_made(encoder, inputs["src_tokens"], self.kept, model)

    @property
    def live(self) -> RowGroup:
        """The live rows."""
        assert self.group is not None, "no sentence has been admitted"
        return self.group

    def step(self, tokens: Tensor, new: int = 1, length: int | Tensor | None = None) -> list[Tensor]:
        group = self.live
        if length is not None:
            group.truncate_(length)
        out, self.attentions = read_tokens(self.weights, group, tokens[:, -new:], self.need_attention, self.graphs)
        return out if new == 1 else [x.view(group.rows, new, -1) for x in out]

    def source_attention(self, tokens: Tensor) -> Tensor:
        return read_attention(self.weights, self.live, tokens)

    def truncate(self, length: int | Tensor) -> None:
        """Forget what each row has read beyond its first length (n,) tokens."""
        self.live.truncate_(length)

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

    def row_reader(self) -> CompiledRowReader | None:
        """Return a quicker way to read the only row, where all is compiled; the group is the reader's from then on."""
        return None if self.need_attention else CompiledRowReader.of(self.weights, self.live)

    @property
    def is_compiled(self) -> bool:
        """Whether `batch_reader` can read sentences."""
        self.follow_weights()
        return not self.need_attention and is_compiled_throughout(self.weights)

    def batch_reader(self, positions: int) -> CompiledBatchReader:
        """Return a quicker way to read the sentences, where all is compiled; the group is the reader's from then on."""
        return CompiledBatchReader.of(self.weights, self.live, positions)

    def select(self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor) -> None:
        self.live.select_(row, sentence, width, sentence_of_row)

    def set_aside(self) -> RowGroup:
        group, self.group = self.live, None
        return group

    def resume(self, group: RowGroup) -> None:
        self.group = group

    def join(self, group: RowGroup) -> None:
        self.group = RowGroup.join(self.live, group)

    def part(self, row: Tensor, sentence: Tensor, width: int, sentence_of_row: Tensor) -> RowGroup:
        group = self.live.copy()
        group.select_(row, sentence, width, sentence_of_row)
        return group

    def attention(self) -> Tensor | None:
        return torch.stack(self.attentions).mean(0) if self.need_attention else None
