"""One sentence on its way from an entry point to the search (`Request`)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fairseq_ext.search.phrases.sentence import EMPTY, SentenceConstraints


@dataclass(frozen=True)
class GlossaryFile:
    """A glossary on disk, as one version of it: another version has another digest."""

    path: str
    digest: str


@dataclass(frozen=True, slots=True)
class TextConstraints:
    """A sentence's own constraints as text, in which every entry point gives them
    (search/constraints/lines.py reads them from a line, a JSON object, and so on)."""

    constraints: tuple[str, ...] = ()  # phrases that must appear
    any_of: tuple[tuple[str, ...], ...] = ()  # constraints that any one of several phrases meets
    avoid: tuple[str, ...] = ()  # phrases that must not appear
    prefix: tuple[str, ...] = ()  # the beginning of the translation; one at most
    allowed: tuple[str, ...] = ()  # the output is one of these; none: any output

    def __bool__(self) -> bool:
        return any((self.constraints, self.any_of, self.avoid, self.prefix, self.allowed))

    def __add__(self, other: TextConstraints) -> TextConstraints:
        return TextConstraints(
            self.constraints + other.constraints,
            self.any_of + other.any_of,
            self.avoid + other.avoid,
            self.prefix + other.prefix,
            self.allowed + other.allowed,
        )


NO_TEXT = TextConstraints()


@dataclass(frozen=True, eq=False, slots=True)
class Request:
    """One sentence to translate, and what its caller wants of it.

    Each entry point makes it in one function: `Translator` of a line of a call, `Engine` (and so
    the server) of a request, a corpus run of a line of a file; with constraints,
    fairseq-interactive of a typed line and fairseq-generate of a sentence of its data set. Queues,
    messages and batches have it as it is. The process that searches adds the tokens, and
    `Sentences.with_constraints` the constraints.
    """

    number: int = 0  # of the sentence, from 0: samples, drafts and lines of files depend on it
    source: str = ""  # as text; "" for speech, and for a sentence of a data set
    own_constraints: TextConstraints = NO_TEXT
    glossaries: tuple[GlossaryFile, ...] = ()
    # source term and target term (or a|b), of this request alone
    terms: tuple[tuple[str, str], ...] = ()
    nbest: int | None = None  # hypotheses of its answer; None: as many as --nbest says
    seed: int | None = None  # of its samples; None: that of the flags
    languages: tuple[str, str] | None = None  # source and target; None: those of the flags
    align: bool = False  # whether words of hypotheses are aligned with words of the source
    streams: bool = False  # whether partial results are sent
    submitted: float = 0.0  # time.monotonic()
    # ---- of the process that searches
    tokens: Tensor | None = None  # (L,) of the source, EOS included
    constraints: SentenceConstraints | None = None  # with those of the flags' files

    @property
    def all_constraints(self) -> SentenceConstraints:
        """The constraints, empty ones if it has none."""
        return EMPTY if self.constraints is None else self.constraints
