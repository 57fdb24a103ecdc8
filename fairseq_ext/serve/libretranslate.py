"""LibreTranslate's API, so that its clients work (https://docs.libretranslate.com):
`POST /translate`, `/detect`, `/translate_file`, `/suggest`, `GET /languages`, `/frontend/settings`,
`/spec`, with its error texts. Bodies are JSON or forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict, TypeVar
from urllib.parse import quote

from fastapi import FastAPI, HTTPException, Request, UploadFile
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.core.language_codes import name_of, two_letters
from fairseq_ext.search.request import Request as Sentence
from fairseq_ext.serve.bodies import (
    Form,
    checked,
    content_type,
    description,
    fields_of,
    file_name,
    key_in,
)
from fairseq_ext.serve.documents import READ, Documents
from fairseq_ext.serve.records import Text
from fairseq_ext.serve.service import Service, add_routes
from fairseq_ext.text.files import ENDINGS

if TYPE_CHECKING:
    from lingua import LanguageDetector

EXAMPLE = {
    "q": "Der Patient hat einen Port.",
    "source": "de",
    "target": "en",
    "format": "text",
    "alternatives": 1,
}


# ---- Requests
#
# Unknown fields are ignored, as LibreTranslate does: clients send more than it reads.


class Fields(BaseModel):
    """The fields that all requests may have."""

    model_config = ConfigDict(strict=True)

    api_key: str = ""


class OfTexts(Fields):
    """A request for a text, or for a list of them."""

    q: str | Annotated[list[str], Field(fail_fast=True)]

    @property
    def several(self) -> bool:
        """Whether they came as a list."""
        return isinstance(self.q, list)

    @property
    def texts(self) -> list[str]:
        return self.q if isinstance(self.q, list) else [self.q]


class Texts(OfTexts):
    """A request to translate. source: "auto" where it is to be detected."""

    source: str
    target: str
    format: Literal["text", "html"] = "text"
    alternatives: int = Field(0, strict=False, json_schema_extra={"minimum": 0})


class File(Fields):
    """A request to translate a file."""

    file: UploadFile
    source: str
    target: str


Kind = TypeVar("Kind", bound=Fields)


def bad(text: str) -> HTTPException:
    """Return the response to a wrong request."""
    return HTTPException(400, text)


def read(kind: type[Kind], fields: Form) -> Kind:
    """Return the request of these fields (raises UsageError); empty ones are dropped."""
    given = {
        name: value
        for name, value in fields.items()
        if value not in (None, "") and (name, value) != ("q", [])
    }

    def sentence(name: str, why: str) -> str:
        if why == "missing":
            return f"Invalid request: missing {name} parameter"
        if name == "format":
            return f"{cut(str(fields[name]))} format is not supported"
        if name == "alternatives":
            return "Invalid request: alternatives parameter is not a number"
        if name == "file":
            return "Invalid request: empty file"
        return f"Invalid request: {name} parameter must be a text" + (
            " or a list of texts" if name == "q" else ""
        )

    return checked(kind, given, sentence)


class Candidate(TypedDict):
    """A language of a text, and the confidence in it in per cent."""

    confidence: float
    language: str


class LibreTranslate:
    """The routes of LibreTranslate's API, over a service."""

    def __init__(self, service: Service):
        self.service = service
        self.documents = Documents(service)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to an application."""
        text = {"a text": EXAMPLE}
        add_routes(
            app,
            "LibreTranslate",
            ("POST", "/translate", self.translate, description(Texts, text)),
            ("POST", "/detect", self.detect, description(OfTexts, {"a text": {"q": EXAMPLE["q"]}})),
            ("POST", "/translate_file", self.translate_file, description(File)),
            ("GET", "/download_file/{name}", self.download_file, {"include_in_schema": False}),
            ("POST", "/suggest", self.suggest, {}),
            ("GET", "/languages", self.languages, {}),
            ("GET", "/frontend/settings", self.settings, {}),
        )
        app.get("/spec", include_in_schema=False)(lambda: JSONResponse(app.openapi()))

    async def fields(self, request: Request) -> Form:
        """Return the fields of a request whose key is right."""
        service, given = self.service, self.service.keys.of_headers(request.headers)
        if given:
            service.keys.check(request.headers)

        def admit(key: object) -> None:
            if not service.keys.admit(key if isinstance(key, str) else None):
                raise (
                    HTTPException(403, "Invalid API key")
                    if key
                    else bad("Please contact the server operator to get an API key")
                )

        found = await fields_of(
            request,
            service.settings,
            "Invalid JSON format",
            admit=lambda body: admit(given or key_in(body)),
        )
        admit(given or found.get("api_key"))
        is_form = content_type(request.headers) not in ("", "application/json")
        if is_form and isinstance(found.get("q"), str):
            found["q"] = "\n".join(found["q"].splitlines())
        return found

    async def pair_of(
        self, text: str, source: str, target: str
    ) -> tuple[str, str, Candidate | None]:
        """Return the languages of a text and of its translation, as the models name them, and how
        the first was detected, if it was (raises HTTPException for a pair that is not served)."""
        codes = self.service.codes()
        source, target = (
            next((each for each in codes if two_letters(each) == code), code)
            if code not in codes
            else code
            for code in (source, target)
        )
        for code in (target,) if source == "auto" else (source, target):
            if code not in codes:
                raise bad(f"{cut(code)} is not supported")
        detected = None
        if source == "auto":
            detected = (await run_in_threadpool(candidates, [text], codes))[0]
            source = detected["language"]
        if source != target and (source, target) not in self.service.pairs():
            raise bad(
                f"{name_of(target)} ({target}) is not available as a target language from "
                f"{name_of(source)} ({source})"
            )
        return source, target, detected

    async def translate(self, request: Request) -> object:
        """Translate a text, or a list of them."""
        service = self.service
        what = read(Texts, await self.fields(request))
        alternatives = max(0, what.alternatives)
        if len(what.texts) > service.settings.max_lines:
            size, limit = len(what.texts), service.settings.max_lines
            raise bad(f"Invalid request: request ({size}) exceeds text limit ({limit})")
        source, target, detected = await self.pair_of(
            "\n".join(what.texts), what.source, what.target
        )
        ranked = [[text] for text in what.texts]
        if source != target:
            async with service.using(request, (source, target)) as model:
                nbest = (
                    1 if what.format == "html" else min(1 + alternatives, model.description.beam)
                )
            texts = [Text(Sentence(source=text, nbest=nbest), what.format) for text in what.texts]
            answers = await service.answered(request, texts, (source, target))
            for i, answer in enumerate(answers):
                if isinstance(answer, UsageError):
                    raise answer
                ranked[i] = list(dict.fromkeys(h.text for h in answer.hypotheses))
        out: dict[str, list[object]] = {"translatedText": [each[0] for each in ranked]}
        if alternatives:
            out["alternatives"] = [each[1:] for each in ranked]
        if detected is not None:
            out["detectedLanguage"] = [detected] * len(what.texts)
        return out if what.several else {name: value[0] for name, value in out.items()}

    async def detect(self, request: Request) -> object:
        """Return the language of a text, among the served ones."""
        what = read(OfTexts, await self.fields(request))
        return await run_in_threadpool(candidates, what.texts, self.service.codes())

    async def translate_file(self, request: Request) -> object:
        """Translate a file; the answer says where the translation is for an hour, and what of the
        file is not translated."""
        what = read(File, await self.fields(request))
        if not what.file.filename:
            raise bad("Invalid request: empty file")
        name = file_name(what.file.filename)
        if PurePath(name).suffix.lower() not in ENDINGS:
            raise bad("Invalid request: file format not supported")
        async with self.documents.adding("", name, what.file) as document:
            text = await self.documents.beginning(document) if what.source == "auto" else ""
            *pair, _ = await self.pair_of(text, what.source, what.target)
            report = await self.documents.translate(document, (pair[0], pair[1]), request=request)
        self.documents.keep(document)
        url = request.url_for("download_file", name=quote(document.shown_name))
        left = [*report.kinds, *(f"{part}: {reason}" for part, reason in report.parts)]
        return {"translatedFileUrl": str(url), **({"notTranslated": left} if left else {})}

    async def download_file(self, name: str) -> object:
        """Return a translated file."""
        # looked for by its name: no path is made of what a client has sent
        found = self.documents.documents.get(name.partition(".")[0])
        if found is None or found.shown_name != name or not found.output.is_file():
            raise bad("Invalid filename")
        return FileResponse(
            found.output, filename=found.name, media_type="application/octet-stream"
        )

    async def suggest(self) -> object:
        """Refuse a suggestion: none is taken."""
        raise HTTPException(403, "Suggestions are disabled on this server.")

    async def languages(self) -> object:
        """Return the pairs that can be translated."""
        targets: dict[str, list[str]] = {code: [] for code in self.service.codes()}
        for source, target in sorted(self.service.pairs()):
            targets[source].append(target)
        return [
            {"code": code, "name": name_of(code), "targets": found}
            for code, found in targets.items()
        ]

    async def settings(self) -> object:
        """Return the settings that a page needs."""
        (source, target), *_ = self.service.pairs()
        has_keys = self.service.keys.hashes is not None
        return {
            "apiKeys": has_keys,
            "charLimit": -1,
            "filesTranslation": True,
            "frontendTimeout": 500,
            "keyRequired": has_keys,
            "language": {
                side: {"code": c, "name": name_of(c)}
                for side, c in (("source", source), ("target", target))
            },
            "suggestions": False,
            "supportedFilesFormat": sorted(ENDINGS),
        }


# ---- The language of a text, of those that are served, by the package lingua


MOST = 3  # candidates in an answer


@cache
def detector(codes: tuple[str, ...]) -> LanguageDetector | None:
    """Return lingua's detector for languages of these codes; None if it knows fewer than two of
    them.

    Errors: UsageError where it is missing.
    """
    try:
        from lingua import IsoCode639_1, LanguageDetectorBuilder
    except ImportError:
        raise UsageError(
            "a language is detected by lingua, which is not installed: pip install "
            "'fairseq_ext[text]', or name it"
        ) from None
    known = {code.upper() for code in codes if hasattr(IsoCode639_1, code.upper())}
    if len(known) < 2:
        return None
    return LanguageDetectorBuilder.from_iso_codes_639_1(
        *(getattr(IsoCode639_1, code) for code in sorted(known))
    ).build()


def candidates(texts: Sequence[str], served: Sequence[str]) -> list[Candidate]:
    """Return the most probable languages of texts together, with their confidence in per cent.

    served: codes, such as `de` or `pt_BR`.
    """
    short = {two_letters(code): code for code in reversed(served)}
    found = detector(tuple(sorted(short)))
    if found is None:
        return [{"confidence": 0.0, "language": served[0]}]
    ranked = found.compute_language_confidence_values("\n".join(texts)[:READ])[:MOST]
    return [
        {
            "confidence": round(100.0 * each.value, 1),
            "language": short[each.language.iso_code_639_1.name.lower()],
        }
        for each in ranked
    ]
