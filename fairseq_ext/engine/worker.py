"""`python -m fairseq_ext.engine.worker FD`: the process that loads an engine's model, and
the workers that it forks.

The process that is started (the *fork server*) loads the model once and decodes nothing.
For each message on its socket it forks a worker, which shares the loaded weights and gets the
file descriptor that came with the message: one end of a pipe to the engine. So a worker that
dies is replaced within milliseconds. Where the model goes to a GPU, each worker loads it by
itself: a process that uses one cannot be forked. All of them end when the engine's process
does, however that ends.

From the engine: ("add", number, Job), ("cancel", number), None to end. To the engine: a Description
or an error first, then lists of events (decoding.py), and Work from time to time.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import torch

from fairseq_ext.core import child
from fairseq_ext.core.errors import UsageError, explain
from fairseq_ext.engine.decoding import Decoding
from fairseq_ext.engine.jobs import Description
from fairseq_ext.engine.requirements import OfRequests, Requirements
from fairseq_ext.kernels.library import give_back_memory
from fairseq_ext.plugin.loading.settings import source_limit
from fairseq_ext.search.strategies.schedule import Stream
from fairseq_ext.translator import Translator

WIDTH = 32  # sentences at once where --stream-width does not say
STEPS = 8  # between two starts: an encoder call has costs that several sentences share
REPORT = 0.25  # seconds between two reports of work
# about so many answers: then the memory that steps leave in pieces goes back to the system
EVENTS_BETWEEN_TRIMS = 100
IDLE_MS = 1000  # without a request: then too
NOT_HERE = {
    "results_file": "has no place in an engine, whose requests have no numbers",
    "resume": "continues a results file, and an engine has none",
    "constraints_file": "gives line n its phrases, and requests have no numbers: give them "
    "with each request",
    "print_alignment": "reads attention over a whole batch, and an engine has none",
    "glossary_report": "writes a line a sentence to a file: each answer has the same report",
    "glossary_documents": "looks back to earlier lines, and requests have no order",
    "stats_file": "is written by a run that ends: ask the engine for its counts",
    "draft_file": "gives line n its draft, and requests have no numbers",
    "ddg_dir": "writes graphs of the sentences of a whole run",
    "strict": "ends a run at its first bad sentence, and here each request has its own answer",
    "prefix_size": "takes prefixes from a data set, and here each request has its own",
}


def load(flags: dict[str, Any], longest: int | None = None) -> Decoding:
    """A model with its search, by the flags of `Translator` (raises UsageError). longest:
    most source tokens.

    A flag that names no schedule, width or order gets the one for requests that come one by one.
    """
    for name, why in NOT_HERE.items():
        if flags.get(name) not in (None, False, 0, "0"):
            raise UsageError(f"--{name.replace('_', '-')} {why}: leave it out")
    decoding = decoding_of(flags)
    decoding.longest = longest
    return decoding


def decoding_of(flags: dict[str, Any]) -> Decoding:
    """A model with a search that is refilled; parallel decoding takes one request after another."""
    is_beam = str(flags.get("decoding") or "beam") == "beam"
    given = dict(flags)
    for name in (
        ("schedule", "stream_width", "stream_rows", "stream_order", "refill_threshold")
        if not is_beam
        else ()
    ):
        if given.pop(name, None) not in (None, "batch"):
            raise UsageError(
                f"--{name.replace('_', '-')} says how requests share a search, and with --decoding "
                f"{flags['decoding']} each is decoded by itself: leave one of the two out"
            )
    threshold = given.get("refill_threshold", 1.0)  # whenever there is room
    if str(given.pop("schedule", "stream")) == "batch":
        given.pop("refill_threshold", None)
        threshold = 0.0  # a batch starts when the one before it has ended
    if is_beam:
        given = {"schedule": "stream", "stream_order": "fifo", "stream_width": WIDTH} | given
    translator, no_constraints = constrained(given | {"cpu_workers": 1})
    own, setup = translator.task.flags(), translator.generator.setup
    share = next((name for name in ("lsh_share", "shortlist_share") if shares(own, name)), None)
    if share is not None:
        raise UsageError(
            f"--softmax {own.softmax} has one list for all rows that are decoded together, so that "
            f"a request's result would depend on others: add --{share.replace('_', '-')} sentence"
        )
    places = 1
    if is_beam:
        places = max(1, own.stream_rows // setup.spec.k) if own.stream_rows else own.stream_width
    setup.strategies.schedule = Stream(
        places, float(threshold), str(own.stream_order) == "shortest", None, STEPS, fills=True
    )
    decoding = Decoding(translator, setup.strategies.schedule, places)
    decoding.requirements = Requirements(translator, no_constraints)
    return decoding


def constrained(flags: dict[str, Any]) -> tuple[Translator, str]:
    """A translator whose requests may have constraints; where the flags do not allow it, one
    without, and the reason."""
    try:
        return OfRequests(**({"constraints": "unordered"} | flags)), ""
    except UsageError as error:
        if flags.get("constraints"):
            raise
        return Translator(**flags), f"requests with constraints are refused here: {error}"


def shares(flags: Any, name: str) -> bool:
    """Whether a softmax has one list for all sentences."""
    of = {"lsh_share": ("lsh",), "shortlist_share": ("top", "lexical")}
    return str(flags.softmax) in of[name] and str(getattr(flags, name)) == "batch"


def description(decoding: Decoding) -> Description:
    """What the engine is told of a worker."""
    translator = decoding.translator
    flags, longest = translator.task.flags(), source_limit(translator.max_positions)
    # a language model has none
    source, target = (getattr(flags, f"{side}_lang", None) or "" for side in ("source", "target"))
    return Description(
        translator.signature,
        source,
        target,
        translator.generator.spec.k,
        translator.nbest,
        decoding.places,
        longest,
        decoding.requirements.no_constraints,
        decoding.languages.known,
    )


class Ended(BaseException):
    """The engine has no more requests.

    It is no error of the one that is decoded, so no Exception.
    """


@torch.no_grad()
def serve(pipe: Connection, decoding: Decoding) -> None:
    """Work on what the pipe brings, until it is closed or says so."""
    pipe.send(description(decoding))
    reported, answered = time.monotonic(), 0
    # made once: Connection.poll makes a selector a call, and this one is a call a step
    there = select.poll()
    there.register(pipe, select.POLLIN)

    def tell() -> None:
        """Send what has come of requests, and counts of work now and then."""
        nonlocal reported, answered
        events, decoding.events = decoding.events, []
        now = time.monotonic()
        if now - reported > REPORT or not decoding.busy:
            events.append((-1, decoding.take_work()))
            reported = now
        if events:
            pipe.send(events)
        answered += len(events)
        if answered >= EVENTS_BETWEEN_TRIMS:
            tidy()

    def tidy() -> None:
        """Give back what answers have left.

        The garbage collector hardly runs by itself (plugin/compat/fast_start.py).
        """
        nonlocal answered
        gc.collect()
        give_back_memory()
        answered = 0

    def is_there() -> bool:
        """Whether a message is there; where there is nothing to do and nothing to
        tell, wait for one."""
        if decoding.busy or decoding.events:
            return bool(there.poll(0))
        if answered and not there.poll(IDLE_MS):
            tidy()
        return bool(there.poll())

    def hear() -> None:
        """Take in all messages that are there (raises Ended); wait for one where there is nothing
        to do and nothing to tell."""
        while is_there():
            message = pipe.recv()
            if message is None:
                raise Ended
            kind, number, *job = message
            if kind == "add":
                decoding.add(number, *job)
            else:
                decoding.cancel(number)

    while True:
        hear()
        if decoding.busy:
            decoding.work()
        tell()


def work(
    pipe: Connection,
    loaded: Decoding | Exception | None,
    flags: dict[str, Any],
    longest: int | None,
) -> None:
    """A worker's life. loaded: the model, or why it cannot be had; None: load it here."""
    torch.set_num_threads(1)
    try:
        found = loaded_or_error(flags, longest) if loaded is None else loaded
        if isinstance(found, Exception):
            pipe.send(found)
        else:
            serve(pipe, found)
    except (Ended, EOFError, OSError):
        pass  # so has the engine


def loaded_or_error(flags: dict[str, Any], longest: int | None) -> Decoding | Exception:
    """The model, or the sentence that says why it cannot be loaded."""
    try:
        return load(flags, longest)
    except (Exception, SystemExit) as error:
        return UsageError(
            explain(error) or f"the model cannot be loaded: {type(error).__name__}: {error}"
        )


def main(fd: int) -> None:
    """The fork server."""
    # Ctrl-C reaches the engine's process, which then ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers: their pipes tell
    # asking whether there is a GPU must not touch it before the fork
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    torch.set_num_threads(1)
    control = socket.socket(fileno=fd)
    flags, longest = pickle.loads(receive(control))
    on_cpu = bool(flags.get("cpu")) or not torch.cuda.is_available()
    loaded = loaded_or_error(flags, longest) if on_cpu else None
    gc.collect()
    # workers share what is there; a collection of theirs would write to all of it, and so copy it
    gc.freeze()
    # what loading has freed: a worker that used it again would copy it, and it
    # would stay here as well
    give_back_memory()
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            work(Connection(fds[0]), loaded, flags, longest)
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(0)
        os.close(fds[0])


def receive(control: socket.socket) -> bytes:
    """One message: its length in 8 bytes, then its content."""
    size = int.from_bytes(control.recv(8, socket.MSG_WAITALL), "little")
    return control.recv(size, socket.MSG_WAITALL)


if __name__ == "__main__":
    main(int(child.argument()))
    os._exit(0)  # taking the model apart takes seconds
