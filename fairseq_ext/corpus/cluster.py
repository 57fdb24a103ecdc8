"""Ray for a run: joined or started, quietly and without network, and how many workers it has room for."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from fairseq_ext.core.child import PACKAGES
from fairseq_ext.core.errors import UsageError, counted, cut

if TYPE_CHECKING:
    from fairseq_ext.corpus.job import Job

SECONDS_TO_ANSWER = 10
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "1"}


class Workers(NamedTuple):
    """How many actors, and whether each has a GPU."""

    number: int
    gpu: bool


@contextlib.contextmanager
def ray_for(job: Job) -> Iterator[Workers]:
    """A connection to Ray for as long as the context lasts (`connection`).

    Errors: UsageError when there is no Ray, no cluster at the address, or no room for one worker.
    """
    with connection(job.address, (job.workers or 1) * job.threads, job.object_store, job.dashboard) as resources:
        yield room(job, resources)


@contextlib.contextmanager
def connection(address: str | None, cpus: int, object_store: int, dashboard: bool = False) -> Iterator[dict[str, float]]:
    """A connection to Ray for as long as the context lasts: the cluster at an address, the one this process is connected to already,
    else one started here with `cpus` cores, or as many as this process may use, and object_store MiB of shared memory. The cluster's
    resources.

    Errors: UsageError when there is no Ray, or no cluster at the address.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise UsageError(f"this needs Ray ({error}): pip install 'fairseq_ext[cluster]', or pip install ray pyarrow") from error
    own = not ray.is_initialized()
    if own:
        quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "job_config": job()}
        if address:
            host, _, port = address.rpartition(":")
            try:
                if host and port.isdigit() and "/" not in host:  # Ray itself would try for minutes
                    socket.create_connection((host, int(port)), timeout=SECONDS_TO_ANSWER).close()
                ray.init(address=address, **quiet)
            except OSError as error:  # ConnectionError is one
                raise UsageError(f"no Ray cluster answers at --address {address}: start one with ray start --head") from error
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
            except Exception as error:  # Ray gives a machine that is busy half a minute, and raises what it likes
                said = cut(str(error).partition(".")[0])
                raise UsageError(f"Ray could not be started ({said}): free memory or processors, and run the same command again") from error
    try:
        yield ray.cluster_resources()
    finally:
        if own:
            ray.shutdown()


def job() -> Any:
    """Ray's settings of a run: workers search the working folder for modules only where this package lies there."""
    from ray.job_config import JobConfig

    found = JobConfig()
    found._client_job = os.getcwd() != PACKAGES  # it keeps Ray from adding the working folder
    return found


def room(job: Job, resources: dict[str, float]) -> Workers:
    """--workers, else one worker for each GPU unless --cpu is among the flags, else as many as have --threads cores each."""
    gpus = 0 if job.flags.get("cpu") else int(resources.get("GPU", 0))
    count = job.workers or gpus or int(resources.get("CPU", 0)) // job.threads
    if count < 1:
        asked = counted(job.threads, "core")
        raise UsageError(f"a worker is to have {asked} and the cluster has {resources.get('CPU', 0):g}: lower --threads")
    return Workers(count, gpus > 0)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
