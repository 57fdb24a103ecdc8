"""Starts Python processes of our own: with the search path of this one, and without the working
folder, whose files are not ours to run.

`python child.py PATH MODULE ARGUMENTS` runs a module as `python -m` does, or with -c as MODULE the
code behind it. PATH: a folder a line.
"""

import os
import sys

# the folder that this package lies in
PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def search_path() -> list[str]:
    """Return this process's search path of modules.

    The working folder is left out, unless PYTHONPATH names it or this package lies there.
    """
    try:
        here = os.getcwd()
    except OSError:  # it has been removed
        here = ""
    kept = {
        PACKAGES,
        *(
            os.path.abspath(each)
            for each in os.environ.get("PYTHONPATH", "").split(os.pathsep)
            if each
        ),
    }
    found = [folder for folder in sys.path if folder and (here in kept or folder != here)]
    return found if PACKAGES in found else [*found, PACKAGES]


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module, or code (module: -c), in a process of its own."""
    alone = ["-I"] if sys.flags.isolated else ["-E"] if sys.flags.ignore_environment else []
    return [
        sys.executable,
        *alone,
        os.path.abspath(__file__),
        "\n".join(search_path()),
        module,
        *arguments,
    ]


def argument() -> str:
    """Return the first argument of the module, in the process."""
    return sys.argv[1]


def main() -> None:
    """Run in the process, as if it was started with -m or -c.

    Ctrl-C ends it at once until it says otherwise.
    """
    path, module = sys.argv[1:3]
    sys.path[:] = path.split("\n")  # where this file's own folder was first
    if module == "-c":
        code, sys.argv[:4] = sys.argv[3], ["-c"]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        return
    sys.argv[:3] = ["-m"]
    sys.orig_argv = [sys.executable, "-m", module, *sys.argv[1:]]
    import runpy
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
