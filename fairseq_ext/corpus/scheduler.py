"""The scheduler, which gives units to Ray actors and gets them done through failures;
and Ray's start.

Units survive whatever kills their actor: workers, nodes, sentences that take their
worker with them.

Ray starts the actors, places them on nodes, restarts them there or elsewhere (`max_restarts=-1`),
moves arguments and results, and says which calls are over (`ray.wait`). What is done here is what
it leaves open: to whom a unit goes when its actor is gone. Ray's own answer, `max_task_retries`,
waits for that same actor, which may never come back when its node does not, and gives a unit that
kills its worker to the next one, for ever or until the job fails (so does Ray Data's actor pool).
Here a lost unit goes to any worker that is there, at once. One that was lost `ATTEMPTS` times is
halved, and so on at each further loss, until the sentence is cornered that does it; it is reported
when it was lost `ATTEMPTS` times by itself. A unit that fails in several processes is cornered in
the same way, as a sentence may leave a device unusable. The run ends when `FAILURES` units fail one
after the other, none translated between them.

A worker has one unit at a time, and the next unit has been read when it asks: between two units
it waits for one message. So not more than a unit a worker is in memory, whatever the corpus
(back-pressure), and at the end no unit waits behind another.
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
from fairseq_ext.corpus.shards import Sentence, Shard
from fairseq_ext.corpus.worker import Result, Worker

if TYPE_CHECKING:
    from fairseq_ext.corpus.job import Job


logger = logging.getLogger("fairseq_ext.corpus")
# losses of a unit before it is halved, and of a worker while it loads before it is given up
ATTEMPTS = 3
FAILURES = 20  # units that fail in a row before the run ends
TICK = 1.0  # seconds between two looks at the time
LOOK = 5.0  # seconds between two looks at the nodes
WITHOUT_NODES = 30.0  # seconds without a node for workers before the run ends


class Unit(NamedTuple):
    """Sentences of one shard, side by side."""

    shard: Shard
    sentences: list[Sentence]
    weight: float = 0.0  # bytes of the input
    losses: int = 0  # workers that went while they had it

    @property
    def start(self) -> int:
        return self.sentences[0].number

    @property
    def end(self) -> int:
        return self.sentences[-1].number + 1


@dataclass
class Slot:
    """One worker's place: its actor and the call that is under way."""

    actor: Any
    call: Any = None  # the reference of that call's result
    kind: str = "hello"  # hello, load, translate, or idle
    unit: Unit | None = None
    losses: int = 0  # while loading, one after the other


@dataclass
class Scheduler:
    """The workers of a run, and the units that they are given.

    make: a new actor. take: a finished unit. lost: a sentence that no worker survives. tick: called
    about every second, with how many workers are alive, of how many, and when the first unit was
    given out. loaded: what a worker says of itself once it has the model.
    """

    make: Callable[[], Any]
    size: int
    take: Callable[[Unit, Result], None]
    lost: Callable[[Unit], None]
    tick: Callable[[int, int, float], None]
    loaded: Callable[[dict[str, str]], None]
    units: Iterator[Unit] = iter(())
    ahead: Unit | None = None  # has been read and is given out next
    slots: list[Slot] = field(default_factory=list)
    again: deque[Unit] = field(default_factory=deque)  # lost units
    restarts: int = 0
    begun: float = 0.0  # when the first unit was given out
    looked: float = 0.0  # when the nodes were looked at
    had_nodes: float = 0.0  # when there was one for workers
    failure: str = ""  # what the last failing worker said
    failures: int = 0  # units that have failed since one was translated
    translated: int = 0  # units

    @property
    def alive(self) -> int:
        """Workers that have loaded the model."""
        return sum(slot.kind in ("translate", "idle") for slot in self.slots)

    def run(self, units: Iterator[Unit]) -> None:
        """Translate all units.

        Errors: UsageError when no worker can load the model, a unit fails in several processes, or
        all nodes for workers are gone.
        """
        self.units, self.had_nodes = units, time.monotonic()
        self.slots = [Slot(self.make()) for _ in range(self.size)]
        for slot in self.slots:
            self.greet(slot)
        self.ahead = next(units, None)
        while self.ahead or self.again or any(slot.unit for slot in self.slots):
            self.wait()
            for slot in self.slots:
                if slot.kind == "idle":
                    self.assign(slot)
            self.tick(self.alive, self.size, self.begun)
            self.look_at_nodes()

    def assign(self, slot: Slot) -> None:
        """Give an idle worker the next unit, lost ones first, and then read the one after it."""
        if self.again:
            self.give(slot, self.again.popleft())
        elif self.ahead is not None:
            self.give(slot, self.ahead)
            self.ahead = next(self.units, None)

    def greet(self, slot: Slot) -> None:
        """Ask an actor to say when there is a process."""
        slot.kind, slot.unit = "hello", None
        slot.call = slot.actor.hello.options(max_task_retries=-1).remote()

    def give(self, slot: Slot, unit: Unit) -> None:
        """Send a unit to a worker."""
        self.begun = self.begun or time.monotonic()
        slot.kind, slot.unit = "translate", unit
        slot.call = slot.actor.translate.remote(unit.shard, unit.sentences)

    def wait(self) -> None:
        """Wait for an answer, a second at most, and see to the slots that have one."""
        calls = {slot.call: slot for slot in self.slots if slot.call is not None}
        if not calls:
            raise UsageError(self.failure or "there are no workers")
        for call in ray.wait(list(calls), num_returns=1, timeout=TICK)[0]:
            self.answer(calls[call])

    def look_at_nodes(self) -> None:
        """Ask now and then whether any node could run a worker (raises UsageError where none could
        for a while): Ray itself waits for one, for ever."""
        now = time.monotonic()
        if now - self.looked < LOOK:
            return
        self.looked = now
        if has_nodes():
            self.had_nodes = now
        elif now - self.had_nodes > WITHOUT_NODES:
            raise UsageError(
                "all nodes of Ray on which workers could run are gone: see Ray's logs, start the "
                "nodes again if you had started them, and run the same command again; what is "
                "finished is kept"
            )

    def answer(self, slot: Slot) -> None:
        """Take the answer of a call, or its error."""
        call, slot.call = slot.call, None
        try:
            found = ray.get(call, timeout=60)
        except (RayActorError, ObjectLostError, GetTimeoutError) as error:
            self.gone(slot, error)
        except RayTaskError as error:
            self.failed(slot, error)
        else:
            self.go_on(slot, found)

    def go_on(self, slot: Slot, found: Any) -> None:
        """Take a good answer: load the model next, note that it is loaded, or pass
        a unit's result on."""
        if slot.kind == "hello":
            slot.kind, slot.call = "load", slot.actor.load.remote()
        elif slot.kind == "load":
            if "error" in found:
                self.give_up(slot, found["error"])
                return
            self.loaded(found)
            slot.kind, slot.losses = "idle", 0
        else:
            unit, slot.unit, slot.kind = slot.unit, None, "idle"
            assert unit is not None
            self.failures, self.translated = 0, self.translated + 1
            self.assign(slot)
            self.take(unit, found)

    def gone(self, slot: Slot, error: Exception) -> None:
        """Note that an actor's process or node is gone, or an answer with it; its unit
        is given out again."""
        self.restarts += 1
        was, unit = slot.kind, slot.unit
        logger.warning("a worker died (at: %s; %s): Ray starts it again", was, type(error).__name__)
        if unit is not None:
            self.lose(unit)
        if was in ("hello", "load"):
            slot.losses += 1
            if slot.losses == ATTEMPTS:
                cure = (
                    "see whether fairseq_ext is installed on its node, and whether there is memory "
                    "for a model in each worker"
                )
                self.give_up(
                    slot, f"a worker died several times before it had loaded the model: {cure}"
                )
                return
        if isinstance(error, ActorDiedError):
            slot.actor = self.make()
        self.greet(slot)

    def lose(self, unit: Unit) -> None:
        """Queue a unit again that came back, in halves when it has come back too often."""
        losses = unit.losses + 1
        if losses < ATTEMPTS:
            self.again.append(unit._replace(losses=losses))
        elif len(unit.sentences) > 1:
            for part in halves(unit.sentences):
                weight = unit.weight * len(part) / len(unit.sentences)
                self.again.append(
                    Unit(
                        unit.shard, list(part), weight, losses=ATTEMPTS - 1 if len(part) > 1 else 0
                    )
                )
        else:
            self.lost(unit)

    def failed(self, slot: Slot, error: RayTaskError) -> None:
        """Give a unit that failed in an unexpected way to another process: perhaps its own is
        broken (raises UsageError after too many)."""
        unit, reason = slot.unit, f"{type(error.cause).__name__}: {error.cause}".splitlines()[0]
        self.failures += 1
        if (
            unit is None
            or (unit.losses + 1 == ATTEMPTS and not self.translated)
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
        self.lose(unit)
        ray.kill(slot.actor, no_restart=False)
        self.restarts += 1
        self.greet(slot)

    def give_up(self, slot: Slot, reason: str) -> None:
        """Do without a worker; the run ends when it was the last."""
        self.failure = reason
        ray.kill(slot.actor)
        slot.kind, slot.call = "out", None
        if not self.begun and all(other.kind in ("hello", "out") for other in self.slots):
            raise UsageError(reason)
        logger.warning("going on without a worker: %s", reason)

    def close(self) -> None:
        """End all workers."""
        for slot in self.slots:
            if slot.kind != "out":
                ray.kill(slot.actor)


def has_nodes() -> bool:
    """Whether Ray has a node that is alive and has a processor or a GPU."""
    try:
        nodes = ray.nodes()
    except Exception:  # so is what would know of them
        return False
    return any(
        node["Alive"] and any(node["Resources"].get(kind) for kind in ("CPU", "GPU"))
        for node in nodes
    )


def remote_worker(flags: dict[str, Any], threads: int, plain: bool, gpu: bool) -> Any:
    """Return a new actor, which Ray restarts for as long as the run lasts."""
    actor = ray.remote(Worker).options(
        num_cpus=threads, num_gpus=1 if gpu else 0, max_restarts=-1, max_task_retries=0
    )
    return actor.remote(flags, threads, plain)


# ---- Ray for a run
#
# It is joined or started, quietly and without network. Also: how many workers it has room for.


SECONDS_TO_ANSWER = 10
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
}


class Workers(NamedTuple):
    """How many actors, and whether each has a GPU."""

    number: int
    gpu: bool


@contextlib.contextmanager
def ray_for(job: Job) -> Iterator[Workers]:
    """A connection to Ray for as long as the context lasts (`connection`).

    Errors: UsageError when there is no Ray, no cluster at the address, or no room for one worker.
    """
    with connection(
        job.address, (job.workers or 1) * job.threads, job.object_store, job.dashboard
    ) as resources:
        yield room(job, resources)


@contextlib.contextmanager
def connection(
    address: str | None, cpus: int, object_store: int, dashboard: bool = False
) -> Iterator[dict[str, float]]:
    """A connection to Ray for as long as the context lasts: the cluster at an address, the one this
    process is connected to already, else one started here with `cpus` cores, or as many as this
    process may use, and object_store MiB of shared memory. The cluster's resources.

    Errors: UsageError when there is no Ray, or no cluster at the address.
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
                # Ray gives a machine that is busy half a minute, and raises what it likes
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
    """Ray's settings of a run: workers search the working folder for modules only where
    this package lies there."""
    from ray.job_config import JobConfig

    found = JobConfig()
    found._client_job = os.getcwd() != PACKAGES  # it keeps Ray from adding the working folder
    return found


def room(job: Job, resources: dict[str, float]) -> Workers:
    """--workers, else one worker for each GPU unless --cpu is among the flags, else as many as
    have --threads cores each."""
    gpus = 0 if job.flags.get("cpu") else int(resources.get("GPU", 0))
    count = job.workers or gpus or int(resources.get("CPU", 0)) // job.threads
    if count < 1:
        asked = counted(job.threads, "core")
        raise UsageError(
            f"a worker is to have {asked} and the cluster has {resources.get('CPU', 0):g}: "
            "lower --threads"
        )
    return Workers(count, gpus > 0)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
