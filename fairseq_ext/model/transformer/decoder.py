"""The fast decoder for plain fairseq Transformers: its rows, its steps, and the release of weights.

It runs one model or an ensemble. On a CPU in float32 all layers of a step are one call of a
compiled library (kernels/transformer.cpp). layers.py is its definition, and runs in all other
cases. The decoder is fast for four reasons. Linear maps are packed (weights.py). The source's keys
and values are kept once per sentence, in the layout of attention (cache.py). The target's are too:
all rows of a sentence are the queries of one product with the sentence's keys (rows.py). And a
layer has only some twenty tensor operations, which a GPU launches together (cuda_graph.py).

Shapes: S sentences, n rows, V words.
"""

from __future__ import annotations

import copy
import math

import torch
from fairseq.models.fairseq_model import BaseFairseqModel
from torch import Tensor, nn

from fairseq_ext.kernels.library import give_back_memory
from fairseq_ext.kernels.log_probs import log_softmax_
from fairseq_ext.kernels.transformer import CompiledRows, PackedLinear
from fairseq_ext.model.transformer.cache import KeyValues, KVCache
from fairseq_ext.model.transformer.cuda_graph import CudaGraphCache, MakeGraphs
from fairseq_ext.model.transformer.encoder import (
    FastEncoder,
    SourceCache,
    cached_key_values,
    fast_encoder,
    is_plain_input,
)
from fairseq_ext.model.transformer.layers import (
    attention_weights,
    decode,
    embed,
    reserve_positions,
)
from fairseq_ext.model.transformer.lines import LineReader
from fairseq_ext.model.transformer.rows import RowGroup, Step
from fairseq_ext.model.transformer.weights import Linear, SmallParameters, Weights, read_weights


class TransformerBackend:
    """One or several Transformer models as a Decoder (model/protocol.py)."""

    joins = joins_any_step = True  # every row has its own length and mask

    def __init__(
        self,
        models: list[BaseFairseqModel],
        int8: bool = False,
        make_graphs: MakeGraphs | None = None,
    ):
        """int8: linear maps round their weights to 8 bits.

        make_graphs: makes the cache of recorded steps (cuda_graph.py, cuda_graphs).
        """
        self.models, self.int8, self.make_graphs = models, int8, make_graphs
        self.name = "transformer,int8" if int8 else "transformer"
        self.read_weights()
        self.source_cache: SourceCache = {}
        self.group: RowGroup | None = None

    def attending_copy(self) -> TransformerBackend:
        other = copy.copy(self)
        other.group = None
        return other

    def read_weights(self) -> None:
        """Read the weights from the models."""
        self.weights: list[Weights] = [
            read_weights(model.decoder, self.int8) for model in self.models
        ]
        compiled = any(weights.compiled is not None for weights in self.weights)
        self.graphs = (
            None if self.make_graphs is None or compiled else self.make_graphs(self.weights)
        )
        if compiled:
            give_back_memory()  # of the copies that were packed
        self.encoders: list[FastEncoder | None] = [
            fast_encoder(model, self.int8) for model in self.models
        ]
        if compiled:
            give_back_memory()
        fast = (
            model.encoder
            for model, encoder in zip(self.models, self.encoders, strict=True)
            if encoder is not None
        )
        self.small = SmallParameters([*fast, *(model.decoder for model in self.models)])

    def follow_weights(self) -> None:
        """Read the weights from the models again if they have changed."""
        if is_stale(self.small):
            self.read_weights()

    def release_(self) -> bool:
        return any(
            [release_(*each) for each in zip(self.models, self.weights, self.encoders, strict=True)]
        )

    @torch.no_grad()
    def admit(self, inputs: dict[str, Tensor]) -> None:
        self.follow_weights()
        models = [self.read_source(i, inputs) for i in range(len(self.models))]
        compiled = all(weights.compiled is not None for weights in self.weights)
        allows_gaps = self.graphs is not None or compiled
        cache = KVCache(models, models[0].source.size(2), 0, allows_gaps)
        self.group = RowGroup(cache, cache.sentences)

    def read_source(self, model: int, inputs: dict[str, Tensor]) -> KeyValues:
        """Return one model's keys and values of sources."""
        encoder, weights = self.encoders[model], self.weights[model]
        is_plain = is_plain_input(inputs)

        def encoded() -> KeyValues:
            out = (
                encoder(inputs["src_tokens"])
                if encoder is not None and is_plain
                else self.models[model].encoder.forward_torchscript(inputs)
            )
            return KeyValues.from_encoder_output(weights, out)

        if encoder is None or not is_plain or not self.source_cache:
            return encoded()
        tokens = inputs["src_tokens"]
        is_word = tokens.ne(encoder.pad)
        return cached_key_values(tokens, is_word, self.source_cache, model, encoded)

    @property
    def live(self) -> RowGroup:
        """The live rows."""
        assert self.group is not None, "no sentence has been admitted"
        return self.group

    def step(
        self, tokens: Tensor, new: int = 1, length: int | Tensor | None = None
    ) -> list[Tensor]:
        group = self.live
        if length is not None:
            group.truncate_(length)
        out = read_tokens(self.weights, group, tokens[:, -new:], self.graphs)
        return out if new == 1 else [x.view(group.rows, new, -1) for x in out]

    def source_attention(self, tokens: Tensor) -> Tensor:
        return read_attention(self.weights, self.live, tokens)

    def line_reader(self) -> LineReader | None:
        if any(weights.compiled is None for weights in self.weights):
            return None
        return LineReader(self.weights, self.live.cache.models)

    def log_probs(self, features: list[Tensor], temperature: float) -> Tensor:
        scores = []
        for weights, x in zip(self.weights, features, strict=True):
            logits = weights.output(x if x.dim() == 2 else x.flatten(0, 1)).view(*x.shape[:-1], -1)
            if weights.compiled is not None:
                log_softmax_(logits, temperature)
                scores.append(logits)
                continue
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            if temperature != 1.0:
                logits = logits.div_(temperature)
            # in place: allocating a new (n, V) tensor would double the time
            scores.append(torch.log_softmax(logits, dim=-1, out=logits))
        if len(scores) == 1:
            return scores[0]
        return torch.logsumexp(torch.stack(scores), dim=0) - math.log(len(scores))

    @property
    def compiled_output(self) -> PackedLinear | None:
        output = self.weights[0].output
        return (output.packed or output.pack()) if is_compiled_throughout(self.weights) else None

    def row_reader(self) -> CompiledRows | None:
        """Return a compiled reader of the single live row, which takes over the group; None if not
        everything is compiled."""
        group, cache = self.live, self.live.cache
        is_alone = group.rows == 1 and not cache.positions and cache.slot is None
        if not is_alone or not is_compiled_throughout(self.weights):
            return None
        return CompiledRows(self.weights[0], cache.models[0], is_alone=True)

    @property
    def is_compiled(self) -> bool:
        """Whether `batch_reader` can read sentences."""
        self.follow_weights()
        return is_compiled_throughout(self.weights)

    def batch_reader(self, positions: int) -> CompiledRows:
        """Return a compiled reader of the sentences, which takes over the group."""
        cache = self.live.cache
        assert is_compiled_throughout(self.weights) and not cache.positions and cache.slot is None
        own = cache.models[0]
        L, two, S, H, capacity, h = own.target.shape
        if S == 1:  # memory is cheap, and a sentence that is alone would soon need more
            positions *= 2
        if positions > capacity:
            own.target = own.target.new_empty(L, two, S, H, positions, h)
        return CompiledRows(self.weights[0], own)

    def select(
        self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor
    ) -> None:
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


def is_compiled_throughout(weights: list[Weights]) -> bool:
    """Return whether compiled code can read sentences: for one model, all parts of which are
    compiled."""
    if len(weights) != 1 or weights[0].compiled is None:
        return False
    model = weights[0]
    return (
        model.positions is not None
        and not model.project_in
        and not model.project_out
        and model.output.is_compiled
    )


@torch.no_grad()
def is_stale(small: SmallParameters) -> bool:
    """Return whether a model was trained further, moved or cast since its weights were read."""
    now, seen = torch.cat(small.parameters), small.snapshot
    return now.device != seen.device or now.dtype != seen.dtype or not torch.equal(now, seen)


# ---- One step of a group of rows
#
# It runs as a recorded CUDA graph, as one call of the compiled library, or layer by layer.
#
# Shapes: S sentences, n rows, W places for rows in each sentence (its width), b new tokens a row.


def read_tokens(
    weights: list[Weights],
    group: RowGroup,
    tokens: Tensor,
    graphs: CudaGraphCache | None = None,
) -> list[Tensor]:
    """Read tokens (n, b), b for each row; return each model's features (n x b, features).

    graphs: recorded steps of these weights.
    """
    step = group.append_(tokens.size(1))
    for model in weights:
        reserve_positions(model, step)
    if graphs is not None:
        recorded = graphs.read(group.cache, step, tokens)
        if recorded is not None:
            return recorded
        group.cache.close_gaps_()
        step.slot = None
    features = []
    for model, cache in zip(weights, group.cache.models, strict=True):
        x = embed(model, tokens.reshape(-1), step.b, step.past)
        if model.compiled is None:
            features.append(decode(model, cache, step, x)[0])
        else:
            features.append(decode_compiled(model, cache, step, x))
    return features


def read_attention(weights: list[Weights], group: RowGroup, tokens: Tensor) -> Tensor:
    """Read tokens (n, b), b for each row, layer by layer; return their attention to the source (n,
    b, source), averaged over models, layers and heads."""
    group.cache.close_gaps_()
    step = group.append_(tokens.size(1))
    seen = []
    for model, cache in zip(weights, group.cache.models, strict=True):
        reserve_positions(model, step)
        _, queries = decode(
            model,
            cache,
            step,
            embed(model, tokens.reshape(-1), step.b, step.past),
            queries_only=True,
        )
        keys = [key for _, _, _, key, _ in cache.layers()]
        # (S, W x b, source)
        seen += [
            attention_weights(query, key, cache.source_mask)
            for query, key in zip(queries, keys, strict=True)
        ]
    mean = torch.stack(seen).mean(0)
    rows = mean.view(step.sentences * step.width, step.b, -1)
    return rows if step.place is None else rows[step.place]


def decode_compiled(weights: Weights, cache: KeyValues, step: Step, x: Tensor) -> Tensor:
    """Compute the features of `layers.decode` in one call of the compiled library."""
    assert weights.compiled is not None
    weights.compiled.decode_(x, step, cache)
    return x if weights.project_out is None else weights.project_out(x)


# ---- Release of weights of which packed copies exist
#
# A command that only decodes does not need both.
#
# The model keeps its embeddings, biases and normalisations. Its modules cannot run any more, so
# this is only for a process that belongs to one command, and for models whose layers are all
# compiled.


# fairseq's second copies for torch's fused encoder layer
SECOND_COPIES = ("in_proj_weight", "out_proj_weight", "fc1_weight", "fc2_weight")


def release_(model: BaseFairseqModel, weights: Weights, encoder: FastEncoder | None) -> bool:
    """Free the matrices of a model's layers, and of an output layer that is not an embedding too;
    return whether that was possible."""
    if weights.compiled is None or encoder is None or encoder.compiled is None:
        return False
    pairs = [
        *zip(encoder.layers, model.encoder.layers, strict=True),
        *zip(weights.layers, model.decoder.layers, strict=True),
    ]
    # one layer at a time, so that only few weights exist twice at any moment
    for ours, theirs in pairs:
        for part in vars(ours).values():
            if isinstance(part, Linear):
                part.release_()
        for module in theirs.modules():
            if isinstance(module, nn.Linear):
                drop_(model, module)
        for name in SECOND_COPIES:
            if name in theirs._parameters:
                setattr(theirs, name, empty_parameter())
    weights.output.release_()
    drop_(model, model.decoder.output_projection)
    return True


def drop_(model: BaseFairseqModel, module: nn.Linear) -> None:
    """Free a linear map's weight, unless it is an embedding too."""
    if not is_embedding(model, module.weight):
        module.weight = empty_parameter()


def empty_parameter() -> nn.Parameter:
    """Return a parameter without elements."""
    return nn.Parameter(torch.empty(0, 0, dtype=torch.float32), requires_grad=False)


def is_embedding(model: BaseFairseqModel, weight: torch.Tensor) -> bool:
    """Return whether a weight is shared with an embedding."""
    return any(
        weight.data_ptr() == stack.embed_tokens.weight.data_ptr()
        for stack in (model.encoder, model.decoder)
    )
