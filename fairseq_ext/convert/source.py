"""A model folder in Hugging Face's format: its settings, weights and vocabulary files, read without
running its code.

A field of config.json with an unsupported value is refused; the error names the field.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from torch import Tensor

from fairseq_ext.core.errors import UsageError, cut

SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"


class HuggingFaceFolder:
    """A model folder. config: the content of config.json.

    Errors: UsageError, from the methods too; it names the file or the field.
    """

    def __init__(self, folder: str):
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise UsageError(
                f"{folder} is not a folder: name the one that has the model's config.json"
            )
        if self.has("adapter_config.json"):
            raise UsageError(
                f"{folder} has adapter_config.json, the changes of another model: merge them into "
                "it, and name the merged one"
            )
        self.config = self.read_json("config.json")
        for field in ("quantization_config", "adapters"):
            if self.config.get(field):
                raise UsageError(
                    f"{self.folder / 'config.json'} has {field}: name the model before it was "
                    "quantised or adapted"
                )

    @property
    def name(self) -> str:
        """Name of the model's class."""
        return str((self.config.get("architectures") or ["model without architectures"])[0])

    def has(self, name: str) -> bool:
        return (self.folder / name).is_file()

    def file(self, *names: str) -> Path:
        """Return the path of the first of these files that exists."""
        found = next((name for name in names if self.has(name)), None)
        if found is None:
            raise UsageError(
                f"{self.folder} has no {' or '.join(names)}: copy all files of the model into it, "
                "those of its tokenizer too"
            )
        return self.folder / found

    def pieces(self, name: str) -> sentencepiece.SentencePieceProcessor:
        """Return the SentencePiece model in a file."""
        path = self.file(name)
        try:
            return sentencepiece.SentencePieceProcessor(str(path))
        except (RuntimeError, OSError):
            raise UsageError(f"{path} is not a SentencePiece model: copy it again") from None

    def read_json(self, name: str, needed: bool = True) -> dict[str, Any]:
        """Return the JSON object in a file; {} if the file does not exist and is not needed."""
        if not needed and not self.has(name):
            return {}
        path = self.file(name)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise UsageError(
                f"{path} cannot be read as JSON ({cut(str(error))}): copy it again"
            ) from None
        if not isinstance(found, dict):
            raise UsageError(
                f"{path} holds {type(found).__name__} in the place of an object: copy it again"
            )
        return found

    def number(self, field: str, default: int | None = None) -> int:
        """Return a field of config.json that must be an integer of 0 or more."""
        value = self.config.get(field, default)
        if type(value) is not int or value < 0:
            raise UsageError(
                f"{self.folder / 'config.json'} has {field}={cut(repr(value))}, and a whole number "
                "is needed: copy it again"
            )
        return value

    def field_error(self, field: str, why: str) -> UsageError:
        """Return the error for an unsupported value of a field of config.json."""
        return UsageError(
            f"{self.folder / 'config.json'} has {field}={cut(repr(self.config.get(field)))}: {why}"
        )

    def weights(self) -> dict[str, Tensor]:
        """Return every weight by its name; values of 16 bits are converted to 32.

        Tied weights may share one tensor.
        """
        out: dict[str, Tensor] = {}
        if self.has(SAFE) or self.has(f"{SAFE}.index.json"):
            for path in self.shards(SAFE):
                out |= self.read_safe(path)
        else:
            for path in self.shards(PICKLED):
                out |= self.read_pickled(path)
        for name, weight in out.items():
            if not weight.is_floating_point() or weight.element_size() < 2:
                raise UsageError(
                    f"{self.folder} has the weight {name} in {weight.dtype}: name the model "
                    "before it was quantised"
                )
            out[name] = weight.float() if weight.element_size() == 2 else weight
        return out

    def shards(self, name: str) -> list[Path]:
        """Return a file, or the files that its index lists."""
        if self.has(name):
            return [self.folder / name]
        index = (
            self.file(f"{name}.index.json")
            if self.has(f"{name}.index.json")
            else self.file(SAFE, PICKLED)
        )
        listed = self.read_json(index.name).get("weight_map")
        if not isinstance(listed, dict) or not all(
            isinstance(part, str) for part in listed.values()
        ):
            raise UsageError(f"{index} has no weight_map of names of files: copy it again")
        return [self.file(os.path.basename(part)) for part in sorted({*listed.values()})]

    def read_safe(self, path: Path) -> dict[str, Tensor]:
        try:
            from safetensors.torch import load_file
        except ImportError:
            raise UsageError(
                f"{path.name} needs safetensors, which is not installed: pip install safetensors"
            ) from None
        try:
            return load_file(path)
        except Exception as error:  # safetensors has its own error classes
            raise UsageError(f"{path} cannot be read ({cut(str(error))}): copy it again") from None

    def read_pickled(self, path: Path) -> dict[str, Tensor]:
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # the unpickler fails in any way on a file of another kind
            raise UsageError(
                f"{path} holds more than weights, or is damaged ({cut(str(error))}): copy it again"
            ) from None
        tensors = isinstance(found, dict) and all(
            isinstance(weight, Tensor) for weight in found.values()
        )
        if not tensors:
            raise UsageError(f"{path} holds no weights by their names: copy it again")
        return found
