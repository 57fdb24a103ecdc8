"""The constraints of a request, from its fields and its glossaries, and their places in its
translation."""

from __future__ import annotations

import json
import tempfile
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import sha256
from fairseq_ext.core.glossary import Languages
from fairseq_ext.plugin.loading.settings import languages_of
from fairseq_ext.search.constraints.glossary import (
    Glossary,
    glossary_options,
)
from fairseq_ext.search.constraints.required import ConstraintFlags
from fairseq_ext.search.report import ConstraintReport
from fairseq_ext.search.request import GlossaryFile, Request
from fairseq_ext.translator import Translator

# glossaries of requests in memory, and bytes of their files: each takes many times as much
CACHE_SIZE, CACHE_BYTES = 64, 8 << 20


class OfRequests(Translator):
    """A translator whose requests may have glossaries, for which --glossary-match and
    --glossary-repeat count, too."""

    glossaries_of_calls = True


class Requirements:
    """Reads requests for one translator.

    no_constraints: why requests can have no phrases; "" where they can.
    """

    def __init__(self, translator: Translator, no_constraints: str = ""):
        self.translator = translator
        self.no_constraints = no_constraints
        # by digest and languages, each with the bytes of its file
        self.glossaries: OrderedDict[tuple[str, Languages], tuple[Glossary, int]] = OrderedDict()

    def with_constraints(self, request: Request) -> Request:
        """Return a request, which has its tokens, with its constraints, including those of the
        flags.

        Errors: UsageError for phrases and glossaries that cannot be used.
        """
        sentences = self.translator.sentences
        if not sentences.constrained:
            if request.own_constraints or request.glossaries or request.terms:
                raise UsageError(self.no_constraints or "this engine takes no constraints")
            return request
        glossaries = self.named(request)
        return sentences.with_constraints(request, "the request", glossaries=glossaries)

    def named(self, request: Request) -> list[Glossary]:
        """Return the glossaries of a request, each read once."""
        found = [self.glossary(file.digest, file) for file in request.glossaries]
        if request.terms:
            text, digest = file_of(request.terms)
            if (digest, self.languages) not in self.glossaries:
                with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
                    file.write(text)
                    file.flush()
                    try:
                        given = GlossaryFile(file.name, digest)
                        found.append(self.glossary(digest, given, strict=True))
                    except UsageError as error:
                        raise UsageError(
                            str(error).replace(file.name, "the request's glossary")
                        ) from None
            else:
                found.append(self.glossary(digest, GlossaryFile("", digest)))
        return found

    @property
    def languages(self) -> Languages:
        """The languages that the task has now."""
        return languages_of(self.translator.task.flags())

    def glossary(self, digest: str, file: GlossaryFile, strict: bool = False) -> Glossary:
        """Return the glossary of a digest, from memory or from its file. strict: a term that cannot
        be used is an error, and not left out."""
        settings, languages = self.translator.generator.settings, self.languages
        if (key := (digest, languages)) in self.glossaries:
            self.glossaries.move_to_end(key)
            return self.glossaries[key][0]
        case = settings.get(ConstraintFlags).constraint_case
        options = glossary_options(settings, languages, file.path, strict, case)
        segmenter = self.translator.sentences.constraint_source().segmenter
        found, size = digest_of(file)
        while (key := (found, languages)) not in self.glossaries:  # else it was replaced meanwhile
            glossary = Glossary(options, segmenter)
            before, (found, size) = found, digest_of(file)
            if found == before:  # else it was replaced while it was read
                self.glossaries[key] = glossary, size
        while (count := len(self.glossaries)) > 1 and (
            count > CACHE_SIZE or sum(size for _, size in self.glossaries.values()) > CACHE_BYTES
        ):
            self.glossaries.popitem(last=False)
        return self.glossaries[key][0]

    def of_empty(self, request: Request) -> list[ConstraintReport]:
        """Return the constraints of a request whose source is empty: all unmet."""
        given, reason = request.own_constraints, "the source is empty"
        phrases = [*given.constraints, *map("|".join, given.any_of), *given.prefix]
        return [ConstraintReport(phrase=each, met=False, reason=reason) for each in phrases]


@lru_cache(8)
def file_of(terms: tuple[tuple[str, str], ...]) -> tuple[bytes, str]:
    """Return terms as a JSON file, in which none is a header or goes on in another line, and its
    digest. The sentences of a text have the same terms."""
    rows = [{"source": source, "target": target} for source, target in terms]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return text, sha256([text])


def digest_of(file: GlossaryFile) -> tuple[str, int]:
    """Return the SHA-256 and the size of a glossary as it is now (raises UsageError)."""
    try:
        content = Path(file.path).read_bytes()
    except OSError:
        raise UsageError(
            "a glossary of the request has been deleted: put it again, or leave it out"
        ) from None
    return sha256([content]), len(content)
