"""The arguments of a run, checks before it starts, and the manifest of its output."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.core.files import fingerprint, replace, verify_digest, with_digest
from fairseq_ext.corpus.shards import Shard
from fairseq_ext.search.registry import typed

SUFFIXES = {"jsonl": ".jsonl", "text": ".txt"}
REQUIRED = {"required": True}


def flag(help: str, default: object = None, **how: object) -> Any:
    """Return a field that is a flag of the command. how: keywords of argparse; largest: upper limit
    and meaning of a number, whose larger values would only keep the machine busy."""
    return field(default=default, metadata={"help": help, **how})


def count(help: str, largest: tuple[int, str], default: int | None = None, **how: object) -> Any:
    """Return a flag for a whole number above zero."""
    return flag(help, default, type=positive, largest=largest, **{"metavar": "N", **how})


def positive(text: str) -> int:
    """Return a whole number above zero (raises ValueError)."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


@dataclass
class CorpusJob:
    """The arguments of a run, as on the command line.

    flags: decoding flags, keywords of `Translator`.
    """

    path: str = flag(
        "checkpoint, or several joined by colons (default: the one in --data, with its "
        "segmentation)"
    )
    data: str = flag("folder with the dictionaries", **REQUIRED)
    input: Sequence[str] = flag(
        "text, .jsonl or .parquet, also .gz .zst .bz2; folders, patterns",
        nargs="+",
        metavar="FILE",
        **REQUIRED,
    )
    output: str = flag(
        "a file for each input file, manifest.json, errors.jsonl", metavar="DIR", **REQUIRED
    )
    flags: dict[str, object] = field(default_factory=dict)
    format: str = flag(
        "format of the output (default: jsonl; text: best hypotheses alone)",
        "jsonl",
        choices=list(SUFFIXES),
    )
    source_field: str | None = flag(
        "key or column of the source in JSONL and Parquet (default: source, else text)",
        metavar="NAME",
    )
    constraints_file: Sequence[str] | None = flag(
        "one for each input file; phrases come in any order unless --constraints is ordered "
        "(default: none)",
        nargs="+",
        metavar="FILE",
    )
    overwrite: bool = flag(
        "remove the output of earlier runs from --output, and start again (default: off)",
        False,
        action="store_true",
    )
    workers: int | None = count(
        "processes that translate (default: one a GPU, else one for each --threads cores)",
        (100_000, "number of workers"),
    )
    threads: int = count("CPU threads of a worker (default: 1)", (1024, "number of CPU threads"), 1)
    unit: int = count(
        "sentences that a worker gets at once (default: 500)",
        (1_000_000, "number of sentences"),
        500,
    )
    address: str | None = flag(
        "address of a running Ray cluster, or auto (default: Ray is started here)"
    )
    progress: float = flag(
        "time between lines on standard error, 0: no line (default: 10)",
        10.0,
        type=float,
        metavar="SECONDS",
    )
    stats_file: str | None = flag(
        "counts and times, added up over workers and runs (default: none)", metavar="FILE"
    )


def check_numbers(job: CorpusJob) -> None:
    """Raise UsageError for a number that is out of its range."""
    for each in fields(job):
        largest, meaning = each.metadata.get("largest", (math.inf, ""))
        value = getattr(job, each.name)
        if meaning and value is not None and value > largest:
            raise UsageError(
                f"{typed(each.name)} ({meaning}) must be 1 to {largest}, not {cut(str(value))}"
            )
    if not 0 <= job.progress < math.inf:
        raise UsageError(f"--progress (seconds) must be 0 or more, not {job.progress}")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    return [
        *(("--input", shard.path) for shard in shards),
        *(("--path", part) for part in job.path.split(":")),
        *(("--constraints-file", shard.constraints) for shard in shards if shard.constraints),
        *((typed(name), value) for name, value in job.flags.items() if isinstance(value, str)),
    ]


# ---- `manifest.json`
#
# It records how the files of an output folder were made, and which are finished. A run with
# other arguments in the same folder is refused.


FORMAT = {"format": "fairseq_ext corpus manifest", "version": 1}


def fingerprint_arguments(job: CorpusJob, shards: list[Shard]) -> dict[str, object]:
    """Return everything that the output depends on, by the name of the argument: values, and
    fingerprints of the files that they name."""
    named = {"path": job.path, "data": job.data, **job.flags}
    named |= {"format": job.format, "source_field": job.source_field}
    files = {f"a file of {typed(name)}": str(value) for name, value in job.flags.items()}
    files |= {f"the model {part}": part for part in job.path.split(":")}
    files |= {f"the dictionary {path.name}": str(path) for path in dictionaries(job.data)}
    files |= {f"--constraints-file of {each.name}": each.constraints or "" for each in shards}
    return {
        **{typed(name): value for name, value in named.items()},
        **{name: fingerprint(file) for name, file in sorted(files.items()) if os.path.isfile(file)},
        **{f"--input {shard.name}": True for shard in shards},
    }


def dictionaries(data: str) -> list[Path]:
    """Return the dictionaries in fairseq's data directory, sorted by name."""
    return sorted(Path(data.split(":")[0]).glob("dict.*"))


def differences(old: dict[str, object], new: dict[str, object]) -> list[str]:
    """Return a phrase for each argument that differs, with both values."""

    def shown(value: object) -> str:
        if value in (None, False, []):
            return "not given"
        return "given" if value is True else str(value)

    both = {name: (old.get(name), new.get(name)) for name in {**old, **new}}
    return [
        f"{name} ({shown(there)} there, {shown(now)} now)"
        for name, (there, now) in both.items()
        if there != now and (there or now)
    ]


class Manifest:
    """The manifest of a folder, read if it is there."""

    def __init__(self, folder: Path):
        self.path = folder / "manifest.json"
        self.signature, self.arguments = "", dict[str, object]()
        self.shards: dict[str, dict[str, Any]] = {}
        self.totals: dict[str, object] = {}
        if self.path.exists():
            try:
                found = verify_digest(self.path.read_bytes())
                if {name: found.get(name) for name in FORMAT} != FORMAT:
                    raise ValueError("it is of another format or version")
                self.signature, self.arguments = found["signature"], found["arguments"]
                self.shards = found["shards"]
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"{self.path} cannot be read, because {error}: name another --output, or start "
                    "again with --overwrite"
                ) from error

    def reconcile(
        self, new: dict[str, object], shards: list[Shard], inputs: dict[str, str]
    ) -> list[Shard]:
        """Check that a new run may continue the folder's output, and register its shards.

        inputs: fingerprint of each shard. Returns the shards whose input has changed since some
        of their parts were made. Errors: UsageError if the arguments differ, or if the input of
        a finished shard has changed.
        """
        new = json.loads(json.dumps(new))
        # no output exists before a worker has set the signature
        different = differences(self.arguments, new) if self.signature else []
        changed = []
        for shard in shards:
            there, now = self.shards.get(shard.name, {}).get("input"), inputs[shard.name]
            if there not in (None, now):
                changed.append(shard)
                different += [f"{shard.path} ({there} there, {now} now)"] * self.is_done(shard)
        if different:
            raise UsageError(
                f"{self.path.parent} holds the output of other arguments: {'; '.join(different)}. "
                "Repeat that run's arguments, name another --output, or remove what is there "
                "with --overwrite"
            )
        self.arguments = new
        for shard in shards:
            if not self.is_done(shard):
                self.reopen(shard, inputs[shard.name])
        return changed

    def is_done(self, shard: Shard) -> bool:
        """Return whether the shard is finished."""
        return self.shards.get(shard.name, {}).get("state") == "done"

    def reopen(self, shard: Shard, fingerprint: str) -> None:
        """Note that the shard is to be translated."""
        self.shards[shard.name] = {"state": "open", "input": fingerprint}

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
        record = {"signature": self.signature, "arguments": self.arguments}
        record |= {"totals": self.totals, "shards": self.shards}
        text = json.dumps(with_digest({**FORMAT, **record}), indent=1, ensure_ascii=False)
        replace(self.path, [text.encode(), b"\n"])
