"""The scheduler, which gives units to Ray actors and repeats lost units; and Ray's start.

No unit is lost when its actor dies: when a worker or a node fails, or when a sentence kills its
worker.

Ray starts the actors, places them on nodes, restarts them there or elsewhere (`max_restarts=-1`),
moves arguments and results, and reports finished calls (`ray.wait`). This module decides which
worker gets a unit whose actor died. Ray's own mechanism, `max_task_retries`, waits for the same
actor, which never returns if its node does not, and gives a unit that kills its worker to the next
one, for ever or until the job fails (Ray Data's actor pool does the same).
Here any worker gets a lost unit, at once. A unit that was lost `ATTEMPTS` times is halved, and
again at each further loss, until the failing sentence is alone; it is reported after `ATTEMPTS`
further losses. A unit that fails in several processes is halved in the same way, because a sentence
may leave a device unusable. The run ends when `FAILURES` units fail in a row.

A worker has one unit at a time, and the next unit has already been read: between two units a
worker waits for one message. So at most one unit a worker is in memory, whatever the size of the
corpus (back-pressure), and at the end no unit waits for another one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
from ray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    ObjectLostError,
    RayActorError,
    RayTaskError,
)

from fairseq_ext.core.child import PACKAGES
from fairseq_ext.core.errors import UsageError, counted, cut, halves
from fairseq_ext.corpus.shards import Shard, ShardLine
from fairseq_ext.corpus.worker import CorpusWorker, Result

if TYPE_CHECKING:
    from fairseq_ext.corpus.job import CorpusJob


logger = logging.getLogger("fairseq_ext.corpus")
# losses before a unit is halved; deaths while loading before a worker is given up
ATTEMPTS = 3
FAILURES = 20  # units that fail in a row before the run ends
TICK = 1.0  # seconds between two calls of `on_tick`
LOOK = 5.0  # seconds between two checks of the nodes
WITHOUT_NODES = 30.0  # seconds without a node for workers before the run ends


class Unit(NamedTuple):
    """Neighbouring sentences of one shard."""

    shard: Shard
    sentences: list[ShardLine]
    input_bytes: float = 0.0  # their share of the input file
    worker_deaths: int = 0  # workers that died while they had it

    @property
    def start(self) -> int:
        return self.sentences[0].number

    @property
    def end(self) -> int:
        return self.sentences[-1].number + 1


@dataclass
class Slot:
    """The place of one worker: its actor and the current call."""

    actor: Any
    call: Any = None  # Ray's reference of the current call's result
    kind: str = "hello"  # hello, load, translate, or idle
    unit: Unit | None = None
    failed_loads: int = 0  # in a row


@dataclass
class UnitScheduler:
    """The workers of a run, and the queue of their units.

    make_actor: returns a new actor. on_unit_done: called with each finished unit. on_sentence_lost:
    called with a unit of one sentence that kills every worker. on_tick: called about every second,
    with the number of workers alive, the number of all workers, and the time of the first unit.
    on_loaded: called with the description of a worker that has loaded the model.
    """

    make_actor: Callable[[], Any]
    size: int
    on_unit_done: Callable[[Unit, Result], None]
    on_sentence_lost: Callable[[Unit], None]
    on_tick: Callable[[int, int, float], None]
    on_loaded: Callable[[dict[str, str]], None]
    units: Iterator[Unit] = iter(())
    next_unit: Unit | None = None  # already read
    slots: list[Slot] = field(default_factory=list)
    retry_queue: deque[Unit] = field(default_factory=deque)  # lost units
    restarts: int = 0
    start_time: float = 0.0  # when the first unit was given out
    looked: float = 0.0  # time of the last check of the nodes
    had_nodes: float = 0.0  # time of the last check that found a node for workers
    failure: str = ""  # error of the last worker that failed
    failures: int = 0  # units that failed in a row
    translated: int = 0  # units

    @property
    def alive(self) -> int:
        """Number of workers that have loaded the model."""
        return sum(slot.kind in ("translate", "idle") for slot in self.slots)

    def run(self, units: Iterator[Unit]) -> None:
        """Translate all units.

        Errors: UsageError if no worker can load the model, if a unit fails in several processes,
        or if no node for workers is left.
        """
        self.units, self.had_nodes = units, time.monotonic()
        self.slots = [Slot(self.make_actor()) for _ in range(self.size)]
        for slot in self.slots:
            self.ping(slot)
        self.next_unit = next(units, None)
        while self.next_unit or self.retry_queue or any(slot.unit for slot in self.slots):
            self.wait()
            for slot in self.slots:
                if slot.kind == "idle":
                    self.assign(slot)
            self.on_tick(self.alive, self.size, self.start_time)
            self.look_at_nodes()

    def assign(self, slot: Slot) -> None:
        """Send an idle worker the next unit, lost units first; then read one more unit."""
        if self.retry_queue:
            self.send(slot, self.retry_queue.popleft())
        elif self.next_unit is not None:
            self.send(slot, self.next_unit)
            self.next_unit = next(self.units, None)

    def ping(self, slot: Slot) -> None:
        """Call an actor's `hello`, which returns when its process runs."""
        slot.kind, slot.unit = "hello", None
        slot.call = slot.actor.hello.options(max_task_retries=-1).remote()

    def send(self, slot: Slot, unit: Unit) -> None:
        """Send a unit to a worker."""
        self.start_time = self.start_time or time.monotonic()
        slot.kind, slot.unit = "translate", unit
        slot.call = slot.actor.translate.remote(unit.shard, unit.sentences)

    def wait(self) -> None:
        """Wait for a result, at most TICK seconds, and handle the slots that have one."""
        calls = {slot.call: slot for slot in self.slots if slot.call is not None}
        if not calls:
            raise UsageError(self.failure or "there are no workers")
        for call in ray.wait(list(calls), num_returns=1, timeout=TICK)[0]:
            self.handle_result(calls[call])

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

    def handle_result(self, slot: Slot) -> None:
        """Handle the result of a call, or its error."""
        call, slot.call = slot.call, None
        try:
            found = ray.get(call, timeout=60)
        except (RayActorError, ObjectLostError, GetTimeoutError) as error:
            self.on_worker_exit(slot, error)
        except RayTaskError as error:
            self.on_unit_error(slot, error)
        else:
            self.on_success(slot, found)

    def on_success(self, slot: Slot, found: Any) -> None:
        """Handle a result without an error: let the worker load the model, record that it is
        loaded, or pass a unit's result on."""
        if slot.kind == "hello":
            slot.kind, slot.call = "load", slot.actor.load.remote()
        elif slot.kind == "load":
            if "error" in found:
                self.give_up(slot, found["error"])
                return
            self.on_loaded(found)
            slot.kind, slot.failed_loads = "idle", 0
        else:
            unit, slot.unit, slot.kind = slot.unit, None, "idle"
            assert unit is not None
            self.failures, self.translated = 0, self.translated + 1
            self.assign(slot)
            self.on_unit_done(unit, found)

    def on_worker_exit(self, slot: Slot, error: Exception) -> None:
        """Handle the death of an actor's process or node, or a lost result: queue its unit
        again."""
        self.restarts += 1
        was, unit = slot.kind, slot.unit
        logger.warning("a worker died (at: %s; %s): Ray starts it again", was, type(error).__name__)
        if unit is not None:
            self.requeue(unit)
        if was in ("hello", "load"):
            slot.failed_loads += 1
            if slot.failed_loads == ATTEMPTS:
                remedy = (
                    "see whether fairseq_ext is installed on its node, and whether there is memory "
                    "for a model in each worker"
                )
                self.give_up(
                    slot, f"a worker died several times before it had loaded the model: {remedy}"
                )
                return
        if isinstance(error, ActorDiedError):
            slot.actor = self.make_actor()
        self.ping(slot)

    def requeue(self, unit: Unit) -> None:
        """Queue a lost unit again; split it in halves if it was lost too often."""
        worker_deaths = unit.worker_deaths + 1
        if worker_deaths < ATTEMPTS:
            self.retry_queue.append(unit._replace(worker_deaths=worker_deaths))
        elif len(unit.sentences) > 1:
            for part in halves(unit.sentences):
                input_bytes = unit.input_bytes * len(part) / len(unit.sentences)
                self.retry_queue.append(
                    Unit(
                        unit.shard,
                        list(part),
                        input_bytes,
                        worker_deaths=ATTEMPTS - 1 if len(part) > 1 else 0,
                    )
                )
        else:
            self.on_sentence_lost(unit)

    def on_unit_error(self, slot: Slot, error: RayTaskError) -> None:
        """Queue a unit that failed unexpectedly for another process, since this one may be broken.

        Errors: UsageError after too many failures.
        """
        unit, reason = slot.unit, f"{type(error.cause).__name__}: {error.cause}".splitlines()[0]
        self.failures += 1
        if (
            unit is None
            or (unit.worker_deaths + 1 == ATTEMPTS and not self.translated)
            or self.failures == FAILURES
        ):
            where = (
                f"lines {unit.start + 1} to {unit.end} of {unit.shard.path}" if unit else "a worker"
            )
            raise UsageError(
                f"{where} failed in several processes ({reason}): see Ray's logs, and run the "
                "same command again"
            ) from error
        logger.warning("a unit failed (%s); a fresh process gets it", reason)
        self.requeue(unit)
        ray.kill(slot.actor, no_restart=False)
        self.restarts += 1
        self.ping(slot)

    def give_up(self, slot: Slot, reason: str) -> None:
        """Give up a worker. The run ends if it was the last one (raises UsageError)."""
        self.failure = reason
        ray.kill(slot.actor)
        slot.kind, slot.call = "out", None
        if not self.start_time and all(other.kind in ("hello", "out") for other in self.slots):
            raise UsageError(reason)
        logger.warning("going on without a worker: %s", reason)

    def close(self) -> None:
        """End all workers."""
        for slot in self.slots:
            if slot.kind != "out":
                ray.kill(slot.actor)


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


def remote_worker(flags: dict[str, Any], threads: int, plain: bool, gpu: bool) -> Any:
    """Return a new actor, which Ray restarts until the run ends."""
    actor = ray.remote(CorpusWorker).options(
        num_cpus=threads, num_gpus=1 if gpu else 0, max_restarts=-1, max_task_retries=0
    )
    return actor.remote(flags, threads, plain)


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


class Workers(NamedTuple):
    """The number of actors, and whether each has a GPU."""

    number: int
    gpu: bool


@contextlib.contextmanager
def ray_for(job: CorpusJob) -> Iterator[Workers]:
    """Connect to Ray for the duration of the context (`connection`); yield the workers.

    Errors: UsageError if Ray is not installed, if no cluster answers at the address, or if there
    are no resources for one worker.
    """
    with connection(
        job.address, (job.workers or 1) * job.threads, job.object_store, job.dashboard
    ) as resources:
        yield fit_workers(job, resources)


@contextlib.contextmanager
def connection(
    address: str | None, cpus: int, object_store: int, dashboard: bool = False
) -> Iterator[dict[str, float]]:
    """Connect to Ray for the duration of the context; yield the cluster's resources.

    It is the cluster at an address, or the one that this process is connected to already, or one
    started here with `object_store` MiB of shared memory and at least `cpus` cores (or all that
    this process may use, if that is more).

    Errors: UsageError if Ray is not installed, or if no cluster answers at the address.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            f"this needs Ray ({error}): pip install 'fairseq_ext[cluster]', or pip "
            "install ray pyarrow"
        ) from error
    own = not ray.is_initialized()
    if own:
        quiet: dict[str, Any] = {
            "logging_level": logging.ERROR,
            "log_to_driver": False,
            "job_config": job(),
        }
        if address:
            host, _, port = address.rpartition(":")
            try:
                if host and port.isdigit() and "/" not in host:  # Ray itself would try for minutes
                    socket.create_connection((host, int(port)), timeout=SECONDS_TO_ANSWER).close()
                ray.init(address=address, **quiet)
            except OSError as error:  # ConnectionError is one
                raise UsageError(
                    f"no Ray cluster answers at --address {address}: start one with "
                    "ray start --head"
                ) from error
        else:
            try:
                ray.init(
                    address="local",
                    num_cpus=max(cores(), cpus),
                    object_store_memory=object_store << 20,
                    include_dashboard=dashboard,
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


def job() -> Any:
    """Return Ray's settings of a run: workers search the working folder for modules only if this
    package lies there."""
    from ray.job_config import JobConfig

    found = JobConfig()
    found._client_job = os.getcwd() != PACKAGES  # it keeps Ray from adding the working folder
    return found


def fit_workers(job: CorpusJob, resources: dict[str, float]) -> Workers:
    """Return the workers: --workers, else one for each GPU (unless --cpu is given), else one for
    each --threads cores. Errors: UsageError for fewer than one."""
    gpus = 0 if job.flags.get("cpu") else int(resources.get("GPU", 0))
    count = job.workers or gpus or int(resources.get("CPU", 0)) // job.threads
    if count < 1:
        threads = counted(job.threads, "core")
        raise UsageError(
            f"a worker is to have {threads} and the cluster has {resources.get('CPU', 0):g}: "
            "lower --threads"
        )
    return Workers(count, gpus > 0)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
