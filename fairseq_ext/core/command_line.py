"""Decides whether this process belongs to one of our commands: `python -m fairseq_ext...`, or
fairseq-generate or fairseq-interactive with a task of ours.

In every other program this package is a guest and does not change the process: hooks, signals,
garbage collection, warnings, search path.

patches.py loads this file by its path, while fairseq is being imported, and
`fairseq_ext/__init__.py` imports it first. It imports only modules that Python loads at its start:
a file of the working folder could have the name of any other module.
"""

import os
import sys

INTERACTIVE = "fairseq_cli.interactive"
COMMANDS = {"fairseq-generate": "fairseq_cli.generate", "fairseq-interactive": INTERACTIVE}
# commands that start without fairseq and torch
TORCH_FREE_COMMANDS = (
    "fairseq_ext.terms",
    "fairseq_ext.doctor",
    "fairseq_ext.kernels",
    "fairseq_ext.translate",
)
own_command = ""  # the module of our command; empty in other programs and before `startup`


def program() -> str:
    """Return the file or the module that Python was started with; "" if there is none, or if
    sys.argv has been changed."""
    place = len(sys.orig_argv) - len(sys.argv)
    untouched = place >= 0 and sys.argv[:1] != ["-c"] and sys.orig_argv[place + 1 :] == sys.argv[1:]
    return sys.orig_argv[place] if untouched else ""


def arguments() -> list[str]:
    """Return the program's arguments, without its name.

    All code of the package uses this function instead of sys.argv.
    """
    return sys.argv[1:]


def values_of(flag: str, argv: list[str] | None = None) -> list[str]:
    """Return the values of a flag, in their order; argv: None for the program's arguments."""
    argv = arguments() if argv is None else argv
    found = []
    for argument, following in zip(argv, [*argv[1:], None], strict=False):
        name, equals, value = argument.partition("=")
        if name == flag and (equals or following is not None):
            found.append(value if equals else str(following))
    return found


def has_help_flag() -> bool:
    """Return whether --help is among the program's arguments."""
    return not {"-h", "--help"}.isdisjoint(arguments())


def named_task() -> str:
    """Return the value of --task, "" if there is none."""
    return (values_of("--task") or [""])[-1]


def names_our_task() -> bool:
    """Return whether the program's arguments name a task of ours."""
    return named_task().endswith("_ext")


def absolute(path: str) -> str:
    """Return the absolute path; "" for a relative one if the working folder has been removed."""
    try:
        return os.path.abspath(path)
    except OSError:
        return ""


def command() -> str:
    """Return the module of our command that this process was started for, with -m or as a file; ""
    for any other program."""
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


def is_fairseq_command() -> bool:
    """Return whether this process is fairseq-generate or fairseq-interactive."""
    return own_command in COMMANDS.values()


def is_loaded(command: str) -> bool:
    """Return whether a module of fairseq's commands is loaded here, also as the main program."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return command in sys.modules or (main is not None and main.name == command)


def registers_tasks() -> bool:
    """Return whether importing the package registers its tasks: in fairseq's commands
    patches.py does that later."""
    return not is_fairseq_command() and own_command not in TORCH_FREE_COMMANDS


def end_at_interrupt() -> None:
    """Let Ctrl-C end the process at once while it imports, where an import could turn it into
    another error; exit.py has the way back."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)


def interrupted(*signal: object) -> None:
    """Handle Ctrl-C."""
    os._exit(130)


def leave_out_working_folder() -> bool:
    """Remove the working folder from the search path of modules, unless fairseq runs from its
    source folder. Return whether it was removed."""
    from fairseq_ext.core import child

    from_source = is_fairseq_command() and os.path.isdir("fairseq_cli")
    if not from_source:
        sys.path[:] = child.search_path()
    return not from_source
