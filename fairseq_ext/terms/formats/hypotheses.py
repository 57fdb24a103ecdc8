"""Translations: plain text, SGM, our results and corpus files, and the task's JSONL submissions."""

from __future__ import annotations

from typing import Any

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import Lines
from fairseq_ext.terms.formats import wmt21
from fairseq_ext.terms.formats.files import objects, text_lines


def read(path: str, flag: str, target_lang: str) -> list[str]:
    """The translations in the order of the test set.

    A name in .sgm or .xml is SGM; a name in .jsonl, or a first line that is a JSON object, is JSONL: `--results-file` (sorted by
    its sentence numbers), `python -m fairseq_ext.corpus` (the first of `hypotheses`), or an object with the target language's key.
    """
    if path.endswith((".sgm", ".xml")):
        return [segment.text for segment in wmt21.segments(path, flag)]
    lines = Lines(path, flag)
    if not path.endswith((".jsonl", ".json")) and not (len(lines) and lines[0].startswith('{"')):
        return text_lines(path, flag)
    records = list(objects(path, flag))
    for record, where in records:
        if not isinstance(record, dict):
            raise UsageError(f"{where} is not a JSON object: {flag} takes text, results, corpus output or submissions")
    if records and "signature" in records[0][0] and "hypotheses" not in records[0][0]:
        return numbered(records[1:], path, flag)
    return [translation(record, target_lang, where) for record, where in records]


def numbered(records: list[tuple[dict[str, Any], str]], path: str, flag: str) -> list[str]:
    """The translations of a results file by sentence number; UsageError where a number is missing."""
    found: dict[int, str] = {}
    for record, where in records:
        if not isinstance(record.get("id"), int) or not isinstance(record.get("text"), str):
            raise UsageError(f"{where} is not a line of a results file: it needs a number under 'id' and the translation under 'text'")
        found[record["id"]] = record["text"].strip()
    missing = next((number for number in range(len(found)) if number not in found), None)
    if missing is not None:
        raise UsageError(f"{flag} {path} has no sentence {missing}: finish the run with --resume")
    return [found[number] for number in range(len(found))]


def translation(record: dict[str, Any], target_lang: str, where: str) -> str:
    """The translation in a line of corpus output or of a submission; a sentence that could not be translated is empty."""
    hypotheses = record.get("hypotheses")
    if isinstance(hypotheses, list):
        text = hypotheses[0] if hypotheses else ""
    else:
        text = record.get(target_lang, record.get("text"))
    if not isinstance(text, str):
        raise UsageError(f"{where} has no translation under 'hypotheses', '{target_lang}' or 'text': write it under one of them")
    return text.strip()
