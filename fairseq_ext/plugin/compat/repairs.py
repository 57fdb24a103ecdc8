"""Repairs of fairseq 0.12.2 for current Python, torch, numpy and hydra, and for lines of invalid
bytes.

startup.py loads this file by its path, while fairseq is being imported; patches.py names the module
of fairseq that each is for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fileinput
import functools
import io
import logging
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

stock_get_field = dataclasses._get_field  # type: ignore[attr-defined]
importing, counting = 0, threading.Lock()  # modules of fairseq that are being imported


@contextlib.contextmanager
def dataclass_defaults(*module: ModuleType) -> Iterator[None]:
    """Accept a fairseq dataclass instance as the default of a field, inside the context.

    Python >= 3.11 takes "has no __hash__" for "is mutable" and refuses such a default. fairseq
    reads the default itself (not a factory), so the instance stays the default and its class gets
    identity hashing, which Python 3.10 did not require.
    """
    global importing
    with counting:
        importing += 1
        if importing == 1 and sys.version_info >= (3, 11):
            dataclasses._get_field = get_field  # type: ignore[attr-defined]
    try:
        yield
    finally:
        with counting:
            importing -= 1
            if importing == 0:
                dataclasses._get_field = stock_get_field  # type: ignore[attr-defined]


def get_field(cls, name, annotation, *more):
    """Replace dataclasses._get_field, which it calls."""
    default = getattr(cls, name, dataclasses.MISSING)
    value = default.default if isinstance(default, dataclasses.Field) else default
    kind = type(value)
    if kind.__hash__ is None and any(base.__name__ == "FairseqDataclass" for base in kind.__mro__):
        kind.__hash__ = object.__hash__
    return stock_get_field(cls, name, annotation, *more)


def read_optional_types(utils: ModuleType) -> None:
    """Take X for the type of an option whose field is X | None, as Python 3.14 writes Optional[X]:
    fairseq reads the older form only."""
    stock = utils.interpret_dc_type

    @functools.wraps(stock)
    def interpret_dc_type(field_type):
        optional = (
            isinstance(field_type, types.UnionType) and field_type.__args__[-1] is types.NoneType
        )
        return field_type.__args__[0] if optional else stock(field_type)

    utils.interpret_dc_type = interpret_dc_type  # type: ignore[attr-defined]


def avoid_fused_encoder_layer(transformer_layer: ModuleType) -> None:
    """Keep fairseq from using torch's fused encoder layer, which it calls without the mask type
    that torch >= 2 requires: a checkpoint of a post-norm Transformer would fail on every padded
    batch. fairseq's own layers compute the same."""
    layer = transformer_layer.TransformerEncoderLayerBase
    stock = layer.__init__

    @functools.wraps(stock)
    def initialise(self, *args, **kwargs):
        stock(self, *args, **kwargs)
        self.can_use_fastpath = False

    layer.__init__ = initialise


def pin_no_memory(iterators: ModuleType) -> None:
    """Let fairseq's batches use pinned memory only if there is a GPU: torch warns elsewhere."""
    stock = iterators.CountingIterator.__init__

    @functools.wraps(stock)
    def initialise(self, iterable, *args, **kwargs):
        loader = getattr(iterable, "_iterable", iterable)  # inside a buffer
        if getattr(loader, "pin_memory", False):
            loader.pin_memory = iterators.torch.cuda.is_available()
        stock(self, iterable, *args, **kwargs)

    iterators.CountingIterator.__init__ = initialise


def silence_notices() -> None:
    """Ignore warnings of hydra 1.3 on fairseq's calls (if fast_start.py fails), of Ray on its
    future, and fairseq's advice to install a package that only training to speak would use."""
    for message in (
        r"\s*The version_base parameter is not specified",
        r"hydra\.experimental\.(initialize|compose)\(\) is no longer experimental",
        r"In 'config': Usage of deprecated keyword in package header",
        r"\s*'config' is validated against ConfigStore schema",
        r"\s*The strict flag in the compose API is deprecated",
    ):
        warnings.filterwarnings("ignore", message=message, category=UserWarning)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"ray\..*")
    speech = logging.getLogger("fairseq.tasks.text_to_speech")
    speech.addFilter(lambda record: "tensorboardX" not in record.getMessage())


def set_up_no_log(module: ModuleType) -> contextlib.AbstractContextManager | bool:
    """Return a context that keeps a module of fairseq from setting up the log of a program that
    imports our package; a program that imports fairseq first, and fairseq's commands, behave as
    stock."""
    return (
        without_log(vars(module))
        if "fairseq_ext" in sys.modules and "fairseq_cli" not in sys.modules
        else False
    )


@contextlib.contextmanager
def without_log(caller: dict) -> Iterator[None]:
    stock = logging.basicConfig

    def basic_config(**settings) -> None:
        if sys._getframe(1).f_globals is not caller:
            stock(**settings)

    logging.basicConfig = basic_config
    try:
        yield
    finally:
        logging.basicConfig = stock


def give_arguments(module: ModuleType) -> None:
    """Let mBART's task find its arguments: it reads `self.args`, which fairseq 0.12.2 no longer
    sets on tasks of its kind."""
    module.TranslationFromPretrainedBARTTask.args = property(lambda self: self.cfg)  # type: ignore


def give_numpy_long(module: ModuleType) -> bool:
    """Give a module of fairseq a numpy with `compat.long`, which numpy 2 does not have; return
    whether it was missing."""
    numpy = module.np
    lacks = not hasattr(numpy, "compat")
    if lacks:
        module.np = types.ModuleType("numpy")  # type: ignore[attr-defined]
        compat = types.SimpleNamespace(long=int)
        module.np.__dict__.update(vars(numpy), compat=compat)  # type: ignore[attr-defined]
    return lacks


# ---- Invalid bytes
#
# fairseq-interactive reads bytes that are not valid UTF-8 as lone surrogates, so that they are an
# error of their line and not of the session.


COMMAND = "fairseq_cli.interactive"


def is_loaded(command: str) -> bool:
    """Return whether a module of fairseq's commands is loaded here, also as the main program."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return command in sys.modules or (main is not None and main.name == command)


def keep_invalid_bytes() -> None:
    """Let the command read them as lone surrogates, from standard input and from --input."""
    logging.getLogger(COMMAND).addFilter(holds_here)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    hook = functools.partial(fileinput.hook_encoded, errors="surrogateescape")
    for name in (COMMAND, "__main__"):
        if getattr(sys.modules.get(name), "fileinput", None) is fileinput:
            own = SimpleNamespace(input=fileinput.input, hook_encoded=hook)
            sys.modules[name].fileinput = own  # type: ignore[attr-defined]


def are_kept() -> bool:
    """Return whether this process does so, for the doctor."""
    return holds_here in logging.getLogger(COMMAND).filters


def holds_here(record: logging.LogRecord) -> bool:
    """Return whether a line of the command's log is correct: our phrases are segmented for the
    target side, and need no shared vocabulary."""
    return "assumes a shared subword vocabulary" not in str(record.msg)
