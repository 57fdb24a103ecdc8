"""Does memory stay flat over a long corpus? Translates generated lines, samples every process
of the run, prints a table.

    python scripts/bench/corpus_memory.py --lines 100000 --beam 1

Memory is what is resident and not shared with other processes (RssAnon), so Ray's object store
is distinguished (RssShmem of the process that has most of it). Flat means: the medians of the run's
second and last fifth differ by little; the run says by how much.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import ROOT, cores

WORDS = (
    "der die das Mann Frau Hund Haus geht steht neben auf einem großen kleinen Patient Arzt Server "
    "Drucker heute gestern"
).split()


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        chance = random.Random(1)
        with open(Path(folder, "in.txt"), "w", encoding="utf-8") as out:
            for _ in range(args.lines):
                out.write(" ".join(chance.choices(WORDS, k=chance.randint(1, args.words))) + ".\n")
        samples = watch(command(args, folder))
        found = Path(folder, "out", "in.jsonl")
        written = sum(1 for _ in open(found, "rb")) if found.exists() else 0
    print(f"{written} of {args.lines} lines in the output\n")
    steady = [s for s in samples if s["worker"]]
    print(
        (
            "| minutes | the starting process, MiB | largest worker, MiB | Ray's other processes, "
            "MiB | object store, MiB |\n"
        )
        + "| ---: " * 5
        + "|"
    )
    for sample in steady[:: max(len(steady) // 10, 1)]:
        print(
            "| {minutes:.1f} | {driver:.0f} | {worker:.0f} | {others:.0f} | {store:.0f} |".format(
                **sample
            )
        )
    fifth = max(len(steady) // 5, 1)
    for name in ("driver", "worker", "others"):
        early, late = (
            statistics.median(s[name] for s in part)
            for part in (steady[fifth : 2 * fifth], steady[-fifth:])
        )
        print(
            f"{name}: {early:.0f} MiB in the second fifth of the run, {late:.0f} MiB in the last "
            f"({late - early:+.0f})"
        )
    return 0 if written == args.lines else 1


def command(args: argparse.Namespace, folder: str) -> list[str]:
    """The run."""
    demo = ROOT / "checkpoints" / "demo"
    words = [
        "--path",
        demo / "checkpoint.pt",
        "--data",
        demo,
        "-s",
        "de",
        "-t",
        "en",
        "--bpe",
        "sentencepiece",
        "--cpu",
    ]
    words += [
        "--sentencepiece-model",
        demo / "spm.model",
        "--beam",
        args.beam,
        "--max-tokens",
        4000,
        "--progress",
        30,
    ]
    words += [
        "--workers",
        args.workers,
        "--input",
        Path(folder, "in.txt"),
        "--output",
        Path(folder, "out"),
    ]
    return [sys.executable, "-m", "fairseq_ext.corpus", "translate", *map(str, words)]


def watch(words: list[str]) -> list[dict[str, float]]:
    """Run a command; memory of its processes, in MiB, every two seconds."""
    samples, start = [], time.monotonic()
    with subprocess.Popen(words, cwd=ROOT) as process:
        while process.poll() is None:
            time.sleep(2)
            sample = {
                "minutes": (time.monotonic() - start) / 60,
                "driver": 0.0,
                "worker": 0.0,
                "others": 0.0,
                "store": 0.0,
            }
            for pid, name in family(process.pid).items():
                own, shared = memory(pid)
                kind = (
                    "driver"
                    if pid == process.pid
                    else "worker"
                    if name.startswith("ray::CorpusWorker")
                    else "others"
                )
                sample[kind] = max(sample[kind], own) if kind == "worker" else sample[kind] + own
                sample["store"] = max(sample["store"], shared)
            samples.append(sample)
    return samples


def family(pid: int) -> dict[int, str]:
    """A process and all below it, with their command lines."""
    parents, names = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(entry)] = int(
                Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]
            )
            names[int(entry)] = Path(f"/proc/{entry}/cmdline").read_text(errors="replace")
        except OSError:
            continue
    found, level = {}, [pid]
    while level:
        found |= {member: names.get(member, "") for member in level}
        level = [child for child, parent in parents.items() if parent in level]
    return found


def memory(pid: int) -> tuple[float, float]:
    """A process's own and shared memory in MiB, nothing for one that has gone."""
    try:
        lines = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
    except OSError:
        return 0.0, 0.0
    own, shared = (int(lines.get(name, "0").split()[0]) / 1024 for name in ("RssAnon", "RssShmem"))
    return own, shared


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parse.add_argument("--lines", type=int, default=100_000, help="sentences (100000)")
    parse.add_argument("--words", type=int, default=6, help="of a sentence, at most (6)")
    parse.add_argument("--beam", type=int, default=1, help="beam size (1)")
    parse.add_argument("--workers", type=int, default=cores(), help="Ray actors (all cores)")
    return parse


if __name__ == "__main__":
    sys.exit(main())
