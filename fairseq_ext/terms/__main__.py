"""`python -m fairseq_ext.terms score` and `python -m fairseq_ext.terms expand`.

    python -m fairseq_ext.terms score --hypotheses F --references F --format wmt25 --target-lang de --terms proper [--json]
    python -m fairseq_ext.terms expand --glossary g.tsv --lang en --text mono.en > expanded.tsv
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from fairseq_ext.core.errors import UsageError, counted, report
from fairseq_ext.core.files import Lines
from fairseq_ext.core.glossary import Errors, Languages, read
from fairseq_ext.core.words import MATCHES, Lemmatizer, lemmatizer
from fairseq_ext.terms.expand import expand
from fairseq_ext.terms.formats import hypotheses, own, text, wmt21, wmt23, wmt25
from fairseq_ext.terms.formats.files import Files
from fairseq_ext.terms.score import EvaluationSet, score, table
from fairseq_ext.terms.significance import compare
from fairseq_ext.terms.test_set import Sentence

READERS: dict[str, Callable[[Files], tuple[list[Sentence], str | None]]] = {
    "wmt25": wmt25.read,
    "wmt23": wmt23.read,
    "wmt21": wmt21.read,
    "tsv": own.read_tsv,
    "jsonl": own.read_jsonl,
    "text": text.read,
}


def parser() -> ArgumentParser:
    """The command line."""
    top = ArgumentParser("python -m fairseq_ext.terms", description="Terminology in translations.", allow_abbrev=False)
    commands = top.add_subparsers(dest="command", required=True)
    parse = commands.add_parser(
        "score", help="score translations with respect to terms", description="Prints a table, or one JSON object.", allow_abbrev=False
    )
    add = parse.add_argument
    add("--hypotheses", required=True, metavar="F", help="translations: text, SGM, --results-file, corpus output, WMT25 submission")
    add("--references", required=True, metavar="F", help="the test set's references; JSONL and TSV hold sources and terms too")
    add("--format", required=True, choices=list(READERS), help="format of --references (README of the task, or fairseq_ext/terms/formats)")
    add("--target-lang", required=True, metavar="LANG", help="language of the translations, for lemmas and the fields of WMT23 and WMT25")
    add("--source-lang", metavar="LANG", help="language of the sources (default: as WMT23 and WMT25 name it; else none: no lemmas)")
    add("--terms", metavar="NAME", help="which terms: proper or random (WMT23, WMT25; default: proper), or a key of JSONL (default: terms)")
    add("--terms-file", metavar="F", help="WMT23: a JSON list a line (default: NAME.term.proper beside NAME.LANG); text: a glossary")
    add("--sources", metavar="F", help="source lines, WMT21: the SGM of sources (default: none; WMT23: NAME.SOURCE beside --references)")
    add("--glossary-match", choices=MATCHES, default="surface", help="text: how terms are found in sources (default: surface)")
    add("--lemmas", choices=["simplemma", "none"], default="simplemma", help="how words get their lemmas (default: simplemma)")
    add("--baseline", metavar="F", help="translations of a second system, for a paired bootstrap (default: none)")
    add("--samples", type=int, default=1000, metavar="N", help="samples of the bootstrap (default: 1000)")
    add("--json", action="store_true", help="print one JSON object instead of a table (default: off)")
    parse.set_defaults(run=score_command)
    parse = commands.add_parser(
        "expand",
        help="add the inflected forms of a glossary's targets",
        description="Prints the glossary as TSV, with the forms that the text has under the same lemmas as further alternatives.",
        allow_abbrev=False,
    )
    add = parse.add_argument
    add("--glossary", required=True, metavar="F", help="TSV, CSV, TBX-Basic or JSONL")
    add("--lang", required=True, metavar="LANG", help="language of the targets and of --text")
    add("--text", required=True, nargs="+", metavar="F", help="text of that language")
    add("--source-lang", metavar="LANG", help="language of the source terms; TBX needs it, CSV may (default: none)")
    add("--min-count", type=int, default=1, metavar="N", help="occurrences that a form must have (default: 1)")
    parse.set_defaults(run=expand_command)
    return top


def lemmatizers(args: Namespace, source_lang: str | None) -> tuple[Lemmatizer | None, Lemmatizer | None]:
    """For the source's and the target's language."""
    if args.lemmas == "none":
        return None, None
    flag = "--lemmas simplemma"
    return lemmatizer(source_lang, flag) if source_lang else None, lemmatizer(args.target_lang, flag)


def score_command(args: Namespace) -> None:
    """Print the scores; UsageError for files that cannot be used."""
    if args.samples < 1:
        raise UsageError(f"--samples must be 1 or more, not {args.samples}")
    files = Files(args.references, args.target_lang, args.source_lang, args.sources, args.terms_file, args.terms, args.glossary_match)
    sentences, source_lang = READERS[args.format](files)
    if not sentences:
        raise UsageError(f"--references {args.references} is empty: name the test set's file")
    description = f"format:{args.format}|terms:{args.terms or 'default'}|lang:{source_lang or '?'}-{args.target_lang}"
    test_set = EvaluationSet(sentences, *lemmatizers(args, source_lang), description)
    translations = hypotheses.read(args.hypotheses, "--hypotheses", args.target_lang)
    scores = score(test_set, translations)
    if args.baseline:
        baseline = hypotheses.read(args.baseline, "--baseline", args.target_lang)
        scores["bootstrap"] = compare(test_set, translations, baseline, args.samples)
    print(json.dumps(scores, ensure_ascii=False) if args.json else table(scores))


def expand_command(args: Namespace) -> None:
    """Print the expanded glossary, and on standard error what was added; UsageError for files that cannot be used."""
    errors = Errors()
    entries = read(args.glossary, "--glossary", Languages(args.source_lang, args.lang), errors)
    errors.tell()
    texts = [Lines(path, "--text") for path in args.text]
    lines = (each[number] for each in texts for number in range(len(each)))
    expanded, new = expand(entries, lines, lemmatizer(args.lang, "--lang"), args.min_count)
    for entry in expanded:
        print("\t".join(" ".join(cell.split()) for cell in (entry.source, "|".join(entry.targets))))
    print(f"{counted(len(expanded), 'entry', 'entries')}, {counted(new, 'form')} added", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """The exit code: 0, or 1 after an error, which is told in one sentence."""
    args = parser().parse_args(argv)
    try:
        args.run(args)
        sys.stdout.flush()
    except UsageError as error:
        report(type(error), error, error.__traceback__)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush at exit
        return 141
    return 0


if __name__ == "__main__":
    sys.exit(main())
