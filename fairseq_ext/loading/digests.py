"""Digests of whole contents: what tells that a file, a dictionary or a model is the one of an earlier run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import Any

import torch

BLOCK = 1 << 20  # bytes
SHOWN = 32  # hexadecimal digits


def sha256_of(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's content, in hexadecimal. Errors: OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def fingerprint(path: str | os.PathLike[str]) -> str:
    """A file's size and the digest of all of its content, as messages show them. Errors: OSError."""
    return f"{os.path.getsize(path)} bytes, {sha256_of(path)[:SHOWN]}"


def fingerprint_of_dictionary(dictionary: Any) -> str:
    """The number of words of fairseq's dictionary and the digest of the words in their order."""
    digest = hashlib.sha256("\n".join(dictionary.symbols).encode("utf-8", "surrogatepass"))
    return f"{len(dictionary)} words, {digest.hexdigest()[:SHOWN]}"


def fingerprint_of_weights(models: Iterable[torch.nn.Module]) -> str:
    """The number of weights of all models and the digest of every one of them, in their own precision."""
    digest, count = hashlib.sha256(), 0
    for model in models:
        for name, weight in model.named_parameters():
            digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
            digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            count += weight.numel()
    return f"{count} weights, {digest.hexdigest()[:SHOWN]}"


def short_name_of_weights(models: Iterable[torch.nn.Module], sampled: int = 1024) -> str:
    """Eight hexadecimal digits that tell trained models apart: the digest of every weight's name and shape and of some of its values.

    sampled: the most values of a weight, evenly spread, so that a model of any size takes milliseconds.
    """
    digest = hashlib.sha256()
    for model in models:
        for name, weight in model.named_parameters():
            digest.update(f"{name} {tuple(weight.shape)}\n".encode())
            values = weight.detach().reshape(-1)
            digest.update(values[:: max(1, values.numel() // sampled)].float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:8]
