"""`python -m fairseq_ext.corpus translate --path MODEL --data DATA --input FILES --output
DIR [any decoding flag]`"""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from typing import Any

from fairseq_ext.core.errors import UsageError, counted, cut, report
from fairseq_ext.corpus import scheduler
from fairseq_ext.corpus.job import SUFFIXES, CorpusJob
from fairseq_ext.corpus.run import translate
from fairseq_ext.plugin.loading.settings import as_keywords
from fairseq_ext.search.checks import refused_by_corpus

EXIT_CODES = """
exit codes: 0 every sentence is translated; 1 stopped by an error, \
which is reported in one sentence; 3 some sentences could not be translated
(errors.jsonl names them, and constraints that are not met); 4 an input file \
could not be read to its end; 130 interrupted. After 1, 4 and 130 the
same command continues the run.
"""


def parser() -> ArgumentParser:
    """Return the parser of the command's own flags; every other flag is a decoding flag."""
    top = ArgumentParser(
        "python -m fairseq_ext.corpus",
        description="Translate whole corpora on Ray.",
        allow_abbrev=False,
    )
    commands = top.add_subparsers(dest="command", required=True)
    parse = commands.add_parser(
        "translate",
        help="translate files to a folder",
        description="Every other flag is one of fairseq-interactive's or of this package (python "
        "-m fairseq_ext), as --beam 5.",
        epilog=EXIT_CODES,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parse.add_argument
    add(
        "--path",
        help="checkpoint, or several joined by colons (default: the one in --data, with "
        "its segmentation)",
    )
    add("--data", required=True, help="folder with the dictionaries")
    add(
        "--input",
        required=True,
        nargs="+",
        metavar="FILE",
        help="text, .jsonl or .parquet, also .gz .zst .bz2; folders, patterns",
    )
    add(
        "--output",
        required=True,
        metavar="DIR",
        help="a file for each input file, manifest.json, errors.jsonl",
    )
    add(
        "--format",
        choices=list(SUFFIXES),
        default="jsonl",
        help="format of the output (default: jsonl; text: best hypotheses alone)",
    )
    add(
        "--source-field",
        metavar="NAME",
        help="key or column of the source in JSONL and Parquet (default: source, else text)",
    )
    order = (
        "one for each input file; phrases come in any order unless --constraints is ordered "
        "(default: none)"
    )
    add("--constraints-file", nargs="+", metavar="FILE", help=order)
    add(
        "-s",
        "--source-lang",
        help="source language (default: as the dictionaries and the checkpoint say)",
    )
    add("-t", "--target-lang", help="target language (default: the other dictionary's)")
    add(
        "--overwrite",
        action="store_true",
        help="remove the output of earlier runs from --output, and start again (default: off)",
    )
    add(
        "--workers",
        type=positive,
        metavar="N",
        help="processes that translate (default: one a GPU, else one for each --threads cores)",
    )
    add(
        "--threads",
        type=positive,
        default=1,
        metavar="N",
        help="CPU threads of a worker (default: 1)",
    )
    add(
        "--unit",
        type=positive,
        default=500,
        metavar="N",
        help="sentences that a worker gets at once (default: 500)",
    )
    add(
        "--address", help="address of a running Ray cluster, or auto (default: Ray is started here)"
    )
    add(
        "--object-store",
        type=positive,
        default=512,
        metavar="MIB",
        help="memory for Ray's objects, in MiB, where Ray is started here (default: 512)",
    )
    add("--dashboard", action="store_true", help="start Ray's dashboard with it (default: off)")
    add(
        "--progress",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="time between lines on standard error, 0: no line (default: 10)",
    )
    add(
        "--stats-file",
        metavar="FILE",
        help="counts and times, added up over workers and runs (default: none)",
    )
    return top


def positive(text: str) -> int:
    """Return a whole number above zero (raises ValueError)."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


MIN_OBJECT_STORE = 75  # MiB
MAX_THREADS_PER_CORE = 64  # threads of all workers together, where no cluster is named
MAX_VALUES = {  # upper limits; with larger values the machine would only be busy with the attempt
    "threads": (1024, "number of CPU threads"),
    "workers": (100_000, "number of workers"),
    "unit": (1_000_000, "number of sentences"),
    "object_store": (1 << 24, "number of MiB"),
}


def job_of(argv: list[str] | None) -> CorpusJob:
    """Return the job that a command line describes; argv: None for the process's own arguments."""
    args, others = parser().parse_known_args(argv)
    check_numbers(args)
    flags = as_keywords(others)
    for name in ("results_file", "resume"):
        if name in flags:
            raise UsageError(
                f"--{name.replace('_', '-')} belongs to the other commands: "
                "leave it out, a corpus run continues when its command is repeated"
            )
    for name, why in refused_by_corpus().items():
        if name in flags:
            raise UsageError(f"--{name.replace('_', '-')} {why}: leave it out")
    flags |= {
        name: value
        for name in ("source_lang", "target_lang")
        if (value := vars(args)[name]) is not None
    }
    ours = {
        name: value
        for name, value in vars(args).items()
        if name not in ("command", "source_lang", "target_lang")
    }
    if args.path is None:
        from fairseq_ext.plugin.loading.model import find_model

        flags = find_model(args.data, flags)
        ours |= {name: flags.pop(name) for name in ("path", "data")}
    return CorpusJob(flags=flags, **ours)


def check_numbers(args: Namespace) -> None:
    """Raise UsageError for a number that is out of its range."""
    for name, (largest, meaning) in MAX_VALUES.items():
        value = vars(args)[name]
        if value is not None and value > largest:
            raise UsageError(
                f"--{name.replace('_', '-')} ({meaning}) must be 1 to {largest}, "
                f"not {cut(str(value))}"
            )
    if (
        not args.address
        and (args.workers or 1) * args.threads > MAX_THREADS_PER_CORE * scheduler.cores()
    ):
        raise UsageError(
            f"--workers {args.workers or 1} with --threads {args.threads} is far more than this "
            f"machine's {counted(scheduler.cores(), 'core')}: "
            "lower one of the two, or name a cluster with --address"
        )
    if args.object_store < MIN_OBJECT_STORE:
        raise UsageError(
            f"--object-store {args.object_store} is less than Ray takes: use {MIN_OBJECT_STORE} "
            "MiB or more"
        )
    if not 0 <= args.progress < float("inf"):
        raise UsageError(f"--progress (seconds) must be 0 or more, not {args.progress}")


def handle_sigterm(number: int, frame: Any) -> None:
    """Handle SIGTERM, which a cluster sends to stop a process, like Ctrl-C."""
    raise KeyboardInterrupt


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit code."""
    signal.signal(signal.SIGTERM, handle_sigterm)
    try:
        done = translate(job_of(argv))
    except UsageError as error:
        report(type(error), error, error.__traceback__)
        return 1
    except KeyboardInterrupt:
        print("interrupted: the same command continues it", file=sys.stderr)
        return 130
    print(done.table())
    for reason in done.unreadable:
        print(reason)
    entries = (
        f"{counted(done.errors, 'entry', 'entries')} in errors.jsonl"
        if done.errors
        else "no errors"
    )
    print(
        f"{'not all' if done.unreadable else 'all'} done: "
        f"{counted(done.sentences_before + done.sentences, 'sentence')}, {entries}"
    )
    return 4 if done.unreadable else 3 if done.errors > done.unmet else 0


if __name__ == "__main__":
    sys.exit(main())
