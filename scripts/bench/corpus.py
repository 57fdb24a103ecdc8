"""What does Ray cost, and what do its workers bring? `python -m fairseq_ext.corpus` against one
process on the same text.

    python scripts/bench/corpus.py --model DIR --text PREFIX --src de --repeats 3

Contenders: one process with one thread and one with --cores threads, each given the whole text
at once; Ray with one worker of one thread, and with --cores of them. Everyone has the same
flags, and must give the same translations, or no speed is shown. Times are from the first
unit's start to the last one's end; loading the model and starting Ray are distinguished from them
(they are paid once a run).

Ray's own share is shown in three ways: how long its workers waited between two units, as they saw
it; the processor time of the starting process and of all of Ray's processes that are no workers,
over that of one process of one thread for the same text (a measure that other jobs on the machine
hardly disturb); and how much longer one worker took than one process of one thread.
"""

import argparse
import json
import logging
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from arguments import command_line, run_script, text_arguments
from harness import BenchError, Comparison, Contender, Spread, compare
from report import cores, markdown, write


class Stopwatch:
    """Time that passes only while a user decodes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def load(flags: dict, threads: int) -> None:
    """In a process of its own: the model."""
    global translator
    import torch

    from fairseq_ext.corpus.worker import load as load_translator

    torch.set_num_threads(threads)
    translator = load_translator(flags)
    translator.translate(["Ein Mann ."])


def decode(lines: list[str]) -> tuple[float, float, list]:
    """There: the seconds and the processor's seconds that the lines took, and
    their translations."""
    start, processor = time.perf_counter(), time.process_time()
    found = translator.translate(lines)
    return (
        time.perf_counter() - start,
        time.process_time() - processor,
        [[(h.text.split(), h.score) for h in nbest] for nbest in found],
    )


def processor_time_next_to_workers() -> dict[int, float]:
    """Seconds of this process and of those below it that translate nothing: the driver, and
    Ray's servers and agents."""
    parents, seconds, names = {}, {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            names[int(entry)] = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        parents[int(entry)], seconds[int(entry)] = (
            int(fields[1]),
            (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        )
    translating = (b"ray::CorpusWorker", b"ray::IDLE", b"multiprocessing")
    level, found = [os.getpid()], {}
    while level:
        level = [
            pid
            for pid in level
            if names[pid] and not any(name in names[pid] for name in translating)
        ]
        found |= {pid: seconds[pid] for pid in level}
        level = [pid for pid, parent in parents.items() if parent in level]
    return found


def one_process(
    lines: list[str], flags: dict, threads: int, watch: Stopwatch, processor: list[float]
) -> Contender:
    """Translator in one process; `processor` gets the processor's seconds."""
    process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), load, (flags, threads))
    name = f"one process, {threads} thread{'s' * (threads > 1)}"

    def run() -> list:
        seconds, used, found = process.submit(decode, lines).result()
        watch.seconds += seconds
        processor.append(used)
        return found

    return Contender(name, run)


def on_ray(
    text: Path,
    flags: dict,
    args: argparse.Namespace,
    workers: int,
    watch: Stopwatch,
    costs: list[tuple],
) -> Contender:
    """A whole run of fairseq_ext.corpus; `costs` gets the share of time that workers waited, and
    the processor's seconds next to them."""
    from fairseq_ext.corpus import run as corpus
    from fairseq_ext.corpus.job import CorpusJob
    from fairseq_ext.corpus.run import translate

    loaded: list[dict[int, float]] = []

    class Watched(corpus.Run):
        """Takes the time when a worker has loaded the model; the last one counts."""

        def sign(self, answer: dict[str, str]) -> None:
            super().sign(answer)
            loaded.append(processor_time_next_to_workers())

    def run() -> list:
        with tempfile.TemporaryDirectory() as out:
            others = {name: value for name, value in flags.items() if name not in ("path", "data")}
            corpus.Run = Watched
            done = translate(
                CorpusJob(
                    flags["path"],
                    flags["data"],
                    [str(text)],
                    out,
                    others,
                    unit=args.unit,
                    workers=workers,
                    progress=0,
                )
            )
            watch.seconds += done.seconds
            now = processor_time_next_to_workers()
            extra = sum(now[pid] - seconds for pid, seconds in loaded[-1].items() if pid in now)
            costs.append((done.waiting, extra, done.processor))
            records = [
                json.loads(line)
                for line in next(Path(out).glob("text.jsonl"))
                .read_text(encoding="utf-8")
                .splitlines()
            ]
        return [
            [(h.split(), s) for h, s in zip(r["hypotheses"], r["scores"], strict=True)]
            for r in records
        ]

    return Contender(f"Ray, {workers} worker{'s' * (workers > 1)} of one thread", run)


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    os.environ.update(OMP_NUM_THREADS="1", RAY_USAGE_STATS_ENABLED="0")
    try:
        import ray
    except ImportError:
        raise BenchError("this needs Ray: pip install 'fairseq_ext[cluster]'") from None
    lines = (
        Path(f"{args.text}.{args.src}")
        .read_text(encoding="utf-8")
        .removesuffix("\n")
        .split("\n")[: args.limit]
        * args.copies
    )
    flags = {
        "path": str(args.model / "checkpoint.pt"),
        "data": str(args.model),
        "source_lang": args.src,
        "target_lang": args.tgt,
    }
    flags |= {"beam": str(args.beam), "max_tokens": "4000", "cpu": True}
    if (args.model / "spm.model").exists():
        flags |= {"bpe": "sentencepiece", "sentencepiece_model": str(args.model / "spm.model")}
    watch, used, costs = Stopwatch(), [], {workers: [] for workers in (1, args.cores)}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        text.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        quiet = {"logging_level": logging.ERROR, "log_to_driver": False, "include_dashboard": False}
        ray.init(
            address="local",
            num_cpus=args.cores,
            object_store_memory=200 << 20,
            _node_ip_address="127.0.0.1",
            **quiet,
        )
        contenders = [one_process(lines, flags, 1, watch, used)]
        contenders += [one_process(lines, flags, args.cores, watch, [])] * (not args.no_threads)
        contenders += [
            on_ray(text, flags, args, workers, watch, costs[workers]) for workers in costs
        ]
        title = f"{len(lines)} sentences, beam {args.beam}, units of {args.unit}"
        comparison = compare(contenders, args.repeats, args.warmup, title=title, clock=watch)
        ray.shutdown()
    print(markdown(comparison, [contenders[0].name, contenders[-2].name]))
    answers = "\n".join(
        reported(
            comparison,
            used[args.warmup :],
            {n: costs[n][args.warmup :] for n in costs},
            args.cores,
            len(lines),
        )
    )
    print(answers)
    if args.out:
        write(args.out, [comparison], [contenders[0].name, contenders[-2].name], answers)
    return 1 if comparison.refused else 0


def reported(
    comparison: Comparison,
    used: list[float],
    costs: dict[int, list[tuple]],
    workers: int,
    lines: int,
) -> list[str]:
    """The questions answered, by medians and extremes."""
    names = [result.contender.name for result in comparison.results]

    def ratio(fast: int, slow: int) -> str:
        found = comparison.speed_up(names[fast], names[slow])
        return f"{found.median:.2f}x ({found.low:.2f}-{found.high:.2f})" if found else "-"

    share = Spread.of([100 * wait for wait, _, _ in costs[workers]])
    extra = Spread.of(
        [100 * cost / one for (_, cost, _), one in zip(costs[workers], used, strict=True)]
    )
    work = [Spread.of([lines / seconds for _, _, seconds in costs[n]]) for n in (1, workers)]
    slower = Spread.of(
        [
            100 * (r / p - 1)
            for r, p in zip(
                comparison[names[-2]].seconds, comparison[names[0]].seconds, strict=True
            )
        ]
    )
    return [
        f"- {workers} workers over one worker: {ratio(-1, -2)}",
        (
            f"- {workers} workers of one thread over one process of {workers} threads: "
            f"{ratio(-1, 1) if len(names) > 3 else 'not measured'}"
        ),
        (
            "- sentences for a second of processor time: one process "
            f"{Spread.of([lines / s for s in used]).median:.1f}, one worker {work[0].median:.1f}, "
            f"{workers} workers {work[1].median:.1f}"
        ),
        (
            f"- processor time beside the workers, over that of one process: {extra.median:.1f}% "
            f"({extra.low:.1f}-{extra.high:.1f})"
        ),
        (
            f"- time that workers waited between two units: {share.median:.2f}% "
            f"({share.low:.2f}-{share.high:.2f})"
        ),
        (
            f"- one worker against one process of one thread: {slower.median:+.1f}% time "
            f"({slower.low:+.1f} to {slower.high:+.1f})"
        ),
        f"- load average when it ended: {comparison.load:.1f} on {cores()} cores",
    ]


def parser() -> argparse.ArgumentParser:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.add_argument("--copies", type=int, default=1, help="how often the text is repeated (1)")
    parse.add_argument("--beam", type=int, default=5, help="beam size (5)")
    parse.add_argument(
        "--unit", type=int, default=250, help="sentences that a worker gets at once (250)"
    )
    parse.add_argument(
        "--cores",
        type=int,
        default=cores(),
        help="threads of the one process, workers of Ray (all cores)",
    )
    parse.add_argument(
        "--no-threads", action="store_true", help="leave out the process of several threads"
    )
    parse.add_argument("--repeats", type=int, default=3, help="timed rounds (3)")
    parse.add_argument("--warmup", type=int, default=1, help="untimed rounds before them (1)")
    parse.add_argument("--out", type=Path, help="write OUT.md and OUT.json")
    return parse


if __name__ == "__main__":
    run_script(main)
