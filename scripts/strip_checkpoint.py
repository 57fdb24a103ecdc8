"""Makes a small checkpoint for shipping out of a fairseq training checkpoint.

    python scripts/strip_checkpoint.py checkpoint_last.pt checkpoint.pt

Keeps the configuration and the weights, in half precision (fairseq copies them into float32
parameters on loading), and the few entries that fairseq reads while loading. Drops the optimizer,
the meters and all paths of the machine that trained. What is left consists of plain containers,
tensors and one `argparse.Namespace`, so it loads with `torch.load(..., weights_only=True)`
once that class is allowed.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import torch

# entries of the configuration that name places on the training machine, and what to write instead
PATHS: dict[str, Any] = {
    "data": "",
    "save_dir": "checkpoints",
    "restore_file": "checkpoint_last.pt",
    "log_file": None,
    "tensorboard_logdir": None,
    "user_dir": None,
    "finetune_from_model": None,
}
FUSED = re.compile(r"encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)")


def without_paths(value: Any) -> Any:
    """A copy of a configuration (dicts and namespaces) with every entry of `PATHS` replaced."""
    if isinstance(value, argparse.Namespace):
        return argparse.Namespace(**without_paths(vars(value)))
    if isinstance(value, dict):
        return {
            key: PATHS[key] if key in PATHS else without_paths(entry)
            for key, entry in value.items()
        }
    return value


def half(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights in half precision; tensors that share memory (tied embeddings) still do,
    so they are stored once.

    Left out are the second copies of the encoder's matrices for the fused layer: fairseq
    builds them on loading.
    """
    copies: dict[tuple[int, torch.Size], torch.Tensor] = {}
    small = {}
    for name, tensor in weights.items():
        if FUSED.fullmatch(name):
            continue
        key = (tensor.data_ptr(), tensor.shape)
        if key not in copies:
            copies[key] = tensor.half() if tensor.is_floating_point() else tensor.clone()
        small[name] = copies[key]
    return small


def strip(state: dict[str, Any]) -> dict[str, Any]:
    """The part of a training checkpoint that decoding needs."""
    epoch = state["extra_state"]["train_iterator"]["epoch"]
    keys = ("criterion_name", "optimizer_name", "lr_scheduler_state", "num_updates")
    history = [{key: entry.get(key) for key in keys} for entry in state["optimizer_history"][-1:]]
    return {
        "args": None,
        "cfg": without_paths(state["cfg"]),
        "model": half(state["model"]),
        "optimizer_history": history,
        "task_state": {},
        "extra_state": {"epoch": epoch, "train_iterator": {"epoch": epoch}},
    }


def main() -> None:
    """Read, strip, write, and load the result once more under `weights_only`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="checkpoint written by fairseq-train")
    parser.add_argument("target", type=Path, help="where to write the small one")
    args = parser.parse_args()

    with torch.serialization.safe_globals([argparse.Namespace]):
        state = torch.load(args.source, map_location="cpu", weights_only=True)
        torch.save(strip(state), args.target)
        model = torch.load(args.target, map_location="cpu", weights_only=True)["model"]
    unique = {(tensor.data_ptr(), tensor.shape): tensor.numel() for tensor in model.values()}
    megabytes = args.target.stat().st_size / 1e6
    print(f"{args.target}: {sum(unique.values()):,} parameters, {megabytes:.1f} MB")


if __name__ == "__main__":
    main()
