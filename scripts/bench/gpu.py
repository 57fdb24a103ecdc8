"""All of a GPU machine in one command: what a step takes, each search, LSH's kernels, and the
tests that take a device; writes the results file that docs/gpu.md shows.

    python scripts/bench/gpu.py [--parts step searches lsh tests] [--minutes 9] [--workers 8]
        [--out scripts/bench/results/gpu] [--commit NAME] [--device cpu] [--quick]

Each part is a process of its own. OUT.md and OUT.json are written after each, so that a run that is
cut short keeps what it has; a later run with other --parts on the same GPU and commit adds to it.
--device cpu --quick tries everything on a small model where there is no GPU.

    --parts PART ...    (all)
    --minutes X         of all parts together (9)
    --workers N         processes of the tests (8)
    --commit NAME       where the copy has no history of its own
    --out OUT           (scripts/bench/results/gpu)
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gpu_step import parsed  # noqa: E402
from report import machine  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TITLES = {
    "step": "A step of Transformer-big's decoder",
    "searches": "A step of each search",
    "lsh": "LSH",
    "tests": "The tests",
}
TESTED = ("tests/model", "tests/kernels", "tests/search")
# a line of `pytest -v`, also with -n: the outcome stands behind the test or before it
OUTCOMES = "PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS"
OUTCOME = re.compile(
    rf"^(?:\[gw\d+\] .*?(?P<first>{OUTCOMES}) )?(?P<test>tests/(?P<folder>\w+)/\S+.*?)"
    rf"(?: (?P<last>{OUTCOMES})\b.*)?$"
)


def main(argv: list[str] | None = None) -> None:
    args = parsed(__doc__, argv, parts=TITLES)
    facts = where(args.device, args.commit)
    done = earlier(args.out, facts)
    end = time.monotonic() + 60 * args.minutes
    failed = []
    for part in args.parts:
        done[part] = ran(part, command(part, args), max(1, end - time.monotonic()))
        print(f"## {TITLES[part]}\n\n{done[part]['text']}\n", flush=True)
        failed += [part] * (done[part]["status"] != 0)
        write(args.out, facts, done)
    sys.exit(f"not finished, or failed: {', '.join(failed)}" if failed else 0)


def command(part: str, args: argparse.Namespace) -> list[str]:
    """What runs a part."""
    if part != "tests":
        script = str(ROOT / "scripts/bench" / f"gpu_{part}.py")
        return [script, "--device", args.device, *["--quick"] * args.quick]
    tested = TESTED if not args.quick else ("tests/kernels/test_lsh_kernels.py",)
    several = ["-n", str(args.workers)] if args.workers > 1 and installed("xdist") else []
    return [
        *"-m pytest -o addopts=-v --tb=short --device".split(),
        args.device,
        *several,
        *tested,
    ]


def installed(name: str) -> bool:
    try:
        return bool(version({"xdist": "pytest-xdist"}.get(name, name)))
    except PackageNotFoundError:
        return False


def ran(part: str, run: list[str], seconds: float) -> dict[str, Any]:
    """Run a part; its text, its status (None: cut short) and how long it took."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as kept:
        process = subprocess.Popen(
            [sys.executable, "-u", *run], cwd=ROOT, stdout=kept, env=dict(os.environ, COLUMNS="500")
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = None
        kept.seek(0)
        text = kept.read()
    if part == "tests":
        print(text[-20000:], flush=True)
        text = tested(text)
    shown = " ".join([run[0].removeprefix(f"{ROOT}/"), *run[1:]])
    return dict(command=f"python {shown}", status=status, text=text.strip(),
                minutes=(time.monotonic() - start) / 60)  # fmt: skip


def tested(text: str) -> str:
    """A table of the outcomes of pytest, and the names of what failed."""
    found: dict[str, Counter[str]] = {}
    failed = []
    for line in text.splitlines():
        m = OUTCOME.match(line)
        outcome = m and (m["first"] or m["last"])
        if m is None or not outcome:
            continue
        found.setdefault(m["folder"], Counter())[outcome] += 1
        if outcome in ("FAILED", "ERROR"):
            failed.append(f"- {outcome.lower()}: `{m['test'].strip()}`")
    lines = ["| tests | passed | failed | skipped |", "| --- | ---: | ---: | ---: |"]
    lines += [
        f"| `tests/{folder}` | {n['PASSED'] + n['XFAIL']} | "
        f"{n['FAILED'] + n['ERROR'] + n['XPASS']} | {n['SKIPPED']} |"
        for folder, n in sorted(found.items())
    ]
    return "\n".join([*lines, *[""] * bool(failed), *dict.fromkeys(failed)])


def where(device: str, commit: str | None) -> dict[str, Any]:
    facts = machine()
    facts["gpu"] = facts["driver"] = None
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        facts["driver"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    facts["cupy"] = next(
        (version(n) for n in ("cupy-cuda13x", "cupy-cuda12x", "cupy") if installed(n)), None
    )
    facts["git_commit"] = commit or facts["git_commit"]
    return facts


def earlier(out: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The parts of earlier runs on the same GPU and commit."""
    file = out.with_name(out.name + ".json")
    if not file.exists():
        return {}
    before = json.loads(file.read_text(encoding="utf-8"))
    same = all(before["machine"][key] == facts[key] for key in ("gpu", "git_commit", "torch"))
    return before["parts"] if same else {}


def write(out: Path, facts: dict[str, Any], parts: dict[str, Any]) -> None:
    """OUT.md, for docs/gpu.md, and OUT.json."""
    device = (
        f"One {facts['gpu']} (driver {facts['driver']})"
        if facts["gpu"]
        else "No GPU: a try on a CPU"
    )
    cupy = f", CuPy {facts['cupy']}" if facts["cupy"] else ", no CuPy"
    lines = [
        f"{device}, torch {facts['torch']}{cupy}, Python {facts['python']}, {facts['date'][:10]}, "
        f"commit {(facts['git_commit'] or 'none')[:8]}. One run of each part; within a part the "
        "contenders take turns.",
        "",
    ]
    for part, title in TITLES.items():
        if part in parts:
            run = parts[part]
            cut = {0: "", None: ", cut short"}.get(run["status"], f", status {run['status']}")
            lines += [
                f"### {title}",
                "",
                f"`{run['command']}` ({run['minutes']:.1f} minutes{cut}).",
                "",
            ]
            lines += [re.sub("^### ", "#### ", run["text"], flags=re.MULTILINE), ""]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_name(out.name + ".md").write_text("\n".join(lines), encoding="utf-8")
    out.with_name(out.name + ".json").write_text(
        json.dumps(dict(machine=facts, parts=parts), indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
