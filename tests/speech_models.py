"""A synthetic data set of speech features and a tiny random S2T Transformer on it, made by
fairseq's own command in a forked child."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq_cli.train import cli_main as train
from forked import forked, inside, succeeded
from task_models import ONCE, WORDS, sharpen

FEATURES = 8
SIZE = [
    f"--{side}-{what}={n}"
    for side in ("encoder", "decoder")
    for what, n in {"embed-dim": 16, "ffn-embed-dim": 16, "layers": 1, "attention-heads": 2}.items()
]
MODEL = [
    "--arch",
    "s2t_transformer",
    *SIZE,
    "--conv-channels=16",
    "--conv-kernel-sizes=5,5",
    "--max-source-positions=200",
    "--max-target-positions=40",
]
TAG = "<lang:en>"


@dataclass
class Speech:
    """A data set and a checkpoint."""

    root: Path
    tagged: bool  # targets start with the tag of their language

    def arguments(self, task: str) -> list[Any]:
        """Of fairseq-generate and fairseq-interactive, without a strategy."""
        search = ["--cpu", "--max-len-b", 12, "--max-source-positions", 200]
        forced = ["--prefix-size", 1] if self.tagged else []
        return [
            self.root,
            "--task",
            task,
            "--config-yaml",
            "config.yaml",
            "--path",
            self.root / "saved" / "checkpoint_last.pt",
            *search,
            *forced,
        ]

    def files(self) -> list[str]:
        """Feature files of the test set, as fairseq-interactive reads them."""
        return [str(path) for path in sorted(self.root.glob("test-*.npy"))]


def make(root: Path, tagged: bool) -> Speech:
    """Write features, dictionary and configuration; train and sharpen."""
    chance, noise = random.Random(2), np.random.default_rng(2)
    words = Dictionary()
    for word in (*[f"w{i}" for i in range(WORDS)], *[TAG] * tagged):
        words.add_symbol(word)
    words.save(str(root / "dict.txt"))
    settings = [
        "vocab_filename: dict.txt",
        "input_channels: 1",
        f"input_feat_per_channel: {FEATURES}",
        "sampling_alpha: 1.0",
    ]
    (root / "config.yaml").write_text(
        "\n".join(settings + ["prepend_tgt_lang_tag: true"] * tagged) + "\n"
    )
    for split, count in (("train", 12), ("dev", 2), ("test", 6)):
        lines = ["id\taudio\tn_frames\ttgt_text\tspeaker\ttgt_lang"]
        for i in range(count):
            frames = chance.randint(9, 60)
            np.save(
                root / f"{split}-{i}.npy",
                noise.standard_normal((frames, FEATURES)).astype(np.float32),
            )
            text = " ".join(f"w{chance.randrange(WORDS)}" for _ in range(chance.randint(1, 6)))
            lines.append(f"{i}\t{root}/{split}-{i}.npy\t{frames}\t{text}\tme\ten")
        (root / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    loss = ["--criterion", "label_smoothed_cross_entropy", *["--ignore-prefix-size=1"] * tagged]
    task = [
        "--task",
        "speech_to_text",
        "--config-yaml",
        "config.yaml",
        "--train-subset",
        "train",
        "--valid-subset",
        "dev",
    ]
    with inside(root):
        succeeded(
            forked(
                train,
                "fairseq-train",
                root,
                *task,
                *MODEL,
                *loss,
                *ONCE,
                "--save-dir",
                root / "saved",
            )
        )
    sharpen(root / "saved" / "checkpoint_last.pt")
    louder(root / "saved" / "checkpoint_last.pt")
    return Speech(root, tagged)


def louder(checkpoint: Path) -> None:
    """Let the source matter, as it hardly would with initial weights, and some hypotheses end: EOS
    is like a word that comes often."""
    state = torch.load(checkpoint, weights_only=False)
    for name, weight in state["model"].items():
        if "encoder_attn" in name and weight.dim() > 1:
            weight *= 4
        if name == "decoder.output_projection.weight":
            weight[2] = 0.9 * weight[17]
    torch.save(state, checkpoint)
