"""Times contenders against each other: A B A B ..., warm-up left out, outputs compared
before a speed is given.

    stock = Contender("stock", run=lambda: decode(stock_generator))  # the first is the reference
    ours = Contender("ours", run=lambda: decode(our_generator))
    print(comparison_table(compare([stock, ours], repeats=5, threads=2)))  # report.py

Machines drift (other jobs, heat), so two contenders are compared within a round, where they run
back to back: a ratio is the median over the rounds of (seconds of the one in round i) / (seconds
of the other in round i), never the ratio of two medians.
"""

import compileall
import gc
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
# tokens (ids or words), score (natural logarithm, as in fairseq's `score`)
Hypothesis = tuple[list, float]
# for every sentence, in the order of their ids: its hypotheses, best first
Outputs = list[list[Hypothesis]]

# equal tokens may differ this much in score (float32 summed in another order)
SCORE_TOLERANCE = 1e-4
# unequal tokens at the same rank with scores this close are a near-tie: either order is right
NEAR_TIE = 2e-4
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class BenchError(Exception):
    """A benchmark that cannot go on, in one sentence."""


@dataclass
class Spread:
    """Median and extremes."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))

    @classmethod
    def ratio(cls, above: Sequence[float], below: Sequence[float]) -> "Spread":
        """The quotients of each round."""
        return cls.of([a / b for a, b in zip(above, below, strict=True)])

    def shown(self, digits: int = 2, unit: str = "") -> str:
        """Median and extremes as a cell."""
        median, *ends = (f"{x:.{digits}f}" for x in (self.median, self.low, self.high))
        return f"{median}{unit} ({'-'.join(ends)})"


@dataclass
class Verdict:
    """How the outputs of a contender stand to the reference's.

    near_ties: (sentence, rank, difference of the scores); differing: positions in the outputs.
    """

    sentences: int
    hypotheses: int
    near_ties: list[tuple[int, int, float]] = field(default_factory=list)
    differing: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        if self.differing:
            listed = ", ".join(map(str, self.differing[:5])) + ", ..." * (len(self.differing) > 5)
            return f"differ in {len(self.differing)} of {self.sentences} sentences ({listed})"
        if self.near_ties:
            return (
                f"equal but for {len(self.near_ties)} near-ties among {self.hypotheses} hypotheses"
            )
        return f"equal ({self.hypotheses} hypotheses)"


def check(outputs: Outputs, reference: Outputs) -> Verdict:
    """Compare every hypothesis of every sentence, rank by rank.

    A sentence differs if it has another number of hypotheses, other tokens with another score,
    or the same tokens with another score.
    """
    assert len(outputs) == len(reference), "outputs of different sentences cannot be compared"
    verdict = Verdict(sentences=len(reference), hypotheses=sum(map(len, reference)))
    for sentence, (ours, theirs) in enumerate(zip(outputs, reference, strict=True)):
        differs = len(ours) != len(theirs)
        for rank, ((tokens, score), (their_tokens, their_score)) in enumerate(
            zip(ours, theirs)  # noqa: B905
        ):
            gap = abs(score - their_score)
            if tokens != their_tokens and gap <= NEAR_TIE:
                verdict.near_ties.append((sentence, rank, gap))
            elif tokens != their_tokens or not gap <= SCORE_TOLERANCE:  # a NaN differs
                differs = True
        if differs:
            verdict.differing.append(sentence)
    return verdict


def same_best(outputs: Outputs, reference: Outputs) -> int:
    """In how many sentences the best hypothesis has the reference's tokens: for contenders
    that are not exact."""
    pairs = zip(outputs, reference, strict=True)
    return sum(bool(ours) and bool(theirs) and ours[0][0] == theirs[0][0] for ours, theirs in pairs)


@dataclass
class Contender:
    """Something that decodes the whole test set.

    run             decodes everything once: the timed part; what it returns goes to `read`
    read            turns that into Outputs, untimed
    exact           its outputs must equal the reference's, or it gets no speed; False (int8, pruned
                    search) shows BLEU instead
    signature       how its output is made: flags and versions, no paths
    taken           the seconds of a run, of what it returned, where another process measures them
    close           called after the last round: what the contender holds is no longer needed
    instructions    of the processor that it says it uses; "" where it says nothing
    stats           what a search counted in its last run
    again           makes it again in a process of its own, where its memory is measured
    """

    name: str
    run: Callable[[], Any]
    read: Callable[[Any], Outputs] = lambda outputs: outputs
    exact: bool = True
    signature: str = ""
    taken: Callable[[Any], float] | None = None
    close: Callable[[], None] = lambda: None
    instructions: str = ""
    stats: dict[str, Any] = field(default_factory=dict)
    again: Callable[[], "Contender"] | None = None


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

    def judge(self, outputs: Outputs, reference: Outputs, bleu: Callable | None) -> None:
        """Note how these outputs stand to the reference's; the worst run counts."""
        name = self.contender.name
        if not outputs or len(outputs) != len(reference):
            raise BenchError(
                f"{name} returned {len(outputs)} sentences and the reference {len(reference)}"
            )
        found = check(outputs, reference)
        faults = [(len(v.differing), len(v.near_ties)) for v in (found, self.verdict) if v]
        if self.verdict is None or faults[0] > faults[1]:
            self.verdict, self.same_best = found, same_best(outputs, reference)
            self.bleu = bleu(outputs) if bleu else None


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
        return next(result for result in self.results if result.contender.name == name)

    @property
    def refused(self) -> list[str]:
        return [result.contender.name for result in self.results if result.refused]

    def speed_up(self, name: str, over: str) -> Spread | None:
        """How many times faster `name` is than `over`, round by round; None if one
        of them is refused."""
        fast, slow = self[name], self[over]
        return None if fast.refused or slow.refused else Spread.ratio(slow.seconds, fast.seconds)


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
    if threads is not None:
        fix_threads(threads)
    results = [Result(contender) for contender in contenders]
    for result in results:  # first, so that one that fails does so before the long part
        if again := result.contender.again:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
                result.peak_mib = alone.submit(peak, again).result()
    reference: Outputs = []
    for turn, result in in_turns(results, warmup + repeats):
        if result.refused:
            continue
        gc.collect()
        contender, start = result.contender, clock()
        raw = contender.run()
        seconds = clock() - start
        if contender.taken is not None:
            seconds = contender.taken(raw)
        outputs = contender.read(raw)
        result.outputs = result.outputs or outputs
        reference = reference or outputs
        result.judge(outputs, reference, bleu)
        if turn >= warmup:
            result.seconds.append(seconds)
    for contender in contenders:
        contender.close()
    return Comparison(title, results, threads, len(reference), os.getloadavg()[0])


def in_turns(each: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Round and contender, every other round backwards: cancels a steady drift of the machine."""
    for turn in range(rounds):
        for one in each[:: -1 if turn % 2 else 1]:
            yield turn, one


def time_ways(
    ways: Mapping[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.process_time,
    before: Callable[[int], object] = lambda turn: None,
) -> dict[str, list[float]]:
    """Run functions in turns after an untimed round; before: called at the start of each round.
    Returns the seconds of each one's rounds."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    at = -1
    for turn, name in in_turns(list(ways), repeats + 1):
        if turn > at:
            before(at := turn)
        start = clock()
        ways[name]()
        if turn:
            spent[name].append(clock() - start)
    return spent


def least(run: Callable[[], T], repeats: int = 3) -> tuple[float, T]:
    """The least CPU seconds of some runs without a warm-up, and what the last one returned."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        answer = run()
        taken.append(time.process_time() - start)
    return min(taken), answer


def fix_threads(threads: int) -> None:
    """Give torch in this process, and every process started from it, this many threads."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    import torch

    torch.set_num_threads(threads)


def compile_modules(root: Path) -> None:
    """Compile a checkout's modules to bytecode, as pip does when it installs a package: else a
    start pays for it, the first one or, where PYTHONDONTWRITEBYTECODE is set, every one."""
    compileall.compile_dir(root / "fairseq_ext", quiet=1)


def peak(make: Callable[[], Contender]) -> float:
    """MiB of resident memory while a contender decodes once, loading left out where Linux allows
    it. `ru_maxrss` only grows, and a process started from a large one inherits its value: so each
    measurement has a process of its own, which resets the high-water mark."""
    run = make().run
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        run()
        status = Path("/proc/self/status").read_text()
        return int(next(x.split()[1] for x in status.splitlines() if x.startswith("VmHWM"))) / 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_command(command: Sequence[str], **how: Any) -> str:
    """The standard output of a command that must succeed; how: further arguments of
    subprocess.run. Errors: BenchError with the last line that the command printed."""
    how = dict(capture_output=True, text=True, encoding="utf-8", check=False) | how
    try:
        done = subprocess.run(command, **how)
    except OSError as error:
        raise BenchError(f"cannot run {command[0]}: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise BenchError(f"{command[0]} ended with code {done.returncode} and said: {said}")
    return done.stdout


class Child:
    """A process that answers each line that it is given with lines.

    Errors: BenchError where it does not start, and from `query` with the last line of its errors
    where it has ended.
    """

    def __init__(self, name: str, command: Sequence[str], **how: Any):
        self.name, self.errors = name, tempfile.TemporaryFile("w+")
        pipe, how = subprocess.PIPE, {"encoding": "utf-8", "bufsize": 1, **how}
        try:
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=self.errors, text=True, **how
            )
        except OSError as error:
            raise BenchError(f"{name}: {command[0]} cannot be started: {error.strerror}") from error

    def query(self, line: str, last: str = "") -> list[str]:
        """The lines of the answer, up to the one that begins with `last`."""
        assert self.process.stdin is not None and self.process.stdout is not None
        answer: list[str] = []
        try:
            print(line, file=self.process.stdin, flush=True)
            for said in self.process.stdout:
                answer.append(said)
                if said.startswith(last):
                    return answer
        except BrokenPipeError:
            pass
        raise BenchError(f"the process of {self.name} ended: {self.log().splitlines()[-1]}")

    def request(self, value: object) -> Any:
        """The JSON value that answers a JSON value."""
        return json.loads(self.query(json.dumps(value))[0])

    def log(self) -> str:
        """What it has written to its standard error."""
        self.errors.seek(0)
        return self.errors.read().strip() or "?"

    def cpu(self) -> float:
        """CPU seconds of the process so far: Linux has a clock for each process."""
        return time.clock_gettime((~self.process.pid << 3) | 2)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def __del__(self) -> None:
        if hasattr(self, "process") and self.process.returncode is None:
            self.close()
