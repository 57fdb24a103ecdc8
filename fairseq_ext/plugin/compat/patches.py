"""The list of every change that this package makes to another: fairseq, hydra, omegaconf, torch,
Python's own library. `python -m fairseq_ext.doctor` lists those in force.

Most are what stock fairseq 0.12.2 needs on current Python, torch, numpy and hydra, or keep a
checkpoint from running code; any program that imports fairseq gets them. The others are made in the
process of a command alone (core/command_line.py), but for the reader of typed lines, which a
program gets that runs fairseq-interactive with a task of ours. While a command builds its model,
loading/checkpoint.py replaces functions of torch.nn.init.

startup.py loads this file by its path, while fairseq is being imported, and makes the changes.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import fileinput
import functools
import gc
import importlib.util
import io
import itertools
import logging
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import NamedTuple

startup = sys.modules["fairseq_ext.plugin.compat.startup"]
own = startup.load("core.command_line")
checkpoints, configuration, named_tasks = (
    startup.load(f"plugin.compat.{name}")
    for name in ("checkpoints", "configuration", "named_tasks")
)


class Patch(NamedTuple):
    what: str  # the changed function or module
    change: Callable[..., object]  # makes the change; returns False if none is needed
    modules: tuple[
        str, ...
    ]  # of fairseq, each of which `change` gets; without any it is called once
    early: bool  # called before the module runs, and returns a context for that; else after it
    is_of_command: bool  # only in the process of a command

    @property
    def why(self) -> str:
        """Return the first paragraph of the function's docstring."""
        return " ".join((self.change.__doc__ or "").partition("\n\n")[0].split())


ALL = "fairseq.*"  # every module of fairseq
PATCHES: list[Patch] = []
in_force: list[Patch] = []


def patch(what: str, *modules: str, early: bool = False, of_command: bool = False) -> Callable:
    """Return a decorator that adds a function to the list."""

    def add(change: Callable) -> Callable:
        @functools.wraps(change)
        def make(*arguments: object) -> object:
            made = change(*arguments)
            if made is not False and added not in in_force:
                in_force.append(added)
            return made

        PATCHES.append(added := Patch(what, make, modules, early, of_command))
        return make

    return add


def of_module(name: str) -> list[Patch]:
    """Return the patches of a module of fairseq in this process."""
    return [
        each
        for each in PATCHES
        if (name in each.modules or ALL in each.modules)
        and (own.own_command or not each.is_of_command)
    ]


# ---- Checkpoints, the configuration, our tasks, fairseq's parts without a compiler


patch("eval in the modules of fairseq", ALL, early=True)(checkpoints.replace_eval)
patch(
    "torch's safe globals, while fairseq.checkpoint_utils and fairseq.distributed.utils read",
    "fairseq.checkpoint_utils",
    "fairseq.distributed.utils",
)(checkpoints.allow_plain_classes)
patch("load_checkpoint_to_cpu in fairseq.checkpoint_utils", "fairseq.checkpoint_utils")(
    checkpoints.explain_refused_checkpoints
)
patch(
    "_upgrade_state_dict and load_model_ensemble_and_task in fairseq.checkpoint_utils",
    "fairseq.checkpoint_utils",
)(checkpoints.check_models)
patch("initialize and compose in fairseq.dataclass.utils", "fairseq.dataclass.utils")(
    configuration.replace_compose
)
patch("import_user_module in fairseq.utils", "fairseq.options")(named_tasks.register_named_tasks)
patch("omegaconf.DictConfig.__getattr__", "fairseq.dataclass.utils", of_command=True)(
    configuration.read_plain_values
)


@patch(
    "fairseq.data.data_utils_fast and token_block_utils_fast, and methods of "
    "fairseq.scoring.bleu.Scorer",
    "fairseq.data.data_utils",
    "fairseq.scoring.bleu",
)
def replace_compiled(module: ModuleType) -> bool:
    """Give their functions in Python, if fairseq was installed without a compiler."""
    is_missing = importlib.util.find_spec("fairseq.libbleu") is None
    if is_missing:
        startup.load("plugin.compat.uncompiled").replace_compiled(module)
    return is_missing


# ---- Repairs for current Python, torch, numpy and hydra


stock_get_field = dataclasses._get_field  # type: ignore[attr-defined]
importing, counting = 0, threading.Lock()  # modules of fairseq that are being imported


@patch(
    "dataclasses._get_field, while a module of fairseq or a --user-dir is imported, and __hash__ "
    "of the classes of its defaults",
    ALL,
    early=True,
)
@contextlib.contextmanager
def dataclass_defaults(*module: ModuleType) -> Iterator[None]:
    """Accept a fairseq dataclass instance as the default of a field, which Python 3.11 refuses.

    It takes "has no __hash__" for "is mutable". fairseq reads the default itself (not a factory),
    so the instance stays the default and its class gets identity hashing.
    """
    global importing
    with counting:
        importing += 1
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
    kind = type(default.default if isinstance(default, dataclasses.Field) else default)
    if kind.__hash__ is None and any(base.__name__ == "FairseqDataclass" for base in kind.__mro__):
        kind.__hash__ = object.__hash__
    return stock_get_field(cls, name, annotation, *more)


@patch("interpret_dc_type in fairseq.dataclass.utils", "fairseq.dataclass.utils")
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


@patch(
    "fairseq.modules.transformer_layer.TransformerEncoderLayerBase.__init__",
    "fairseq.modules.transformer_layer",
)
def avoid_fused_encoder_layer(transformer_layer: ModuleType) -> None:
    """Keep fairseq from torch's fused encoder layer, which it calls without the mask type that
    torch 2 needs: a post-norm Transformer would fail on padded batches."""
    layer = transformer_layer.TransformerEncoderLayerBase
    stock = layer.__init__

    @functools.wraps(stock)
    def initialise(self, *args, **kwargs):
        stock(self, *args, **kwargs)
        self.can_use_fastpath = False

    layer.__init__ = initialise


@patch("fairseq.data.iterators.CountingIterator.__init__", "fairseq.data.iterators")
def pin_no_memory(iterators: ModuleType) -> None:
    """Let batches use pinned memory only if there is a GPU: torch warns elsewhere."""
    stock = iterators.CountingIterator.__init__

    @functools.wraps(stock)
    def initialise(self, iterable, *args, **kwargs):
        loader = getattr(iterable, "_iterable", iterable)  # inside a buffer
        if getattr(loader, "pin_memory", False):
            loader.pin_memory = iterators.torch.cuda.is_available()
        stock(self, iterable, *args, **kwargs)

    iterators.CountingIterator.__init__ = initialise


@patch(
    "logging.root, while two tasks of fairseq run that call logging.basicConfig",
    "fairseq.tasks.text_to_speech",
    "fairseq.tasks.frm_text_to_speech",
    early=True,
)
@contextlib.contextmanager
def set_up_no_log(module: ModuleType) -> Iterator[None]:
    """Set up no log in a program that imports fairseq_ext: they find a handler there, and set none.

    A program that imports fairseq first, and fairseq's commands, behave as stock.
    """
    handler = logging.NullHandler()
    if "fairseq_ext" in sys.modules and "fairseq_cli" not in sys.modules:
        logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)


@patch("TranslationFromPretrainedBARTTask.args", "fairseq.tasks.translation_from_pretrained_bart")
def give_arguments(module: ModuleType) -> None:
    """Let mBART's task find its arguments, which fairseq 0.12.2 no longer sets."""
    module.TranslationFromPretrainedBARTTask.args = property(lambda self: self.cfg)  # type: ignore


@patch(
    "numpy's name in two data sets of fairseq",
    "fairseq.data.token_block_dataset",
    "fairseq.data.language_pair_dataset",
)
def give_numpy_long(module: ModuleType) -> bool:
    """Give them a numpy with `compat.long`, which numpy 2 lacks."""
    numpy = module.np
    lacks = not hasattr(numpy, "compat")
    if lacks:
        module.np = types.ModuleType("numpy")  # type: ignore[attr-defined]
        vars(module.np).update(vars(numpy), compat=types.SimpleNamespace(long=int))
    return lacks


# ---- The process of a command


@patch(
    "the registries of fairseq.models and fairseq.tasks",
    "fairseq.models",
    "fairseq.tasks",
    of_command=True,
)
def replace_registries(module: ModuleType) -> bool:
    """Run the files of models and tasks when they are needed."""
    for name in vars(module) if startup.pending else ():
        if name.endswith("_REGISTRY"):
            setattr(module, name, startup.Registry(getattr(module, name)))
    return bool(startup.pending)


@patch("sys.path", of_command=True)
def leave_out_working_folder() -> bool:
    """Run no files of the working folder."""
    return own.leave_out_working_folder()


@patch(
    "sys.excepthook, logging.Handler.handleError, ArgumentParser._print_message, an exit handler, "
    "standard error where it is closed",
    of_command=True,
)
def report_errors() -> None:
    """End at a known mistake in one sentence, at Ctrl-C quietly, at a closed output with a status
    of its own."""
    exit = importlib.import_module("fairseq_ext.core.exit")
    exit.install_hook()
    exit.watch_output()


@patch("the garbage collector's thresholds, an exit handler", of_command=True)
def spare_collections() -> None:
    """Do not look repeatedly through the million objects that torch's and fairseq's imports make,
    which stay to the end."""
    gc.set_threshold(200_000, 50, 100)
    atexit.register(gc.freeze)


@patch("logging.root, in a command of fairseq's", of_command=True)
def log_as_stock() -> bool:
    """Send the log to standard error: in stock a rarely used task does so, before the command would
    choose standard output."""
    if own.is_fairseq_command():
        logging.basicConfig(
            format="%(asctime)s | %(levelname)s | %(name)s | %(message)s",
            datefmt="%Y-%m-%d %H:%M:%S",
            level=os.environ.get("LOGLEVEL", "INFO").upper(),
        )
    return own.is_fairseq_command()


@patch("warnings.filters", of_command=True)
def silence_notices() -> None:
    """Ignore warnings of Ray on its future."""
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"ray\..*")


class TypedLines(list[str]):
    """A buffer of lines, from which fairseq cuts their phrases; typed: as they were."""

    typed: list[str]


@patch("buffered_read, sys.stdin and a log filter in fairseq_cli.interactive", own.INTERACTIVE)
def read_lines_as_typed() -> None:
    """Keep typed lines with their phrases, of which fairseq has the tokens alone. In a command,
    bytes that are not valid UTF-8 are lone surrogates: an error of their line and not of the
    session."""
    logging.getLogger(own.INTERACTIVE).addFilter(holds_here)
    if own.own_command == own.INTERACTIVE and isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    for name in (own.INTERACTIVE, "__main__"):
        if hasattr(sys.modules.get(name), "buffered_read"):
            sys.modules[name].buffered_read = buffered_read  # type: ignore[attr-defined]


def buffered_read(path: str, size: int) -> Iterator[TypedLines]:
    """Yield the lines of a file, "-" for standard input, in buffers of a size."""
    errors = "surrogateescape" if own.own_command == own.INTERACTIVE else "strict"
    hook = fileinput.hook_encoded("utf-8", errors=errors)
    with fileinput.FileInput(files=[path], openhook=hook) as lines:
        stripped = map(str.strip, lines)
        while buffer := TypedLines(itertools.islice(stripped, size)):
            buffer.typed = list(buffer)
            yield buffer


def holds_here(record: logging.LogRecord) -> bool:
    """Return whether a line of the command's log is correct: our phrases are segmented for the
    target side, and need no shared vocabulary."""
    return "assumes a shared subword vocabulary" not in str(record.msg)
