"""Test sets of WMT 2021, 2023 and 2025, and ours; translations in the formats
that systems write."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.files import Lines
from fairseq_ext.core.glossary import Languages, LineErrors
from fairseq_ext.core.glossary import read as read_glossary
from fairseq_ext.core.words import Matcher, lemmatizer, words_of
from fairseq_ext.terms.cases import (
    Files,
    Sentence,
    Term,
    objects,
    same_length,
    targets_of,
    terms_of,
    text_field,
    text_lines,
)

# ---- Our own formats
#
# TSV: source, tab, reference, then for each term two more columns: source term, target term
# (`a|b`: any one of them).
# JSONL: `{"source": "...", "reference": "...", "terms": {"term": "a|b"}, "document": "d1"}`; terms
# may be a list of objects with `source` and `target`, targets may be lists, document may be left
# out. --terms names another key than `terms`; `proper` and `random`, the shared tasks' names, mean
# `terms` where no line has a key of that name.


TASKS = ("proper", "random")  # dictionaries of the shared tasks


def read_tsv(files: Files) -> tuple[list[Sentence], str | None]:
    """Read a sentence for each line of --references, and --source-lang (raises UsageError for a
    wrong number of columns)."""
    lines = Lines(files.references, "--references")
    found = []
    for number in range(len(lines)):
        columns = [column.strip() for column in lines[number].split("\t")]
        where = lines.where(number)
        if len(columns) < 2 or len(columns) % 2:
            raise UsageError(
                f"{where} has {counted(len(columns), 'column')}: write source, reference, then two "
                "columns for each term"
            )
        source, reference, *rest = columns
        found.append(
            Sentence(source, reference, terms_of(zip(rest[::2], rest[1::2], strict=True), where))
        )
    return found, files.source_lang


def read_jsonl(files: Files) -> tuple[list[Sentence], str | None]:
    """Read a sentence for each line of --references, and --source-lang (raises UsageError for a
    line without its fields, and for a --terms that no line has)."""
    records = list(objects(files.references, "--references"))
    for record, where in records:
        if not isinstance(record, dict):
            raise UsageError(
                f"{where} is not a JSON object: write one with source, reference and terms"
            )
    name = key_of(files, [record for record, _ in records])
    found = []
    for record, where in records:
        source = text_field(record, "source", where) if "source" in record else None
        document = str(record.get("document", ""))
        terms = terms_of(pairs_of(record.get(name, []), where), where)
        found.append(Sentence(source, text_field(record, "reference", where), terms, document))
    return found, files.source_lang


def key_of(files: Files, records: list[dict[str, Any]]) -> str:
    """Return the key under which lines have their terms (raises UsageError for a --terms that no
    line has)."""
    name = files.terms or "terms"
    if not files.terms or not records or any(name in record for record in records):
        return name
    if name in TASKS:
        return "terms"
    raise UsageError(
        f"no line of {files.references} has '{name}': --terms names one of "
        f"{', '.join(map(repr, records[0]))}"
    )


def pairs_of(given: Any, where: str) -> list[tuple[object, object]]:
    """Return the (source, targets) pairs of an object or of a list of objects (raises UsageError
    for another value)."""
    if isinstance(given, dict):
        return list(given.items())
    if isinstance(given, list) and all(isinstance(each, dict) for each in given):
        return [(each.get("source"), each.get("target")) for each in given]
    raise UsageError(
        f'{where} has terms of another kind: write {{"term": "target"}} or [{{"source": '
        '..., "target": ...}]'
    )


# ---- Plain text with a glossary
#
# --sources and --references have a sentence a line, and --terms-file is the glossary.
#
# A sentence has the terms that `--glossary` would find in its source (core/words.py), each once;
# --glossary-match as there.


def read_text(files: Files) -> tuple[list[Sentence], str | None]:
    """Read a sentence for each line of --references, and --source-lang (raises UsageError for a
    missing file or one of another length)."""
    if not files.sources or not files.terms_file:
        raise UsageError(
            "--format text has its sources and terms in files of their own: add --sources and "
            "--terms-file, a glossary"
        )
    sources = text_lines(files.sources, "--sources")
    references = text_lines(files.references, "--references")
    same_length({"--references": len(references), "--sources": len(sources)})
    errors = LineErrors()
    entries = read_glossary(
        files.terms_file, "--terms-file", Languages(files.source_lang, files.target_lang), errors
    )
    errors.raise_first()
    lemma = (
        lemmatizer(files.source_lang or "", "--glossary-match lemma")
        if files.glossary_match == "lemma"
        else None
    )
    matcher = Matcher(files.glossary_match, lemma)
    # lines with the same source term are alternatives
    targets: dict[int, tuple[str, tuple[str, ...]]] = {}
    for number, entry in enumerate(entries):
        known = matcher.add(words_of(entry.source), number)
        source, others = targets.get(known, (entry.source, ()))
        targets[known] = source, tuple(dict.fromkeys(others + entry.targets))
    found = []
    for source, reference in zip(sources, references, strict=True):
        numbers = dict.fromkeys(match.term for match in matcher.matches(words_of(source)))
        found.append(
            Sentence(
                source, reference, tuple(Term(*targets[number], marked=True) for number in numbers)
            )
        )
    return found, files.source_lang


# ---- WMT 2021 terminology task
#
# SGM with tags, `<seg id="7"> et votre <term src="runny nose" tgt="nez qui coule|rhume"> nez qui
# coule </term> ? </seg>`, in documents `<doc docid="...">`.
#
# The reference's tags say what the terms are and where they stand. Alam et al.
# 2021, "Findings of the WMT Shared Task on Machine Translation Using Terminologies",
# https://aclanthology.org/2021.wmt-1.69


@dataclass
class Segment:
    """A `<seg>`: its text, and its terms as (attributes, start, end), [start, end)
    in words of the text."""

    number: str
    document: str
    text: str = ""
    terms: list[tuple[dict[str, str], int, int]] = field(default_factory=list)


class Reader(HTMLParser):
    """Collects the segments of an SGM text in `segments`.

    Errors: UsageError for a term tag without its end.
    """

    def __init__(self, path: str):
        super().__init__(convert_charrefs=True)
        self.path, self.document = path, ""
        self.segments: list[Segment] = []
        self.segment: Segment | None = None
        self.term: tuple[dict[str, str], int] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "doc":
            self.document = given.get("docid", str(len(self.segments)))
        elif tag == "seg":
            self.segment = Segment(given.get("id", ""), self.document)
        elif tag == "term" and self.segment is not None:
            self.term = given, len(words_of(self.segment.text))

    def handle_data(self, data: str) -> None:
        if self.segment is not None:
            self.segment.text += data

    def handle_endtag(self, tag: str) -> None:
        if self.segment is None:
            return
        if tag == "term" and self.term is not None:
            self.segment.terms.append((*self.term, len(words_of(self.segment.text))))
            self.term = None
        elif tag == "seg":
            if self.term is not None:
                raise UsageError(
                    f"segment {self.segment.number} of {self.path} has a <term> without its "
                    "end: write </term>"
                )
            self.segment.text = " ".join(self.segment.text.split())
            self.segments.append(self.segment)
            self.segment = None


def segments(path: str, flag: str) -> list[Segment]:
    """Return the segments of an SGM file (raises UsageError if it has none)."""
    reader = Reader(path)
    reader.feed("\n".join(text_lines(path, flag)))
    reader.close()
    if not reader.segments:
        raise UsageError(f"{flag} {path} has no <seg> elements: name an SGM file of the task")
    return reader.segments


def read_wmt21(files: Files) -> tuple[list[Sentence], str | None]:
    """Read a sentence for each segment of --references, and --source-lang; --sources, if given, is
    the SGM file of the source side.

    As in the task's own script, the reference's wording is one of the allowed targets.
    """
    references = segments(files.references, "--references")
    sources = segments(files.sources, "--sources") if files.sources else None
    if sources is not None:
        same_length({"--references": len(references), "--sources": len(sources)})
    found = []
    for place, segment in enumerate(references):
        words = words_of(segment.text)
        terms = []
        for given, start, end in segment.terms:
            wording = " ".join(words[start:end])
            listed = [
                target.strip() for target in given.get("tgt", "").split("|") if target.strip()
            ]
            known = [words_of(target) for target in listed]
            targets = listed + [wording] * (words[start:end] not in known and start < end)
            if not targets:
                raise UsageError(
                    f"segment {segment.number} of {files.references} has an empty term: "
                    "give it text or tgt="
                )
            terms.append(
                Term(
                    given.get("src", ""),
                    tuple(targets),
                    (start, end) if start < end else None,
                    marked=True,
                )
            )
        source = sources[place].text if sources is not None else None
        found.append(Sentence(source, segment.text, tuple(terms), segment.document))
    return found, files.source_lang


# ---- WMT 2023 terminology task
#
# Text files NAME.SOURCE and NAME.TARGET, and NAME.term.proper or NAME.term.random with a JSON list
# a line, `[{"de": source term, "en": target term}, ...]`.
#
# Semenov et al. 2023, "Findings of the WMT 2023 Shared Task on Machine Translation with
# Terminologies", https://aclanthology.org/2023.wmt-1.54


def read_wmt23(files: Files) -> tuple[list[Sentence], str | None]:
    """Read a sentence for each line of --references, and the source language.

    --sources and --terms-file default to the files of the task's names next to --references.
    """
    stem = Path(files.references).with_suffix("")
    terms_file = files.terms_file or f"{stem}.term.{files.terms or 'proper'}"
    lists = list(objects(terms_file, "--terms-file"))
    source_lang = files.source_lang or next(
        (key for pairs, where in lists for key in languages(pairs, where, files)), None
    )
    if source_lang is None:
        raise UsageError(
            f"--terms-file {terms_file} has no term from which the source language shows: name "
            "it by --source-lang"
        )
    sources = text_lines(files.sources or f"{stem}.{source_lang}", "--sources")
    references = text_lines(files.references, "--references")
    same_length(
        {"--references": len(references), "--sources": len(sources), "--terms-file": len(lists)}
    )
    terms = [
        tuple(term_of(pair, source_lang, files.target_lang, where) for pair in pairs)
        for pairs, where in lists
    ]
    return [
        Sentence(*of_line) for of_line in zip(sources, references, terms, strict=True)
    ], source_lang


def languages(pairs: Any, where: str, files: Files) -> list[str]:
    """Return the languages other than the target that a line's terms name (raises UsageError for a
    line that is not a list of objects)."""
    if not isinstance(pairs, list) or not all(isinstance(pair, dict) for pair in pairs):
        raise UsageError(
            f"{where} is not a list of terms: a WMT23 line is a JSON list of objects, [] for none"
        )
    return [key for pair in pairs for key in pair if key != files.target_lang]


def term_of(pair: dict[str, Any], source_lang: str, target_lang: str, where: str) -> Term:
    """Return the term of one of the line's objects."""
    if not isinstance(pair.get(source_lang), str) or target_lang not in pair:
        raise UsageError(
            f"{where} has a term with {', '.join(map(repr, pair)) or 'nothing'}: write it under "
            f"'{source_lang}' and '{target_lang}'"
        )
    return Term(pair[source_lang].strip(), targets_of(pair[target_lang], where))


# ---- WMT 2025 terminology task, track 1
#
# JSONL, `{"en": source, "de": reference, "proper": {term: target}, "random": {...}}`.


NOT_LANGUAGES = ("proper", "random", "noterm", "terms")


def read_wmt25(files: Files) -> tuple[list[Sentence], str | None]:
    """Read a sentence for each line of --references, and the source language.

    The source language is the first key that is neither the target language nor a dictionary;
    --terms names the dictionary.
    Errors: UsageError for a line without its fields.
    """
    name = files.terms or "proper"
    found, source_lang = [], files.source_lang
    for record, where in objects(files.references, "--references"):
        if not isinstance(record, dict):
            raise UsageError(
                f"{where} is not a JSON object: a WMT25 line is one with source, reference "
                "and dictionaries"
            )
        source_lang = source_lang or next(
            (key for key in record if key not in (*NOT_LANGUAGES, files.target_lang)), "en"
        )
        pairs = record.get(name)
        if not isinstance(pairs, dict):
            raise UsageError(
                f"{where} has no dictionary '{name}': --terms names one of "
                f"{', '.join(map(repr, record))}"
            )
        source = text_field(record, source_lang, where)
        reference = text_field(record, files.target_lang, where)
        found.append(Sentence(source, reference, terms_of(pairs.items(), where)))
    return found, source_lang


# ---- Translations
#
# Plain text, SGM, our results and corpus files, and the task's JSONL submissions.


def read_hypotheses(path: str, flag: str, target_lang: str) -> list[str]:
    """Read the translations, in the order of the test set.

    A name in .sgm or .xml is SGM; a name in .jsonl, or a first line that is a JSON object, is
    JSONL: `--results-file` (sorted by its sentence numbers), `python -m fairseq_ext.corpus` (the
    first of `hypotheses`), or an object with the target language's key.
    """
    if path.endswith((".sgm", ".xml")):
        return [segment.text for segment in segments(path, flag)]
    lines = Lines(path, flag)
    if not path.endswith((".jsonl", ".json")) and not (len(lines) and lines[0].startswith('{"')):
        return text_lines(path, flag)
    records = list(objects(path, flag))
    for record, where in records:
        if not isinstance(record, dict):
            raise UsageError(
                f"{where} is not a JSON object: {flag} takes text, results, corpus output "
                "or submissions"
            )
    if records and "signature" in records[0][0] and "hypotheses" not in records[0][0]:
        return numbered(records[1:], path, flag)
    return [translation(record, target_lang, where) for record, where in records]


def numbered(records: list[tuple[dict[str, Any], str]], path: str, flag: str) -> list[str]:
    """Return the translations of a results file by sentence number (raises UsageError if a number
    is missing)."""
    found: dict[int, str] = {}
    for record, where in records:
        if not isinstance(record.get("id"), int) or not isinstance(record.get("text"), str):
            raise UsageError(
                f"{where} is not a line of a results file: it needs a number under 'id' and the "
                "translation under 'text'"
            )
        found[record["id"]] = record["text"].strip()
    missing = next((number for number in range(len(found)) if number not in found), None)
    if missing is not None:
        raise UsageError(f"{flag} {path} has no sentence {missing}: finish the run with --resume")
    return [found[number] for number in range(len(found))]


def translation(record: dict[str, Any], target_lang: str, where: str) -> str:
    """Return the translation in a line of corpus output or of a submission; a sentence that could
    not be translated is empty."""
    hypotheses = record.get("hypotheses")
    if isinstance(hypotheses, list):
        text = hypotheses[0] if hypotheses else ""
    else:
        text = record.get(target_lang, record.get("text"))
    if not isinstance(text, str):
        raise UsageError(
            f"{where} has no translation under 'hypotheses', '{target_lang}' or 'text': write "
            "it under one of them"
        )
    return text.strip()
