"""Linear maps, layer stacks and the reader of rows by the compiled library (`transformer.cpp`).

float32 on a CPU only. The definition is the torch path of model/transformer/layers.py and
encoder.py.

Shapes: N lines, d features, S sentences, P columns of a panel (depends on the processor).
"""

from __future__ import annotations

import copy
import mmap
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.kernels.library import CData, address, declarations, loaded, new, pointer

EPILOGUES = {"none": 0, "relu": 1, "gelu": 2, "silu": 3}
KIND_OF_BITS = {32: 0, 8: 1, 16: 2}  # by bits of the weights


def panels(weight: Tensor) -> Tensor:
    """Return a tensor (out, ...) as panels (panels, P, ...), padded with zeros; P: the number of
    linear maps."""
    P = loaded().panel_columns()
    missing = -weight.size(0) % P
    return F.pad(weight, (0, 0) * (weight.dim() - 1) + (0, missing)).unflatten(0, (-1, P))


def quantised(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return a weight (out, in) as integers of 8 or 16 bits, and the scale (out,) of each output:
    weight is about integer x scale."""
    scale = (weight.abs().amax(1) / (2 ** (bits - 1) - 1)).clamp_(
        min=torch.finfo(weight.dtype).tiny
    )
    return (weight / scale[:, None]).round_().to(torch.int8 if bits == 8 else torch.int16), scale


def packed_bytes(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers of 8 bits (out, in) in the layout of the dot-product instruction, (panels, in
    / 4, P, 4), and 128 x each output's sum (panels, P)."""
    offset = panels(weight.sum(1, dtype=torch.int32) * 128).contiguous()
    return panels(weight).unflatten(2, (-1, 4)).transpose(1, 2).contiguous(), offset


class PackedLinear:
    """The map x -> x W' + b by the compiled library.

    weight (out, in), bias (out,) or None, both float32; bits: 32, or 16 or 8 to which the weights
    are rounded (8 only if the number of inputs is a multiple of 4).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, bits: int = 32):
        out, inputs = weight.shape
        self.inputs, self.outputs, self.bias = (
            inputs,
            out,
            None if bias is None else bias.contiguous(),
        )
        self.scale = self.offset = None
        bits = 32 if bits == 8 and inputs % 4 else bits
        if bits != 32:
            weight, scale = quantised(weight, bits)
            self.scale = panels(scale).contiguous()
        if bits == 8:
            self.weight, self.offset = packed_bytes(weight)
        else:
            self.weight = panels(weight).transpose(1, 2).contiguous()  # (panels, in, P)
        self.weight = in_large_pages(self.weight)
        typed = (
            (self.weight, {32: torch.float32, 16: torch.int16, 8: torch.int8}[bits]),
            (self.bias, torch.float32),
            (self.scale, torch.float32),
            (self.offset, torch.int32),
        )
        pointers = [address(part, dtype) for part, dtype in typed]
        self.struct = new("Linear", *pointers, inputs, out, KIND_OF_BITS[bits])

    def select_outputs(self, outputs: Tensor) -> PackedLinear:
        """Return the map of these outputs (m,); of 32 or 8 bits, as this one is."""
        m, part = outputs.numel(), copy.copy(self)
        part.outputs, part.bias = m, None if self.bias is None else self.bias[outputs]
        P = self.weight.size(2)
        part.weight = self.weight.new_empty(-(-m // P), *self.weight.shape[1:])
        for name in ("scale", "offset"):
            if (value := getattr(self, name)) is not None:
                setattr(part, name, value.new_empty(part.weight.size(0), P))
        pointers = map(pointer, (part.weight, part.bias, part.scale, part.offset))
        part.struct = new("Linear", *pointers, self.inputs, m, self.struct.kind)
        if m:
            at = address(outputs, torch.long, m)
            loaded().outputs_of_linear(self.struct, at, part.struct)
        return part

    def __call__(self, x: Tensor, after: str = "none") -> Tensor:
        """Return the map (N, out) of x (N, in); after: none, relu, gelu or silu."""
        x = x.contiguous()
        lines = x.size(0)
        at = address(x, torch.float32, lines, self.inputs)
        y = x.new_empty(lines, self.outputs)
        loaded().linear(self.struct, at, lines, pointer(y), EPILOGUES[after])
        return y


class Norm(Protocol):
    """Layer normalisation (model/transformer/weights.py)."""

    arguments: tuple  # shape, weight, bias, eps


def norm_fields(norm: Norm | None) -> tuple[CData, CData, float]:
    """Return the fields of a norm (model/transformer/weights.py, Norm, or None)."""
    _, weight, bias, eps = norm.arguments if norm else (None, None, None, 0.0)
    return address(weight, torch.float32), address(bias, torch.float32), eps


class CompiledNorm:
    """Layer normalisation over the last dimension by the compiled library, whose rounding does not
    depend on the number of lines. norm: model/transformer/weights.py, Norm, in float32 on a CPU."""

    def __init__(self, norm: Norm):
        self.arguments = norm.arguments  # the structure points to these
        self.struct = new("Norm", *norm_fields(norm))

    def __call__(self, x: Tensor) -> Tensor:
        """Return the normalisation (N, d) of x (N, d)."""
        x = x.contiguous()
        at = address(x, torch.float32, None, *self.arguments[0])
        y = torch.empty_like(x)
        loaded().layer_norm(self.struct, at, *x.shape, pointer(y))
        return y


@dataclass
class LayerStack:
    """All layers of an encoder or decoder as one compiled call."""

    struct: CData
    keepalive: tuple  # objects that the structures point to

    @staticmethod
    def from_layers(
        layers: Sequence[Any], d: int, heads: int, pre_norm: bool, final_norm: Norm | None
    ) -> LayerStack:
        """Return layers (model/transformer/weights.py, EncoderLayer or DecoderLayer) as one call;
        their weights are packed."""
        table = declarations().new("Layer[]", len(layers))
        for entry, layer in zip(table, layers, strict=True):
            for name, linear in layer.linears.items():
                setattr(entry, name, linear.pack().struct[0])
            for name, norm in layer.norms.items():
                setattr(entry, name, norm_fields(norm))
            entry.activation = EPILOGUES[layer.activation_name]
        fields = table, len(layers), d, heads, int(pre_norm), norm_fields(final_norm)
        struct = new("LayerStack", *fields)
        return LayerStack(struct, (table, layers, final_norm))

    def encode_(self, x: Tensor, start: Tensor) -> None:
        """Turn embedded tokens x (N, d) of all sentences, without padding, into the encoder's
        output, in place.

        Sentence s has lines start[s] to start[s + 1]; start (S + 1,).
        """
        at = address(x, torch.float32, None, self.struct.d), address(start, torch.long, None)
        loaded().encode(self.struct, *at, start.numel() - 1)

    def decode_(self, x: Tensor, step: Any, cache: Any) -> None:
        """Turn embedded tokens x (n x b, d) into features, in place.

        step: the rows, model/transformer/rows.py, Step; cache: their keys and values,
        model/transformer/cache.py, KeyValues.
        """
        place, slot, mask, source_mask = (
            None if value is None else value.contiguous()
            for value in (step.place, step.slot, step.mask, cache.source_mask)
        )
        struct = new(
            "Step",
            address(x, torch.float32, None, self.struct.d),
            x.size(0) // step.b,
            step.b,
            step.sentences,
            step.width,
            step.positions_before,
            address(place, torch.long),
            address(slot, torch.long),
            address(mask, torch.float32),
            0 if mask is None or mask.size(0) == 1 else mask.stride(0),
            address(source_mask, torch.float32),
            cache_fields(cache.target),
            cache_fields(cache.source),
        )
        loaded().decode(self.struct, struct)

    def decode_lines_(
        self,
        x: Tensor,
        lines: np.ndarray,
        target: Tensor,
        source: Any,
        attention: Tensor | None = None,
    ) -> None:
        """Turn embedded tokens x (N, d), a line each, into features, in place.

        lines (N,): `line_dtype`; target (L, 2, 1, H, P, h): the positions, which all slots share;
        source: the slots, model/transformer/cache.py, KeyValues; attention (N, source positions):
        that of all layers and heads is added to it, and there are no features.
        """
        N = x.size(0)
        struct = new("Step", address(x, torch.float32, len(lines), self.struct.d), N, 1)
        struct.sentences, struct.lines = source.source.size(2), pointer(lines)
        struct.source_mask = address(source.source_mask, torch.float32)
        struct.target, struct.source = cache_fields(target), cache_fields(source.source)
        struct.target.sentence = 0
        if attention is not None:
            struct.attention = address(attention, torch.float32, N, source.source.size(4))
        loaded().decode(self.struct, struct)


def line_dtype() -> np.dtype:
    """Return the type of arrays of the structure `Line`."""
    fields = declarations().typeof("Line").fields  # of 8 bytes each, without gaps
    return np.dtype([(name, np.int64) for name, _ in fields])


def cache_fields(value: Tensor) -> tuple[CData, int, int, int, int, int]:
    """Return the address and strides of keys and values (L, 2, slots, H, positions, h),
    positions and features dense."""
    layer, pair, sentence, head, position, feature = value.stride()
    if (position, feature, value.dtype, value.device.type) != (
        value.size(5),
        1,
        torch.float32,
        "cpu",
    ):
        raise TypeError("compiled code takes a KV cache of dense torch.float32 on a CPU")
    return pointer(value), layer, pair, sentence, head, value.size(4)


class CompiledReader:
    """A fully compiled decoder: layers, linear maps and embeddings.

    step_struct: addresses of the KV cache (`Step`); embedding (V, d); scale: factor of the
    embedding; norm: of embeddings (model/transformer/weights.py, Norm), or None.
    """

    def __init__(
        self,
        layers: LayerStack,
        output: PackedLinear,
        embedding: Tensor,
        scale: float,
        step_struct: CData,
        norm: Norm | None = None,
    ):
        self.step_struct, self.keepalive = step_struct, (layers, output, embedding, norm)
        at = partial(declarations().addressof, step_struct[0])
        self.struct = new(
            "Reader",
            layers=layers.struct,
            step=step_struct,
            output=output.struct,
            block=at("block"),
            positions_before=at("positions_before"),
            embedding=address(embedding, torch.float32, None, layers.struct.d),
            d=embedding.size(1),
            vocabulary=output.outputs,
            scale=scale,
            embedding_norm=norm_fields(norm),
        )

    def widen_(self, w: int) -> None:
        """Allocate memory for blocks of w positions."""
        self.struct.width = w
        self.x, self.logits = (
            torch.empty(w, size, dtype=torch.float32)
            for size in (self.struct.d, self.struct.vocabulary)
        )
        self.struct.x = self.step_struct.x = pointer(self.x)
        self.struct.logits = pointer(self.logits)

    def set_positions_(self, positions: Tensor, room: int) -> None:
        """Set the position embeddings (room or more, d); room: number of positions of the KV
        cache."""
        at = address(positions, torch.float32, None, self.struct.d)
        if positions.size(0) < room:
            raise ValueError(f"{positions.size(0)} position embeddings for {room} positions")
        self.positions = positions
        self.struct.positions, self.struct.room = at, room


class CompiledRows(CompiledReader):
    """A fully compiled reader of the rows of sentences, each in a slot of a KV cache.

    A row has a list of the positions of its history in its slot, so between two calls of the
    compiled library there is no mask, no reordering and no tensor operation. If there is only one
    row, its positions are those of the slot. model/transformer/decoder.py is the definition.

    model: model/transformer/weights.py, Weights, fully compiled; cache: of the rows
    (model/transformer/cache.py, KeyValues), which the reader takes over; is_alone: there is only
    one row.

    Shapes: S slots, G new sentences, L layers, H heads, h features a head.
    """

    def __init__(self, model: Any, cache: Any, is_alone: bool = False):
        self.model, self.cache = model, cache
        output = model.output.packed or model.output.pack()
        step = new("Step", rows=int(is_alone), width=int(is_alone))
        parts = (model.compiled, output, model.embedding, model.scale, step, model.embedding_norm)
        super().__init__(*parts)
        self.update_pointers_()

    @property
    def slots(self) -> int:
        """S: the number of slots."""
        return self.cache.source.size(2)

    def update_pointers_(self) -> None:
        """Write the addresses of the KV cache into the struct of the compiled library."""
        cache, step = self.cache, self.step_struct
        step.target, step.source = cache_fields(cache.target), cache_fields(cache.source)
        step.sentences = self.slots
        step.source_mask = address(cache.source_mask, torch.float32)

    def copy_into_slots_(self, other: Any, slots: Sequence[int]) -> None:
        """Copy sentences (G,) that have just been admitted into free slots (G,); add slots if there
        are too few. other: their KeyValues."""
        more = max(slots) + 1 > self.slots
        width = other.source.size(4)
        if width > self.cache.source.size(4):
            width += width // 2  # longer ones may follow, as where the shortest are first
        self.cache.enlarge_(max(max(slots) + 1, 2 * self.slots) if more else self.slots, width)
        self.cache.copy_sources_(torch.tensor(slots), other)
        self.update_pointers_()

    def reserve_(self, kept: int, w: int) -> None:
        """Keep the first `kept` tokens of the single row, forget later ones, and reserve w
        positions after them."""
        end, model = kept + w, self.model
        if w > self.struct.width:
            self.widen_(max(2 * w, 8))
        if end > self.cache.target.size(4):
            self.enlarge_([0], kept, end)
        if end > model.positions.size(0) and model.grow_positions is not None:
            model.positions = model.grow_positions(2 * end)
        table = model.positions
        if end > table.size(0):  # values after a limited model's last position are not used
            table = F.pad(table, (0, 0, 0, end - table.size(0)))
        self.set_positions_(table.contiguous(), min(self.cache.target.size(4), table.size(0)))

    def reserve_rows_(self, rows: int, length: int) -> bool:
        """Reserve memory for `rows` rows or for targets of `length` tokens, if one of them does not
        fit yet; return whether memory was added.

        Errors: IndexError if the model has no such position.
        """
        model = self.model
        if rows > self.struct.width:
            self.widen_(rows)
            return True
        if length > self.struct.room:
            if length > model.positions.size(0):
                if model.grow_positions is None:
                    raise IndexError(
                        f"target position {length} is beyond the model's {model.positions.size(0)}"
                    )
                model.positions = model.grow_positions(2 * length)
            self.set_positions_(model.positions.contiguous(), model.positions.size(0))
            return True
        return False

    def enlarge_(self, slots: Sequence[int], positions: int, least: int = 0) -> None:
        """Enlarge the cache to twice its positions, or twice `least`, if that is more.

        These slots (G,), in ascending order, become the first ones; `positions` positions of each
        are kept.
        """
        before, slot = self.cache.target, torch.tensor(slots)  # (L, 2, S, H, capacity, h)
        shape = list(before.shape)
        shape[2], shape[4] = len(slots), 2 * max(before.size(4), least)
        target = before.new_empty(shape)
        # (S, H, capacity, h)
        for to, block in zip(target.flatten(0, 1), before.flatten(0, 1), strict=True):
            to[:, :, :positions] = block[:, :, :positions].index_select(0, slot)
        if len(slots) < self.slots:
            self.cache.keep_source_(slot)
        self.cache.target, self.cache.views = target, []
        self.update_pointers_()


# ---- Memory of large pages, for weights that every step reads from start to end
#
# With small pages the processor looks up an address every 4 KiB, and its own prefetching stops
# there.

PAGE, CHUNK, LINE = 2 << 20, 32 << 20, 64  # bytes: a large page, a chunk, alignment


class Chunks:
    """Tensors side by side in chunks, since most weights are smaller than a page. A chunk lives as
    long as one of its tensors, and only the pages that they fill take memory."""

    def __init__(self) -> None:
        self.lock, self.used = threading.Lock(), 0
        self.last: Any = lambda: None  # a weak reference

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a contiguous tensor in large pages, or itself where the system has none."""
        size = tensor.numel() * tensor.element_size()
        if not hasattr(mmap, "MADV_HUGEPAGE") or not size:
            return tensor
        with self.lock:
            chunk = self.last()
            if chunk is None or self.used + size > len(chunk):
                room = max(size + PAGE, CHUNK)
                try:
                    chunk = mmap.mmap(-1, room, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                    chunk.madvise(mmap.MADV_HUGEPAGE)
                except OSError:  # a kernel without large pages, or a limit of address space
                    return tensor
                self.last = weakref.ref(chunk)
                start = torch.frombuffer(chunk, dtype=torch.uint8).data_ptr()
                self.used = -start % PAGE
            at, self.used = self.used, self.used + size + -size % LINE
        made = torch.frombuffer(chunk, dtype=tensor.dtype, count=tensor.numel(), offset=at)
        return made.view(tensor.shape).copy_(tensor)


in_large_pages = Chunks().copy
