"""The fast decoder for plain fairseq Transformer decoders, one model or an ensemble: the same interface as `fairseq.py`.

On a CPU in float32 all layers of a step are one call of a compiled library (kernels/step.cpp); what follows defines it, and runs
everywhere else. Besides its products (transformer_weights.py), three things make it fast. The source's keys and values are kept once per
sentence, in the layout of attention. So are the target's: all rows of a sentence are the queries of one product with the
sentence's store (transformer_state.py). And there is little else: some twenty tensor operations a layer.

Shapes: S sentences, n rows, W places for rows in each sentence's part of the store (its width), C cells in use, b new tokens a
row, d features, H heads, h = d / H, L layers.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from fairseq.models.fairseq_model import BaseFairseqModel
from torch import Tensor

from fairseq_ext.decoders.transformer_encoder import FastEncoder, fast_encoder, is_plain_input
from fairseq_ext.decoders.transformer_state import ROOM, Folded, Memory, State
from fairseq_ext.decoders.transformer_weights import Layer, Weights, attend, read
from fairseq_ext.kernels.step import log_softmax_
from fairseq_ext.search.pool import Pool


class TransformerBackend:
    """The loop's view of one or several Transformer models (see search/plugs.py, Decoder)."""

    name = "transformer"
    joins = mixes = True  # every row has its own length and mask

    def __init__(self, models: list[BaseFairseqModel], need_attention: bool = False, int8: bool = False):
        self.models = models
        self.need_attention = need_attention
        self.int8 = int8  # products rounded to 8 bits
        self.name = "transformer,int8" if int8 else "transformer"
        self.read()
        self.state: State | None = None
        self.attentions: list[Tensor] = []  # of the last step, each model's

    def read(self) -> None:
        """Take the weights from the models."""
        self.weights: list[Weights] = [read(model.decoder, self.int8) for model in self.models]
        self.encoders: list[FastEncoder | None] = [fast_encoder(model, self.int8) for model in self.models]

    @property
    def rows(self) -> int:
        return 0 if self.state is None else self.state.rows

    @property
    def width(self) -> int:
        """Rows of every sentence, 0 when they differ."""
        return 1 if self.state is None else self.state.width if self.state.place is None else 0

    def admit(self, pool: Pool, sentences: list[int]) -> None:
        self.state = self.encode(pool, sentences)

    @torch.no_grad()
    def encode(self, pool: Pool, sentences: list[int]) -> State:
        """These sentences as a group of rows of their own, one row each."""
        inputs = pool.inputs(sentences)
        if any(part is not None and part.watch.stale() for part in (*self.weights, *self.encoders)):
            self.read()
        encoded = [self.encode_one(i, inputs) for i in range(len(self.models))]
        memories = [remember(w, out, self.may_fold(w)) for w, out in zip(self.weights, encoded, strict=True)]
        return State.start(memories, leaves_gaps=all(self.runs_compiled(weights) for weights in self.weights))

    def runs_compiled(self, weights: Weights) -> bool:
        """Whether this model's layers are one call of the compiled library, which keeps no attention weights."""
        return weights.compiled is not None and not self.need_attention

    def may_fold(self, weights: Weights) -> bool:
        """Whether attention weights are not asked for, and there are digits to spare for products in another order."""
        return weights.compiled is None and not self.need_attention and weights.embedding.dtype in (torch.float32, torch.float64)

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
        out, self.attentions = read_tokens(self.weights, state, tokens[:, -new:], self.need_attention)
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

    def output_weight(self) -> list[tuple[Tensor, Tensor | None]]:
        """Each model's output layer: weight (V, features), bias (V,) or None."""
        return [(weights.output.weight, weights.output.bias) for weights in self.weights]

    def select(self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor) -> None:
        """See search/plugs.py. width: rows of every sentence, 0 when they differ."""
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


def read_tokens(weights: list[Weights], state: State, tokens: Tensor, need_attention: bool = False) -> tuple[list[Tensor], list[Tensor]]:
    """Every row reads its tokens (n, b): each model's features (n x b, features), and its attention (n, source) if needed."""
    b = tokens.size(1)
    position = state.length
    mask = state.append_(b)
    features, attentions = [], []
    for model, memory in zip(weights, state.memories, strict=True):
        x = embed(model, tokens.reshape(-1), b, position, state.longest)
        if model.compiled is not None and not need_attention:
            features.append(decode_compiled(model, memory, state, x, b, mask))
            continue
        x, query = decode(model, memory, state, x, b, mask)
        features.append(x)
        if need_attention:  # the last layer's, of the last token, averaged over heads
            seen = attention_weights(query[:, :, b - 1 :: b], memory.layers()[-1][3], memory.source_mask)
            attentions.append(at_rows(seen.flatten(0, 1), state.place, 1))  # (S x W, source) -> (n, source)
    return features, attentions


def decode_compiled(weights: Weights, memory: Memory, state: State, x: Tensor, b: int, mask: Tensor | None) -> Tensor:
    """What `decode` computes, in one call of the compiled library."""
    assert weights.compiled is not None
    before = state.cells - state.width * b
    stores = (memory.source_mask, memory.own, memory.source)
    weights.compiled.decode_(x, b, state.sentences, state.width, state.place, state.slot, before, mask, *stores)
    return x if weights.project_out is None else weights.project_out(x)


def decode(weights: Weights, memory: Memory, state: State, x: Tensor, b: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """All layers, x (n x b, d) -> features (n x b, features) and the last layer's queries to the source (S, H, W x b, h)."""
    fill, place = state.row_of_place(), state.place
    shape = (state.sentences, state.width * b, weights.heads, -1)  # (S, W x b, H, h)
    before = state.cells - state.width * b
    pre = weights.pre_norm
    query = x
    for i, (layer, (own, own_key, own_value, key, value)) in enumerate(zip(weights.layers, memory.layers(), strict=True)):
        # the new cells' keys and values join the store, then every token attends to its row's history
        y = layer.self_norm(x) if pre else x
        y = at_rows(layer.self_in(y), fill, b)  # (S x W x b, 3d)
        new = y.view(shape[0], shape[1], 3, shape[2], -1).permute(2, 0, 3, 1, 4)  # (3, S, H, W x b, h)
        own.narrow(3, before, shape[1]).copy_(new[1:])
        y = attend(new[0], own_key.narrow(2, 0, state.cells), own_value.narrow(2, 0, state.cells), mask)
        x = layer.self_out(at_rows(y, place, b)).add_(x)
        x = x if pre else layer.self_norm(x)
        # attention to the source
        y = layer.cross_norm(x) if pre else x
        if memory.folded is not None:
            y = memory.folded[i].attend(at_rows(y, fill, b), weights.heads)
            x = at_rows(y, place, b).add_(x)
        else:
            query = at_rows(layer.cross_query(y), fill, b).view(shape).transpose(1, 2)
            y = attend(query, key, value, memory.source_mask)
            x = layer.cross_out(at_rows(y, place, b)).add_(x)
        x = x if pre else layer.cross_norm(x)
        # feed-forward
        y = layer.ffn_norm(x) if pre else x
        y = layer.ffn_in.relu(y) if layer.activation is None else layer.activation(layer.ffn_in(y))
        x = layer.ffn_out(y).add_(x)
        x = x if pre else layer.ffn_norm(x)
    x = x if weights.final_norm is None else weights.final_norm(x)
    return x if weights.project_out is None else weights.project_out(x), query


def remember(weights: Weights, encoded: dict, may_fold: bool = False) -> Memory:
    """Keys and values of the source, from fairseq's encoder output."""
    states = encoded["encoder_out"][0]  # (source, S, e)
    source, S, _ = states.shape
    flat = states.transpose(0, 1).reshape(S * source, -1)  # (S, source, e) -> (S x source, e)
    h = weights.d // weights.heads
    out = flat.new_empty(len(weights.layers), 2, S, weights.heads, source, h)
    for layer, block in zip(weights.layers, out, strict=True):
        block.copy_(layer.cross_source(flat).view(S, source, 2, weights.heads, h).permute(2, 0, 3, 1, 4))
    mask = None
    padding = encoded["encoder_padding_mask"][0] if encoded["encoder_padding_mask"] else None
    if padding is not None and not (padding.device.type == "cpu" and not padding.any()):  # (S, source)
        mask = states.new_zeros(S, 1, 1, source).masked_fill_(padding[:, None, None], -torch.inf)
    own = flat.new_empty(len(weights.layers), 2, S, weights.heads, ROOM, h)
    # with few source tokens, keys and values multiplied by the query and output weights are fewer bytes to read than those weights
    is_small = S * source * (weights.heads - 1) <= weights.d
    folded = None
    if may_fold and is_small:
        folded = [fold(layer, block[0], block[1], mask) for layer, block in zip(weights.layers, out, strict=True)]
    return Memory(own, out, mask, folded)


def fold(layer: Layer, key: Tensor, value: Tensor, mask: Tensor | None) -> Folded:
    """Multiply a layer's query and output weights into the source's keys and values (S, H, source, h)."""
    S, H, source, h = key.shape
    query, out = layer.cross_query, layer.cross_out
    d = query.weight.size(1)
    folded_key = torch.matmul(key, query.weight.view(H, h, d))  # (S, H, source, d)
    bias = key.new_zeros(S, H, source) if query.bias is None else torch.matmul(key, query.bias.view(H, h, 1))[..., 0]
    if mask is not None:
        bias = bias + mask[:, 0]
    folded_value = torch.matmul(value, out.weight.view(d, H, h).permute(1, 2, 0))  # (S, H, source, d)
    if out.bias is not None:
        folded_value += out.bias / H  # the weights of a head sum to one
    return Folded(folded_key.flatten(1, 2).transpose(1, 2).contiguous(), bias.view(S, 1, -1), folded_value.flatten(1, 2))


def embed(weights: Weights, ids: Tensor, b: int, position: int | Tensor, end: int) -> Tensor:
    """Tokens ids (n x b,) that follow position (n,) others -> (n x b, d). end: no position is that high."""
    x = F.embedding(ids, weights.embedding)
    if weights.project_in is not None:
        x = weights.project_in(x * weights.scale)
    if weights.positions is not None:
        if end > weights.positions.size(0) and weights.grow_positions is not None:
            weights.positions = weights.grow_positions(2 * end)
        if isinstance(position, int):
            if position + b > weights.positions.size(0):
                raise IndexError(f"target position {position + b} is beyond the model's {weights.positions.size(0)}")
            where = weights.positions[position : position + b]  # (b, d)
            where = where if b == 1 else where.repeat(ids.numel() // b, 1)
        else:
            index = position[:, None] + torch.arange(b, device=position.device)  # (n, b)
            index.clamp_(max=weights.positions.size(0) - 1)  # behind a row's last position stands what is not used
            where = weights.positions.index_select(0, index.flatten())
        x = torch.add(where, x, alpha=1.0 if weights.project_in is not None else weights.scale)
    elif weights.project_in is None:
        x = x * weights.scale
    return x if weights.embedding_norm is None else weights.embedding_norm(x)


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """The weights of `attend` averaged over heads: (S, Q, C)."""
    score = query @ key.transpose(2, 3)
    score = score if mask is None else score + mask
    return score.softmax(-1, dtype=torch.promote_types(score.dtype, torch.float32)).to(score.dtype).mean(1)


def at_rows(value: Tensor, index: Tensor | None, b: int) -> Tensor:
    """Blocks of b lines (n x b, ...) reordered by index; None: as they are."""
    if index is None:
        return value
    return value.view(-1, b * value.size(1)).index_select(0, index).view(-1, value.size(1))
