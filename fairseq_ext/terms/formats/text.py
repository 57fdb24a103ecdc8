"""Plain text with a glossary: --sources and --references, a sentence a line, and the glossary as --terms-file.

A sentence has the terms that `--glossary` would find in its source (core/words.py), each once; --glossary-match as there.
"""

from __future__ import annotations

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.glossary import Errors, Languages
from fairseq_ext.core.glossary import read as read_glossary
from fairseq_ext.core.words import Matcher, lemmatizer, words_of
from fairseq_ext.terms.formats.files import Files, same_length, text_lines
from fairseq_ext.terms.test_set import Sentence, Term


def read(files: Files) -> tuple[list[Sentence], str | None]:
    """A sentence for each line of --references, and --source-lang; UsageError for a missing file or one of another length."""
    if not files.sources or not files.terms_file:
        raise UsageError("--format text has its sources and terms in files of their own: add --sources and --terms-file, a glossary")
    sources, references = text_lines(files.sources, "--sources"), text_lines(files.references, "--references")
    same_length({"--references": len(references), "--sources": len(sources)})
    errors = Errors()
    entries = read_glossary(files.terms_file, "--terms-file", Languages(files.source_lang, files.target_lang), errors)
    errors.tell()
    lemma = lemmatizer(files.source_lang or "", "--glossary-match lemma") if files.glossary_match == "lemma" else None
    matcher = Matcher(files.glossary_match, lemma)
    targets: dict[int, tuple[str, tuple[str, ...]]] = {}  # lines with the same source term are alternatives
    for number, entry in enumerate(entries):
        known = matcher.add(words_of(entry.source), number)
        source, others = targets.get(known, (entry.source, ()))
        targets[known] = source, tuple(dict.fromkeys(others + entry.targets))
    found = []
    for source, reference in zip(sources, references, strict=True):
        numbers = dict.fromkeys(match.term for match in matcher.matches(words_of(source)))
        found.append(Sentence(source, reference, tuple(Term(*targets[number], marked=True) for number in numbers)))
    return found, files.source_lang
