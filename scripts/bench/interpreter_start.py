"""What do the start-up files cost a Python that has nothing to do with fairseq?

    python scripts/bench/interpreter_start.py --pythons python3.10 python3.13 --starts 60

Two empty environments of each Python, one with `fairseq_ext.pth` and the module that it imports,
start `python -c pass` in turns; the median of the pairs' differences is the files' cost. -I as a
sandboxed program is started; -S, which reads no such files, is the control: its difference should
be nothing.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from arguments import command_line, run_script
from harness import BenchError
from report import ROOT

COMPAT = ROOT / "fairseq_ext" / "plugin" / "compat"
START_UP = [COMPAT / "fairseq_ext.pth", COMPAT / "fairseq_ext_start.py"]
WAYS = {"python": [], "python -I": ["-I"], "python -S": ["-S"]}


def environment(python: str, folder: Path, *files: Path) -> Path:
    """The interpreter of a new environment that holds these files alone."""
    done = subprocess.run(
        [python, "-m", "venv", "--without-pip", folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchError(
            f"{python} makes no environment: {(done.stderr.strip() or '?').splitlines()[-1]}"
        )
    [packages] = (folder / "lib").glob("python*/site-packages")
    for file in files:
        (packages / file.name).write_bytes(file.read_bytes())
    return folder / "bin" / "python"


def start(command: list[str]) -> tuple[float, float]:
    """Milliseconds that a process lived, and that it used of a processor."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    begin = time.perf_counter()
    _, status, used = os.wait4(os.posix_spawn(command[0], command, alone), 0)
    if status:
        raise BenchError(f"{' '.join(command)} ended with status {status}")
    return 1e3 * (time.perf_counter() - begin), 1e3 * (used.ru_utime + used.ru_stime)


def costs(python: str, starts: int, ways: list[str]) -> dict[str, tuple[float, float, float]]:
    """By way: milliseconds of a start without the file (median), and what the file adds, of the
    clock and of the processor."""
    out = {}
    with tempfile.TemporaryDirectory() as folder:
        bare, having = (
            environment(python, Path(folder, "bare")),
            environment(python, Path(folder, "having"), *START_UP),
        )
        for way in ways:
            rounds = [
                [start([str(each), *WAYS[way], "-c", "pass"]) for each in (bare, having)]
                for _ in range(starts + 1)
            ][1:]
            without = statistics.median(a[0] for a, _ in rounds)
            out[way] = (
                without,
                *(statistics.median(b[i] - a[i] for a, b in rounds) for i in (0, 1)),
            )
    return out


def main() -> int:
    parse = command_line(__doc__)
    parse.add_argument(
        "--pythons", nargs="+", default=[sys.executable], help="interpreters (the running one)"
    )
    parse.add_argument("--starts", type=int, default=60, help="pairs of starts (60)")
    args = parse.parse_args()
    print(
        "| Python | started as | ms without the file | the file adds, ms | of the "
        "processor's time, ms |"
    )
    print("| --- | --- | ---: | ---: | ---: |")
    for python in args.pythons:
        said = subprocess.run(
            [python, "-V"], capture_output=True, text=True, check=False
        ).stdout.strip()
        for way, (without, clock, processor) in costs(python, args.starts, list(WAYS)).items():
            print(
                f"| {said.removeprefix('Python ')} | `{way}` | {without:.1f} | {clock:+.2f} | "
                f"{processor:+.2f} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    run_script(main)
