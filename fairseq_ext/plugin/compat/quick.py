"""What makes commands start quickly, beside lazy.py and compose.py; startup.py imports this file while fairseq is being imported."""

import argparse
import atexit
import gc
import logging
import os
import sys
from types import ModuleType

PLAIN = {bool, int, float, type(None)}
FEW_COLLECTIONS = (200_000, 50, 100)  # of the garbage collector, for gc.set_threshold


def spare_collections() -> None:
    """Let the garbage collector look through what is imported less often, and not at all at the end: that takes a second in all.

    What torch and fairseq import are a million objects that stay to the end, and are then looked through thrice before Python ends.
    """
    gc.set_threshold(*FEW_COLLECTIONS)
    atexit.register(gc.freeze)


def leave_out_default_model(options: ModuleType) -> None:
    """Let fairseq-generate have no --arch where none is given, as fairseq-interactive: its default, a speech model, is for other tasks."""
    stock = options.parse_args_and_arch

    def parse_args_and_arch(parser, input_args=None, *more, **named):
        from fairseq_ext.core import command_line

        given = command_line.arguments() if input_args is None else input_args
        if not any(argument in ("-a", "--arch") or argument.startswith("--arch=") for argument in given):
            for action in parser._actions:
                if action.dest == "arch" and action.default == "wav2vec2":
                    action.default = argparse.SUPPRESS
        return stock(parser, input_args, *more, **named)

    options.parse_args_and_arch = parse_args_and_arch  # type: ignore[attr-defined]


def read_plain_values(utils: ModuleType) -> None:
    """Give a plain value of a configuration at once: omegaconf takes 40 us, and fairseq-interactive asks 23 times for each line.

    Plain are numbers, truth values, None, groups that are there, and strings without interpolation. Whatever else, omegaconf gives.
    """
    from omegaconf import DictConfig, ValueNode

    stock = DictConfig.__getattr__

    def plain_value(self, key: str):
        content = self.__dict__.get("_content")
        node = content.get(key) if type(content) is dict else None
        if isinstance(node, ValueNode):
            value = node.__dict__.get("_val", "???")
            if type(value) in PLAIN or (type(value) is str and "$" not in value and value != "???"):
                return value
        elif type(node) is DictConfig and type(node.__dict__.get("_content")) is dict:
            return node
        return stock(self, key)

    DictConfig.__getattr__ = plain_value  # type: ignore[method-assign]


def log_as_stock(tasks: ModuleType) -> bool:
    """Send the log of a command of fairseq's to standard error, as it goes in stock: there a task that few use says so when it is imported,
    before the command would choose standard output."""
    of_fairseq = "fairseq_cli" in sys.modules
    if of_fairseq:
        logging.basicConfig(
            format="%(asctime)s | %(levelname)s | %(name)s | %(message)s",
            datefmt="%Y-%m-%d %H:%M:%S",
            level=os.environ.get("LOGLEVEL", "INFO").upper(),
        )
    return of_fairseq
