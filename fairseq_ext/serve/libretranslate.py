"""LibreTranslate's API, so that its clients work: `POST /translate`, `GET /languages` (https://libretranslate.com/docs).

A text is translated line by line; empty lines stay. Bodies are JSON or form fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from fairseq_ext.engine.jobs import Answer, Description
from fairseq_ext.errors import UsageError, cut
from fairseq_ext.serve.records import read_json

NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek",
    "en": "English", "es": "Spanish", "et": "Estonian", "fa": "Persian", "fi": "Finnish", "fr": "French", "he": "Hebrew", "hi": "Hindi",
    "hr": "Croatian", "hu": "Hungarian", "id": "Indonesian", "it": "Italian", "ja": "Japanese", "ko": "Korean", "lt": "Lithuanian",
    "lv": "Latvian", "nb": "Norwegian", "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian",
    "sk": "Slovak", "sl": "Slovenian", "sv": "Swedish", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian",
    "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
EXAMPLE = {"q": "Der Patient hat einen Port.", "source": "de", "target": "en", "format": "text", "alternatives": 1}
PROPERTIES = {
    "q": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "source": {"type": "string"},
    "target": {"type": "string"},
    "format": {"type": "string", "enum": ["text"]},
    "alternatives": {"type": "integer", "minimum": 0},
    "api_key": {"type": "string"},
}
SCHEMA = {"type": "object", "required": ["q", "source", "target"], "properties": PROPERTIES}


@dataclass(frozen=True)
class Asked:
    """A request."""

    texts: list[list[str]]  # lines of each text
    several: bool  # they came as a list
    nbest: int
    alternatives: int
    key: str | None

    def lines(self) -> list[dict[str, Any]]:
        """Keywords of Engine.submit for every line."""
        return [{"source": line, "nbest": self.nbest} for text in self.texts for line in text]

    def shown(self, answers: list[Answer]) -> dict[str, Any]:
        """The answers to these lines, in LibreTranslate's form."""
        found = iter(answers)
        texts: list[str] = []
        others: list[list[str]] = []
        for lines in self.texts:
            ranked = [[h.text for h in next(found).hypotheses] for _ in lines]
            most = max(map(len, ranked))
            whole = ["\n".join(texts_of[min(i, len(texts_of) - 1)] for texts_of in ranked) for i in range(most)]
            texts.append(whole[0])
            others.append(whole[1:])
        out: dict[str, Any] = {"translatedText": texts if self.several else texts[0]}
        return out | ({"alternatives": others if self.several else others[0]} if self.alternatives else {})


def read(body: bytes, content_type: str, model: Description, most: int) -> Asked:
    """A request (raises UsageError)."""
    if content_type.partition(";")[0].strip().lower() == "application/x-www-form-urlencoded":
        try:
            fields = parse_qs(body.decode("utf-8"), keep_blank_values=True, errors="strict")
            value: Any = {name: found[-1] for name, found in fields.items()}
        except UnicodeDecodeError:
            raise UsageError("the form is not valid UTF-8: send it as UTF-8") from None
    else:
        value = read_json(body)
    if not isinstance(value, dict):
        raise UsageError("the body must be an object: send q, source and target")
    q = value.get("q")
    several = isinstance(q, list)
    texts: list[Any] = value["q"] if several else [q]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise UsageError('"q" must be a text: write the text to translate there, or a list of texts')
    for name, known in (("source", model.source), ("target", model.target)):
        given = value.get(name)
        if given != known and not (name == "source" and given == "auto"):
            raise UsageError(f'{cut(str(given))} is not supported as {name}: this server translates from {model.source} to {model.target}')
    if value.get("format") not in (None, "", "text"):
        raise UsageError(f'format {cut(str(value["format"]))} is not supported: send "text"')
    try:
        alternatives = int(value.get("alternatives") or 0)
    except (TypeError, ValueError):
        alternatives = -1
    if alternatives < 0:
        raise UsageError('"alternatives" must be 0 or more')
    lines = [text.split("\n") for text in texts]
    if sum(map(len, lines)) > most:
        raise UsageError(f"the request has {sum(map(len, lines))} lines and the limit is {most} (--max-lines): send fewer")
    key = value.get("api_key")
    return Asked(lines, several, min(1 + alternatives, model.beam), alternatives, key if isinstance(key, str) else None)


def languages(model: Description) -> list[dict[str, Any]]:
    """What can be translated."""

    def entry(code: str, targets: list[str]) -> dict[str, Any]:
        return {"code": code, "name": NAMES.get(code.partition("_")[0].lower(), code), "targets": targets}

    return [entry(model.source, [model.target]), entry(model.target, [])]
