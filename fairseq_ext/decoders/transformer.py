"""The fast decoder for plain fairseq Transformer decoders, one model or an ensemble: the same interface as `fairseq.py`.

Three things make it fast besides its products (transformer_weights.py). The source's keys and values are kept once per
sentence, in the layout of attention, and a sentence's rows are the queries of one product. The same holds for the target side:
every sentence has one store of cells, a cell being one token that some row has read, and a mask says which cells are a row's
own history. So reordering the beam moves a mask, never keys and values. And cells that belong to no row any more are
squeezed out now and then, when the store is full or sentences leave.

Shapes: S sentences, n rows, W places for rows in each sentence's part of the store (its width), C cells in use, b new tokens a
row, d features, H heads, h = d / H, L layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from fairseq.models.fairseq_model import BaseFairseqModel
from torch import Tensor

from fairseq_ext.decoders.transformer_encoder import FastEncoder, fast_encoder, is_plain_input
from fairseq_ext.decoders.transformer_weights import Layer, Weights, attend, read
from fairseq_ext.search.beam import Pool

ROOM = 32  # cells that a store is given beyond those in use, at least
ROOM_STEPS = 6  # the same in steps of all its rows


@dataclass
class Memory:
    """What one model remembers of its sentences."""

    own: Tensor  # (L, 2, S, H, capacity, h) keys and values of the target cells
    source: Tensor  # (L, 2, S, H, source width, h) keys and values of the source
    source_mask: Tensor | None  # (S, 1, 1, source width) 0, or -inf at padding; None when there is none
    views: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)

    def layers(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Per layer: own keys and values together (2, S, H, capacity, h) and apart, source keys, source values (S, H, ., h)."""
        if not self.views:
            self.views = [(own, own[0], own[1], source[0], source[1]) for own, source in zip(self.own, self.source, strict=True)]
        return self.views

    def keep_(self, sentence: Tensor) -> None:
        """Leave only these sentences' source (S',)."""
        self.source = rows_of_block(self.source, sentence)
        if self.source_mask is not None:
            self.source_mask = self.source_mask.index_select(0, sentence)
        self.views = []

    def squeeze_(self, sentence: Tensor, cell: Tensor, capacity: int) -> None:
        """Sentence i's cells become cells cell[i] (S', C') of sentence[i] (S',), in a store with this capacity."""
        layers, two, before, heads, old, h = self.own.shape
        block = torch.arange(layers * two, device=cell.device)[:, None, None] * before + sentence[:, None]  # (2L, S', 1)
        block = block[:, :, None] * heads + torch.arange(heads, device=cell.device)[:, None]  # (2L, S', H, 1)
        index = block * old + cell[:, None, :]  # (2L, S', H, C')
        kept = self.own.view(-1, h).index_select(0, index.flatten()).view(layers, two, *cell.shape[:1], heads, -1, h)
        self.own = kept.new_empty(layers, two, cell.size(0), heads, capacity, h)
        self.own[..., : cell.size(1), :] = kept
        self.views = []


def rows_of_block(block: Tensor, sentence: Tensor) -> Tensor:
    """(L, 2, S, ...) -> (L, 2, S', ...)"""
    layers, two, before = block.shape[:3]
    index = torch.arange(layers * two, device=sentence.device)[:, None] * before + sentence
    flat = block.reshape(layers * two * before, -1).index_select(0, index.flatten())
    return flat.view(layers, two, -1, *block.shape[3:])


@dataclass
class State:
    """A group of rows: bookkeeping that all models share, and each model's memory."""

    sentences: int
    rows: int
    width: int  # W: places of each sentence
    place: Tensor | None  # (n,) place of each row among S x W; None when rows fill all places in order
    cells: int  # C: cells in use, the same number in every sentence
    mask: Tensor | None  # (S, W, C) 0 where a cell is in a row's history, else -inf; None when all cells are in all histories
    length: int | Tensor  # tokens in each row's history, (n,) when they differ
    longest: int  # no row's history is longer
    memories: list[Memory]

    def sentence_of_row(self) -> Tensor:
        """(n,)"""
        device = self.memories[0].own.device
        place = torch.arange(self.rows, device=device) if self.place is None else self.place
        return place // self.width

    def lengths(self) -> Tensor:
        """(n,)"""
        if isinstance(self.length, Tensor):
            return self.length
        return torch.full((self.rows,), self.length, device=self.memories[0].own.device)

    def full_mask(self) -> Tensor:
        """The mask (S, W, C), also where it is left out."""
        if self.mask is not None:
            return self.mask
        return self.memories[0].own.new_zeros(self.sentences, self.width, self.cells)

    def at_places(self, value: Tensor, fill: float) -> Tensor:
        """Row values (n, ...) -> (S x W, ...), filled up where no row is."""
        if self.place is None:
            return value
        out = value.new_full((self.sentences * self.width, *value.shape[1:]), fill)
        out[self.place] = value
        return out

    def row_of_place(self) -> Tensor | None:
        """(S x W,) a row for every place, any row where there is none; None when rows fill all places in order."""
        return None if self.place is None else self.at_places(torch.arange(self.rows, device=self.place.device), 0)

    def truncate_(self, length: int | Tensor) -> None:
        """Forget what each row has read beyond its first length (n,) tokens."""
        if self.mask is None and isinstance(length, int) and isinstance(self.length, int):
            self.cells = self.longest = self.length = min(length, self.length)  # here cells are positions
            return
        lengths = self.lengths()
        lengths = torch.minimum(lengths, torch.as_tensor(length, device=lengths.device))
        mask = self.full_mask()
        # a row's cells lie in the order of its tokens
        beyond = mask.eq(0).cumsum(2) > self.at_places(lengths, 0).view(self.sentences, self.width, 1)
        mask = mask.masked_fill(beyond, -torch.inf)
        if mask.device.type == "cpu":  # where asking costs nothing: cells at the end that are no row's are used again
            used = mask.eq(0).any(1).any(0).nonzero()
            self.cells = int(used[-1]) + 1 if used.numel() else 0
            self.longest = int(lengths.max())
            mask = mask[:, :, : self.cells]
        self.mask, self.length = mask, lengths

    def select_(self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor) -> None:
        """Row i becomes what row[i] was; see search/plugs.py, Decoder."""
        before = row if self.place is None else self.place[row]  # (n',) place of each new row's past
        kept = self.sentences if sentence is None else sentence.numel()
        trivial = self.mask is None and self.width == 1 and width == 1
        histories = None if trivial else self.full_mask().view(self.sentences * self.width, self.cells).index_select(0, before)
        if isinstance(self.length, Tensor):
            self.length = self.length[row]
        self.rows, self.sentences, self.width, self.place = row.numel(), kept, width, None
        if width == 0:
            first = torch.searchsorted(sentence_of_row, torch.arange(kept, device=row.device))
            rank = torch.arange(self.rows, device=row.device) - first[sentence_of_row]
            self.width = int(rank.max()) + 1
            self.place = sentence_of_row * self.width + rank
        self.mask = None
        if histories is not None:
            self.mask = self.at_places(histories, -torch.inf).view(kept, self.width, self.cells)
        if sentence is not None:
            for memory in self.memories:
                memory.keep_(sentence)
            self.squeeze_(sentence)

    def squeeze_(self, sentence: Tensor | None, new: int = 0) -> None:
        """Drop the cells that are in no row's history, and make room for new ones. sentence (S,): where the sentences lie in the
        store, None for in place."""
        device = self.memories[0].own.device
        if sentence is None:
            sentence = torch.arange(self.sentences, device=device)
        if self.mask is None:
            cell = torch.arange(self.cells, device=device).expand(self.sentences, -1)
        else:
            used = self.mask.eq(0).any(1)  # (S, C)
            self.cells = int(used.sum(1).max())
            cell = used.byte().argsort(dim=1, descending=True, stable=True)[:, : self.cells]
            self.mask = self.mask.gather(2, cell[:, None].expand(-1, self.width, -1))
        capacity = self.cells + max(ROOM, new, ROOM_STEPS * self.width)
        for memory in self.memories:
            memory.squeeze_(sentence, cell, capacity)

    def append_(self, b: int) -> Tensor | None:
        """Take b new cells for every place; return the mask (S or 1, 1, W x b, C) under which the new tokens attend."""
        if self.cells + self.width * b > self.memories[0].own.size(4):
            self.squeeze_(None, 2 * self.width * b)
        C, W, S = self.cells, self.width, self.sentences
        like = self.memories[0].own
        self.cells = C + W * b
        if isinstance(self.length, int):
            self.length += b
        else:
            self.length = self.length + b
        self.longest += b
        if self.mask is None and W == 1:
            if b == 1:
                return None
            causal = like.new_full((b, b), -torch.inf).triu_(1)
            return torch.cat([like.new_zeros(b, C), causal], dim=1)[None, None]
        fresh = own_cells(W, b, like)  # (W, b, W x b)
        if b == 1:
            self.mask = torch.cat([self.full_mask(), fresh.view(1, W, W).expand(S, -1, -1)], dim=2)
            return self.mask[:, None]
        past = self.full_mask()[:, :, None].expand(-1, -1, b, -1)
        mask = torch.cat([past, fresh.expand(S, -1, -1, -1)], dim=3)  # (S, W, b, C)
        self.mask = mask[:, :, -1]
        return mask.view(S, 1, W * b, self.cells)

    @staticmethod
    def merge(a: State, b: State) -> State:
        """Both groups' rows as one, a's first."""
        for state in (a, b):
            state.squeeze_(None)
        width, cells = max(a.width, b.width), max(a.cells, b.cells)
        uniform = a.place is None and b.place is None and a.width == b.width
        place = None
        if not uniform:
            places = []
            for state, offset in ((a, 0), (b, a.sentences)):
                sentence = state.sentence_of_row()
                rank = (torch.arange(state.rows, device=sentence.device) if state.place is None else state.place) % state.width
                places.append((sentence + offset) * width + rank)
            place = torch.cat(places)
        plain = a.mask is None and b.mask is None and width == 1 and a.cells == b.cells
        masks = [F.pad(s.full_mask(), (0, cells - s.cells, 0, width - s.width), value=-torch.inf) for s in (a, b)]
        same_length = isinstance(a.length, int) and isinstance(b.length, int) and a.length == b.length
        return State(
            sentences=a.sentences + b.sentences,
            rows=a.rows + b.rows,
            width=width,
            place=place,
            cells=cells,
            mask=None if plain else torch.cat(masks),
            length=a.length if same_length else torch.cat([a.lengths(), b.lengths()]),
            longest=max(a.longest, b.longest),
            memories=[merged(x, y, a.cells, b.cells) for x, y in zip(a.memories, b.memories, strict=True)],
        )


def own_cells(W: int, b: int, like: Tensor) -> Tensor:
    """(W, b, W x b) the new cells that each new token sees: its own row's, up to itself."""
    out = like.new_full((W, b, W, b), -torch.inf)
    rows = torch.arange(W, device=like.device)
    out[rows, :, rows] = like.new_full((b, b), -torch.inf).triu_(1)
    return out.view(W, b, W * b)


def merged(a: Memory, b: Memory, cells_a: int, cells_b: int) -> Memory:
    """Two memories as one."""
    cells, width = max(cells_a, cells_b), max(a.source.size(4), b.source.size(4))
    own = [F.pad(m.own[..., :used, :], (0, 0, 0, cells - used)) for m, used in ((a, cells_a), (b, cells_b))]
    source = [F.pad(m.source, (0, 0, 0, width - m.source.size(4))) for m in (a, b)]
    mask = None
    if a.source_mask is not None or b.source_mask is not None or a.source.size(4) != b.source.size(4):
        masks = [m.source.new_zeros(m.source.size(2), 1, 1, m.source.size(4)) if m.source_mask is None else m.source_mask for m in (a, b)]
        mask = torch.cat([F.pad(m, (0, width - m.size(3)), value=-torch.inf) for m in masks])
    return Memory(torch.cat(own, dim=2), torch.cat(source, dim=2), mask)


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """The weights of `attend` averaged over heads: (S, Q, C)."""
    score = query @ key.transpose(2, 3)
    score = score if mask is None else score + mask
    return score.softmax(-1, dtype=torch.promote_types(score.dtype, torch.float32)).to(score.dtype).mean(1)


class TransformerBackend:
    """The loop's view of one or several Transformer models (see search/plugs.py, Decoder)."""

    name = "transformer"

    def __init__(self, models: list[BaseFairseqModel], need_attention: bool = False):
        self.models = models
        self.read()
        self.need_attention = need_attention
        self.state: State | None = None
        self.weights_of_step: list[Tensor] = []  # attention of the last step, each model's

    def read(self) -> None:
        """Take the weights from the models."""
        self.weights: list[Weights] = [read(model.decoder) for model in self.models]
        self.encoders: list[FastEncoder | None] = [fast_encoder(model) for model in self.models]

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
        inputs = {name: value for name, value in pool.net_input.items() if name != "prev_output_tokens"}
        if sentences != list(range(len(pool))):
            index = torch.tensor(sentences, device=pool.length.device)
            inputs = {name: value[index] if isinstance(value, Tensor) else value for name, value in inputs.items()}
        if any(part is not None and part.watch.stale() for part in (*self.weights, *self.encoders)):
            self.read()
        encoded = [self.encode_one(i, inputs) for i in range(len(self.models))]
        return first_state([remember(w, out) for w, out in zip(self.weights, encoded, strict=True)])

    def encode_one(self, model: int, inputs: dict[str, Tensor]) -> dict:
        """One model's encoder output, as fairseq's encoders give it."""
        encoder = self.encoders[model]
        if encoder is None or not is_plain_input(inputs):
            return self.models[model].encoder.forward_torchscript(inputs)
        return encoder(inputs["src_tokens"])

    @torch.no_grad()
    def step(self, tokens: Tensor, new: int = 1, length: int | Tensor | None = None) -> list[Tensor]:
        """Read the last `new` of tokens (n, T) in every row; return each model's features, (n, d), or (n, new, d) when new > 1.

        length (n,): verified tokens of each row, when rows stand at different lengths; what was read beyond is forgotten.
        """
        state = self.state
        assert state is not None, "no sentence has been admitted"
        if length is not None:
            state.truncate_(length)
        position = state.length
        mask = state.append_(new)
        ids = tokens[:, -new:].reshape(-1)  # (n x b,)
        self.weights_of_step = []
        out = [self.features(w, m, state, ids, new, position, mask) for w, m in zip(self.weights, state.memories, strict=True)]
        return out if new == 1 else [x.view(state.rows, new, -1) for x in out]

    def truncate(self, length: int | Tensor) -> None:
        """Forget what each row has read beyond its first length (n,) tokens."""
        assert self.state is not None, "no sentence has been admitted"
        self.state.truncate_(length)

    def features(
        self, weights: Weights, memory: Memory, state: State, ids: Tensor, b: int, position: int | Tensor, mask: Tensor | None
    ) -> Tensor:
        """(n x b, features)"""
        x = embed(weights, ids, b, position, state.longest)
        fill, place = state.row_of_place(), state.place
        shape = (state.sentences, state.width * b)
        cells = (state.cells - state.width * b, state.width * b)
        pre = weights.pre_norm
        for layer, views in zip(weights.layers, memory.layers(), strict=True):
            y = layer.self_norm(x) if pre else x
            y = at_rows(self_attention(layer, views, at_rows(layer.self_in(y), fill, b), shape, weights.heads, cells, mask), place, b)
            x = layer.self_out(y).add_(x)
            x = x if pre else layer.self_norm(x)
            y = layer.cross_norm(x) if pre else x
            query = at_rows(layer.cross_query(y), fill, b).view(*shape, weights.heads, -1).transpose(1, 2)
            y = at_rows(attend(query, views[3], views[4], memory.source_mask), place, b)
            x = layer.cross_out(y).add_(x)
            x = x if pre else layer.cross_norm(x)
            y = layer.ffn_norm(x) if pre else x
            y = layer.ffn_in.relu(y) if layer.activation is None else layer.activation(layer.ffn_in(y))
            x = layer.ffn_out(y).add_(x)
            x = x if pre else layer.ffn_norm(x)
        if self.need_attention:
            seen = attention_weights(query[:, :, b - 1 :: b], views[3], memory.source_mask).flatten(0, 1)  # (S x W, source)
            self.weights_of_step.append(at_rows(seen, place, 1))
        if weights.final_norm is not None:
            x = weights.final_norm(x)
        return x if weights.project_out is None else weights.project_out(x)

    @torch.no_grad()
    def log_probs(self, features: list[Tensor], temperature: float) -> Tensor:
        scores = []
        for weights, x in zip(self.weights, features, strict=True):
            logits = weights.output(x)
            if temperature != 1.0:
                logits = logits.div_(temperature)
            scores.append(torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32)))
        if len(scores) == 1:
            return scores[0]
        return torch.logsumexp(torch.stack(scores), dim=0) - math.log(len(scores))

    def output_weight(self) -> list[tuple[Tensor, Tensor | None]]:
        """Each model's output layer: weight (V, features), bias (V,) or None."""
        return [(weights.output.weight, weights.output.bias) for weights in self.weights]

    @torch.no_grad()
    def select(self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor) -> None:
        """See search/plugs.py. width: rows of every sentence, 0 when they differ."""
        assert self.state is not None, "no sentence has been admitted"
        self.state.select_(row, sentence, width, sentence_of_row)

    def attention(self) -> Tensor | None:
        if not self.need_attention:
            return None
        return torch.stack(self.weights_of_step).mean(0)


def first_state(memories: list[Memory]) -> State:
    """One row a sentence, nothing read yet."""
    sentences = memories[0].source.size(2)
    return State(sentences, sentences, 1, None, 0, None, 0, 0, memories)


def remember(weights: Weights, encoded: dict) -> Memory:
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
    return Memory(own, out, mask)


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
            where = weights.positions.index_select(0, index.flatten())
        x = torch.add(where, x, alpha=1.0 if weights.project_in is not None else weights.scale)
    elif weights.project_in is None:
        x = x * weights.scale
    return x if weights.embedding_norm is None else weights.embedding_norm(x)


def at_rows(value: Tensor, index: Tensor | None, b: int) -> Tensor:
    """Blocks of b lines (n x b, ...) reordered by index; None: as they are."""
    if index is None:
        return value
    return value.view(-1, b * value.size(1)).index_select(0, index).view(-1, value.size(1))


def self_attention(
    layer: Layer, views: tuple, qkv: Tensor, shape: tuple[int, int], heads: int, cells: tuple[int, int], mask: Tensor | None
) -> Tensor:
    """Write the new cells' keys and values, then attend to all. qkv (S x W x b, 3d); cells: before, new -> (S x W x b, d)."""
    split = qkv.view(*shape, 3, heads, -1).permute(2, 0, 3, 1, 4)  # (3, S, H, W x b, h)
    before, new = cells
    views[0].narrow(3, before, new).copy_(split[1:])
    return attend(split[0], views[1].narrow(2, 0, before + new), views[2].narrow(2, 0, before + new), mask)
