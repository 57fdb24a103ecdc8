"""`python -m fairseq_ext.serve --path MODEL.pt --data DATA -s de -t en [any decoding flag]
--host 127.0.0.1 --port 8000`"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import re
import signal
import socket
import sys
import threading
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Any

from fairseq_ext.core.errors import SERVER_PACKAGES, UsageError, explain
from fairseq_ext.engine.engine import Engine
from fairseq_ext.engine.tickets import Closed
from fairseq_ext.plugin.loading.model import add_model, flags_of
from fairseq_ext.plugin.loading.settings import as_keywords
from fairseq_ext.serve import Settings

if TYPE_CHECKING:
    from fairseq_ext.serve.models import Models

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?", re.ASCII)
EXIT_CODES = (
    "exit codes: 0 ended by SIGTERM or Ctrl-C; 1 an error, which is reported in one sentence"
)


def parser(name: str = "python -m fairseq_ext.serve") -> ArgumentParser:
    """Return the parser of our part of the command line; all other flags are decoding flags.

    name: of the command.
    """
    parse = ArgumentParser(
        name,
        description="Translate over HTTP. Every other flag is one of fairseq-interactive's or of "
        "this package (python -m fairseq_ext).",
        epilog=EXIT_CODES,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_model(parse, needed=False)
    for each in dataclasses.fields(Settings):
        name = "--" + each.name.replace("_", "-")
        parse.add_argument(name, default=each.default, **each.metadata)
    return parse


def settings_of(args: Namespace) -> Settings:
    """Return the server's own flags (raises UsageError)."""
    from fairseq_ext.serve.guard import Keys, is_loopback

    for name, value in vars(args).items():
        is_number = isinstance(value, (int, float)) and name not in ("grace", "port")
        if is_number and not value > 0:
            raise UsageError(
                f"--{name.replace('_', '-')} {value:g} allows nothing: use a number above 0"
            )
    for each in args.allowed_origins:
        if each != "*" and not ORIGIN.fullmatch(each):
            raise UsageError(
                "--allowed-origins must be * or scheme://host[:port], such as https://example.org, "
                f"not {each}"
            )
    if args.data is None and args.models is None:
        raise UsageError(
            "no model is named: add --data, a model's folder, or --models, a folder of such folders"
        )
    if args.data is not None and args.models is not None:
        raise UsageError("--data and --models both name what is served: leave one of the two out")
    if alone := [
        name
        for name in ("path", "source_lang", "target_lang")
        if args.models and getattr(args, name)
    ]:
        raise UsageError(
            f"--models finds each model's --{alone[0].replace('_', '-')} in its folder: "
            "leave it out"
        )
    if args.models is None and args.max_models:
        raise UsageError(
            "--max-models belongs to --models, which is not given: add it, or leave --max-models "
            "out"
        )
    if not args.grace >= 0:
        raise UsageError(f"--grace (seconds) must be 0 or more, not {args.grace:g}")
    if args.api_keys is None and not is_loopback(args.host):
        raise UsageError(
            f"--host {args.host} opens the server to others and no keys are given: add --api-keys "
            "FILE, or leave --host out"
        )
    Keys(args.api_keys)
    return Settings(**{each.name: vars(args)[each.name] for each in dataclasses.fields(Settings)})


def needed(*names: str) -> None:
    """Raise UsageError if a package of the extra `serve` is not installed."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(str(explain(ModuleNotFoundError(name=missing[0]))))


def listening(settings: Settings) -> socket.socket:
    """Return the listening socket (raises UsageError if there is none)."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = socket.socket(family)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot listen on {settings.host}:{settings.port} ({reason}): choose another "
            "--host or --port"
        ) from None
    return found


def serve(models: Models, settings: Settings, sock: socket.socket) -> int:
    """Answer requests until a signal comes; the exit code. sock: where they come in."""
    import uvicorn

    from fairseq_ext.serve.app import Server
    from fairseq_ext.serve.guard import protocol

    application = Server(models, settings)
    config = uvicorn.Config(
        # colours: stdout may be closed
        application.app,
        log_level="warning",
        access_log=False,
        use_colors=False,
        lifespan="on",
        timeout_graceful_shutdown=int(settings.grace + 0.5),
        http=protocol(settings),
        timeout_keep_alive=settings.keep_alive,
    )

    class Uvicorn(uvicorn.Server):
        def handle_exit(self, sig: int, frame: object) -> None:
            """End at a signal as uvicorn does, except that the signal is not raised again when the
            server has ended: the exit code is 0."""
            application.closing = True
            if self.should_exit and sig == signal.SIGINT:
                self.force_exit = True
            self.should_exit = True

    server = Uvicorn(config)
    failed: list[Exception] = []

    def watch() -> None:
        """Say when the model is there; end when it cannot be had."""
        try:
            print(f"ready: {models.ready_line()}", file=sys.stderr, flush=True)
        except Closed:
            pass
        except Exception as error:
            failed.append(error)
            server.should_exit = True

    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    alone = "" if settings.api_keys else "; no --api-keys, so this machine alone can reach it"
    print(f"listening on http://{shown}:{port}{alone}", file=sys.stderr, flush=True)
    threading.Thread(target=watch, daemon=True).start()
    server.run(sockets=[sock])
    if failed:
        print(f"error: {failed[0]}", file=sys.stderr)
    return 1 if failed else 0


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit code."""
    try:
        args, others = parser().parse_known_args(argv)
        needed(*SERVER_PACKAGES)
        settings = settings_of(args)
        options: dict[str, Any] = {
            "cpu_workers": settings.cpu_workers,
            "max_queue": settings.max_queue,
            "longest": settings.max_line_tokens,
            "worker_timeout": settings.worker_timeout,
        }
        from fairseq_ext.serve.models import Models, ModelsOfFolder

        if args.models is not None:
            of_folder = ModelsOfFolder(args.models, as_keywords(others), args.max_models, **options)
        else:
            any_pair = args.source_lang is None and args.target_lang is None
            flags = flags_of(args, others, any_pair)
        with listening(settings) as sock:  # before a worker is started
            models = (
                of_folder
                if args.models is not None
                else Models(Engine(**flags, **options), any_pair)
            )
            with contextlib.closing(models):
                return serve(models, settings, sock)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
