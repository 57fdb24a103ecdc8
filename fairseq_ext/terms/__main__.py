"""`python -m fairseq_ext.terms score` and `python -m fairseq_ext.terms expand`.

python -m fairseq_ext.terms score --hypotheses F --references F --format wmt25 --target-lang de
--terms proper [--json] python -m fairseq_ext.terms expand --glossary g.tsv --lang en --text
mono.en > expanded.tsv
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from unicodedata import normalize

from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.files import LineErrors, Lines
from fairseq_ext.core.glossary import Languages, read, written
from fairseq_ext.core.lemmas import Lemmatizer, lemmatizer
from fairseq_ext.core.words import MATCHES, TermIndex, is_word, starts_of, words_of
from fairseq_ext.search.phrases.forms import forms_of_language
from fairseq_ext.terms import formats
from fairseq_ext.terms.score import score, table

READERS: dict[str, Callable[[formats.Files], formats.TestSet]] = {
    "wmt25": formats.read_wmt25,
    "jsonl": formats.read_jsonl,
    "text": formats.read_text,
}


def parser() -> ArgumentParser:
    """Return the parser of the command line."""
    top = ArgumentParser(
        "python -m fairseq_ext.terms",
        description="Terminology in translations.",
        allow_abbrev=False,
    )
    commands = top.add_subparsers(dest="command", required=True)
    parse = commands.add_parser(
        "score",
        help="score translations with respect to terms",
        description="Prints a table, or one JSON object.",
        allow_abbrev=False,
    )
    add = parse.add_argument
    add(
        "--hypotheses",
        required=True,
        help="translations: text, --results-file, corpus output, WMT25 submission",
    )
    add(
        "--references",
        required=True,
        help="the test set's references; JSONL holds sources and terms too",
    )
    add(
        "--format",
        required=True,
        choices=list(READERS),
        help="format of --references (fairseq_ext/terms/formats.py)",
    )
    add(
        "--target-lang",
        required=True,
        help="language of the translations, for lemmas and the fields of WMT25",
    )
    add(
        "--source-lang",
        help="language of the sources (default: as WMT25 names it; else none: no lemmas)",
    )
    add(
        "--terms",
        help="which terms: proper or random (WMT25; default: proper), or a key of JSONL (default: "
        "terms)",
    )
    add(
        "--terms-file",
        help="text: a glossary (default: none)",
    )
    add(
        "--sources",
        help="text: source lines (default: none)",
    )
    add(
        "--glossary-match",
        choices=MATCHES,
        help="text: how terms are found in sources (default: lemma, where simplemma knows "
        "--source-lang; else surface)",
    )
    add(
        "--lemmas",
        choices=["simplemma", "none"],
        default="simplemma",
        help="how words get their lemmas (default: simplemma)",
    )
    add(
        "--json",
        action="store_true",
        help="print one JSON object instead of a table (default: off)",
    )
    parse.set_defaults(run=score_command)
    parse = commands.add_parser(
        "expand",
        help="add the inflected forms of a glossary's targets",
        description="Prints the glossary as TSV, with inflected forms of its targets as further "
        "alternatives: those that --text has under the same lemmas, else those that --glossary "
        "uses by itself for this language.",
        allow_abbrev=False,
    )
    add = parse.add_argument
    add("--glossary", required=True, help="TSV, CSV, TBX-Basic or JSONL")
    add("--lang", required=True, help="language of the targets and of --text")
    add(
        "--text",
        nargs="+",
        default=[],
        help="text of that language (default: none: forms of simplemma's table)",
    )
    add(
        "--source-lang",
        help="language of the source terms; TBX needs it, CSV may (default: none)",
    )
    add(
        "--min-count",
        type=int,
        default=1,
        help="occurrences that a form must have (default: 1)",
    )
    parse.set_defaults(run=expand_command)
    return top


def score_command(args: Namespace) -> None:
    """Print the scores (raises UsageError for files that cannot be used)."""
    target_lang = args.target_lang
    files = formats.Files(*(getattr(args, each.name) for each in fields(formats.Files)))
    sentences, source_lang = READERS[args.format](files)
    if not sentences:
        raise UsageError(f"--references {args.references} is empty: name the test set's file")
    flag = "--lemmas simplemma"
    lemmatizers = [
        lemmatizer(language, flag) if language and args.lemmas != "none" else None
        for language in (source_lang, target_lang)
    ]
    description = (
        f"format:{args.format}|terms:{args.terms or 'default'}|lang:{source_lang or '?'}"
        f"-{target_lang}"
    )
    hypotheses = formats.read_hypotheses(args.hypotheses, target_lang)
    scores = score(sentences, hypotheses, description, *lemmatizers)
    print(json.dumps(scores, ensure_ascii=False) if args.json else table(scores))


def expand_command(args: Namespace) -> None:
    """Print the expanded glossary, and on standard error what was added (raises UsageError for
    files that cannot be used)."""
    errors = LineErrors()
    entries = read(args.glossary, "--glossary", Languages(args.source_lang, args.lang), errors)
    errors.raise_first()
    if args.text:
        texts = [Lines(path, "--text") for path in args.text]
        lines = (each[number] for each in texts for number in range(len(each)))
        every = (target for entry in entries for target in entry.targets)
        found = forms_in(lines, every, lemmatizer(args.lang, "--lang"))

        def forms(targets: Sequence[str]) -> list[str]:
            counts = sum((found.get(target, Counter()) for target in targets), Counter[str]())
            return [form for form, number in counts.most_common() if number >= args.min_count]

    elif (of_target := forms_of_language(args.lang)) is not None:

        def forms(targets: Sequence[str]) -> list[str]:
            return [form for target in targets for form in of_target(target)]

    else:
        raise UsageError(
            f"there are no forms for the language '{args.lang}' (English, or one that simplemma "
            "does not know): add --text"
        )
    expanded = [
        replace(entry, targets=tuple(dict.fromkeys((*entry.targets, *forms(entry.targets)))))
        for entry in entries
    ]
    new = sum(len(a.targets) - len(b.targets) for a, b in zip(expanded, entries, strict=True))
    sys.stdout.writelines(written(expanded))
    print(
        f"{counted(len(expanded), 'entry', 'entries')}, {counted(new, 'form')} added",
        file=sys.stderr,
    )


def main(argv: list[str] | None = None) -> None:
    """Run the command (raises UsageError for arguments or files that cannot be used)."""
    args = parser().parse_args(argv)
    args.run(args)


# ---- `expand`: inflected forms of a glossary's targets, from text of the target language
#
# A target's forms are the word sequences of the text that have the same lemmas, word by word. A
# sequence at the start of a line may owe its capital to that place: it counts with a small initial
# where the target has one.


def forms_in(
    lines: Iterable[str], targets: Iterable[str], lemma: Lemmatizer
) -> dict[str, Counter[str]]:
    """Return for each target its forms in the lines, with their numbers of occurrences."""
    index, found = TermIndex(), {}
    same: defaultdict[int, list[str]] = defaultdict(list)  # targets with the same lemmas
    for target in dict.fromkeys(targets):
        if words := words_of(target):
            same[index.add(tuple(map(lemma, words)), len(same))].append(target)
            found[target] = Counter[str]()
    for line in lines:
        text = normalize("NFKC", line)
        words = words_of(text)
        lemmas = [lemma(word) for word in words]
        starts = starts_of(text, words)
        first = next((i for i, word in enumerate(words) if is_word(word)), len(words))
        for start, head in enumerate(lemmas):
            small = [lemma(with_small_initial(words[start]))] if start == first else []
            for is_small, first_lemma in enumerate([head, *small]):
                for length, number in index.terms_at(lemmas, start, first_lemma):
                    end = start + length - 1
                    form = " ".join(text[starts[start] : starts[end] + len(words[end])].split())
                    form = with_small_initial(form) if is_small else form
                    for target in same[number]:
                        if (start == first and target[:1].islower()) == is_small:
                            found[target][form] += 1
    return found


def with_small_initial(text: str) -> str:
    """Return the text with its first letter in lower case."""
    return text[:1].lower() + text[1:]


if __name__ == "__main__":
    main()
