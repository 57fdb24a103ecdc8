"""Models of random weights in real shapes, saved as fairseq checkpoints, with made-up text.

The time of a step does not depend on what the weights are, and no hypothesis ends before
--max-len-b, so that every contender reads equally many tokens.
"""

from __future__ import annotations

import random
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from contenders import quiet
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.tasks.translation import TranslationConfig, TranslationTask

LONGEST = 512  # positions
SENTENCES, MEAN = 200, 25  # of the made-up text: lines, tokens a line
# of which fairseq 0.12's encoder layers hold a second one, under names with _
COPIES = ("in_proj", "out_proj", "fc1", "fc2")
SECOND_COPIES = tuple(f".{name}_{kind}" for name in COPIES for kind in ("weight", "bias"))


def sizes(layers: int, dim: int, ffn: int, heads: int, **more: Any) -> dict[str, Any]:
    """fairseq's settings of a Transformer; more: those that differ."""
    of_side = dict(layers=layers, embed_dim=dim, ffn_embed_dim=ffn, attention_heads=heads)
    both = {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in of_side.items()}
    return {**both, "share_all_embeddings": True, **more}


PRE_NORM = dict(encoder_normalize_before=True, decoder_normalize_before=True)
SMALL = sizes(3, 256, 1024, 4)
# words, fairseq's special ones included, and settings
SHAPES: dict[str, tuple[int, dict[str, Any]]] = {
    "small": (7_800, SMALL),
    "base": (32_000, sizes(6, 512, 2048, 8)),
    "big": (32_000, sizes(6, 1024, 4096, 16)),
    "12+1": (32_000, sizes(12, 512, 2048, 8, decoder_layers=1)),
    "m2m": (128_112, sizes(12, 1024, 4096, 16, **PRE_NORM)),
    "nllb": (256_206, sizes(12, 1024, 4096, 16, **PRE_NORM)),
    "wmt19": (42_024, sizes(6, 1024, 4096, 16, encoder_ffn_embed_dim=8192)),
    "tiny": (500, sizes(1, 32, 64, 2, **PRE_NORM)),  # tries the script
}


def title(shape: str) -> str:
    """What a shape is."""
    words, of = SHAPES[shape]
    layers = f"{of['encoder_layers']} + {of['decoder_layers']} layers of {of['decoder_embed_dim']}"
    return f"{shape}: {words:,} words, {layers}"


def make(shape: tuple[int, dict[str, Any]], folder: Path, spread: float = 0, seed: Any = 1) -> Path:
    """Write a checkpoint of words and settings, dictionaries and text, which comes last; a folder
    that has text is left as it is.

    spread: standard deviation of a line's tokens.
    """
    if (folder / "text.en").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    words, settings = shape
    symbols = dictionary(words)
    for language in ("de", "en"):
        symbols.save(str(folder / f"dict.{language}.txt"))
    with quiet():
        torch.save(checkpoint(settings, symbols), folder / "checkpoint.pt")
    chance = random.Random(seed)
    for language in ("de", "en"):
        lengths = (max(1, round(chance.gauss(MEAN, spread))) for _ in range(SENTENCES))
        lines = [" ".join(f"w{chance.randrange(words - 4):06d}" for _ in range(n)) for n in lengths]
        (folder / f"text.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def dictionary(words: int) -> Dictionary:
    """Made-up words, fairseq's special ones included."""
    made = Dictionary()
    for i in range(words - len(made)):
        made.add_symbol(f"w{i:06d}")
    return made


def build(settings: dict[str, Any], words: Dictionary) -> tuple[Any, Namespace]:
    """A random model and its arguments."""
    shared = dict(source_lang="de", target_lang="en")
    shared |= dict(max_source_positions=LONGEST, max_target_positions=LONGEST)
    args = Namespace(arch="transformer", task="translation", dropout=0.1, **shared, **settings)
    ARCH_CONFIG_REGISTRY["transformer"](args)
    torch.manual_seed(1)
    task = TranslationTask(TranslationConfig(**shared), words, words)
    return task.build_model(args), args


def checkpoint(settings: dict[str, Any], words: Dictionary) -> dict[str, Any]:
    """A random model as the published ones are saved: without what training needs, nor the second
    copies of fairseq 0.12's encoder."""
    model, args = build(settings, words)
    with torch.no_grad():
        model.decoder.output_projection.weight[words.eos()] = 0.0  # never among the best
    weights = model.state_dict().items()
    history = dict(criterion_name="CrossEntropyCriterion", optimizer_name="FairseqAdam")
    epoch = {"epoch": 1, "iterations_in_epoch": 0}
    return {
        "args": args,
        "model": {name: value for name, value in weights if not name.endswith(SECOND_COPIES)},
        "optimizer_history": [history | {"lr_scheduler_state": {}, "num_updates": 0}],
        "extra_state": {"train_iterator": epoch, "val_loss": None},
        "last_optimizer_state": None,
    }


def distinguishing(weights: dict[str, torch.Tensor], factor: int = 4) -> None:
    """Make a model that attends to more than the average (in place): as it is made, all sentences
    have one translation."""
    with torch.no_grad():
        for name, weight in weights.items():
            weight *= factor if "attn" in name and name.endswith("proj.weight") else 1
