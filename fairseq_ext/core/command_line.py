"""Whose process this is. A command's own: `python -m fairseq_ext...`, or fairseq-generate or
fairseq-interactive with a task of ours.

In every other program this package is a guest, which changes nothing of the process: hooks,
signals, garbage collection, warnings, search path.

patches.py loads this file by its path, while fairseq is being imported, and
`fairseq_ext/__init__.py` imports it first. It imports nothing that Python has not loaded at its
start: a file of the working folder could be taken for it.
"""

import os
import sys

COMMANDS = {
    "fairseq-generate": "fairseq_cli.generate",
    "fairseq-interactive": "fairseq_cli.interactive",
}
# commands that start without fairseq and torch
LIGHT = ("fairseq_ext.terms", "fairseq_ext.doctor", "fairseq_ext.kernels", "fairseq_ext.translate")
owned = ""  # the command's module, once this process is its own


def program() -> str:
    """The file or the module that Python was started with; empty where there is none, or where
    somebody has changed sys.argv since."""
    place = len(sys.orig_argv) - len(sys.argv)
    untouched = place >= 0 and sys.argv[:1] != ["-c"] and sys.orig_argv[place + 1 :] == sys.argv[1:]
    return sys.orig_argv[place] if untouched else ""


def arguments() -> list[str]:
    """The program's arguments, without its name.

    Nothing else of the package asks Python for them.
    """
    return sys.argv[1:]


def values_of(flag: str, given: list[str] | None = None) -> list[str]:
    """The values that arguments give a flag, in their order; given: None for the program's."""
    given = arguments() if given is None else given
    found = []
    for argument, following in zip(given, [*given[1:], None], strict=False):
        name, equals, value = argument.partition("=")
        if name == flag and (equals or following is not None):
            found.append(value if equals else str(following))
    return found


def asks_for_help() -> bool:
    """Whether --help is among the program's arguments."""
    return not {"-h", "--help"}.isdisjoint(arguments())


def named_task(given: list[str] | None = None) -> str:
    """The task that arguments name, empty where they name none; given: None for the program's."""
    return (values_of("--task", given) or [""])[-1]


def names_our_task() -> bool:
    """Whether the program's arguments name a task of ours."""
    return named_task().endswith("_ext")


def absolute(path: str) -> str:
    """A path from the root; empty for a relative one where the working folder has been removed."""
    try:
        return os.path.abspath(path)
    except OSError:
        return ""


def command() -> str:
    """The module of the command that this process was started for, with -m or as a file; empty for
    a program of somebody else."""
    as_module = sys.argv[:1] == ["-m"]  # until Python has found the module
    *_, folder, file = ["", "", *absolute(program()).split(os.sep)]
    module = program() if as_module else COMMANDS.get(file, f"{folder}.{file.removesuffix('.py')}")
    if module in COMMANDS.values():
        return module if names_our_task() else ""
    return (
        module
        if module == "fairseq_ext.doctor"
        or (as_module and module.partition(".")[0] == "fairseq_ext")
        else ""
    )


def decodes_alone() -> bool:
    """Whether this process runs fairseq-generate or fairseq-interactive and nothing else."""
    return owned in COMMANDS.values()


def registers_tasks() -> bool:
    """Whether the package's import is to register its tasks: fairseq's commands ask for
    them later (startup.py)."""
    return not decodes_alone() and owned not in LIGHT


def leave_out_working_folder() -> bool:
    """Search it for no module; whether it is so: not where fairseq itself is run
    from its source folder."""
    from fairseq_ext.core import child

    from_source = decodes_alone() and os.path.isdir("fairseq_cli")
    if not from_source:
        sys.path[:] = child.search_path()
    return not from_source
