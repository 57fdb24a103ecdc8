"""Times contenders against each other: A B A B ..., warm-up left out, outputs compared
before a speed is given.

    stock = Contender("stock", run=lambda: decode(stock_generator))  # the first is the reference
    ours = Contender("ours", run=lambda: decode(our_generator))
    print(markdown(compare([stock, ours], repeats=5, threads=2)))  # markdown: report.py

Machines drift (other jobs, heat), so two contenders are compared within a round, where they run
back to back: a ratio is the median over the rounds of (seconds of the one in round i) / (seconds
of the other in round i), never the ratio of two medians.
A contender runs in this process (`Contender`) or as a complete command (`ProcessContender`).
"""

import compileall
import gc
import json
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from equality import Outputs, Verdict, check, same_best


class BenchError(Exception):
    """A benchmark that cannot go on, in one sentence."""


def query_process(
    name: str, process: subprocess.Popen[str], errors: IO[str], line: str
) -> dict[str, Any]:
    """Give a process a line; return the JSON object that it answers.

    Errors: BenchError with the last line of its errors if it has ended.
    """
    assert process.stdin is not None and process.stdout is not None
    try:
        print(line, file=process.stdin, flush=True)
        answer = process.stdout.readline()
    except BrokenPipeError:
        answer = ""
    if not answer:
        errors.seek(0)
        last = (errors.read().strip() or "?").splitlines()[-1]
        raise BenchError(f"the process of {name} ended: {last}")
    return json.loads(answer)


@dataclass
class Contender:
    """Something that decodes the whole test set.

    run             decodes everything once: the timed part; what it returns goes to `read`
    read            turns that into Outputs, untimed
    exact           its outputs must equal the reference's, or it gets no speed; False (int8, pruned
                    search) shows BLEU instead
    signature       how its output is made: flags and versions, no paths
    memory_command  a command that decodes everything once in its own process and ends with the
                    line `report_peak` prints
    taken           the seconds of a run, of what it returned, where another process measures them
    close           called after the last round: what the contender holds is no longer needed
    instructions    of the processor that it says it uses; "" where it says nothing
    """

    name: str
    run: Callable[[], Any]
    read: Callable[[Any], Outputs] = lambda outputs: outputs
    exact: bool = True
    signature: str = ""
    memory_command: Sequence[str] = ()
    taken: Callable[[Any], float] | None = None
    close: Callable[[], None] = lambda: None
    instructions: str = ""


class ProcessContender(Contender):
    """A complete `fairseq-generate` run (loading and printing included), judged by its H- lines."""

    def __init__(
        self, name: str, command: Sequence[str], exact: bool = True, signature: str = ""
    ) -> None:
        launcher = (sys.executable, "-I", "-S", "-c", PEAK_OF_CHILD, *command)
        run = lambda: run_command(command)  # noqa: E731
        super().__init__(name, run, read_hypotheses, exact, signature, launcher)


@dataclass
class Result:
    """What a contender showed; `seconds` holds one time a round, `outputs` its first run's."""

    contender: Contender
    seconds: list[float] = field(default_factory=list)
    outputs: Outputs = field(default_factory=list)
    verdict: Verdict | None = None
    same_best: int = 0
    bleu: float | None = None
    peak_mib: float | None = None

    @property
    def refused(self) -> bool:
        """It had to give the reference's outputs and did not, so its speed means nothing."""
        return self.contender.exact and self.verdict is not None and bool(self.verdict.differing)


@dataclass
class Spread:
    """Median, extremes and quartiles."""

    median: float
    low: float
    high: float
    quartiles: tuple[float, float]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        lower, _, upper = (
            statistics.quantiles(values, n=4, method="inclusive")
            if len(values) > 1
            else [values[0]] * 3
        )
        return cls(statistics.median(values), min(values), max(values), (lower, upper))


@dataclass
class Comparison:
    """The results of one `compare`, reference first; `load` is the machine's load average when
    the timed rounds ended."""

    title: str
    results: list[Result]
    threads: int | None
    sentences: int
    load: float

    def __getitem__(self, name: str) -> Result:
        for result in self.results:
            if result.contender.name == name:
                return result
        raise BenchError(
            f"no contender is called {name!r}; there are "
            f"{', '.join(r.contender.name for r in self.results)}"
        )

    @property
    def refused(self) -> list[str]:
        return [result.contender.name for result in self.results if result.refused]

    def speed_up(self, name: str, over: str) -> Spread | None:
        """How many times faster `name` is than `over`, round by round; None if one
        of them is refused."""
        fast, slow = self[name], self[over]
        if fast.refused or slow.refused:
            return None
        return Spread.of(
            [theirs / ours for ours, theirs in zip(fast.seconds, slow.seconds, strict=True)]
        )


def compare(
    contenders: Sequence[Contender],
    repeats: int = 5,
    warmup: int = 1,
    threads: int | None = None,
    title: str = "",
    bleu: Callable[[Outputs], float] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Measure memory where a command for it is given, then run the contenders in turn, every other
    round backwards, for `warmup` untimed and `repeats` timed rounds.

    Outputs are checked after every run against the reference's (the first contender's) first
    outputs. A contender that must be exact and is not leaves the race at once.
    """
    names = [contender.name for contender in contenders]
    if not names or len(set(names)) < len(names):
        raise BenchError(f"contenders need names of their own, got {names}")
    if repeats < 1 or warmup < 0:
        raise BenchError(
            f"at least one timed round and no negative warm-up are needed, got repeats={repeats}, "
            f"warmup={warmup}"
        )
    if threads is not None:
        fix_threads(threads)
    results = [Result(contender) for contender in contenders]
    for result in results:  # first, so that a command that fails does so before the long part
        if result.contender.memory_command:
            result.peak_mib = peak_memory(result.contender.memory_command)
    reference: Outputs = []
    for turn in range(warmup + repeats):
        for result in results[:: -1 if turn % 2 else 1]:  # cancels a steady drift of the machine
            if result.refused:
                continue
            gc.collect()
            start = clock()
            raw = result.contender.run()
            seconds = clock() - start
            if result.contender.taken is not None:
                seconds = result.contender.taken(raw)
            outputs = result.contender.read(raw)
            result.outputs = result.outputs or outputs
            reference = reference or outputs
            judge(result, outputs, reference, bleu)
            if turn >= warmup:
                result.seconds.append(seconds)
    for contender in contenders:
        contender.close()
    return Comparison(title, results, threads, len(reference), os.getloadavg()[0])


def judge(
    result: Result, outputs: Outputs, reference: Outputs, bleu: Callable[[Outputs], float] | None
) -> None:
    """Note in `result` (changed in place) how these outputs stand to the reference's;
    the worst run counts."""
    if not outputs:
        raise BenchError(f"{result.contender.name} returned no hypotheses")
    if len(outputs) != len(reference):
        raise BenchError(
            f"{result.contender.name} returned {len(outputs)} sentences and the reference "
            f"{len(reference)}"
        )
    verdict = check(outputs, reference)
    if result.verdict is None or verdict.worse_than(result.verdict):
        result.verdict, result.same_best = verdict, same_best(outputs, reference)
        result.bleu = bleu(outputs) if bleu else None


def fix_threads(threads: int) -> None:
    """Give torch in this process, and every process started from it, this many threads."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    import torch

    torch.set_num_threads(threads)


# Memory. `ru_maxrss` only grows, and a process started from a large one inherits its value: so
# each measurement has its own process, which reads its own high-water mark, and complete commands
# are started from a tiny one.
PEAK_OF_CHILD = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:], "
    "stdout=subprocess.DEVNULL); print(); print('peak_mib', "
    "resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024); sys.exit(code)"
)


def compile_modules(root: Path) -> None:
    """Compile a checkout's modules to bytecode, as pip does when it installs a package: else a
    start pays for it, the first one or, where PYTHONDONTWRITEBYTECODE is set, every one."""
    compileall.compile_dir(root / "fairseq_ext", quiet=1)


def report_peak(run: Callable[[], Any]) -> None:
    """In a process of its own: decode once and print the peak of resident memory meanwhile, loading
    left out where Linux allows it."""
    gc.collect()
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # resets the high-water mark
    except OSError:
        pass  # the peak of the whole process, then
    run()
    try:
        with open("/proc/self/status") as file:
            kib = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    except OSError:
        kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"\npeak_mib {kib / 1024}")


def peak_memory(command: Sequence[str]) -> float:
    """The MiB that a memory command reports in its last line."""
    word, _, value = run_command(command).strip().rpartition("\n")[2].partition(" ")
    if word != "peak_mib":
        raise BenchError(f"the command {command[0]} did not end with its peak memory")
    return float(value)


def run_command(command: Sequence[str]) -> str:
    """The standard output of a command that must succeed."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", check=False
        )
    except OSError as error:
        raise BenchError(f"cannot run {command[0]}: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise BenchError(f"{command[0]} ended with code {done.returncode} and said: {said}")
    return done.stdout


def read_hypotheses(text: str) -> Outputs:
    """The H- lines of fairseq-generate; it prints scores to base 2, and fairseq's own
    are natural logarithms."""
    found: dict[int, list] = {}
    for number, score, words in re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", text, re.MULTILINE):
        found.setdefault(int(number), []).append((words.split(), float(score) * math.log(2)))
    return [found[number] for number in sorted(found)]


def as_json(value: Any) -> str:
    """JSON that other programs accept: no NaN, no infinity."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
