"""A folder of models, one folder a pair of languages, in which models come and go.

models/de-en    as plugin/loading/model.py reads it
models/en-pt_BR
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any

from fairseq_ext.core.errors import UsageError, explain
from fairseq_ext.plugin.loading.languages import dictionary_language
from fairseq_ext.plugin.loading.model import find_model

logger = logging.getLogger("fairseq_ext")
Pair = tuple[str, str]  # source and target language
Flags = Mapping[str, Any]  # of a model
Stamp = tuple[tuple[str, int, int], ...]  # of each file its name, size and time of its last change
NAME = re.compile(r"(\w+)-(\w+)")
EVERY = 5.0  # seconds between two looks
REST = 600.0  # seconds for which a model that could not be loaded is not served


class ModelFolder:
    """The models of a folder, as the last look at it found them.

    path: the folder; flags: flags of all models; served: the flags of each model that can be read,
    by its pair; stamps: the files of each folder that is named by a pair. Errors: UsageError for a
    folder without a model that can be read.
    """

    def __init__(self, path: Path, flags: Flags):
        self.path, self.flags = path, flags
        self.served: dict[Pair, Flags] = {}
        self.stamps: dict[Pair, Stamp] = {}  # by the last look
        self.tried: dict[Pair, Stamp] = {}  # as they were when they were read last
        self.retry_at: dict[Pair, float] = {}  # when one that could not be loaded is served again
        self.ended = Event()
        try:
            failed = self.look(at_once=True)
        except OSError as error:
            raise UsageError(
                f"--models: cannot read {path} ({error.strerror}): name a folder of "
                "folders of models"
            ) from None
        if not self.stamps:
            raise UsageError(
                f"--models {path} has no folder that is named as a pair of languages, such "
                "as de-en: make one"
            )
        if not self.served:
            raise UsageError(failed[0])

    def look(self, at_once: bool = False) -> list[str]:
        """Find the models that are new, have changed or are gone. Return why models cannot be read.

        A folder that has changed since the last look is left for the next one, as it may
        be incomplete, unless at_once. Errors: OSError.
        """
        before, self.stamps, failed = self.stamps, stamps(self.path), []
        for pair in [pair for pair in self.tried if pair not in self.stamps]:
            for known in (self.served, self.tried, self.retry_at):
                known.pop(pair, None)
        for pair, stamp in self.stamps.items():
            is_due = time.monotonic() > self.retry_at.get(pair, math.inf)
            if (self.tried.get(pair) == stamp and not is_due) or not (
                at_once or before.get(pair) == stamp
            ):
                continue
            self.tried[pair] = stamp
            self.retry_at.pop(pair, None)
            languages = dict(zip(("source_lang", "target_lang"), pair, strict=True))
            try:
                flags = find_model(str(self.path / "-".join(pair)), {**self.flags, **languages})
                check_dictionaries(flags)
                self.served[pair] = flags
            except Exception as error:  # whatever is wrong with one, the others are served
                self.served.pop(pair, None)
                failed.append(explain(error) or f"{type(error).__name__}: {error}")
                logger.warning("%s-%s is not served: %s", *pair, failed[-1])
        return failed

    def give_up(self, pair: Pair) -> None:
        """Serve a model that could not be loaded when its folder has changed, or after `REST`: the
        system may have had no memory."""
        self.served.pop(pair, None)
        self.retry_at[pair] = time.monotonic() + REST

    def watch(self) -> None:
        """Look again and again, in a thread, until `ended` is set."""

        def looking() -> None:
            while not self.ended.wait(EVERY):
                with contextlib.suppress(OSError):  # the folder may be away for a while
                    self.look()

        Thread(target=looking, daemon=True).start()


def stamps(folder: Path) -> dict[Pair, Stamp]:
    """Return the files of each subfolder that is named by a pair of languages, with their sizes and
    times. Errors: OSError."""
    found = {}
    for each in sorted(folder.iterdir()):
        if (name := NAME.fullmatch(each.name)) and each.is_dir():
            with contextlib.suppress(OSError):  # it is being removed
                files = sorted((file.name, file.stat()) for file in each.iterdir())
                found[name[1], name[2]] = tuple(
                    # subtle: a copy may have the modification time of its original
                    (file, status.st_size, status.st_ctime_ns)
                    for file, status in files
                )
    return found


def check_dictionaries(flags: Flags) -> None:
    """Raise UsageError for a model without its dictionaries; other errors are found when it is
    loaded."""
    if flags["task"] != "translation_ext":
        return
    folder, first = flags["data"], flags["path"].split(":")[0]
    target = dictionary_language(folder, first, flags["target_lang"])
    for language in (flags["source_lang"], target):
        if not os.path.isfile(path := os.path.join(folder, f"dict.{language}.txt")):
            raise UsageError(f"{path} is missing: add it, or name the folder by its languages")
