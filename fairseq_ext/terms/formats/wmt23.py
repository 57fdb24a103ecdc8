"""WMT 2023 terminology task: text files NAME.SOURCE and NAME.TARGET, and NAME.term.proper or NAME.term.random with a JSON list a
line, `[{"de": source term, "en": target term}, ...]`.

Semenov et al. 2023, "Findings of the WMT 2023 Shared Task on Machine Translation with Terminologies", https://aclanthology.org/2023.wmt-1.54
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairseq_ext.core.errors import UsageError
from fairseq_ext.terms.formats.files import Files, objects, same_length, text_lines
from fairseq_ext.terms.test_set import Sentence, Term, targets_of


def read(files: Files) -> tuple[list[Sentence], str | None]:
    """A sentence for each line of --references, and the source language.

    --sources and --terms-file default to the files of the task's names beside --references.
    """
    stem = Path(files.references).with_suffix("")
    terms_file = files.terms_file or f"{stem}.term.{files.terms or 'proper'}"
    lists = list(objects(terms_file, "--terms-file"))
    source_lang = files.source_lang or next((key for pairs, where in lists for key in languages(pairs, where, files)), None)
    if source_lang is None:
        raise UsageError(f"--terms-file {terms_file} has no term from which the source language shows: name it by --source-lang")
    sources = text_lines(files.sources or f"{stem}.{source_lang}", "--sources")
    references = text_lines(files.references, "--references")
    same_length({"--references": len(references), "--sources": len(sources), "--terms-file": len(lists)})
    terms = [tuple(term_of(pair, source_lang, files.target_lang, where) for pair in pairs) for pairs, where in lists]
    return [Sentence(*of_line) for of_line in zip(sources, references, terms, strict=True)], source_lang


def languages(pairs: Any, where: str, files: Files) -> list[str]:
    """The languages besides the target that a line's terms name; UsageError for a line that is no list of objects."""
    if not isinstance(pairs, list) or not all(isinstance(pair, dict) for pair in pairs):
        raise UsageError(f"{where} is not a list of terms: a WMT23 line is a JSON list of objects, [] for none")
    return [key for pair in pairs for key in pair if key != files.target_lang]


def term_of(pair: dict[str, Any], source_lang: str, target_lang: str, where: str) -> Term:
    """A term of one of the line's objects."""
    if not isinstance(pair.get(source_lang), str) or target_lang not in pair:
        raise UsageError(f"{where} has a term without '{source_lang}' or '{target_lang}': it has {', '.join(map(repr, pair))}")
    return Term(pair[source_lang].strip(), targets_of(pair[target_lang], where))
