"""Requests as JSON, in the form of the records of a JSONL corpus, and answers.

{"source": "Guten Morgen.", "constraints": ["morning"], "any_of": [["a", "b"]],
    "avoid": ["day"], "prefix": "Good", "allowed": ["Good morning.", "Good evening."],
 "glossary": "NAME" | ["NAME", ...] | {"Morgen": "morning|dawn"}, "nbest": 3, "seed": 1,
     "detail": true, "id": 7}
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SkipValidation,
    ValidationInfo,
    field_validator,
)

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.search.constraints.lines import text_constraints
from fairseq_ext.search.report import Report, constraint_json, shown
from fairseq_ext.search.request import GlossaryFile, Request
from fairseq_ext.serve.bodies import checked, read_json
from fairseq_ext.text.formats import FORMATS, passes
from fairseq_ext.text.splitter import plain_ends, warning

EXAMPLES: dict[str, object] = {
    "one sentence": {"source": "Der Patient hat einen Port."},
    "required and banned words": {
        "source": "Der Patient hat einen Port.",
        "any_of": [["port", "case"]],
        "avoid": ["mother"],
    },
    "a glossary of its own, an n-best list": {
        "source": "Der Patient hat einen Port.",
        "glossary": {"Patient": "patient"},
        "nbest": 2,
    },
    "several sentences": [
        {"source": "Der Patient hat einen Port.", "id": "a"},
        {"source": "Er ist sehr alt.", "id": "b", "detail": True},
    ],
}
# what is written for a field, for messages
WAYS = {
    "nbest": "a whole number",
    "seed": "a whole number",
    "detail": "true or false",
    "alignment": "true or false",
    "format": f"one of {', '.join(FORMATS)}",
    "glossary": "a name, a list of names, or an object of terms",
}
T = TypeVar("T")
Unread = Annotated[T, SkipValidation]  # as it came: `text_constraints` reads it
Phrase = str | list[str]  # or its words
Names = Annotated[list[str], Field(fail_fast=True)]


class Fields(BaseModel):
    """A text to translate, and what its translation must hold."""

    # the context of its validators is where the record stands, for messages
    model_config = ConfigDict(strict=True, extra="forbid", title="Record")

    source: str = Field(description="the text to translate, sentence by sentence")
    id: object = Field(None, description="comes back with the answer")
    constraints: Unread[list[Phrase] | None] = Field(None, description="phrases that must appear")
    any_of: Unread[list[list[Phrase]] | None] = Field(
        None, description="of each list one must appear"
    )
    avoid: Unread[list[Phrase] | None] = Field(None, description="phrases that must not appear")
    prefix: Unread[Phrase | None] = Field(None, description="what the translation starts with")
    allowed: Unread[list[Phrase] | None] = Field(
        None, description="strings, of which the translation is one"
    )
    glossary: str | Names | dict[str, str] | None = Field(
        None,
        description="the name of a glossary that is kept here, a list of names, or terms: "
        "{source: target or a|b}",
    )
    nbest: int | None = Field(
        None,
        description="hypotheses, at most the beam",
        json_schema_extra={"minimum": 1},
    )
    detail: bool | None = Field(None, description="tokens and their scores as well")
    format: str | None = Field(
        None,
        description="what the text is written in (default: text)",
        json_schema_extra={"enum": [*FORMATS, None]},
    )
    alignment: bool | None = Field(
        None,
        description="which words of the text and of its translation stand for each other as well",
    )
    seed: int | None = Field(
        None,
        description="of samples, where the server draws them (default: that of the server)",
        json_schema_extra={"minimum": 0},
    )

    @field_validator("glossary", mode="before")
    @classmethod
    def terms(cls, value: object, info: ValidationInfo) -> object:
        for source, target in value.items() if isinstance(value, dict) else ():
            if (
                not isinstance(target, str)
                or not source.strip()
                or not target.strip()
                or any(c in source + target for c in "\t\n\r")
            ):
                raise UsageError(
                    f"{info.context} has the glossary term '{cut(source)}' without its "
                    "translation: write it after the term"
                )
        return value


NAMES = ", ".join(Fields.model_fields)
SCHEMA = Fields.model_json_schema()


@dataclass(frozen=True)
class Text:
    """A text to translate.

    request: the text, and what is wanted of its sentences; splits, inline: as for
    `Service.passes`.
    """

    request: Request
    format: str = "text"
    splits: bool = True
    inline: Collection[str] | None = None

    @property
    def is_one_sentence(self) -> bool:
        """Whether phrases are required: the source is then one sentence, as no field says in which
        sentence of a text they must stand."""
        own = self.request.own_constraints
        return bool(own.constraints or own.any_of or own.prefix)


@dataclass(frozen=True)
class Record:
    """One text of a request."""

    text: Text
    id: object = None
    detail: bool = False


def read_records(
    body: bytes, most: int, glossary: Callable[[str], GlossaryFile]
) -> tuple[list[Record], bool]:
    """Return the records of a body, and whether they came as a list (raises UsageError)."""
    value = read_json(body)
    several = isinstance(value, list)
    records = value if several else [value]
    if len(records) > most:
        raise UsageError(
            f"the request has {len(records)} records and the limit is {most} (--max-lines): "
            "send fewer"
        )
    return [
        read_record(each, f"record {i + 1}" if several else "the request", glossary)
        for i, each in enumerate(records)
    ], several


def read_record(value: Any, where: str, glossary: Callable[[str], GlossaryFile]) -> Record:
    """Return one record, checked as far as possible without the model (raises UsageError)."""

    def sentence(name: str, kind: str) -> str:
        if kind == "model_type":
            return f"{where} is {cut(json.dumps(value))}: send an object with the keys {NAMES}"
        if kind == "extra_forbidden":
            return f"{where} has the unknown key '{cut(name)}': the keys are {NAMES}"
        if name == "source":
            return f'{where} has no text in "source": write the sentence there'
        return f'{where} has {cut(json.dumps(value[name]))} for "{name}": write {WAYS[name]}'

    given = checked(Fields, value, sentence, where)
    named = given.glossary or ()
    names = () if isinstance(named, dict) else [named] if isinstance(named, str) else named
    request = Request(
        source=given.source,
        own_constraints=text_constraints(value, where),
        glossaries=tuple(map(glossary, names)),
        terms=tuple(named.items()) if isinstance(named, dict) else (),
        nbest=given.nbest,
        seed=given.seed,
        align=bool(given.alignment),
    )
    text = Text(request, given.format or "text")
    if text.format != "text":
        if text.is_one_sentence:
            raise UsageError(
                f"{where} has phrases that must appear, and a format of several sentences: leave "
                "one of the two out"
            )
        passes(text.format, plain_ends)
    return Record(text, given.id, bool(given.detail))


def answer_json(record: Record, answer: Report | UsageError) -> dict[str, object]:
    """Return the answer to a record, or why there is none."""
    out = {} if record.id is None else {"id": record.id}
    if isinstance(answer, UsageError):
        return out | {"error": str(answer)}
    hypotheses = []
    for h in answer.hypotheses:
        each: dict[str, object] = {"text": h.text, "score": h.score} | shown(h)
        if record.detail:
            each |= {"tokens": h.tokens, "token_scores": h.positional_scores}
        hypotheses.append(each)
    gap = answer.gap
    proof = None if gap is None else {"proved": gap == 0, "gap": gap if gap < math.inf else None}
    warnings = list(answer.warnings)
    if record.text.is_one_sentence:
        warnings += filter(None, [warning(record.text.request.source, "the source")])
    out |= {
        "text": answer.text,
        "score": answer.score,
        "nbest": hypotheses,
        "constraints": list(map(constraint_json, answer.constraints)),
        "certificate": proof,
    } | shown(answer)
    if warnings:
        out["warnings"] = warnings
    if answer.untranslated:
        pairs = answer.untranslated
        out["untranslated"] = [{"source": source, "reason": reason} for source, reason in pairs]
    if record.text.request.align:
        out["alignment"] = answer.hypotheses[0].words
    out["seconds"] = {"queue": round(answer.queued, 6), "decoder": round(answer.decoded, 6)}
    return out
