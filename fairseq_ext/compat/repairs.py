"""Repairs of fairseq 0.12.2 for current Python, torch, numpy and hydra.

startup.py loads this file by its path, while fairseq is being imported, and says which module of fairseq each is for.
"""

import dataclasses
import logging
import sys
import types
import warnings
from types import ModuleType


def allow_dataclass_defaults() -> None:
    """Accept a fairseq dataclass instance as the default of a field.

    Python >= 3.11 takes "has no __hash__" for "is mutable" and refuses such a default. fairseq reads the default itself (not a
    factory), so the instance stays the default and its class is given identity hashing, which Python 3.10 never asked for.
    """
    if sys.version_info < (3, 11) or getattr(dataclasses._get_field, "allows_dataclass_defaults", False):  # type: ignore[attr-defined]
        return
    stock = dataclasses._get_field  # type: ignore[attr-defined]

    def get_field(cls, name, annotation, kw_only):  # the signature of dataclasses._get_field
        default = getattr(cls, name, dataclasses.MISSING)
        value = default.default if isinstance(default, dataclasses.Field) else default
        kind = type(value)
        if kind.__hash__ is None and any(base.__name__ == "FairseqDataclass" for base in kind.__mro__):
            kind.__hash__ = object.__hash__
        return stock(cls, name, annotation, kw_only)

    get_field.allows_dataclass_defaults = True  # type: ignore[attr-defined]
    dataclasses._get_field = get_field  # type: ignore[attr-defined]


def avoid_fused_encoder_layer(transformer_layer: ModuleType) -> None:
    """Keep fairseq from torch's fused encoder layer, which it calls without the mask type that torch >= 2 asks for: a checkpoint
    of a post-norm Transformer would fail on every padded batch. fairseq's own layers beside it compute the same."""
    never = property(lambda self: False, lambda self, value: None)
    transformer_layer.TransformerEncoderLayerBase.can_use_fastpath = never  # type: ignore[attr-defined]


def silence_notices() -> None:
    """Ignore what hydra 1.3 and torch say at every start about the way fairseq calls them, so that `python -W error` can run it, too, and
    fairseq's advice to install a package that only training to speak would use."""
    for message in (
        r"\s*The version_base parameter is not specified",
        r"hydra\.experimental\.(initialize|compose)\(\) is no longer experimental",
        r"In 'config': Usage of deprecated keyword in package header",
        r"\s*'config' is validated against ConfigStore schema",
        r"\s*The strict flag in the compose API is deprecated",
        r"'pin_memory' argument is set as true but no accelerator is found",
    ):
        warnings.filterwarnings("ignore", message=message, category=UserWarning)
    speech = logging.getLogger("fairseq.tasks.text_to_speech")
    speech.addFilter(lambda record: "tensorboardX" not in record.getMessage())


def give_arguments(module: ModuleType) -> None:
    """Let mBART's task find its arguments: it reads `self.args`, which fairseq 0.12.2 no longer sets on tasks of its kind."""
    module.TranslationFromPretrainedBARTTask.args = property(lambda self: self.cfg)  # type: ignore[attr-defined]


def give_numpy_long(module: ModuleType) -> None:
    """Give a module of fairseq a numpy with `compat.long`, which numpy 2 no longer has."""
    numpy = module.np
    if not hasattr(numpy, "compat"):
        module.np = types.ModuleType("numpy")  # type: ignore[attr-defined]
        module.np.__dict__.update(vars(numpy), compat=types.SimpleNamespace(long=int))  # type: ignore[attr-defined]
