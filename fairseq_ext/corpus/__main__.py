"""`python -m fairseq_ext.corpus translate --path MODEL --data DATA --input FILES --output
DIR [any decoding flag]`"""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import fields

from fairseq_ext.core.errors import UsageError, counted, report
from fairseq_ext.corpus.job import CorpusJob, check_numbers
from fairseq_ext.corpus.run import translate
from fairseq_ext.plugin.loading.settings import as_keywords
from fairseq_ext.search.checks import refused_by_corpus
from fairseq_ext.search.registry import typed

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
    for each in fields(CorpusJob):
        if each.metadata:
            how = {name: value for name, value in each.metadata.items() if name != "largest"}
            parse.add_argument(typed(each.name), default=each.default, **how)
    parse.add_argument(
        "-s",
        "--source-lang",
        help="source language (default: as the dictionaries and the checkpoint say)",
    )
    parse.add_argument(
        "-t", "--target-lang", help="target language (default: the other dictionary's)"
    )
    return top


def job_of(argv: list[str] | None) -> CorpusJob:
    """Return the job that a command line describes; argv: None for the process's own arguments."""
    args, others = parser().parse_known_args(argv)
    given = vars(args)
    del given["command"]
    languages = {name: given.pop(name) for name in ("source_lang", "target_lang")}
    check_numbers(CorpusJob(**given))
    flags = as_keywords(others)
    for name in ("results_file", "resume"):
        if name in flags:
            raise UsageError(
                f"{typed(name)} belongs to the other commands: "
                "leave it out, a corpus run continues when its command is repeated"
            )
    for name, why in refused_by_corpus().items():
        if name in flags:
            raise UsageError(f"{typed(name)} {why}: leave it out")
    flags |= {name: value for name, value in languages.items() if value is not None}
    if args.path is None:
        from fairseq_ext.plugin.loading.model import find_model

        flags = find_model(args.data, flags)
        given |= {name: flags.pop(name) for name in ("path", "data")}
    return CorpusJob(flags=flags, **given)


def handle_sigterm(number: int, frame: object) -> None:
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
    print(*done.unreadable, f"made by {done.signature}", sep="\n")
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
