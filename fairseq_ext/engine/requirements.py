"""The constraints of a request, from its fields and its glossaries, and their places in its
translation."""

from __future__ import annotations

import json
import tempfile
import unicodedata
from collections import Counter, OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import sha256
from fairseq_ext.core.glossary import Languages
from fairseq_ext.core.words import starts_of, words_of
from fairseq_ext.engine.jobs import Constraint, GlossaryFile, Job, Span
from fairseq_ext.plugin.options import languages_of
from fairseq_ext.search.constraints.glossary import (
    Glossary,
    options_of_file,
    places_terms,
)
from fairseq_ext.search.phrases.pieces import normal
from fairseq_ext.search.phrases.places import (
    PhraseToFind,
    Place,
    Text,
    match_phrases,
    match_phrases_in_order,
)
from fairseq_ext.search.phrases.sentence import EMPTY, Phrase, SentenceConstraints
from fairseq_ext.search.report import Translation
from fairseq_ext.translator import Translator

# glossaries of requests in memory, and bytes of their files: each takes many times as much
CACHE_SIZE, CACHE_BYTES = 64, 8 << 20


@dataclass(frozen=True)
class Term:
    """A glossary term that a source holds."""

    source: str
    phrases: tuple[Phrase, ...]
    spans: tuple[Span, ...]  # in the source
    case: str = "exact"  # in which its phrases count


NO_TERM = Term("", (), ())


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
        # by digest and languages
        self.glossaries: OrderedDict[tuple[str, Languages], Glossary] = OrderedDict()
        self.sizes: dict[tuple[str, Languages], int] = {}  # bytes of their files

    def of_job(self, job: Job, tokens: Tensor) -> tuple[SentenceConstraints | None, list[Term]]:
        """Return the constraints of a source of these tokens (L,), including those of the flags,
        and the glossary terms among them.

        Errors: UsageError for phrases and glossaries that cannot be used.
        """
        if not self.translator.task.session.sentences.constrained:
            if job.fields or job.glossaries or job.terms:
                raise UsageError(self.no_constraints or "this engine takes no constraints")
            return None, []
        source = self.translator.task.session.sentences.constraint_source()
        own = source.of_fields(job.fields, "the request") if job.fields else EMPTY
        named = self.named(job)
        unknown = self.translator.sentences.unknown_pieces(job.source, tokens)
        found = source.sentence(0, tokens, own, named, unknown)
        terms = []
        glossaries = [*([] if source.glossary is None else [source.glossary]), *named]
        words = source.source_text.words(tokens, unknown) if glossaries else []
        for glossary in glossaries:
            terms += [
                Term(
                    each.term.source,
                    each.phrases,
                    spans_of(job.source, words, each.matches),
                    each.cased.mode,
                )
                for each in glossary.required(words)
            ]
        return found, terms

    def named(self, job: Job) -> list[Glossary]:
        """Return the glossaries of a request, each read once."""
        found = [self.glossary(file.digest, file) for file in job.glossaries]
        if job.terms:
            text, digest = file_of(job.terms)
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
        flags, languages = self.translator.generator.options.flags, self.languages
        if (key := (digest, languages)) in self.glossaries:
            self.glossaries.move_to_end(key)
            return self.glossaries[key]
        options = options_of_file(flags, languages, file.path, strict)
        segmenter = self.translator.task.session.sentences.constraint_source().segmenter
        found, size = digest_of(file)
        while (key := (found, languages)) not in self.glossaries:  # else it was replaced meanwhile
            glossary = Glossary(options, segmenter)
            before, (found, size) = found, digest_of(file)
            if found == before:  # else it was replaced while it was read
                self.glossaries[key], self.sizes[key] = glossary, size
        while len(self.sizes) > CACHE_SIZE or len(self.sizes) > 1 and self.bytes() > CACHE_BYTES:
            oldest, _ = self.glossaries.popitem(last=False)
            del self.sizes[oldest]
        return self.glossaries[key]

    def bytes(self) -> int:
        """Return the number of bytes of the files of all glossaries in memory."""
        return sum(self.sizes.values())

    def of_empty(self, job: Job) -> list[Constraint]:
        """Return the constraints of a request whose source is empty: all unmet."""
        fields = job.fields or {}
        phrases = [
            *fields.get("constraints", []),
            *("|".join(texts) for texts in fields.get("any_of", [])),
            *fields.get("prefix", []),
        ]
        return [Constraint(phrase, False, "the source is empty") for phrase in phrases]

    def report(
        self, job: Job, wanted: SentenceConstraints | None, terms: list[Term], best: Translation
    ) -> list[Constraint]:
        """Return whether and where the best hypothesis has each phrase of a request, in the order
        in which they were given; a place serves one phrase."""
        if wanted is None or not (wanted.any_of or wanted.prefix or best.unmet):
            return []
        reasons: dict[str, list[str]] = {}
        for text, reason in best.unmet:
            reasons.setdefault(text, []).append(reason)
        terms, elsewhere = list(terms), Counter(best.elsewhere)
        out = []
        if wanted.prefix:
            is_met = wanted.prefix_text not in reasons
            prefix = self.translator.generator.target_text.text(wanted.prefix).strip()
            spans = ((0, len(prefix)),) if is_met and best.text.startswith(prefix) else ()
            out.append(
                Constraint(
                    wanted.prefix_text,
                    is_met,
                    "" if is_met else reasons[wanted.prefix_text].pop(),
                    spans,
                )
            )
        is_placed = places_terms(self.translator.generator.options.flags)
        places = self.places(wanted, best)
        lacks: dict[int, str] = {}
        # of equal phrases, those without a place first
        for i in sorted(range(len(places)), key=lambda i: places[i] is not None):
            if reasons.get(wanted.text[i]):
                lacks[i] = reasons[wanted.text[i]].pop()
        for i, (alternatives, cased, place) in enumerate(
            zip(wanted.any_of, wanted.cases, places, strict=True)
        ):
            spans = () if place is None or i in lacks else (place[1],)
            term = pop_term(terms, alternatives, cased.mode)
            where = ""
            if term.source and i not in lacks and is_placed:
                where = "elsewhere" if elsewhere[wanted.text[i]] > 0 else "in place"
                elsewhere[wanted.text[i]] -= 1
            out.append(
                Constraint(
                    wanted.text[i],
                    i not in lacks,
                    lacks.get(i, ""),
                    spans,
                    term.source,
                    term.spans,
                    where,
                )
            )
        left = [(text, reason) for text, of_text in reasons.items() for reason in of_text]
        return out + [Constraint(text, False, reason) for text, reason in left]

    def places(self, wanted: SentenceConstraints, best: Translation) -> list[Place | None]:
        """Return the place of each phrase of a sentence in its translation; None for none."""
        target_text, pools = self.translator.generator.target_text, self.translator.generator.pools
        boundaries = target_text.boundaries
        other_forms = [
            (each.term.phrases, normal(each.other_form))
            for each in best.placements
            if each.term is not None and each.other_form
        ]
        phrases = [
            PhraseToFind(
                [
                    *(normal(target_text.text(phrase)) for phrase in alternatives),
                    *(form for phrases, form in other_forms if phrases == alternatives),
                ],
                cased.mode,
            )
            for alternatives, cased in zip(wanted.any_of, wanted.cases, strict=True)
        ]
        segmented = target_text.segmenter().takes_pieces
        place = match_phrases_in_order if pools.ordered else match_phrases
        return place(
            Text(best.text, segmented, None if boundaries is None else boundaries.whole_words),
            phrases,
        )


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


def pop_term(terms: list[Term], alternatives: tuple[Phrase, ...], case: str) -> Term:
    """Remove the term that requires these phrases from the list, and return it; NO_TERM where
    none does.

    Of several the one in this case goes first, then the one with the fewest other
    phrases, which are banned.
    """
    fitting = [term for term in terms if set(alternatives) <= set(term.phrases)]
    if not fitting:
        return NO_TERM
    found = min(fitting, key=lambda term: (term.case != case, len(term.phrases)))
    terms.remove(found)
    return found


def spans_of(source: str, words: list[str], matches: list) -> tuple[Span, ...]:
    """Return the places of a term's matches in a source as it was given; none if its words were
    rewritten on their way to tokens."""
    given = words_of(source)
    more = len(given) - len(words)  # of the language that it begins with
    if unicodedata.normalize("NFKC", source) != source or more < 0 or given[more:] != words:
        return ()
    starts = starts_of(source, given)[more:]
    return tuple(
        (starts[match.start], starts[match.end - 1] + len(words[match.end - 1]))
        for match in matches
    )
