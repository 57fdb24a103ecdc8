"""`python -m fairseq_ext.serve`: an engine (fairseq_ext/engine/) behind HTTP, with
a page for people.

| file | what is in it |
| --- | --- |
| __init__.py | the settings |
| __main__.py | the command: flags, the socket, signals |
| app.py | the application, its routes, and which sites may use them |
| service.py | what the routes share: answers that are waited for, errors |
| glossaries.py | glossaries that are kept, by name or, for DeepL's API, by identifier |
| models.py | one model that stays, or those of a folder; counts for Prometheus |
| bodies.py | the fields of requests: JSON and forms as UTF-8, checked by pydantic models |
| records.py | requests as JSON, and answers |
| guard.py | API keys, the largest body, connections |
| libretranslate.py | LibreTranslate's API |
| deepl.py | DeepL's API |
| deepl_requests.py | what its requests, codes and texts mean |
| documents.py | files that are translated while their sender does something else |
| page.html | the page |
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from fairseq_ext.text import MAX_UNPACKED

T = TypeVar("T")

# ---- What a server allows, and where it keeps things


def default_folder() -> Path:
    """Return the folder for glossaries: fairseq_ext/glossaries in $XDG_DATA_HOME, else in
    ~/.local/share."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "fairseq_ext" / "glossaries"


def names(text: str) -> tuple[str, ...]:
    """Return the names of a list with commas."""
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def flag(
    default: T, text: str, unit: str | None = None, kind: Callable[[str], object] | None = None
) -> T:
    """Return a field that is a flag: its help, the unit of its value, and what reads that, where
    the default does not say it."""
    if default not in (None, ()):
        text += f" (default: %(default){'g' if isinstance(default, float) else 's'})"
    return field(
        default=default,
        metadata={"help": text, "metavar": unit, "type": kind or type(default)},
    )


@dataclass(frozen=True)
class Settings:
    """The flags of `python -m fairseq_ext.serve` that are no decoding flags."""

    models: Path | None = flag(
        None,
        "instead of --data: folders of models, named by languages, as de-en (default: none)",
        "FOLDER",
        Path,
    )
    max_models: int | None = flag(
        None, "most of these that are loaded at once (default: as memory allows)", "N", int
    )
    host: str = flag("127.0.0.1", "address to listen on; other than loopback with --api-keys only")
    port: int = flag(8000, "port to listen on; 0: any that is free")
    cpu_workers: int = flag(1, "processes of one thread that decode", "N")
    worker_timeout: float = flag(
        60.0,
        "a decoding process that has sent nothing and used no CPU time for so long is replaced",
        "SECONDS",
    )
    api_keys: str | None = flag(  # read by guard.py
        None,
        "hashes of keys, a line each; python -m fairseq_ext.serve.guard makes one (default: none)",
        "FILE",
        str,
    )
    glossary_folder: Path | None = flag(  # None: `default_folder`
        None,
        f"where glossaries are kept (default: {default_folder()}/SOURCE-TARGET)",
        "DIR",
        Path,
    )
    max_line_tokens: int | None = flag(
        None,
        "most source tokens of a sentence (default: as many as the model takes)",
        "N",
        int,
    )
    allowed_hosts: tuple[str, ...] = flag(
        (),
        "names that the server answers to, next to localhost and --host, joined by commas "
        "(default: none; with --api-keys: any)",
        "NAMES",
        names,
    )
    allowed_origins: tuple[str, ...] = flag(
        (),
        "origins whose pages may use it through a browser, such as https://example.org, joined by "
        "commas; *: any (default: none)",
        "ORIGINS",
        names,
    )
    max_connections: int | None = flag(
        None,
        "most connections at once (default: 1000, or as the limit of open files allows)",
        "N",
        int,
    )
    max_body: int = flag(1 << 20, "most bytes of a request", "BYTES")
    max_lines: int = flag(128, "most sentences of a request", "N")
    max_queue: int = flag(1000, "most sentences that wait", "N")
    deadline: float = flag(60.0, "most for a request", "SECONDS")
    read_timeout: float = flag(
        20.0, "most for the header of a request, and for its body", "SECONDS"
    )
    # longer than clients keep theirs, so that they close first
    keep_alive: int = flag(75, "an idle connection is closed after this time", "SECONDS")
    max_unpacked: int = flag(
        MAX_UNPACKED,
        "most bytes to which the text of a docx, pptx, odt or epub may unpack",
        "BYTES",
    )
    max_segments: int = flag(50_000, "most sentences of a file", "N")
    grace: float = flag(10.0, "for open requests at SIGTERM", "SECONDS")

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """Names that the server answers to; None for any, where keys guard it."""
        return (
            (self.host, *self.allowed_hosts)
            if self.api_keys is None or self.allowed_hosts
            else None
        )
