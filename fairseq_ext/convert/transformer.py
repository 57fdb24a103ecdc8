"""The weights, settings and dictionary of an encoder-decoder Transformer in fairseq's terms.

Hugging Face has its layers under the same names. Shapes: V words, d features, f feed-forward
features, P positions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.convert.source import Source
from fairseq_ext.core.errors import UsageError

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "swish": "swish",
    "silu": "swish",
    "tanh": "tanh",
    "gelu_new": "gelu_accurate",
}
FIRST = 2  # row of fairseq's position tables of the first position: <pad> is word 1
END = 2  # place of </s> in dictionaries
SIDES = ("encoder", "decoder")
INSIDE = re.compile(r"(encoder|decoder)\.(layers\.\d+\.|layer_norm\.|layernorm_embedding\.)")
OUTPUTS = ("lm_head.weight", "decoder.output_projection.weight", "decoder.embed_tokens.weight")
TABLES = ("shared.weight", *OUTPUTS, "encoder.embed_tokens.weight")
POSITIONS = [f"{side}.embed_positions.{name}" for side in SIDES for name in ("weight", "weights")]


@dataclass(frozen=True)
class Kind:
    """What a class of models has and its settings do not say.

    positions: sinusoidal as fairseq's, or a table: learned, or marian.
    """

    pre_norm: bool = False
    norm_of_embedding: bool = False
    positions: str = "sinusoidal"
    activation: str = "relu"  # where the settings name none
    scales: bool = False  # the same of embeddings


@dataclass
class Transformer:
    """fairseq's settings of a model, with its architecture as "arch", and its weights."""

    settings: dict[str, Any]
    weights: dict[str, Tensor]


def transformer(
    source: Source,
    kind: Kind,
    words: tuple[Vocabulary, Vocabulary],
    joined: bool,
    start: int | None = None,
) -> Transformer:
    """words: of each side; joined: whether both have one table. start: the row of the word that the
    decoder begins with, where that is not for </s> or a task to say.

    Errors: UsageError for what the model asks for and fairseq's Transformer lacks, and for weights
    that are too few or too many.
    """
    settings = settings_of(source, kind, joined)
    given = {name.removeprefix("model."): weight for name, weight in source.weights().items()}
    weights = {name: weight for name, weight in given.items() if INSIDE.match(name)}
    # names that a file may have for each side's table
    same = (TABLES, TABLES) if joined else ((), OUTPUTS)
    sides = [
        embeddings(source, given, (f"{SIDES[i]}.embed_tokens.weight", *same[i]), words[i])
        for i in range(2)
    ]
    tied = settings["share_decoder_input_output_embed"]
    output = sides[1] if tied else embeddings(source, given, OUTPUTS, words[1])
    # names of what must be one table
    one: tuple[str, ...] = TABLES if joined else OUTPUTS if tied else ()
    if other := next(
        (name for name in one if name in given and not torch.equal(given[name], output)), None
    ):
        raise UsageError(
            f"{source.folder} has the weight {other} and another word table: models with one for "
            "all can be converted"
        )
    weights["decoder.embed_tokens.weight"] = words[1].arranged(sides[1])
    weights["encoder.embed_tokens.weight"] = (
        weights["decoder.embed_tokens.weight"] if joined else words[0].arranged(sides[0])
    )
    same_table = output is sides[1]
    weights["decoder.output_projection.weight"] = (
        weights["decoder.embed_tokens.weight"] if same_table else words[1].arranged(output)
    )
    for side in SIDES:
        weights[f"{side}.version"] = torch.tensor([3.0])
        if kind.positions == "sinusoidal":
            weights[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
        else:
            weights[f"{side}.embed_positions.weight"] = positions(source, kind, given, side).to(
                output.dtype
            )
    end = words[1].rows[END]
    # subtle: </s> stands at the decoder's first position, and nowhere else
    if start is not None and start != end:
        scale = 1.0 if settings["no_scale_embedding"] else source.number("d_model") ** 0.5
        weights["decoder.embed_positions.weight"][FIRST] += scale * (
            sides[1][start] - sides[1][end]
        )
    bias = given.get("final_logits_bias", output.new_zeros(1, len(output)))
    if None in words[1].rows or settings["activation_fn"] == "swish" or bias.any():
        settings["arch"] = "marian_transformer"
        weights["decoder.output_projection.bias"] = words[1].arranged(bias.flatten(), NEVER)
    check(source, given, weights, settings)
    return Transformer(settings, weights)


def settings_of(source: Source, kind: Kind, joined: bool) -> dict[str, Any]:
    """fairseq's settings of the architecture."""
    config, names = (
        source.config,
        {"layers": "layers", "attention_heads": "attention_heads", "ffn_embed_dim": "ffn_dim"},
    )
    tied = joined or config.get("tie_word_embeddings", True)
    out: dict[str, Any] = dict(
        arch="transformer",
        dropout=0.1,
        activation_fn=activation(source, kind),
        layernorm_embedding=kind.norm_of_embedding,
        share_all_embeddings=joined,
        share_decoder_input_output_embed=tied,
        no_token_positional_embeddings=False,
        no_scale_embedding=not config.get("scale_embedding", kind.scales),
    )
    for side, place in zip(SIDES, ("source", "target"), strict=True):
        out |= {
            f"{side}_{ours}": source.number(f"{side}_{theirs}") for ours, theirs in names.items()
        }
        out |= {
            f"{side}_embed_dim": source.number("d_model"),
            f"{side}_normalize_before": kind.pre_norm,
        }
        out |= {
            f"{side}_learned_pos": kind.positions != "sinusoidal",
            f"max_{place}_positions": source.number("max_position_embeddings"),
        }
    return out


def activation(source: Source, kind: Kind) -> str:
    """fairseq's name of the feed-forward activation."""
    name = source.config.get("activation_function", kind.activation)
    if name not in ACTIVATIONS:
        raise source.refuse("activation_function", f"{', '.join(ACTIVATIONS)} can be converted")
    return ACTIVATIONS[name]


def embeddings(
    source: Source, given: Mapping[str, Tensor], names: Sequence[str], words: Vocabulary
) -> Tensor:
    """A table (V, d), which a file keeps under one of these names."""
    name = names[0]
    table = next((given[each] for each in names if each in given), None)
    if table is None:
        raise UsageError(
            f"{source.folder} has no weight {name}: copy all files of the model into it"
        )
    rows = sum(row is not None for row in words.rows)
    if table.shape != (rows, source.number("d_model")):
        raise UsageError(
            f"{source.folder} has the weight {name} of size {tuple(table.shape)}, and its settings "
            f"say {rows} words of width {source.number('d_model')}: the files are of two models"
        )
    return table


def positions(source: Source, kind: Kind, given: Mapping[str, Tensor], side: str) -> Tensor:
    """A table (FIRST + P, d): the model's own, or Marian's, sin and cos of position
    / 10000^(2i / d)."""
    own, count, d = (
        given.get(f"{side}.embed_positions.weight"),
        source.number("max_position_embeddings"),
        source.number("d_model"),
    )
    if kind.positions == "marian":
        # (P, d / 2)
        angles = np.arange(count)[:, None] / np.power(10000, 2 * np.arange((d + 1) // 2) / d)
        made = torch.tensor(
            np.concatenate([np.sin(angles), np.cos(angles)[:, : d // 2]], 1)
        ).float()
        own = F.pad(made if own is None else own, (0, 0, FIRST, 0))
    if own is None or own.shape != (FIRST + count, d):
        raise UsageError(
            f"{source.folder} has no weight {side}.embed_positions.weight of {FIRST + count} "
            "positions: copy all files again"
        )
    return own.clone()


def check(
    source: Source,
    given: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    settings: Mapping[str, Any],
) -> None:
    """UsageError for weights that fairseq's model lacks, has besides, or has in another size."""
    used = {*weights, *TABLES, *POSITIONS, "final_logits_bias"}
    needed = {name: shape for side in SIDES for name, shape in inside(side, settings).items()}
    more = [
        name for name in given if name not in used or (INSIDE.match(name) and name not in needed)
    ]
    if more:
        raise UsageError(
            f"{source.folder} has the weight {more[0]}, which no {source.name} has: merge "
            "adapters, leave out what was added"
        )
    for name, shape in needed.items():
        if name not in weights or weights[name].shape != shape:
            there = (
                f"has the weight {name} in size {tuple(weights[name].shape)}, and its settings say"
                if name in weights
                else ""
            )
            raise UsageError(
                f"{source.folder} {there or f'lacks the weight {name} of size'} {shape}: copy all "
                "files of one model into it"
            )


def inside(side: str, settings: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The names and sizes of all weights of a side's layers, and of the normalisations
    around them."""
    d, f = settings[f"{side}_embed_dim"], settings[f"{side}_ffn_embed_dim"]
    attentions = ["self_attn", "encoder_attn"][: 1 + (side == "decoder")]
    maps = {
        f"{each}.{name}_proj": (d, d) for each in attentions for name in "q k v out".split()
    } | {"fc1": (f, d), "fc2": (d, f)}
    norms = {f"{each}_layer_norm": (d,) for each in (*attentions, "final")}
    out = {
        f"layers.{i}.{name}": shape
        for i in range(settings[f"{side}_layers"])
        for name, shape in (maps | norms).items()
    }
    out |= {"layer_norm": (d,)} if settings[f"{side}_normalize_before"] else {}
    out |= {"layernorm_embedding": (d,)} if settings["layernorm_embedding"] else {}
    return {
        f"{side}.{name}.{part}": shape[: 2 if part == "weight" else 1]
        for name, shape in out.items()
        for part in ("weight", "bias")
    }


# ---- The vocabulary
#
# Hugging Face's numbers of words as a fairseq dictionary, which begins with <s>,
# <pad>, </s> and <unk>.


SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
BLANK = re.compile(r"\s")
# the output bias of a word that the model does not have: finite in 16 bits, and e^-10000 is 0
NEVER = -1e4


@dataclass
class Vocabulary:
    """The words of one side in fairseq's order; rows: each one's row in the model's tables,
    None for one that they lack."""

    words: list[str]
    rows: list[int | None]

    @staticmethod
    def of(numbers: Mapping[str, int], size: int, where: str) -> Vocabulary:
        """From words and their numbers in tables of so many rows.

        A row without a word gets a name of its own. where: for messages.
        """
        words: dict[int, str] = {}
        for word, number in numbers.items():
            if type(number) is not int or not 0 <= number < size:
                raise UsageError(
                    f"{where} gives '{word}' the number {number}, and the model has {size} words: "
                    "the files are of two models"
                )
            if number in words:
                raise UsageError(
                    f"{where} gives '{word}' and '{words[number]}' the same number: copy it again"
                )
            words[number] = word
        for special in ("</s>", "<unk>", "<pad>"):
            if special not in numbers:
                raise UsageError(
                    f"{where} has no {special}: the models that can be converted have one"
                )
        others = [number for number in range(size) if words.get(number) not in SPECIAL]
        names = [
            *SPECIAL,
            *(written(words.get(number, f"madeupword{number:04d}")) for number in others),
        ]
        if len(set(names)) < len(names):
            raise UsageError(
                f"{where} has a word twice, once spaces in words are written as "
                "<U+0020>: rename one"
            )
        return Vocabulary(names, [*(numbers.get(special) for special in SPECIAL), *others])

    def arranged(self, table: Tensor, lacking: float = 0.0) -> Tensor:
        """A model's table (rows, ...) in the dictionary's order, or itself where that is its own;
        lacking: of a word without a row."""
        if self.rows == list(range(table.size(0))):
            return table
        out = table[torch.tensor([row or 0 for row in self.rows])]
        out[torch.tensor([row is None for row in self.rows])] = lacking
        return out

    def text(self) -> str:
        """The file dict.xx.txt. fairseq adds the special words itself."""
        return "".join(f"{word} 1\n" for word in self.words[len(SPECIAL) :])


def written(word: str) -> str:
    """A word of a dictionary's file, in which spaces part columns."""
    return BLANK.sub(lambda blank: f"<U+{ord(blank[0]):04X}>", word)
