"""The weights, settings and dictionary of an encoder-decoder Transformer in fairseq's format, and
the folder with them.

Hugging Face uses the same names for the layers. Shapes: V words, d features, f feed-forward
features, P positions.
"""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.convert.source import HuggingFaceFolder
from fairseq_ext.core.errors import UsageError

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "swish": "swish",
    "silu": "swish",
    "tanh": "tanh",
    "gelu_new": "gelu_accurate",
}
POSITION_OFFSET = 2  # row of the first position in fairseq's position tables (<pad> is word 1)
EOS_INDEX = 2  # index of </s> in fairseq's dictionaries
SIDES = ("encoder", "decoder")
LAYER_WEIGHT = re.compile(r"(encoder|decoder)\.(layers\.\d+\.|layer_norm\.|layernorm_embedding\.)")
OUTPUTS = ("lm_head.weight", "decoder.output_projection.weight", "decoder.embed_tokens.weight")
TABLES = ("shared.weight", *OUTPUTS, "encoder.embed_tokens.weight")
POSITIONS = [f"{side}.embed_positions.{name}" for side in SIDES for name in ("weight", "weights")]


@dataclass(frozen=True)
class ModelFamily:
    """Properties of a model family that config.json does not state.

    positions: "sinusoidal" as in fairseq, or a table: "learned" or "marian".
    """

    pre_norm: bool = False
    norm_of_embedding: bool = False
    positions: str = "sinusoidal"
    activation: str = "relu"  # default where config.json names none
    scales: bool = False  # default of scale_embedding


@dataclass
class Transformer:
    """fairseq's settings of a model, with its architecture as "arch", and its weights."""

    settings: dict[str, object]
    weights: dict[str, Tensor]


def transformer(
    source: HuggingFaceFolder,
    kind: ModelFamily,
    words: tuple[Vocabulary, Vocabulary],
    joined: bool,
    start: int | None = None,
) -> Transformer:
    """Return the model in fairseq's format.

    words: of each side; joined: whether both sides have one table; start: the row of the word that
    the decoder begins with, None if it is </s> or if the task chooses it.
    Errors: UsageError for settings that fairseq's Transformer does not have, and for missing or
    unknown weights.
    """
    settings = settings_of(source, kind, joined)
    given = {name.removeprefix("model."): weight for name, weight in source.weights().items()}
    weights = {name: weight for name, weight in given.items() if LAYER_WEIGHT.match(name)}
    # names that a file may use for each side's table
    same = (TABLES, TABLES) if joined else ((), OUTPUTS)
    sides = [
        embeddings(source, given, (f"{SIDES[i]}.embed_tokens.weight", *same[i]), words[i])
        for i in range(2)
    ]
    tied = settings["share_decoder_input_output_embed"]
    output = sides[1] if tied else embeddings(source, given, OUTPUTS, words[1])
    # names of weights that must be one table
    one: tuple[str, ...] = TABLES if joined else OUTPUTS if tied else ()
    if other := next(
        (name for name in one if name in given and not torch.equal(given[name], output)), None
    ):
        raise UsageError(
            f"{source.folder} has the weight {other} and another word table: name a model in "
            "which both are equal"
        )
    weights["decoder.embed_tokens.weight"] = words[1].reorder(sides[1])
    weights["encoder.embed_tokens.weight"] = (
        weights["decoder.embed_tokens.weight"] if joined else words[0].reorder(sides[0])
    )
    weights["decoder.output_projection.weight"] = (
        weights["decoder.embed_tokens.weight"] if tied else words[1].reorder(output)
    )
    for side in SIDES:
        weights[f"{side}.version"] = torch.tensor([3.0], dtype=torch.float32)
        if kind.positions == "sinusoidal":
            empty = torch.zeros(1, dtype=torch.float32)
            weights[f"{side}.embed_positions._float_tensor"] = empty
        else:
            weights[f"{side}.embed_positions.weight"] = positions(source, kind, given, side).to(
                output.dtype
            )
    end = words[1].rows[EOS_INDEX]
    # subtle: the decoder reads </s> at its first position and nowhere else, so the difference to
    # the start word can be added to that position's embedding
    if start is not None and start != end:
        scale = 1.0 if settings["no_scale_embedding"] else source.number("d_model") ** 0.5
        weights["decoder.embed_positions.weight"][POSITION_OFFSET] += scale * (
            sides[1][start] - sides[1][end]
        )
    bias = given.get("final_logits_bias", output.new_zeros(1, len(output)))
    if None in words[1].rows or settings["activation_fn"] == "swish" or bias.any():
        settings["arch"] = "marian_transformer"
        weights["decoder.output_projection.bias"] = words[1].reorder(bias.flatten(), MISSING_BIAS)
    check(source, given, weights, settings)
    return Transformer(settings, weights)


def settings_of(source: HuggingFaceFolder, kind: ModelFamily, joined: bool) -> dict[str, object]:
    """Return fairseq's settings of the architecture."""
    config = source.config
    names = {"layers": "layers", "attention_heads": "attention_heads", "ffn_embed_dim": "ffn_dim"}
    tied = joined or config.get("tie_word_embeddings", True)
    out: dict[str, object] = dict(
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
            **{f"{side}_{ours}": source.number(f"{side}_{name}") for ours, name in names.items()},
            f"{side}_embed_dim": source.number("d_model"),
            f"{side}_normalize_before": kind.pre_norm,
            f"{side}_learned_pos": kind.positions != "sinusoidal",
            f"max_{place}_positions": source.number("max_position_embeddings"),
        }
    return out


def activation(source: HuggingFaceFolder, kind: ModelFamily) -> str:
    """Return fairseq's name of the feed-forward activation (raises UsageError)."""
    name = source.config.get("activation_function", kind.activation)
    if name not in ACTIVATIONS:
        raise source.field_error(
            "activation_function", f"{', '.join(ACTIVATIONS)} can be converted"
        )
    return ACTIVATIONS[name]


def embeddings(
    source: HuggingFaceFolder, given: Mapping[str, Tensor], names: Sequence[str], words: Vocabulary
) -> Tensor:
    """Return the table (V, d) that a file has under one of these names (raises UsageError)."""
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
            f"say {rows} words of width {source.number('d_model')}: copy all files of one model "
            "into it"
        )
    return table


def positions(
    source: HuggingFaceFolder, kind: ModelFamily, given: Mapping[str, Tensor], side: str
) -> Tensor:
    """Return a position table (POSITION_OFFSET + P, d): the model's own, or Marian's, which is sin
    and cos of position / 10000^(2i / d). Errors: UsageError for a missing or wrong table."""
    own = given.get(f"{side}.embed_positions.weight")
    count = source.number("max_position_embeddings")
    d = source.number("d_model")
    if kind.positions == "marian":
        # (P, d / 2)
        angles = np.arange(count)[:, None] / np.power(10000, 2 * np.arange((d + 1) // 2) / d)
        made = torch.tensor(
            np.concatenate([np.sin(angles), np.cos(angles)[:, : d // 2]], 1)
        ).float()
        own = F.pad(made if own is None else own, (0, 0, POSITION_OFFSET, 0))
    if own is None or own.shape != (POSITION_OFFSET + count, d):
        raise UsageError(
            f"{source.folder} has no weight {side}.embed_positions.weight of "
            f"{POSITION_OFFSET + count} positions: copy all files again"
        )
    return own.clone()


def check(
    source: HuggingFaceFolder,
    given: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    settings: Mapping,
) -> None:
    """Raise UsageError for weights that are missing, unknown or of a wrong size."""
    used = {*weights, *TABLES, *POSITIONS, "final_logits_bias"}
    needed = {
        name: shape for side in SIDES for name, shape in layer_weight_shapes(side, settings).items()
    }
    more = [
        name
        for name in given
        if name not in used or (LAYER_WEIGHT.match(name) and name not in needed)
    ]
    if more:
        raise UsageError(
            f"{source.folder} has the weight {more[0]}, which no {source.name} has: merge "
            "adapters, leave out what was added"
        )
    for name, shape in needed.items():
        if name not in weights or weights[name].shape != shape:
            there = f"lacks the weight {name} of size"
            if name in weights:
                size = tuple(weights[name].shape)
                there = f"has the weight {name} in size {size}, and its settings say"
            raise UsageError(
                f"{source.folder} {there} {shape}: copy all files of one model into it"
            )


def layer_weight_shapes(side: str, settings: Mapping) -> dict[str, tuple[int, ...]]:
    """Return the names and sizes of all weights of a side's layers, and of the normalisations
    before and after them."""
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
# Hugging Face's vocabulary as a fairseq dictionary, which begins with <s>, <pad>, </s> and <unk>.


SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
BLANK = re.compile(r"\s")
# output bias of a word that the model does not have: finite in 16 bits, and e^-10000 is 0
MISSING_BIAS = -1e4


@dataclass
class Vocabulary:
    """The words of one side in fairseq's order. rows: the row of each word in the model's tables,
    None for a word without a row."""

    words: list[str]
    rows: list[int | None]

    @staticmethod
    def from_numbers(numbers: Mapping[str, int], size: int, where: str) -> Vocabulary:
        """Make a vocabulary from words and their row numbers in tables of `size` rows.

        A row without a word gets a made-up name. where: the file, for messages.
        Errors: UsageError for numbers or words that do not match the tables.
        """
        words: dict[int, str] = {}
        for word, number in numbers.items():
            if type(number) is not int or not 0 <= number < size:
                raise UsageError(
                    f"{where} gives '{word}' the number {number}, and the model has {size} words: "
                    "copy all files of one model again"
                )
            if number in words:
                raise UsageError(
                    f"{where} gives '{word}' and '{words[number]}' the same number: copy it again"
                )
            words[number] = word
        for special in ("</s>", "<unk>", "<pad>"):
            if special not in numbers:
                raise UsageError(f"{where} has no {special}: name a model that has one")
        others = [number for number in range(size) if words.get(number) not in SPECIAL]
        names = [
            *SPECIAL,
            *(escape_spaces(words.get(number, f"madeupword{number:04d}")) for number in others),
        ]
        if len(set(names)) < len(names):
            raise UsageError(
                f"{where} has a word twice, once spaces in words are written as "
                "<U+0020>: rename one"
            )
        return Vocabulary(names, [*(numbers.get(special) for special in SPECIAL), *others])

    def reorder(self, table: Tensor, lacking: float = 0.0) -> Tensor:
        """Return a model's table (rows, ...) in the dictionary's order, or the table itself if it
        has this order; lacking: the value for words without a row."""
        if self.rows == list(range(table.size(0))):
            return table
        out = table[torch.tensor([row or 0 for row in self.rows])]
        out[torch.tensor([row is None for row in self.rows])] = lacking
        return out

    def text(self) -> str:
        """Return the content of the file dict.xx.txt, to which fairseq adds the special words."""
        return "".join(f"{word} 1\n" for word in self.words[len(SPECIAL) :])


def escape_spaces(word: str) -> str:
    """Return a word in the form of a dictionary file, in which spaces separate columns."""
    return BLANK.sub(lambda blank: f"<U+{ord(blank[0]):04X}>", word)


# ---- The folder of a converted model, which fairseq's commands read


README = """# {name}, converted from Hugging Face's format

{counts}. With fairseq and fairseq_ext installed, from this folder:

```bash
echo "{example}A sentence." | fairseq-interactive . --task {task} --path checkpoint.pt \\
  {flags}
```

From Python:
`fairseq_ext.Translator.from_folder("."{languages}).translate(["{example}A sentence."])`.
{codes}"""


@dataclass
class Folder:
    """The content of the folder.

    settings: of the task; segmentation: flags, whose files are in `texts`; pair: the two
    languages, or an example of two, as flags of the command.
    """

    model: Transformer
    task: str
    settings: dict[str, Any]
    segmentation: dict[str, str]
    dictionaries: dict[str, Vocabulary]
    pair: dict[str, str]
    flags: dict[str, Any] = field(default_factory=dict)  # the task's flags in the command
    texts: dict[str, str | bytes] = field(default_factory=dict)  # content by the file's name
    # target languages that a sentence may name, as >>fra<<
    targets: list[str] = field(default_factory=list)

    def write(self, source: HuggingFaceFolder, out: str) -> list[str]:
        """Write all files into a new or empty folder; return their names."""
        os.makedirs(out, exist_ok=True)
        texts = (
            self.texts
            | {name: words.text() for name, words in self.dictionaries.items()}
            | {"README.md": self.readme(source)}
        )
        for name, text in texts.items():
            Path(out, name).write_bytes(text if isinstance(text, bytes) else text.encode())
        arguments = Namespace(
            **{"task": self.task, **self.settings, **self.segmentation, **self.model.settings}
        )
        state = dict(
            args=arguments,
            model=self.model.weights,
            extra_state={"epoch": 1, "train_iterator": {"epoch": 1}},
            last_optimizer_state=None,
            optimizer_history=[
                dict(
                    criterion_name="CrossEntropyCriterion",
                    optimizer_name="Adam",
                    lr_scheduler_state={},
                    num_updates=0,
                )
            ],
        )
        torch.save(state, Path(out, "checkpoint.pt"))
        return sorted(os.listdir(out))

    def readme(self, source: HuggingFaceFolder) -> str:
        """Return the text of README.md: the command to type."""
        given = self.pair | self.segmentation | self.flags
        flags = " ".join(
            f"--{name.replace('_', '-')}" + (f" {value}" if value is not True else "")
            for name, value in given.items()
        )
        words = sorted({len(own.words) for own in self.dictionaries.values()})
        first = f">>{self.targets[0]}<< " if self.targets else ""
        codes = ""
        if "languages.txt" in self.texts:
            codes = (
                "\n"
                "languages.txt lists the codes that `--source-lang` and `--target-lang` may name.\n"
            )
        elif first:
            codes = (
                "\n"
                f"`--target-lang` may name one of {', '.join(self.targets)}; lines then "
                "need no `>>xx<<`.\n"
            )
        counts = (
            f"{self.model.settings['arch']}, {' and '.join(f'{count:,}' for count in words)} words"
        )
        return README.format(
            name=source.name,
            counts=counts,
            example=first,
            task=f"{self.task}_ext",
            flags=flags,
            codes=codes,
            languages=""
            if self.task == "translation"
            else "".join(f', {name}="{code}"' for name, code in self.pair.items()),
        )
