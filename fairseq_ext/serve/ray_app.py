"""The server beyond one machine: `python -m fairseq_ext.serve.ray_app --path MODEL.pt --data DATA -s de -t en --max-replicas 8`

Ray Serve runs it, with the same API: one deployment answers HTTP, another holds the model in as many replicas as the load asks for, each an
engine of `--cpu-workers` processes (replicas.py). In a Ray Serve program of your own, `application(flags)` is what `serve.run` takes.

Model, data, keys and kept glossaries are files, which every machine has to see at the same paths.
"""

from __future__ import annotations

import signal
import sys
import threading
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from fairseq_ext.corpus.cluster import connection
from fairseq_ext.errors import UsageError
from fairseq_ext.loading.model_folder import flags_of
from fairseq_ext.serve.__main__ import needed, parser, settings_of
from fairseq_ext.serve.settings import Settings

if TYPE_CHECKING:
    from ray.serve import Application

NAME, DECODER = "fairseq_ext", "Decoder"
OBJECT_STORE = 100  # MiB of shared memory of a Ray that is started here: requests do not go through it
AHEAD = 16  # requests that a replica has, on the average, for each of its workers, before there is another replica


def application(flags: dict[str, Any], settings: Settings, replicas: tuple[int, int] = (1, 1), cpu_workers: int = 1) -> Application:
    """The Ray Serve application; flags: of `Engine`, `path` and `data` among them; replicas: fewest and most of the decoder."""
    from ray import serve

    from fairseq_ext.serve.replicas import Replica

    def build() -> Any:
        """The HTTP application, in the process that answers."""
        from fairseq_ext.serve.app import Server
        from fairseq_ext.serve.replicas import Replicas

        engine = Replicas(serve.get_deployment_handle(DECODER, app_name=NAME), flags, settings.max_queue)
        engine.start()
        return Server(engine, settings).app

    both: dict[str, Any] = {"graceful_shutdown_timeout_s": settings.grace, "max_ongoing_requests": settings.max_queue + settings.max_lines}
    gpu = {"num_gpus": 1} if not flags.get("cpu") and has_gpus() else {}
    decoder = serve.deployment(
        name=DECODER,
        autoscaling_config={"min_replicas": replicas[0], "max_replicas": replicas[1], "target_ongoing_requests": AHEAD * cpu_workers},
        ray_actor_options={"num_cpus": cpu_workers, **gpu},
        health_check_period_s=2,
        **both,
    )(Replica)
    front = serve.deployment(name="Server", num_replicas=1, ray_actor_options={"num_cpus": 0}, **both)(serve.ingress(build)())
    return front.bind(decoder.bind(flags, settings.max_tokens_a_line, cpu_workers))


def has_gpus() -> bool:
    """Whether a machine of the cluster has a GPU."""
    import ray

    return ray.is_initialized() and ray.cluster_resources().get("GPU", 0) > 0


def arguments() -> ArgumentParser:
    """The server's, and Ray's."""
    parse = parser("python -m fairseq_ext.serve.ray_app")
    parse.add_argument("--replicas", type=int, default=1, metavar="N", help="engines at least (default: 1)")
    parse.add_argument("--max-replicas", type=int, metavar="N", help="engines at most, under load (default: as many as --replicas)")
    parse.add_argument("--address", help="address of a running Ray cluster, or auto (default: Ray is started here)")
    return parse


def free_port(settings: Settings) -> int:
    """A port that can be listened on (raises UsageError)."""
    from fairseq_ext.serve.__main__ import listening

    with listening(settings) as found:
        return found.getsockname()[1]


def serve_until_told(flags: dict[str, Any], settings: Settings, replicas: tuple[int, int], cpu_workers: int) -> int:
    """Answer requests until a signal comes; the exit code."""
    from ray import serve
    from ray.serve.config import HTTPOptions
    from ray.serve.schema import LoggingConfig

    port = free_port(settings)
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: told.set())
    quiet = LoggingConfig(log_level="ERROR", enable_access_log=False)
    serve.start(http_options=HTTPOptions(host=settings.host, port=port), logging_config=quiet)
    try:
        serve.run(application(flags, settings, replicas, cpu_workers), name=NAME, logging_config=quiet)
        model = serve.get_deployment_handle(DECODER, app_name=NAME).describe.remote().result()
        if isinstance(model, UsageError):
            raise model
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        alone = "" if settings.api_keys else "; no --api-keys, so this machine alone can reach it"
        print(f"listening on http://{host}:{port}{alone}", file=sys.stderr, flush=True)
        print(f"ready: {model.source} to {model.target}, {model.signature}", file=sys.stderr, flush=True)
        told.wait()
    finally:
        serve.delete(NAME)
        serve.shutdown()
    return 0


def main(argv: list[str] | None = None) -> int:
    """The exit code."""
    try:
        args, others = arguments().parse_known_args(argv)
        needed("fastapi", "fastapi_offline", "prometheus_client", "uvicorn")
        settings, flags = settings_of(args), flags_of(args, others)
        most = args.replicas if args.max_replicas is None else args.max_replicas
        if not 1 <= args.replicas <= most:
            raise UsageError(f"--replicas {args.replicas} to --max-replicas {most} is no range: use 1 or more, and the larger number last")
        try:
            import ray.serve  # noqa: F401
        except ImportError as error:
            raise UsageError(f"this needs Ray Serve ({error}): pip install 'fairseq_ext[cluster,serve]'") from None
        with connection(args.address, most * args.cpu_workers, OBJECT_STORE):
            return serve_until_told(flags, settings, (args.replicas, most), args.cpu_workers)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
