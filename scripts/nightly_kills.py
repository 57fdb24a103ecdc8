#!/usr/bin/env python3
"""Kill commands at random moments, and see that nothing is lost, doubled or mixed.

    python scripts/nightly_kills.py [results corpus interactive] [--kills 50] [--seed N]

Each kind is killed with SIGKILL `--kills` times, on the demo model, and started again
until it ends by itself:

- results: fairseq-interactive with --results-file and --resume. At its end the file has every
  sentence once, each as in a run that no one killed, and the output is that run's.
- corpus: python -m fairseq_ext.corpus translate, all of its processes. At its end the folder holds
  what that run has written.
- interactive: fairseq-interactive with two processes and --stats-file. What was printed
  is the beginning of what that run has printed, the statistics are whole or not there, and
  the processes are gone.

The seed is printed; with the same seed the moments are the same shares of the undisturbed run's
time. Status 1 where something differs.

    --kills N        of each kind (50)
    --seed N         of the moments; another each time by default
    --sentences N    that each run translates (200)
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "scripts" / "bench"))

from programs import Checkout, processes  # noqa: E402
from text import command_line, read_lines  # noqa: E402

DEMO, TEXT = ROOT / "checkpoints" / "demo", ROOT / "data" / "demo" / "test"
SEARCH = "-s de -t en --bpe sentencepiece --cpu --beam 3 --sentencepiece-model".split()
SEARCH += [str(DEMO / "spm.model"), "--path", str(DEMO / "checkpoint.pt")]
SECONDS_TO_GO = 60.0  # that processes of a killed command may live on


class Different(Exception):
    """What a killed command has left is not what it must be."""


def interactive(*more: object) -> list[str]:
    program = str(Path(sys.executable).with_name("fairseq-interactive"))
    flags = "--task translation_ext --buffer-size 20 --batch-size 10".split()
    return [program, str(DEMO), *flags, *SEARCH, *map(str, more)]


def corpus(source: Path, out: Path) -> list[str]:
    flags = "-m fairseq_ext.corpus translate --unit 10 --workers 2 --progress 0".split()
    files = ["--data", str(DEMO), "--input", str(source), "--output", str(out)]
    return [sys.executable, *flags, *SEARCH, *files]


def start(command: list[str], out: Path) -> subprocess.Popen:
    """The command in a session of its own, its output in a file."""
    with open(out, "wb") as file, open(out.with_suffix(".log"), "wb") as log:
        return subprocess.Popen(
            command,
            stdout=file,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=Checkout().environment(),
            cwd=out.parent,
            start_new_session=True,
        )


def alive(processes: set[int]) -> list[int]:
    """Those that still run."""

    def runs(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    return [pid for pid in processes if runs(pid)]


def killed(command: list[str], out: Path, seconds: float, every: bool) -> bool:
    """Run a command and kill it after a number of seconds, with all of its processes or the first
    alone; false where it had ended well."""
    process = start(command, out)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        family = set(processes(process.pid))
        for pid in family if every else [process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()
        until = time.monotonic() + SECONDS_TO_GO
        while (left := alive(family)) and time.monotonic() < until:
            time.sleep(0.05)
        if left:
            raise Different(f"processes live on: {left}") from None
        return True
    ended_well(status, out)
    return False


def ended_well(status: int, out: Path) -> None:
    """Raise Different unless a command has ended with status 0."""
    if status:
        raise Different(
            f"status {status}: {out.with_suffix('.log').read_text(errors='replace')[-800:]}"
        )


def translations(out: Path) -> list[str]:
    """Number and text of each H- line that is whole."""
    lines = out.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    fields = [
        line.rstrip("\n").split("\t")
        for line in lines
        if line.startswith("H-") and line.endswith("\n")
    ]
    return [f"{each[0]} {each[2]}" for each in fields if len(each) == 3]


def results_of(path: Path) -> dict[int, tuple[str, list]]:
    """number -> text and tokens of a results file's sentences.

    Errors: Different for a number that is there twice.
    """
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    found = {
        record["id"]: (record["text"], [h["tokens"] for h in record["hypotheses"]])
        for record in records
    }
    if len(found) != len(records):
        raise Different("a sentence is in the results file twice")
    return found


def files_of(folder: Path) -> dict[str, bytes]:
    """The output files of a corpus run."""
    return {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}


def same(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise Different(f"{what} is another than that of an undisturbed run")


def undisturbed(command: list[str], out: Path) -> float:
    """The seconds of a run that no one kills."""
    begun = time.monotonic()
    ended_well(start(command, out).wait(), out)
    return time.monotonic() - begun


def check_results(folder: Path, source: Path, chance: random.Random, kills: int) -> None:
    """Kill runs with a results file."""
    right, out, path = folder / "right", folder / "out", folder / "results.jsonl"
    command = interactive("--input", source, "--results-file")
    seconds = undisturbed([*command, f"{path}.right"], right)
    command, expected = [*command, str(path), "--resume"], results_of(Path(f"{path}.right"))
    while kills:
        path.unlink(missing_ok=True)
        while kills and killed(command, out, seconds * chance.random(), every=False):
            kills -= 1
        undisturbed(command, out)
        same(results_of(path), expected, "the results file")
        same(translations(out), translations(right), "the output")


def check_corpus(folder: Path, source: Path, chance: random.Random, kills: int) -> None:
    """Kill corpus runs."""
    log, runs = folder / "log", 0
    seconds = undisturbed(corpus(source, folder / "right"), log)
    while kills:
        runs += 1
        command = corpus(source, folder / f"out{runs}")
        while kills and killed(command, log, seconds * chance.random(), every=True):
            kills -= 1
        undisturbed(command, log)
        same(files_of(folder / f"out{runs}"), files_of(folder / "right"), "the output")


def check_interactive(folder: Path, source: Path, chance: random.Random, kills: int) -> None:
    """Kill sessions with worker processes."""
    right, out, stats = folder / "right", folder / "out", folder / "stats.json"
    command = interactive("--input", source, "--cpu-workers", 2, "--stats-file", stats)
    seconds, expected = undisturbed(command, right), translations(right)
    while kills:
        stats.unlink(missing_ok=True)
        kills -= killed(command, out, seconds * chance.random(), every=False)
        found = translations(out)
        same(found, expected[: len(found)], "what was printed")
        if stats.exists():
            json.loads(stats.read_text())


KINDS: dict[str, Callable[[Path, Path, random.Random, int], None]] = {
    "results": check_results,
    "corpus": check_corpus,
    "interactive": check_interactive,
}


def main() -> int:
    parse = command_line(__doc__, seed=time.time_ns() % 1_000_000)
    kinds = list(KINDS)
    parse.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS)} (all)", default=kinds)
    args = parse.parse_args()
    if wrong := [kind for kind in args.kinds if kind not in KINDS]:
        parse.error(f"{wrong[0]} is none of {', '.join(KINDS)}")
    print(f"seed {args.seed}", flush=True)
    failed = 0
    for kind in args.kinds:
        with tempfile.TemporaryDirectory() as name:
            source = Path(name) / "in.txt"
            lines = read_lines(TEXT, "de", args.sentences)
            source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            begun = time.monotonic()
            try:
                KINDS[kind](Path(name), source, random.Random(f"{args.seed} {kind}"), args.kills)
                seconds = time.monotonic() - begun
                print(f"{kind}: {args.kills} kills, nothing lost ({seconds:.0f} s)", flush=True)
            except Different as error:
                failed += 1
                print(f"{kind}: {error} (--seed {args.seed})", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
