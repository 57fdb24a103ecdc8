"""The paper's methods as fairseq-generate flags, run in turns on one text, with time, decoder
steps and expansions.

Timesteps are calls of the decoder; expansions are the live hypotheses that these calls extended,
so that fairseq's first step over k copies of a sentence's one hypothesis counts as one. The useful
share is expansions over rows that went through the decoder. An ensemble counts once. FIXED is
fairseq's own generator; the others are ours. DEFAULT and DEFAULT-STREAM stop as fairseq does, as
a command without --stop, the others as the paper does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path += [
    str(Path(__file__).resolve().parents[2] / "bench"),
    str(Path(__file__).resolve().parents[1]),
]

import numpy as np  # noqa: E402
from contenders import Change, ours, stock  # noqa: E402
from harness import BenchError, Outputs, check, compare  # noqa: E402, F401
from intervals import Counts, bleu, interval, resampled  # noqa: E402
from report import ROOT, cores, machine, named  # noqa: E402, F401
from text import Text, command_line, prepare, run_script, text_arguments  # noqa: E402, F401
from write_up import kept, made_by  # noqa: E402

# outputs that must be equal; of natural order those of the first batches of a kind
SAME_AS = {"FIXED-STREAM": "FIXED-OURS", "DEFAULT-STREAM": "DEFAULT"}
SAME_AS |= dict.fromkeys(("VAR-STREAM", "VAR-STR-FIFO", "VAR-STR-FLUSH"), "VAR-BATCH")
TIMING = """
    --repeats N     timed rounds (3)
    --threads N     torch threads (1)
    --cpu-time      seconds of processor time, for a machine with other work on it
"""


@dataclass
class Setting:
    """The paper's letters; rows: total beam width of a step where that is limited
    instead of sentences."""

    k: int
    n: int  # sentences
    delta: float
    M: int
    eps: float = 1 / 6
    rows: int | None = None


def methods(s: Setting, paper_only: bool = False) -> dict[str, list[str]]:
    """The flags of every method; GREEDY takes as many rows as the others; VAR-STR-FLUSH finishes
    all its sentences after every 2 n (footnote 3)."""
    batch, keep = f"--beam {s.k} --batch-size {s.n}", "--stop ranked"
    prune = f"{keep} --prune-threshold {s.delta} --prune-children {s.M}"
    stream = f"--schedule stream --stream-width {s.n} --refill-threshold {s.eps}"
    rows = "" if s.rows is None else f" --stream-rows {s.rows}"
    found = {
        "GREEDY": f"--beam 1 --batch-size {s.n if s.rows is None else s.n * s.k}",
        "FIXED": batch,
        "FIXED-OURS": f"{batch} {keep}",
        "FIXED-STREAM": f"{batch} {keep} {stream}{rows}",
        "VAR-BATCH": f"{batch} {prune}",
        "VAR-STREAM": f"{batch} {prune} {stream}{rows}",
        "VAR-STR-FIFO": f"{batch} {prune} {stream}{rows} --stream-order fifo",
    }
    if not paper_only:
        found["VAR-STR-FLUSH"] = f"{found['VAR-STREAM']} --stream-flush {2 * s.n}"
        found |= {"DEFAULT": batch, "DEFAULT-STREAM": f"{batch} {stream}"}
    return {name: flags.split() for name, flags in found.items()}


def measure(
    text: Text,
    wanted: Mapping[str, Sequence[str]],
    quality: Callable[[Outputs], dict[str, float]],
    args: argparse.Namespace,
    change: Mapping[str, Change] | None = None,
    same_as: Mapping[str, str] = SAME_AS,
    counts: Callable[[Outputs], Counts] | None = None,
) -> list[dict[str, Any]]:
    """Run these methods in turns; a row of a table for each, whose seconds come from the same
    rounds. change: what is done to a method before it runs. counts: BLEU's of each sentence, for
    the difference from FIXED and its interval."""
    made = []
    for name, flags in wanted.items():
        kind = stock if name == "FIXED" else ours
        made.append(kind(text, ["--cpu", *flags], name, change=(change or {}).get(name)))
        made[-1].exact = False
    done = compare(made, args.repeats, 0, args.threads, clock=clock_of(args))
    out = []
    for each in made:
        outputs, stats, same = done[each.name].outputs, each.stats, same_as.get(each.name, "")
        row = {"method": each.name, "quality": quality(outputs)}
        row |= {"seconds": done[each.name].seconds, "timesteps": stats["decoder_calls"]}
        row |= {"expansions": stats["expansions"], "signature": each.signature, "outputs": ""}
        row["useful"] = stats["expansions"] / stats["decoder_rows"]
        if same in wanted:
            row["outputs"] = f"{check(outputs, done[same].outputs)} to {same}"
        if counts is not None and "FIXED" in wanted:
            of_both = [counts(done[name].outputs) for name in (each.name, "FIXED")]
            less = float(np.subtract(*(bleu(x.sum(0)) for x in of_both)))
            row["over_fixed"] = less, *interval(np.subtract(*map(resampled, of_both)))
            row["length_ratio"] = float(np.divide(*of_both[0].sum(0)[8:]))
        out.append(row)
    return out


def clock_of(args: argparse.Namespace) -> Callable[[], float]:
    return time.process_time if args.cpu_time else time.perf_counter


def timing(args: argparse.Namespace) -> str:
    kind = "processor time" if args.cpu_time else "time"
    return f"{kind} of {args.repeats} round(s), {args.threads} thread(s)"


def cached(
    file: Path, key: Sequence[Any], make: Callable[[], list[dict[str, Any]]], about: str = ""
) -> None:
    """Write the rows to `file` unless it has those of the same key.

    about: what the rows were made with, for the tables.
    """
    # other code, other times
    files = sorted((ROOT / "fairseq_ext").rglob("*.py"))
    code = [path.read_text(encoding="utf-8") for path in files]
    known = hashlib.sha256(json.dumps([code, *key], sort_keys=True, default=str).encode())

    def made() -> dict[str, Any]:
        rows = make()
        where = f"load average {os.getloadavg()[0]:.1f} on {cores()} cores, {made_by(machine())}"
        return {"about": f"{about}; {where}", "rows": rows}

    kept(file, known.hexdigest(), made)


def of_rows(
    file: Path,
    text: Text,
    model: Path,
    setting: Setting,
    longest: int,
    quality: Callable[[Outputs], dict[str, float]],
    args: argparse.Namespace,
    about: str,
    change: Change | None = None,
) -> None:
    """The methods of the paper with a limit of rows a step and sums of log-probabilities,
    whole n-best lists, for Tables 2, 6 and 7; change: what is done to each."""
    shared = ["--max-len-b", str(longest), "--unnormalized"]
    wanted = {
        method: [*flags, *shared, "--nbest", flags[flags.index("--beam") + 1]]
        for method, flags in methods(setting, paper_only=True).items()
    }
    size = (model / "checkpoint.pt").stat().st_size
    changes = dict.fromkeys(wanted, change) if change is not None else None
    make = partial(measure, text, wanted, quality, args, changes)
    about = f"{len(text.references)} {about}, at most {setting.rows} rows a step, {timing(args)}"
    cached(file, [file.stem, size, text.references, wanted, timing(args)], make, about)
