"""The *_ext task that a command of fairseq's names, and its --user-dir.

patches.py loads this file by its path, while fairseq is being imported.
"""

import importlib
import os
import sys
from types import ModuleType
from typing import Any

own: Any = sys.modules["fairseq_ext.core.command_line"]


def register_named_tasks(options: ModuleType) -> None:
    """Let a command that names an *_ext task find it, with any --user-dir or none.

    Errors: UsageError for an unknown *_ext task, in one line that lists the known ones.
    """
    stock = options.utils.import_user_module

    def import_user_module(args) -> None:
        given = args.user_dir
        if given is not None and is_ours(given):
            importlib.import_module("fairseq_ext.plugin.tasks")
        else:
            if given is not None and own.names_our_task():
                refuse_wrong_folder(given)
            patches = sys.modules["fairseq_ext.plugin.compat.patches"]
            with patches.dataclass_defaults():
                stock(args)
        if own.names_our_task() or "fairseq_ext.plugin.tasks" in sys.modules:
            importlib.import_module("fairseq_ext.plugin.tasks").extend_examples()
        if own.names_our_task():
            importlib.import_module("fairseq_ext.plugin.stock").refuse_unknown(own.named_task())

    options.utils.import_user_module = import_user_module
    if own.names_our_task():
        importlib.import_module("fairseq_ext.plugin.tasks")
    if own.is_fairseq_command():
        importlib.import_module("fairseq_ext.core.exit").restore_keyboard_interrupt()
        if own.has_help_flag():
            importlib.import_module("fairseq_ext.plugin.flag_help").print_flags()


def is_ours(folder: str) -> bool:
    """Return whether --user-dir means this package, wherever it is installed."""
    return os.path.basename(os.path.normpath(folder)) == "fairseq_ext"


def refuse_wrong_folder(folder: str) -> None:
    """Refuse a path that is not a user directory, and one with the name of another module, which
    Python would import instead (raises UsageError)."""
    path = os.path.abspath(folder)
    name = os.path.basename(path)
    known = sys.modules.get(name)
    is_other = known and path not in map(os.path.abspath, getattr(known, "__path__", ()))
    if os.path.exists(path) and ("." in name or is_other or not os.path.isdir(path)):
        raise importlib.import_module("fairseq_ext.core.errors").UsageError(
            f"--user-dir {folder} cannot be imported: it must be a folder, without a dot in its "
            "name, which is not the name of another module of Python's"
        )
