"""The arguments of a run, checks before it starts, and the manifest of its output."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.files import fingerprint, replace, verify_digest, with_digest
from fairseq_ext.corpus.shards import Shard

SUFFIXES = {"jsonl": ".jsonl", "text": ".txt"}


@dataclass
class CorpusJob:
    """The arguments of a run, as on the command line.

    flags: decoding flags, keywords of `Translator`.
    """

    path: str
    data: str
    input: Sequence[str]
    output: str
    flags: dict[str, Any] = field(default_factory=dict)
    constraints_file: Sequence[str] | None = None
    format: str = "jsonl"
    source_field: str | None = None
    unit: int = 500  # sentences
    workers: int | None = None  # None: as many as the cluster has resources for
    threads: int = 1  # of a worker, on the CPU
    address: str | None = None  # of a running Ray cluster
    object_store: int = 512  # MiB, of a Ray that is started here
    dashboard: bool = False
    progress: float = 10.0  # seconds between two lines
    stats_file: str | None = None
    overwrite: bool = False  # remove the output of earlier runs


def check_model(job: CorpusJob) -> None:
    """Raise UsageError for a checkpoint or a data folder that does not exist."""
    # these flags change the names of the checkpoint files
    if not {"checkpoint_suffix", "checkpoint_shard_count"} & set(job.flags):
        for part in job.path.split(":"):
            if not os.path.isfile(part):
                raise UsageError(
                    f"--path {part} is not a file: name one checkpoint, or several joined by colons"
                )
    if not os.path.isdir(job.data.split(":")[0]):
        raise UsageError(
            f"--data {job.data} is not a folder: name the one with the model's dictionaries"
        )


def files_read(job: CorpusJob, shards: Sequence[Shard]) -> list[tuple[str, str]]:
    """Return (flag, file) of each file that a job reads."""
    found = [("--input", shard.path) for shard in shards] + [
        ("--path", part) for part in job.path.split(":")
    ]
    found += [("--constraints-file", shard.constraints) for shard in shards if shard.constraints]
    return found + [
        ("--" + name.replace("_", "-"), value)
        for name, value in job.flags.items()
        if isinstance(value, str)
    ]


def absolute(value: Any) -> Any:
    """Return a flag's value with absolute paths of files and folders: workers may be started in
    another working folder."""
    if not isinstance(value, str):
        return value
    return ":".join(
        os.path.abspath(part) if os.path.exists(part) else part for part in value.split(":")
    )


# ---- `manifest.json`
#
# It records how the files of an output folder were made, and which are finished. A run with
# other arguments in the same folder is refused.


FORMAT = {"format": "fairseq_ext corpus manifest", "version": 1}
OUTPUT_FLAGS = ("glossary_report",)  # flags that name a file that the run writes


def fingerprint_arguments(
    path: str, data: str, shards: list[Shard], flags: dict[str, Any], **own: Any
) -> dict[str, Any]:
    """Return everything that the output depends on, by the name of the argument: values, and
    fingerprints of the files that they name."""
    found: dict[str, Any] = {
        "--" + name.replace("_", "-"): value
        for name, value in {"path": path, "data": data, **flags, **own}.items()
    }
    read = {
        name: value
        for name, value in flags.items()
        if isinstance(value, str) and name not in OUTPUT_FLAGS
    }
    files = {f"a file of --{name.replace('_', '-')}": value for name, value in read.items()}
    files |= {f"the model {part}": part for part in path.split(":")}
    files |= {f"the dictionary {entry.name}": entry.path for entry in dictionaries(data)}
    found |= {
        name: fingerprint(file) for name, file in sorted(files.items()) if os.path.isfile(file)
    }
    found["--input"] = [shard.name for shard in shards]
    found["--constraints-file"] = [
        fingerprint(shard.constraints) for shard in shards if shard.constraints
    ]
    return found


def dictionaries(data: str) -> list[os.DirEntry]:
    """Return the dictionaries in fairseq's data directory, sorted by name."""
    folder = data.split(":")[0]
    found = os.scandir(folder) if os.path.isdir(folder) else ()
    return sorted((e for e in found if e.name.startswith("dict.")), key=lambda e: e.name)


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return a phrase for each argument that differs, with both values."""

    def value_of(values: dict[str, Any], key: str) -> str:
        value = values.get(key)
        if isinstance(value, list):
            return counted(len(value), "entry", "entries") if value else "not given"
        return "not given" if value in (None, False) else "given" if value is True else str(value)

    found = []
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) == new.get(key) or not (old.get(key) or new.get(key)):
            continue
        if (
            isinstance(old.get(key), list)
            and isinstance(new.get(key), list)
            and len(old[key]) == len(new[key])
        ):
            place = next(
                i for i, (a, b) in enumerate(zip(old[key], new[key], strict=True)) if a != b
            )
            found.append(
                f"{key} (entry {place + 1}: {old[key][place]} there, {new[key][place]} now)"
            )
        else:
            found.append(f"{key} ({value_of(old, key)} there, {value_of(new, key)} now)")
    return found


class Manifest:
    """The manifest of a folder, read if it is there."""

    def __init__(self, folder: Path):
        self.path = folder / "manifest.json"
        self.arguments: dict[str, Any] = {}
        self.signature = ""
        self.shards: dict[str, dict[str, Any]] = {}
        self.totals: dict[str, Any] = {}
        if self.path.exists():
            try:
                found = verify_digest(self.path.read_bytes())
                if {name: found.get(name) for name in FORMAT} != FORMAT:
                    raise ValueError("it is of another format or version")
                self.arguments = found["arguments"]
                self.signature = found["signature"]
                self.shards = found["shards"]
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"{self.path} cannot be read, because {error}: name another --output, or start "
                    "again with --overwrite"
                ) from error

    def reconcile(
        self, new: dict[str, Any], shards: list[Shard], inputs: dict[str, str]
    ) -> list[Shard]:
        """Check that a new run may continue the folder's output, and register its shards.

        inputs: fingerprint of each shard. Returns the shards whose input has changed since some
        of their parts were made. Errors: UsageError if the arguments differ, or if the input of
        a finished shard has changed.
        """
        new = json.loads(json.dumps(new))
        for shard in shards:  # finished, and unreadable in the last run alone
            entry = self.shards.get(shard.name, {})
            self.shards |= {shard.name: entry["done"]} if "done" in entry else {}
        # no output exists before a worker has set the signature
        different = differences(self.arguments, new) if self.signature else []
        known = [(shard, self.shards[shard.name]) for shard in shards if shard.name in self.shards]
        changed = [shard for shard, entry in known if entry["input"] != inputs[shard.name]]
        done = [shard for shard in changed if self.shards[shard.name]["state"] == "done"]
        different += [
            f"{s.path} ({self.shards[s.name]['input']} there, {inputs[s.name]} now)" for s in done
        ]
        if different:
            raise UsageError(
                f"{self.path.parent} holds the output of other arguments: {'; '.join(different)}. "
                "Repeat that run's arguments, name another --output, or remove what is there "
                "with --overwrite"
            )
        self.arguments = new
        for shard in shards:
            known_entry = self.shards.get(shard.name)
            if known_entry is None or known_entry["state"] != "done":
                self.shards[shard.name] = {"state": "open", "input": inputs[shard.name]}
        return changed

    def sign(self, signature: str) -> None:
        """Record the signature of the workers; UsageError if the folder's output was made with
        another one."""
        if self.signature and self.signature != signature:
            raise UsageError(
                f"{self.path.parent} holds output made by {self.signature}, and this would be "
                f"{signature}: use the same version and flags, name another --output, or remove "
                "what is there with --overwrite"
            )
        self.signature = signature

    def write(self) -> None:
        """Write the file atomically."""
        found = {
            "signature": self.signature,
            "arguments": self.arguments,
            "totals": self.totals,
            "shards": self.shards,
        }
        replace(
            self.path,
            [
                json.dumps(with_digest({**FORMAT, **found}), indent=1, ensure_ascii=False).encode(),
                b"\n",
            ],
        )
