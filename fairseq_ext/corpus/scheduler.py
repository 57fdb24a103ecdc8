"""The scheduler, which gives units to Ray actors and repeats lost units; and Ray's start.

No unit is lost when its actor dies: when a worker or a node fails, or when a sentence kills its
worker.

Ray starts the actors, places them on nodes, moves arguments and results, and reports finished calls
(`ray.wait`). The pool of core/worker_pool.py decides which worker gets a unit, also one whose actor
died. Ray's own mechanism, `max_task_retries`, waits for the same actor, which never returns if its
node does not, and gives a unit that kills its worker to the next one, for ever or until the job
fails (Ray Data's actor pool does the same).
Here any worker gets a lost unit, at once. A unit that two workers died over is halved, and again at
each further death, until the failing sentence is alone; it is reported after two further deaths. A
unit that fails in several processes is halved in the same way, because a sentence may leave a
device unusable. The run ends when `FAILURES` units fail in a row.

A worker has one unit at a time, and the next unit has already been read: between two units a
worker waits for one message. So at most one unit a worker is in memory, whatever the size of the
corpus (back-pressure), and at the end no unit waits for another one.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayTaskError

from fairseq_ext.core.child import PACKAGES
from fairseq_ext.core.dispatch import Ticket
from fairseq_ext.core.errors import UsageError, counted, cut, halves
from fairseq_ext.core.supervision import State
from fairseq_ext.core.worker_pool import WorkerPool
from fairseq_ext.corpus.job import cores
from fairseq_ext.corpus.shards import Unit
from fairseq_ext.corpus.worker import CorpusWorker, Result

if TYPE_CHECKING:
    from fairseq_ext.corpus.job import CorpusJob


logger = logging.getLogger("fairseq_ext.corpus")
FAILURES = 20  # units that fail in a row before the run ends
OBJECT_STORE = 128 << 20  # bytes of memory for units and results, where Ray is started here
TICK = 1.0  # seconds between two calls of `on_tick`
LOOK = 5.0  # seconds between two checks of the nodes
RAY_ERRORS = (RayActorError, ObjectLostError, GetTimeoutError, RayTaskError)
WITHOUT_NODES = 30.0  # seconds without a node for workers before the run ends
DIED = (
    "a worker died several times before it had loaded the model: see whether fairseq_ext is "
    "installed on its node, and whether there is memory for a model in each worker"
)


class RayWorkers(WorkerPool[object]):
    """The actors of a run, and their units.

    make_actor: returns a new actor. on_unit_done: called with each finished unit, and None in the
    place of its result if it is one sentence that kills its workers. on_tick: called with this
    object, about every second. on_loaded: called with the description of a worker that has loaded
    the model.
    """

    def __init__(
        self,
        make_actor: Callable[[], Any],
        size: int,
        on_unit_done: Callable[[Unit, Result | None], None],
        on_tick: Callable[[RayWorkers], None],
        on_loaded: Callable[[dict[str, object]], None],
    ):
        super().__init__(size, math.inf)
        self.make_actor, self.size = make_actor, size
        self.on_unit_done, self.on_tick, self.on_loaded = on_unit_done, on_tick, on_loaded
        # actor and unit (None: it loads the model), by Ray's reference of a call's result
        self.calls: dict[object, tuple[object, Ticket | None]] = {}
        self.answers: list[tuple[Unit, object]] = []  # of this turn
        self.numbers = itertools.count()
        self.todo: deque[Unit] = deque()  # halves of units, or the next unit
        self.start_time = 0.0  # when the first unit was given out
        self.looked = 0.0  # time of the last check of the nodes
        self.had_nodes = 0.0  # time of the last check that found a node for workers
        self.failures = 0  # units that failed in a row
        self.translated = 0  # units
        self.restarts = 0

    @property
    def alive(self) -> int:
        """Number of workers that have loaded the model."""
        return sum(worker.state is State.READY for worker in self.dispatch.workers)

    def run(self, units: Iterator[Unit]) -> None:
        """Translate all units.

        Errors: UsageError if no worker can load the model, if a unit fails in several processes,
        or if no node for workers is left.
        """
        self.had_nodes = time.monotonic()
        while True:
            self.todo += itertools.islice(units, 0 if self.todo else 1)
            while self.todo and self.has_idle():
                unit = self.todo.popleft()
                self.dispatch.on_submit(
                    Ticket(next(self.numbers), unit, len(unit.sentences), deaths=unit.deaths)
                )
                self.todo += itertools.islice(units, 0 if self.todo else 1)
            self.carry_out(time.monotonic())
            answers, self.answers = self.answers, []
            for done, what in answers:
                self.finish(done, what)
            if not self.todo and next(self.dispatch.tickets(), None) is None:
                return
            self.wait()
            self.on_tick(self)
            self.look_at_nodes()

    def has_idle(self) -> bool:
        """Return whether there is a worker for one more unit."""
        ready = [w for w in self.dispatch.workers if w.state is State.READY]
        waiting = len(self.dispatch.waiting) + len(self.dispatch.suspects)
        return sum(not worker.tickets for worker in ready) > waiting

    def finish(self, unit: Unit, what: Any) -> None:
        """Pass the result of a unit on; halve a unit that its workers died over."""
        if not isinstance(what, Exception):
            self.on_unit_done(unit, what)
        elif len(unit.sentences) == 1:
            self.on_unit_done(unit, None)
        else:
            for part in halves(unit.sentences):
                share = unit.input_bytes * len(part) / len(unit.sentences)
                self.todo.append(Unit(unit.shard, list(part), share, min(len(part) - 1, 1)))

    def wait(self) -> None:
        """Wait for results, at most TICK seconds, and handle them (raises UsageError if no worker
        can load the model)."""
        seconds = self.dispatch.next_event(time.monotonic())
        seconds = TICK if seconds is None else min(TICK, seconds)
        if self.calls:
            for call in ray.wait(list(self.calls), num_returns=1, timeout=seconds)[0]:
                self.on_result(call, time.monotonic())
        else:
            time.sleep(seconds)
        self.dispatch.on_time(time.monotonic(), lambda worker: None)
        if self.dispatch.failure is not None:
            raise self.dispatch.failure

    def look_at_nodes(self) -> None:
        """Check now and then whether any node could run a worker; Ray itself would wait for ever.

        Errors: UsageError if there was no such node for WITHOUT_NODES seconds.
        """
        now = time.monotonic()
        if now - self.looked < LOOK:
            return
        self.looked = now
        if has_nodes():
            self.had_nodes = now
        elif now - self.had_nodes > WITHOUT_NODES:
            raise UsageError(
                "all nodes of Ray on which workers could run are gone: see Ray's logs, start the "
                "nodes again if you had started them, and run the same command again; finished "
                "output is kept"
            )

    def on_result(self, call: Any, now: float) -> None:
        """Handle the result of a call, or its error."""
        actor, ticket = self.calls.pop(call)
        worker = self.workers[actor]
        try:
            result = ray.get(call, timeout=60)
        except RAY_ERRORS as error:
            if ticket is not None and isinstance(error, RayTaskError):
                self.check_failures(ticket, error)
            else:
                where, kind = "load" if ticket is None else "translate", type(error).__name__
                logger.warning("a worker died (at: %s; %s): it is started again", where, kind)
            self.restarts += 1
            return self.on_end(actor, now)
        if ticket is not None:
            self.failures, self.translated = 0, self.translated + 1
            self.dispatch.on_answer(worker, ticket.number, result)
        elif "error" in result:
            self.on_failed_start(worker, UsageError(result["error"]), now, is_final=True)
        else:
            self.on_loaded(result)
            self.dispatch.on_ready(worker, 1, now)

    def check_failures(self, ticket: Ticket, error: RayTaskError) -> None:
        """Note that a unit failed unexpectedly: its process may be broken, and another one gets it.

        Errors: UsageError after too many failures.
        """
        reason = f"{type(error.cause).__name__}: {error.cause}".splitlines()[0]
        self.failures += 1
        if ticket.deaths and not self.translated or self.failures == FAILURES:
            unit = ticket.payload
            raise UsageError(
                f"lines {unit.start + 1} to {unit.end} of {unit.shard.path} failed in several "
                f"processes ({reason}): see Ray's logs, and run the same command again"
            ) from error
        logger.warning("a unit failed (%s); a fresh process gets it", reason)

    # ---- what the pool does with an actor

    def new_process(self) -> object:
        actor = self.make_actor()
        self.calls[actor.load.remote()] = actor, None
        return actor

    def exit_error(self, process: object) -> Exception:
        return UsageError(DIED)

    def send(self, process: Any, ticket: Ticket) -> None:
        self.start_time = self.start_time or time.monotonic()
        unit = ticket.payload
        self.calls[process.translate.remote(unit.shard, unit.sentences)] = process, ticket

    def end(self, process: Any) -> None:
        self.calls = {call: given for call, given in self.calls.items() if given[0] is not process}
        ray.kill(process)

    def answer(self, ticket: Ticket, what: object) -> None:
        self.answers.append((ticket.payload, what))

    def close(self) -> None:
        """End all workers."""
        for actor in list(self.workers):
            self.forget(actor)


def has_nodes() -> bool:
    """Return whether Ray has a node that is alive and has a processor or a GPU."""
    try:
        nodes = ray.nodes()
    except Exception:  # the head node is gone too
        return False
    return any(
        node["Alive"] and any(node["Resources"].get(kind) for kind in ("CPU", "GPU"))
        for node in nodes
    )


# ---- Ray for a run
#
# A cluster is joined, or Ray is started here without log lines and without network. Then the
# number of workers is derived from its resources.


SECONDS_TO_ANSWER = 10
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
}


@contextlib.contextmanager
def ray_for(job: CorpusJob) -> Iterator[dict[str, float]]:
    """Connect to Ray for the duration of the context; yield the cluster's resources.

    It is the cluster at --address, or the one that this process is connected to already, or one
    started here with at least as many cores as the workers need (or all that this process may use,
    if that is more).

    Errors: UsageError if no cluster answers at the address, or Ray cannot be started.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    own = not ray.is_initialized()
    if own:
        quiet: dict[str, Any] = {
            "logging_level": logging.ERROR,
            "log_to_driver": False,
            "job_config": job_config(),
        }
        if job.address:
            host, _, port = job.address.rpartition(":")
            try:
                if host and port.isdigit() and "/" not in host:  # Ray itself would try for minutes
                    socket.create_connection((host, int(port)), timeout=SECONDS_TO_ANSWER).close()
                ray.init(address=job.address, **quiet)
            except OSError as error:  # ConnectionError is one
                raise UsageError(
                    f"no Ray cluster answers at --address {job.address}: start one with "
                    "ray start --head"
                ) from error
        else:
            try:
                ray.init(
                    address="local",
                    num_cpus=max(cores(), (job.workers or 1) * job.threads),
                    object_store_memory=OBJECT_STORE,
                    include_dashboard=False,
                    _node_ip_address="127.0.0.1",
                    **quiet,
                )
            except Exception as error:
                # Ray waits half a minute on a busy machine, and raises various exceptions
                said = cut(str(error).partition(".")[0])
                raise UsageError(
                    f"Ray could not be started ({said}): free memory or processors, and run the "
                    "same command again"
                ) from error
    try:
        yield ray.cluster_resources()
    finally:
        if own:
            ray.shutdown()


def job_config() -> object:
    """Return Ray's settings of a run: workers search the working folder for modules only if this
    package lies there."""
    from ray.job_config import JobConfig

    found = JobConfig()
    found._client_job = os.getcwd() != PACKAGES  # it keeps Ray from adding the working folder
    return found


def actors_of(job: CorpusJob, resources: dict[str, float]) -> tuple[int, Callable[[], object]]:
    """Return the number of workers, and a function that makes their actors: --workers, else one for
    each GPU (unless --cpu is given), else one for each --threads cores.

    Errors: UsageError for fewer than one.
    """
    gpus = 0 if job.flags.get("cpu") else int(resources.get("GPU", 0))
    count = job.workers or gpus or int(resources.get("CPU", 0)) // job.threads
    if count < 1:
        raise UsageError(
            f"a worker is to have {counted(job.threads, 'core')} and the cluster has "
            f"{resources.get('CPU', 0):g}: lower --threads"
        )
    actor = ray.remote(CorpusWorker).options(num_cpus=job.threads, num_gpus=int(gpus > 0))
    flags = {**job.flags, "path": job.path, "data": job.data}
    flags = {name: absolute(value) for name, value in flags.items()}
    return count, partial(actor.remote, flags, job.threads, job.format == "text")


def absolute(value: object) -> object:
    """Return a flag's value with absolute paths of files and folders: workers may be started in
    another working folder."""
    if not isinstance(value, str):
        return value
    return ":".join(
        os.path.abspath(part) if os.path.exists(part) else part for part in value.split(":")
    )
