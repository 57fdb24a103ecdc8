"""Writes comparisons as Markdown (for people) and JSON (for everything else,
raw times included)."""

import dataclasses
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness import Comparison, Result, Spread, as_json

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ("fairseq_ext",)  # what is measured
CODE = (*PACKAGE, "scripts", ":!scripts/**/results/**")  # what a measurement depends on


def markdown(comparison: Comparison, over: list[str] | None = None) -> str:
    """A table of the contenders; one speed-up column for each name in `over` (the reference
    if none is given)."""
    names = {result.contender.name for result in comparison.results}
    shown = ["instructions"] * any(result.contender.instructions for result in comparison.results)
    over = [name for name in over or [comparison.results[0].contender.name] if name in names]
    head = [
        "contender",
        "seconds (min-max)",
        "sentences/s",
        *(f"times {name}" for name in over),
        "peak MiB",
        *shown,
        "outputs",
    ]
    lines = [f"### {comparison.title}", ""] if comparison.title else []
    lines += ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 2) + " --- |"]
    lines += [
        "| " + " | ".join([*cells[:-1], *own[: len(shown)], cells[-1]]) + " |"
        for own, cells in (
            ([result.contender.instructions], row(comparison, result, over))
            for result in comparison.results
        )
    ]
    ties = [
        (result.contender.name, tie)
        for result in comparison.results
        if result.contender.exact
        for tie in near_ties(result)
    ]
    lines += [""] * bool(ties)
    lines += [
        (
            f"- near-tie of {name}: sentence {tie.sentence}, rank {tie.rank}, scores "
            f"{tie.gap:.1e} apart"
        )
        for name, tie in ties[:10]
    ]
    lines += [f"- and {len(ties) - 10} more near-ties (all of them in the JSON)"] * (len(ties) > 10)
    rounds = len(comparison.results[0].seconds)
    threads = f", torch threads: {comparison.threads}" if comparison.threads else ""
    how = (
        f"median of {rounds} interleaved rounds{threads}; speed-ups are medians of per-round ratios"
    )
    lines += ["", f"{comparison.sentences} sentences, {how}."]
    # waiting OpenMP threads spin, so too few cores slow one contender or another at random
    if comparison.load > cores() + 0.5:
        lines += [
            "",
            (
                f"**Other jobs were running (load average {comparison.load:.1f} on {cores()} "
                "cores): take no speed from this table.**"
            ),
        ]
    return "\n".join(lines) + "\n"


def spread(ratio: Spread) -> str:
    """A ratio with its extremes."""
    return f"{ratio.median:.3f} ({ratio.low:.3f}-{ratio.high:.3f})"


def near_ties(result: Result) -> list:
    return result.verdict.near_ties if result.verdict else []


def row(comparison: Comparison, result: Result, over: list[str]) -> list[str]:
    """One contender's cells; a refused one shows dashes where its speed would stand."""
    name, bleu = result.contender.name, "" if result.bleu is None else f", BLEU {result.bleu:.2f}"
    if result.refused:
        return [name, *["-"] * (3 + len(over)), f"**{result.verdict}: no speed shown**{bleu}"]
    taken = Spread.of(result.seconds)
    cells = [
        name,
        f"{taken.median:.3f} ({taken.low:.3f}-{taken.high:.3f})",
        f"{comparison.sentences / taken.median:.1f}",
    ]
    for other in over:
        ratio = comparison.speed_up(name, other)
        cells.append(f"{ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})" if ratio else "-")
    cells.append("" if result.peak_mib is None else f"{result.peak_mib:.0f}")
    agreement = (
        str(result.verdict)
        if result.contender.exact
        else f"best equal in {result.same_best} of {comparison.sentences}"
    )
    return cells + [agreement + bleu]


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Everything known of a comparison; a refused contender keeps its verdict
    and loses its times."""
    reference = comparison.results[0].contender.name
    contenders = []
    for result in comparison.results:
        facts: dict[str, Any] = {
            key: getattr(result.contender, key)
            for key in ("name", "signature", "exact", "instructions")
        }
        facts |= {
            "refused": result.refused,
            "outputs": str(result.verdict),
            "same_best": result.same_best,
        }
        facts |= {"bleu": result.bleu, "peak_mib": result.peak_mib}
        facts["near_ties"] = (
            [dataclasses.asdict(tie) for tie in near_ties(result)] if result.contender.exact else []
        )
        facts["differing"] = result.verdict.differing if result.verdict else []
        if not result.refused:
            ratio = comparison.speed_up(result.contender.name, reference)
            facts |= {
                "seconds": result.seconds,
                "time": dataclasses.asdict(Spread.of(result.seconds)),
            }
            facts["times_reference"] = dataclasses.asdict(ratio) if ratio else None
        contenders.append(facts)
    return {
        "title": comparison.title,
        "sentences": comparison.sentences,
        "threads": comparison.threads,
        "load_average": comparison.load,
        "reference": reference,
        "contenders": contenders,
    }


def write(
    out: Path,
    comparisons: list[Comparison],
    over: list[str] | None = None,
    note: str = "",
    below: Sequence[str] = (),
) -> None:
    """Write OUT.md and OUT.json; called after every comparison, so that an interrupted
    benchmark keeps what it has. below: further tables behind the comparisons'."""
    facts = machine()
    tables = [markdown(comparison, over) for comparison in comparisons]
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = [*([note, ""] if note else []), *tables, *below, where_and_when(facts), ""]
    out.with_name(out.name + ".md").write_text("\n".join(lines), encoding="utf-8")
    everything = {
        "machine": facts,
        "note": note,
        "below": list(below),
        "comparisons": [as_dict(comparison) for comparison in comparisons],
    }
    out.with_name(out.name + ".json").write_text(as_json(everything) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """Where and when this runs."""
    import torch

    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fairseq": version("fairseq"),
        "torch_threads": torch.get_num_threads(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "git_commit": git("rev-parse", "--verify", "HEAD"),
        "git_changed": has_changes(CODE),
        "package_changed": has_changes(PACKAGE),
    }


def has_changes(paths: Sequence[str]) -> bool:
    """Whether files of these paths are not as the commit has them."""
    return bool(git("status", "--porcelain", "--untracked-files=no", "--", *paths))


def changes(facts: dict[str, Any]) -> str:
    """What the checkout that measured had not committed, to follow the commit; "" for nothing."""
    if facts.get("package_changed", facts["git_changed"]):
        return ", with changes of the package that were not committed"
    return ", with changes of scripts that were not committed" if facts["git_changed"] else ""


def named(path: str | Path) -> str:
    """The last two names of a path, for tables: "europarl/test" says more than "test"."""
    return last_two(Path(os.path.abspath(path)).parts[1:])


def last_two(names: Sequence[str]) -> str:
    """The last two names of an absolute path, joined by /. A home folder is not among them,
    because it has its user's name."""
    home = {"home": 2, "Users": 2, "root": 1}.get(names[0], 0) if names else 0
    return "/".join(names[home:][-2:])


def where_and_when(facts: dict[str, Any]) -> str:
    """A line of what `machine` says, under tables."""
    return (
        f"torch {facts['torch']}, {facts['cores']} cores of {facts['cpu']}, commit "
        f"{facts['git_commit'] or 'none'}{changes(facts)}, {facts['date']}"
    )


def write_page(out: Path | None, tables: list[str]) -> None:
    """Write OUT.md, where a path is given: tables, and where and when they were measured."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.with_name(out.name + ".md").write_text(
            "\n".join([*tables, where_and_when(machine()), ""]), encoding="utf-8"
        )


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    """The processor's name as Linux gives it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    names = [
        line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")
    ]
    return names[0] if names else platform.processor()


def git(*arguments: str) -> str | None:
    """What git says of this checkout; None outside one or before its first commit."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
