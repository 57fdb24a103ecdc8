"""Test sets of WMT 2025 and ours; translations in the formats that systems write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.files import LineErrors, Lines
from fairseq_ext.core.glossary import Languages
from fairseq_ext.core.glossary import read as read_glossary
from fairseq_ext.core.lemmas import has_lemmas
from fairseq_ext.core.words import matcher, words_of
from fairseq_ext.terms.cases import Sentence, Term


@dataclass(frozen=True)
class Files:
    """The files of the test set, as the command names them."""

    references: str  # --references
    target_lang: str  # --target-lang
    source_lang: str | None = None  # --source-lang
    sources: str | None = None  # --sources
    terms_file: str | None = None  # --terms-file
    terms: str | None = None  # --terms
    glossary_match: str | None = None  # --glossary-match


# the sentences, and the language of their sources
TestSet = tuple[list[Sentence], str | None]


# ---- JSONL: ours and that of the WMT 2025 terminology task, track 1
#
# Ours: `{"source": "...", "reference": "...", "terms": {"term": "a|b"}}`; terms may be a list of
# objects with `source` and `target`, targets may be lists. --terms names another key than `terms`;
# `proper` and `random`, the shared tasks' names, mean `terms` where no line has a key of that name.
#
# WMT25: `{"en": source, "de": reference, "proper": {term: target}, "random": {...}}`. The source
# language is the first key that is neither the target language nor a dictionary; --terms names the
# dictionary.


TASKS = ("proper", "random")  # dictionaries of the shared tasks
NOT_LANGUAGES = (*TASKS, "noterm", "terms")


def read_jsonl(files: Files) -> TestSet:
    """Read a sentence for each line of --references, and --source-lang (raises UsageError for a
    line without its fields, and for a --terms that no line has)."""
    records = list(objects(files.references, "--references"))
    name = files.terms or "terms"
    if files.terms and not any(name in record for record, _ in records):
        if name not in TASKS:
            raise missing(
                f"no line of {files.references} has", name, records[0][0] if records else {}
            )
        name = "terms"
    return [
        Sentence(
            text_field(record, "source", where) if "source" in record else None,
            text_field(record, "reference", where),
            terms_of(record.get(name, []), where),
        )
        for record, where in records
    ], files.source_lang


def read_wmt25(files: Files) -> TestSet:
    """Read a sentence for each line of --references, and the source language (raises UsageError for
    a line without its fields)."""
    name, found, source_lang = files.terms or "proper", [], files.source_lang
    for record, where in objects(files.references, "--references"):
        if name not in record:
            raise missing(f"{where} has no dictionary", name, record)
        source_lang = source_lang or next(
            (key for key in record if key not in (*NOT_LANGUAGES, files.target_lang)), "en"
        )
        source = text_field(record, source_lang, where)
        reference = text_field(record, files.target_lang, where)
        found.append(Sentence(source, reference, terms_of(record[name], where)))
    return found, source_lang


def missing(what: str, name: str, record: dict[str, object]) -> UsageError:
    """Return the error of a file or line without the terms that --terms names."""
    return UsageError(f"{what} '{name}': --terms names one of {', '.join(map(repr, record))}")


# ---- Plain text with a glossary
#
# --sources and --references have a sentence a line, and --terms-file is the glossary.
#
# A sentence has the terms that `--glossary` would find in its source (core/words.py), each once;
# --glossary-match as there.


def read_text(files: Files) -> TestSet:
    """Read a sentence for each line of --references, and --source-lang (raises UsageError for a
    missing file or one of another length)."""
    if not files.sources or not files.terms_file:
        raise UsageError(
            "--format text has its sources and terms in files of their own: add --sources and "
            "--terms-file, a glossary"
        )
    sources = text_lines(files.sources, "--sources")
    references = text_lines(files.references, "--references")
    if len(sources) != len(references):
        raise UsageError(
            f"--sources has {counted(len(sources), 'line')} and --references has "
            f"{len(references)}: name files of the same test set"
        )
    errors = LineErrors()
    entries = read_glossary(
        files.terms_file, "--terms-file", Languages(files.source_lang, files.target_lang), errors
    )
    errors.raise_first()
    match = files.glossary_match or ("lemma" if has_lemmas(files.source_lang) else "surface")
    finder = matcher(match, files.source_lang)
    # lines with the same source term are alternatives
    terms: dict[int, Term] = {}
    for number, entry in enumerate(entries):
        known = finder.add(words_of(entry.source), number)
        term = terms.get(known, Term(entry.source, ()))
        targets = tuple(dict.fromkeys(term.targets + entry.targets))
        terms[known] = Term(term.source, targets, marked=True)
    found = []
    for source, reference in zip(sources, references, strict=True):
        matches = finder.matches(words_of(source))
        numbers = dict.fromkeys(match.term for match in matches)
        found.append(Sentence(source, reference, tuple(terms[number] for number in numbers)))
    return found, files.source_lang


# ---- Translations
#
# Plain text, our results and corpus files, and the task's JSONL submissions.


def read_hypotheses(path: str, target_lang: str) -> list[str]:
    """Read the translations, in the order of the test set.

    A name in .jsonl, or a first line that is a JSON object, is JSONL: `--results-file` (sorted by
    its sentence numbers), `python -m fairseq_ext.corpus` (the first of `hypotheses`), or an object
    with the target language's key.
    """
    flag = "--hypotheses"
    lines = Lines(path, flag)
    if not path.endswith((".jsonl", ".json")) and not (len(lines) and lines[0].startswith('{"')):
        return text_lines(path, flag)
    records = list(objects(path, flag))
    is_results = records and "signature" in records[0][0] and "hypotheses" not in records[0][0]
    records = records[1:] if is_results else records
    texts = [translation(record, target_lang, where) for record, where in records]
    if not is_results:
        return texts
    numbers = [record.get("id") for record, _ in records]
    for number in range(len(texts)):
        if number not in numbers:
            raise UsageError(
                f"{flag} {path} has no sentence {number + 1}: finish the run with --resume"
            )
    return [texts[numbers.index(number)] for number in range(len(texts))]


def translation(record: dict[str, object], target_lang: str, where: str) -> str:
    """Return the translation in a line of results, of corpus output or of a submission; a sentence
    that could not be translated is empty."""
    hypotheses = record.get("hypotheses")
    first = [*hypotheses, ""][0] if isinstance(hypotheses, list) else None
    for text in (first, record.get(target_lang), record.get("text")):
        if isinstance(text, str):
            return text.strip()
    raise UsageError(
        f"{where} has no translation under 'hypotheses', '{target_lang}' or 'text': write "
        "it under one of them"
    )


# ---- Lines, fields and terms


def objects(path: str, flag: str) -> Iterator[tuple[dict[str, object], str]]:
    """Yield each line of a JSONL file as its object and its name in messages (raises UsageError for
    a line that is not a JSON object)."""
    lines = Lines(path, flag)
    for number in range(len(lines)):
        where = lines.where(number)
        try:
            value = json.loads(lines[number])
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is no text
        except (ValueError, RecursionError):
            raise UsageError(f"{where} is not JSON: write one object a line") from None
        if not isinstance(value, dict):
            raise UsageError(f"{where} is not a JSON object: write one a line")
        yield value, where


def text_lines(path: str, flag: str) -> list[str]:
    """Return the lines of a text file, without space around them."""
    return [line.strip() for line in Lines(path, flag)]


def text_field(record: dict[str, Any], name: str, where: str) -> str:
    """Return a text field of a record (raises UsageError if it is missing or not text)."""
    if not isinstance(record.get(name), str):
        raise UsageError(
            f"{where} has no text under '{name}': it has "
            f"{', '.join(map(repr, record)) or 'nothing'}"
        )
    return record[name].strip()


def terms_of(given: Any, where: str) -> tuple[Term, ...]:
    """Return the terms of an object {term: targets} or of a list of objects with source and target.

    Targets are a string, `a|b` for alternatives, or a list of strings.
    Errors: UsageError for another value.
    """
    if isinstance(given, dict):
        given = [{"source": term, "target": targets} for term, targets in given.items()]
    found = []
    try:
        for each in given:
            targets = each["target"]
            targets = targets.split("|") if isinstance(targets, str) else targets
            words = [word.strip() for word in (each["source"], *targets)]
            if len(words) < 2 or not all(words):
                raise ValueError
            found.append(Term(words[0], tuple(dict.fromkeys(words[1:]))))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UsageError(
            f"{where} has a term without a source or a target, or terms of another kind: write "
            '{"term": "target"} or [{"source": ..., "target": ...}], the target as a string or a '
            "list of strings"
        ) from None
    return tuple(found)
