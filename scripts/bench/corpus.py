"""What does Ray cost, and what do its workers bring? `python -m fairseq_ext.corpus` against one
process on the same text.

    python scripts/bench/corpus.py --model DIR --text PREFIX --src de --repeats 3

Contenders: one process with one thread and one with --cores threads, each given the whole text
at once; Ray with one worker of one thread, and with --cores of them. Everyone has the same
flags, and must give the same translations, or no speed is shown. Times are from the first
unit's start to the last one's end; loading the model and starting Ray are distinguished from them
(they are paid once a run).

Ray's own share is shown in two ways: how long its workers waited between two units, as they saw
it, and how much longer one worker took than one process of one thread.

    --copies N     how often the text is repeated (1)
    --beam N       (5)
    --unit N       sentences that a worker gets at once (250)
    --cores N      threads of the one process, workers of Ray (all)
    --repeats N    timed rounds (3)
    --warmup N     untimed rounds before them (1)
    --out OUT      write OUT.md and OUT.json
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

from harness import BenchError, Contender, Spread, compare
from report import Page, as_dict, comparison_table, cores, named
from text import command_line, read_lines, run_script, text_arguments


def load(flags: dict, threads: int) -> None:
    """In a process of its own: the model."""
    global translator
    import torch

    from fairseq_ext.corpus.worker import load as load_translator

    torch.set_num_threads(threads)
    translator = load_translator(flags)
    translator.translate(["Ein Mann ."])


def decode(lines: list[str]) -> tuple[float, list]:
    """There: the seconds that the lines took, and their translations."""
    start = time.perf_counter()
    found = translator.translate(lines)
    seconds = time.perf_counter() - start
    return seconds, [[(h.text.split(), h.score) for h in nbest] for nbest in found]


def one_process(lines: list[str], flags: dict, threads: int) -> Contender:
    """Translator in one process."""
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), load, (flags, threads))
    name = f"one process, {threads} thread{'s' * (threads > 1)}"
    made = Contender(name, lambda: pool.submit(decode, lines).result(), lambda found: found[1])
    made.taken, made.close = (lambda found: found[0]), pool.shutdown
    return made


def on_ray(
    text: Path, flags: dict, args: argparse.Namespace, workers: int, waits: list[float]
) -> Contender:
    """A whole run of fairseq_ext.corpus; `waits` gets the share of time that workers waited."""
    from fairseq_ext.corpus.job import CorpusJob
    from fairseq_ext.corpus.run import translate

    places = flags["path"], flags["data"]
    others = {name: value for name, value in flags.items() if name not in ("path", "data")}

    def run() -> tuple[float, list]:
        with tempfile.TemporaryDirectory() as out:
            how = dict(unit=args.unit, workers=workers, progress=0)
            done = translate(CorpusJob(*places, [str(text)], out, others, **how))
            waits.append(done.waiting)
            [file] = Path(out).glob("text.jsonl")
            records = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        nbests = (zip(r["hypotheses"], r["scores"], strict=True) for r in records)
        return done.seconds, [[(h.split(), s) for h, s in nbest] for nbest in nbests]

    name = f"Ray, {workers} worker{'s' * (workers > 1)} of one thread"
    return Contender(name, run, lambda found: found[1], taken=lambda found: found[0])


def main(argv: list[str] | None = None) -> int:
    parse = command_line(__doc__, cores=max(2, cores()))
    text_arguments(parse)
    args = parse.parse_args(argv)
    os.environ.update(OMP_NUM_THREADS="1", RAY_USAGE_STATS_ENABLED="0")
    try:
        import ray
    except ImportError:
        raise BenchError("this needs Ray: pip install 'fairseq_ext[cluster]'") from None
    lines = read_lines(args.text, args.src, args.limit) * args.copies
    model = args.model
    flags = {"path": str(model / "checkpoint.pt"), "data": str(model), "source_lang": args.src}
    flags |= {"target_lang": args.tgt, "beam": str(args.beam), "max_tokens": "4000", "cpu": True}
    if (spm := model / "spm.model").exists():
        flags |= {"bpe": "sentencepiece", "sentencepiece_model": str(spm)}
    waits: dict[int, list[float]] = {workers: [] for workers in (1, args.cores)}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        text.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        quiet = {"logging_level": logging.ERROR, "log_to_driver": False, "include_dashboard": False}
        memory, address = 200 << 20, {"address": "local", "_node_ip_address": "127.0.0.1"}
        ray.init(num_cpus=args.cores, object_store_memory=memory, **address, **quiet)
        contenders = [one_process(lines, flags, threads) for threads in (1, args.cores)]
        contenders += [on_ray(text, flags, args, workers, waits[workers]) for workers in waits]
        title = f"{len(lines)} sentences, beam {args.beam}, units of {args.unit}"
        found = compare(contenders, args.repeats, args.warmup, title=title)
        ray.shutdown()
    one, threads, worker, several = (contender.name for contender in contenders)
    page = Page(args.out, f"Model {named(model)}, text {named(args.text)}.\n")
    page.add(comparison_table(found, [one, worker]), as_dict(found))
    share = Spread.of([100 * wait for wait in waits[args.cores][args.warmup :]]).shown(2, "%")
    answers = [f"- time that workers waited between two units: {share}"]
    for fast, slow in ((several, worker), (several, threads), (worker, one)):
        ratio = found.speed_up(fast, slow)
        answers.append(f"- {fast} over {slow}: {ratio.shown(2, 'x') if ratio else '-'}")
    page.add("\n".join(answers) + "\n")
    return 1 if found.refused else 0


if __name__ == "__main__":
    run_script(main)
