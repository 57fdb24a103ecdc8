"""WMT 2025 terminology task, track 1: JSONL, `{"en": source, "de": reference, "proper": {term: target}, "random": {...}}`."""

from __future__ import annotations

from fairseq_ext.core.errors import UsageError
from fairseq_ext.terms.formats.files import Files, objects, text_field
from fairseq_ext.terms.test_set import Sentence, terms_of

NOT_LANGUAGES = ("proper", "random", "noterm", "terms")


def read(files: Files) -> tuple[list[Sentence], str | None]:
    """A sentence for each line of --references, and the source language.

    The source language is the first key that is neither the target language nor a dictionary; --terms names the dictionary.
    Errors: UsageError for a line without its fields.
    """
    name = files.terms or "proper"
    found, source_lang = [], files.source_lang
    for record, where in objects(files.references, "--references"):
        if not isinstance(record, dict):
            raise UsageError(f"{where} is not a JSON object: a WMT25 line is one with source, reference and dictionaries")
        source_lang = source_lang or next((key for key in record if key not in (*NOT_LANGUAGES, files.target_lang)), "en")
        pairs = record.get(name)
        if not isinstance(pairs, dict):
            raise UsageError(f"{where} has no dictionary '{name}': --terms names one of {', '.join(map(repr, record))}")
        source, reference = text_field(record, source_lang, where), text_field(record, files.target_lang, where)
        found.append(Sentence(source, reference, terms_of(pairs.items(), where)))
    return found, source_lang
