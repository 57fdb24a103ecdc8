"""`fairseq-generate` in a forked child of this process, so that fairseq and torch are imported once for hundreds of commands."""

import io
import logging
import multiprocessing
import os
import sys
from contextlib import redirect_stderr, redirect_stdout

from fairseq_cli.generate import cli_main

from fairseq_ext.errors import report


def body_of_generate(words: list[str], pipe) -> None:
    """Run the command in this process, and send its exit status, output and log."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    sys.argv = sys.orig_argv = ["fairseq-generate", *words]
    for handler in logging.getLogger().handlers[:]:
        logging.getLogger().removeHandler(handler)
    with redirect_stdout(out), redirect_stderr(err):
        logging.basicConfig(stream=err, level="INFO", force=True)
        try:
            cli_main()
        except SystemExit as stopped:
            status = stopped.code if isinstance(stopped.code, int) else 1
        except BaseException as error:
            status = 1
            report(type(error), error, error.__traceback__)
    pipe.send((status, out.getvalue(), err.getvalue()))
    pipe.close()
    os._exit(0)


def generate(*words) -> tuple[int, str, str]:
    """Exit status, output and log of fairseq-generate."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=body_of_generate, args=([str(w) for w in words], theirs))
    process.start()
    theirs.close()
    answer = ours.recv() if ours.poll(120) else (-1, "", "no answer in 120 s")
    process.join()
    return answer
