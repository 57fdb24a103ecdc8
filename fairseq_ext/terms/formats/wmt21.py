"""WMT 2021 terminology task: SGM with tags, `<seg id="7"> et votre <term src="runny nose" tgt="nez qui coule|rhume"> nez qui coule
</term> ? </seg>`, in documents `<doc docid="...">`.

The reference's tags say what the terms are and where they stand. Alam et al. 2021, "Findings of the WMT Shared Task on Machine
Translation Using Terminologies", https://aclanthology.org/2021.wmt-1.69
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.words import words_of
from fairseq_ext.terms.formats.files import Files, same_length, text_lines
from fairseq_ext.terms.test_set import Sentence, Term


@dataclass
class Segment:
    """A `<seg>`: its text, and its terms as (attributes, start, end), [start, end) in words of the text."""

    number: str
    document: str
    text: str = ""
    terms: list[tuple[dict[str, str], int, int]] = field(default_factory=list)


class Reader(HTMLParser):
    """Collects the segments of an SGM text in `segments`. Errors: UsageError for a term tag without its end."""

    def __init__(self, path: str):
        super().__init__(convert_charrefs=True)
        self.path, self.document = path, ""
        self.segments: list[Segment] = []
        self.open: Segment | None = None
        self.term: tuple[dict[str, str], int] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "doc":
            self.document = given.get("docid", str(len(self.segments)))
        elif tag == "seg":
            self.open = Segment(given.get("id", ""), self.document)
        elif tag == "term" and self.open is not None:
            self.term = given, len(words_of(self.open.text))

    def handle_data(self, data: str) -> None:
        if self.open is not None:
            self.open.text += data

    def handle_endtag(self, tag: str) -> None:
        if self.open is None:
            return
        if tag == "term" and self.term is not None:
            self.open.terms.append((*self.term, len(words_of(self.open.text))))
            self.term = None
        elif tag == "seg":
            if self.term is not None:
                raise UsageError(f"segment {self.open.number} of {self.path} has a <term> without its end: write </term>")
            self.open.text = " ".join(self.open.text.split())
            self.segments.append(self.open)
            self.open = None


def segments(path: str, flag: str) -> list[Segment]:
    """The segments of an SGM file; UsageError where it has none."""
    reader = Reader(path)
    reader.feed("\n".join(text_lines(path, flag)))
    reader.close()
    if not reader.segments:
        raise UsageError(f"{flag} {path} has no <seg> elements: name an SGM file of the task")
    return reader.segments


def read(files: Files) -> tuple[list[Sentence], str | None]:
    """A sentence for each segment of --references, and --source-lang; --sources, if given, is the SGM file of the source side.

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
            listed = [target.strip() for target in given.get("tgt", "").split("|") if target.strip()]
            known = [words_of(target) for target in listed]
            targets = listed + [wording] * (words[start:end] not in known and start < end)
            if not targets:
                raise UsageError(f"segment {segment.number} of {files.references} has an empty term: give it text or tgt=")
            terms.append(Term(given.get("src", ""), tuple(targets), (start, end) if start < end else None, marked=True))
        source = sources[place].text if sources is not None else None
        found.append(Sentence(source, segment.text, tuple(terms), segment.document))
    return found, files.source_lang
