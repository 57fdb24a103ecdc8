"""Requests as JSON, in the form of the records of a JSONL corpus, and answers.

{"source": "Guten Morgen.", "constraints": ["morning"], "any_of": [["a", "b"]],
    "avoid": ["day"], "prefix": "Good",
 "glossary": "NAME" | ["NAME", ...] | {"Morgen": "morning|dawn"}, "nbest": 3, "seed": 1,
     "detail": true, "id": 7}
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.engine.jobs import Answer, GlossaryFile
from fairseq_ext.search.constraints.lines import KEYS, TOO_DEEP, fields_of, flaw, no_key_twice
from fairseq_ext.text.formats import FORMATS, passes
from fairseq_ext.text.several_sentences import warning
from fairseq_ext.text.splitter import plain_ends

NAMES = ("source", "id", *KEYS, "glossary", "nbest", "detail", "format", "alignment", "seed")
EXAMPLE = {
    "source": "Der Patient hat einen Port.",
    "constraints": ["port"],
    "avoid": ["harbour"],
    "nbest": 2,
}
EXAMPLES: dict[str, Any] = {
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
PROPERTIES = {
    "source": {"type": "string", "description": "the text to translate, sentence by sentence"},
    "id": {"description": "comes back with the answer"},
    "constraints": {
        "type": "array",
        "items": {"type": "string"},
        "description": "phrases that must appear",
    },
    "any_of": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "string"}},
        "description": "of each list one must appear",
    },
    "avoid": {
        "type": "array",
        "items": {"type": "string"},
        "description": "phrases that must not appear",
    },
    "prefix": {"type": "string", "description": "what the translation starts with"},
    "glossary": {
        "description": "the name of a glossary that is kept here, a list of names, or terms: "
        "{source: target or a|b}"
    },
    "nbest": {"type": "integer", "minimum": 1, "description": "hypotheses, at most the beam"},
    "detail": {"type": "boolean", "description": "tokens and their scores as well"},
    "format": {
        "type": "string",
        "enum": list(FORMATS),
        "description": "what the text is written in (default: text)",
    },
    "seed": {
        "type": "integer",
        "minimum": 0,
        "description": "of samples, where the server draws them (default: that of the server)",
    },
    "alignment": {
        "type": "boolean",
        "description": "which words of the text and of its translation stand for "
        "each other as well",
    },
}
RECORD = {
    "type": "object",
    "required": ["source"],
    "additionalProperties": False,
    "properties": PROPERTIES,
}


@dataclass(frozen=True)
class Record:
    """One text of a request."""

    request: dict[str, Any]  # keywords of Service.submit
    id: Any = None
    detail: bool = False
    names: dict[str, Any] = field(default_factory=dict)


def read_json(body: bytes) -> Any:
    """The JSON value of a body (raises UsageError)."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the body is not valid UTF-8 (byte {error.start + 1}): send it as UTF-8"
        ) from None
    try:
        value = DECODER.decode(text)
    except UsageError:
        raise
    except RecursionError:  # at a depth that depends on how deep this function is called
        raise UsageError(f"the body {TOO_DEEP}") from None
    except ValueError as error:
        raise UsageError(
            f"the body is not valid JSON ({error}): send an object with the keys "
            f"{', '.join(NAMES)}, or a list"
        ) from None
    if (found := flaw(value)) is not None:
        raise UsageError(f"the body {found}")
    if "\\u" in text:  # UTF-8 has no other way to write half a character
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise UsageError(
                "the body has half a character (a lone surrogate): send whole characters"
            ) from None
    return value


def refuse_constant(name: str) -> None:
    """NaN and infinities are no JSON."""
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(
    object_pairs_hook=no_key_twice("the request"), parse_constant=refuse_constant
)


def read_records(
    body: bytes, most: int, glossary: Callable[[str], GlossaryFile]
) -> tuple[list[Record], bool]:
    """The records of a body, and whether they came as a list (raises UsageError)."""
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
    """One record, checked as far as that can be done without the model (raises UsageError)."""
    if not isinstance(value, dict):
        raise UsageError(
            f"{where} is {cut(json.dumps(value))}: send an object with the keys {', '.join(NAMES)}"
        )
    unknown = [key for key in value if key not in NAMES]
    if unknown:
        raise UsageError(
            f"{where} has the unknown key '{cut(unknown[0])}': the keys are {', '.join(NAMES)}"
        )
    if not isinstance(value.get("source"), str):
        raise UsageError(f'{where} has no text in "source": write the sentence there')
    for key, kind in (("nbest", int), ("seed", int), ("detail", bool), ("alignment", bool)):
        if value.get(key) is not None and type(value[key]) is not kind:
            what = "a whole number" if kind is int else "true or false"
            raise UsageError(f'{where} has {cut(json.dumps(value[key]))} for "{key}": write {what}')
    given = {key: value[key] for key in KEYS if value.get(key) is not None}
    fields_of(given, where)
    request = {
        "source": value["source"],
        **given,
        "nbest": value.get("nbest"),
        **read_glossary(value.get("glossary"), where, glossary),
    }
    if value.get("format") not in (None, "text"):
        if is_one_sentence(request):
            raise UsageError(
                f"{where} has phrases that must appear, and a format of several sentences: leave "
                "one of the two out"
            )
        passes(value["format"], plain_ends)
        request["format"] = value["format"]
    if value.get("seed") is not None:
        request["seed"] = value["seed"]
    if value.get("alignment"):
        request["align"] = True
    return Record(request, value.get("id"), bool(value.get("detail")))


def is_one_sentence(request: dict[str, Any]) -> bool:
    """Whether a request asks for phrases, of which nobody knows in which sentence of a
    text they must stand."""
    return any(request.get(name) for name in ("constraints", "any_of", "prefix"))


def read_glossary(
    value: Any, where: str, glossary: Callable[[str], GlossaryFile]
) -> dict[str, Any]:
    """What a record's glossary comes to: keywords of Engine.submit."""
    if value is None:
        return {}
    if isinstance(value, dict):
        for source, target in value.items():
            if (
                not isinstance(target, str)
                or not source.strip()
                or not target.strip()
                or any(c in source + target for c in "\t\n\r")
            ):
                raise UsageError(
                    f"{where} has the glossary term '{cut(source)}' without its translation: "
                    "write it after the term"
                )
        return {"terms": value}
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f'{where} has {cut(json.dumps(value))} for "glossary": write a name, a list of names, '
            "or an object of terms"
        )
    return {"glossaries": [glossary(name) for name in names]}


def answer_json(record: Record, answer: Answer) -> dict[str, Any]:
    """The answer to a record."""
    hypotheses = []
    for h in answer.hypotheses:
        detail = {"tokens": h.tokens, "token_scores": h.positional_scores} if record.detail else {}
        utility = {} if h.utility is None else {"utility": h.utility}
        hypotheses.append({"text": h.text, "score": h.score, **utility, **detail})
    always = ("phrase", "met", "spans")
    constraints = [
        {name: value for name, value in asdict(c).items() if value or name in always}
        for c in answer.constraints
    ]
    proof = (
        None
        if answer.gap is None
        else {"proved": answer.gap == 0, "gap": answer.gap if answer.gap != float("inf") else None}
    )
    return {
        **({} if record.id is None else {"id": record.id}),
        "text": answer.text,
        "score": answer.score,
        "nbest": hypotheses,
        "constraints": constraints,
        "certificate": proof,
        **(
            {"warnings": [said]}
            if is_one_sentence(record.request)
            and (said := warning(record.request["source"], "the source"))
            else {}
        ),
        **(
            {"left": [{"source": source, "reason": reason} for source, reason in answer.left]}
            if answer.left
            else {}
        ),
        **({"alignment": answer.hypotheses[0].words} if record.request.get("align") else {}),
        "seconds": {"queue": round(answer.queued, 6), "decoder": round(answer.decoded, 6)},
    }
