"""`python -m fairseq_ext.serve`: an engine (fairseq_ext/engine/) behind HTTP, with
a page for people.

| file | what is in it |
| --- | --- |
| __init__.py | the settings |
| __main__.py | the command: flags, the socket, signals |
| app.py | the application, its routes, and which sites may use them |
| service.py | what the routes share: answers that are waited for, errors |
| glossaries.py | glossaries that are kept by name |
| models.py | one model that stays, or those of a folder; chains of two models |
| model_folder.py | the models of a folder, in which they come and go |
| metrics.py | counts and histograms for Prometheus |
| bodies.py | JSON and forms as UTF-8, checked by pydantic models |
| records.py | requests as JSON, and answers |
| guard.py | API keys, the largest body, connections |
| libretranslate.py | LibreTranslate's API |
| deepl.py | DeepL's API |
| deepl_requests.py, deepl_texts.py | what its requests, codes and texts mean |
| deepl_glossaries.py | its glossaries, which are kept by identifier |
| documents.py | files that are translated while their sender does something else |
| page.html | the page |
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fairseq_ext.text import MAX_UNPACKED

# ---- What a server allows, and where it keeps things


@dataclass(frozen=True)
class Settings:
    """The flags of `python -m fairseq_ext.serve` that are no decoding flags."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: str | None = None  # file of hashes (guard.py)
    glossary_folder: Path | None = None  # None: `default_folder`
    max_body: int = 1 << 20  # bytes
    max_lines: int = 128  # records of a request
    max_line_tokens: int | None = None  # source tokens; None: as many as the model takes
    max_queue: int = 1000  # requests that wait
    deadline: float = 60.0  # seconds from a request's arrival to its answer
    grace: float = 10.0  # seconds for running requests after SIGTERM
    # names that the server answers to, in addition to loopback's and `host`
    allowed_hosts: tuple[str, ...] = ()
    # of pages of other sites that may use it through a browser; "*" for any
    allowed_origins: tuple[str, ...] = ()
    max_connections: int | None = None  # None: as the limit of open files allows
    read_timeout: float = 20.0  # seconds for a request's header, and for its body
    # seconds for which an idle connection stays: longer than clients keep theirs, so
    # that they close first
    keep_alive: int = 75
    max_unpacked: int = MAX_UNPACKED  # bytes of the text of a file that is an archive
    max_segments: int = 50_000  # sentences of a file

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """Names that the server answers to; None for any, where keys guard it."""
        return (
            (self.host, *self.allowed_hosts)
            if self.api_keys is None or self.allowed_hosts
            else None
        )


def default_folder() -> Path:
    """Return the folder for glossaries: fairseq_ext/glossaries in $XDG_DATA_HOME, else in
    ~/.local/share."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "fairseq_ext" / "glossaries"
