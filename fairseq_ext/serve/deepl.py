"""DeepL's API, so that its clients work (https://developers.deepl.com/docs): `POST /v2/translate`,
`/v2/document`, `GET /v2/languages`, `/v2/usage`, and glossaries as `/v2/glossaries` and
`/v3/glossaries`. Bodies are JSON or forms; an error is `{"message": "one sentence"}`.

Texts, documents and terms go the way of all others: through the models, the readers of text/, and
the engine's glossaries. Each key has glossaries and documents of its own; without keys there is one
owner. Unknown fields are ignored, as DeepL does.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import permutations
from pathlib import PurePath

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel
from starlette.background import BackgroundTask

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.core.language_codes import name_of, two_letters
from fairseq_ext.search.request import GlossaryFile
from fairseq_ext.serve.bodies import Form, description, fields_of, file_name
from fairseq_ext.serve.deepl_requests import (
    LISTED,
    LISTS,
    DocumentKey,
    DocumentRequest,
    GlossaryChange,
    Kind,
    LanguageType,
    NewDictionary,
    NewGlossary,
    NewMultilingualGlossary,
    PairOf,
    Tagged,
    TextRequest,
    Translation,
    WriteRequest,
    base,
    full_name,
    likely,
    matching,
    nested,
    read,
    target_codes,
    unsupported,
)
from fairseq_ext.serve.documents import Document, Documents
from fairseq_ext.serve.glossaries import DeepLGlossaries, csv_text, direction, tsv, with_name
from fairseq_ext.serve.libretranslate import candidates
from fairseq_ext.serve.models import Pair
from fairseq_ext.serve.service import Service, add_routes
from fairseq_ext.text.files import ENDINGS

UNLIMITED = 1_000_000_000_000  # what DeepL says of an account without a limit
MOST_GLOSSARIES = 1000  # of an owner, as in DeepL's API
ONE = "/{glossary_id}"
EXAMPLE = {"text": ["Der Patient hat einen Port."], "source_lang": "DE", "target_lang": "EN-GB"}
NO_OBJECT = "the body must be a JSON object: send the fields by their names"
QUOTA = 456  # the status of DeepL's API for a limit of an account


class DeepL:
    """The routes of DeepL's API, over a service."""

    def __init__(self, service: Service):
        self.service = service
        self.glossaries_of = cache(lambda owner: DeepLGlossaries(service.folder / "deepl" / owner))
        self.documents = Documents(service)
        self.characters: Counter[str] = Counter()  # that each owner has sent

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to an application."""
        v2, v3, document = "/v2/glossaries", "/v3/glossaries", "/v2/document/{document_id}"
        rows: list[tuple[str, str, Callable[..., object], type[BaseModel] | None]] = [
            ("POST", "/v2/translate", self.translate, TextRequest),
            ("POST", "/v2/document", self.upload, DocumentRequest),
            ("POST", document, self.document_status, DocumentKey),
            ("POST", document + "/result", self.download, DocumentKey),
            ("GET", "/v2/languages", self.languages, None),
            ("POST", "/v2/languages", self.languages, LanguageType),
            ("GET", "/v2/usage", self.usage, None),
            ("POST", "/v2/usage", self.usage, None),
            ("GET", "/v2/glossary-language-pairs", self.glossary_pairs, None),
            ("POST", v2, self.create, NewGlossary),
            ("GET", v2, self.list_all, None),
            ("GET", v2 + ONE, self.get, None),
            ("GET", v2 + ONE + "/entries", self.entries_of_one, None),
            ("DELETE", v2 + ONE, self.delete, None),
            ("POST", v3, self.create, NewMultilingualGlossary),
            ("GET", v3, self.list_all, None),
            ("GET", v3 + ONE, self.get, None),
            ("PATCH", v3 + ONE, self.patch, GlossaryChange),
            ("DELETE", v3 + ONE, self.delete, None),
            ("GET", v3 + ONE + "/entries", self.entries, None),
            ("PUT", v3 + ONE + "/dictionaries", self.replace, NewDictionary),
            ("DELETE", v3 + ONE + "/dictionaries", self.delete_dictionary, None),
            ("POST", "/v2/write/rephrase", self.write, WriteRequest),
            ("POST", "/v2/write/correct", self.write, WriteRequest),
        ]
        for method, path, route, kind in rows:
            examples = {"a text": EXAMPLE} if kind is TextRequest else None
            add_routes(app, "DeepL", (method, path, route, description(kind, examples)))

    # ---- the owner of a request, and its languages

    def owner(self, request: Request) -> str:
        """Return the owner of a request's glossaries and documents; raise HTTPException 403 without
        a key that the server knows."""
        try:
            return self.service.owner(request.headers)
        except HTTPException:
            raise HTTPException(
                403, "this server does not know the key: send Authorization: DeepL-Auth-Key KEY"
            ) from None

    def glossaries(self, request: Request) -> DeepLGlossaries:
        """Return the glossaries of a request's owner."""
        return self.glossaries_of(self.owner(request))

    async def read(self, kind: type[Kind], request: Request) -> Kind:
        """Return the body of a request whose key is right (raises UsageError)."""
        return read(kind, await self.fields(request))

    async def fields(self, request: Request) -> Form:
        """Return the fields of a request whose key is right (raises UsageError)."""
        self.owner(request)
        return nested(await fields_of(request, self.service.settings, NO_OBJECT, LISTS))

    async def pair_of(self, text: str, source: str | None, target: str) -> tuple[Pair, str]:
        """Return the languages of a text and of its translation as the models name them, equal if
        no translation is needed, and the first as DeepL names it. source: None if it is to be
        detected. Errors: UsageError."""
        pairs = self.service.pairs()
        targets = matching(target, [t for _, t in pairs])
        if not targets:
            raise unsupported("target_lang", target)
        if source:
            sources = matching(source, [s for s, _ in pairs])
        else:
            found = await run_in_threadpool(candidates, [text], self.service.codes())
            sources = likely(found, target)
        first = source or sources[0]
        if two_letters(first) == two_letters(target):
            return (first, first), base(source or two_letters(first)).upper()
        if not sources:
            raise unsupported("source_lang", first)
        for pair in ((s, t) for s in sources for t in targets):
            if pair in pairs:
                return pair, two_letters(pair[0]).upper()
        raise UsageError(
            f"no model translates from {name_of(sources[0])} to {name_of(target)}: GET "
            "/v2/languages says what is translated"
        )

    def terms(self, request: Request, what: Translation) -> dict[GlossaryFile, str]:
        """Return the glossaries of a request, with their names for messages (raises UsageError,
        Missing)."""
        named = [*([what.glossary_id] if what.glossary_id else []), *what.glossary_ids]
        if named and not what.source_lang:
            raise UsageError("a glossary needs the language of the text: add source_lang")
        kept, found = self.glossaries(request), dict[GlossaryFile, str]()
        pair = base(what.source_lang or ""), base(what.target_lang)
        for identifier in dict.fromkeys(named):
            glossary = kept.get(identifier)
            if glossary.find(pair) is None:
                raise UsageError(
                    f"the glossary '{cut(glossary.name)}' has no dictionary from "
                    f"{direction(pair)}: name one that has"
                )
            found[kept.file(glossary, pair)] = f"glossary '{cut(glossary.name)}'"
        return found

    # ---- texts

    async def translate(self, request: Request) -> object:
        """Translate texts."""
        what = await self.read(TextRequest, request)
        what.refuse()
        if not what.text:
            raise UsageError("Parameter 'text' not specified")
        if len(what.text) > (most := self.service.settings.max_lines):
            raise UsageError(f"{len(what.text)} texts are more than {most}: send fewer at once")
        terms = self.terms(request, what)
        texts = await self.service.read_in_time(
            lambda: [Tagged.from_text(text, what, [*terms]) for text in what.text]
        )
        found = [await self.pair_of(each, what.source_lang, what.target_lang) for each in what.text]
        out = list(what.text)
        for pair in {pair: None for pair, _ in found if pair[0] != pair[1]}:
            places = [i for i, (each, _) in enumerate(found) if each == pair]
            answers = await self.service.answered(request, [texts[i].text for i in places], pair)
            for i, answer in zip(places, answers, strict=True):
                if isinstance(answer, UsageError):
                    said = str(answer)
                    for file, name in terms.items():
                        said = with_name(said, file.path, name)
                    raise UsageError(said)
                out[i] = texts[i].read(answer.text)
        self.characters[self.owner(request)] += sum(map(len, what.text))
        used = what.model_type.removeprefix("prefer_")
        return {
            "translations": [
                {
                    "detected_source_language": source,
                    "text": text,
                    **({"billed_characters": len(given)} if what.show_billed_characters else {}),
                    **({"model_type_used": used} if used else {}),
                }
                for given, text, (_, source) in zip(what.text, out, found, strict=True)
            ]
        }

    async def languages(self, request: Request) -> object:
        """List the languages. With type=target, those that texts are translated into."""
        what = await self.read(LanguageType, request)
        pairs = self.service.pairs()
        is_target = what.type == "target"
        codes = {
            code
            for source, target in pairs
            for code in (target_codes(target) if is_target else [two_letters(source).upper()])
        }
        more = {"supports_formality": False} if is_target else {}
        return [{"language": code, "name": full_name(code), **more} for code in sorted(codes)]

    async def usage(self, request: Request) -> object:
        """Count the characters that were sent. Since the server has started."""
        count = self.characters[self.owner(request)]
        return {"character_count": count, "character_limit": UNLIMITED}

    async def write(self, request: Request) -> object:
        """Improve a text. No model here can."""
        target = (await self.read(WriteRequest, request)).target_lang or "texts"
        raise UsageError(f"Value for 'target_lang' not supported: no model improves {cut(target)}")

    # ---- documents

    async def upload(self, request: Request) -> object:
        """Translate a document. The answer has its identifier and key."""
        what = await self.read(DocumentRequest, request)
        what.refuse()
        name = file_name(what.filename or what.file.filename or "")
        ending = PurePath(name).suffix.lower()
        if ending not in ENDINGS:
            raise UsageError(
                f"the file extension of {cut(name)!r} is not supported: send one of "
                f"{', '.join(sorted(ENDINGS))}"
            )
        if what.output_format and f".{what.output_format.lower()}" != ending:
            raise unsupported("output_format", what.output_format)
        terms = self.terms(request, what)
        async with self.documents.adding(self.owner(request), name, what.file) as document:
            text = "" if what.source_lang else await self.documents.beginning(document)
            pair, _ = await self.pair_of(text, what.source_lang, what.target_lang)
        document.task = asyncio.ensure_future(self.documents.run(document, pair, [*terms]))
        return {"document_id": document.id, "document_key": document.key}

    async def document(self, document_id: str, request: Request) -> Document:
        """Return the document of a request."""
        key = (await self.read(DocumentKey, request)).document_key
        return self.documents.get(document_id, key, self.owner(request))

    async def document_status(self, document_id: str, request: Request) -> object:
        """Say how far a document is."""
        found = await self.document(document_id, request)
        out: dict[str, object] = {"document_id": found.id, "status": found.status}
        if found.seconds_left is not None:
            out["seconds_remaining"] = round(found.seconds_left)
        if found.status == "done":
            out["billed_characters"] = found.characters
        if found.status == "error":
            out["error_message"] = out["message"] = found.message
        return out

    async def download(self, document_id: str, request: Request) -> object:
        """Fetch a translated document. It is deleted then."""
        found = await self.document(document_id, request)
        if found.status == "error":
            raise UsageError(f"the document was not translated: {found.message}")
        if found.status != "done":
            raise HTTPException(503, "the document is not translated yet: send the request again")
        self.characters[found.owner] += found.characters
        self.documents.documents.pop(found.id, None)
        return FileResponse(
            found.output,
            filename=found.name,
            media_type="application/octet-stream",
            background=BackgroundTask(shutil.rmtree, found.folder, ignore_errors=True),
        )

    # ---- glossaries of one dictionary, and of several

    async def glossary_pairs(self, request: Request) -> object:
        """List the pairs of languages of glossaries."""
        self.owner(request)
        pairs = permutations(LISTED, 2)
        return {"supported_languages": [{"source_lang": s, "target_lang": t} for s, t in pairs]}

    async def create(self, request: Request) -> object:
        """Create a glossary: in /v2 of one dictionary. HTTPException 456 if the owner has
        `MOST_GLOSSARIES` already."""
        kept = self.glossaries(request)
        is_alone = of_one(request)
        kind: type[NewGlossary | NewMultilingualGlossary] = (
            NewGlossary if is_alone else NewMultilingualGlossary
        )
        what = await self.read(kind, request)
        dictionaries = what.read()
        if len(await run_in_threadpool(kept.all)) >= MOST_GLOSSARIES:
            raise HTTPException(
                QUOTA, f"there are {MOST_GLOSSARIES} glossaries already: delete one first"
            )
        found = await run_in_threadpool(kept.create, what.name, dictionaries)
        return JSONResponse(found.shown(is_alone), 201)

    async def list_all(self, request: Request) -> object:
        """List the glossaries: in /v2 those of one dictionary."""
        found = await run_in_threadpool(self.glossaries(request).all)
        is_alone = of_one(request)
        shown = [g.shown(is_alone) for g in found if len(g.dictionaries) == 1 or not is_alone]
        return {"glossaries": shown}

    async def get(self, glossary_id: str, request: Request) -> object:
        """Describe a glossary."""
        found, is_alone = self.glossaries(request).get(glossary_id), of_one(request)
        return (found.of_one_dictionary() if is_alone else found).shown(is_alone)

    async def entries_of_one(self, glossary_id: str, request: Request) -> Response:
        """Read the entries of a glossary of one dictionary. As TSV, or as CSV where the header
        Accept says so; HTTPException 415 for anything else."""
        kept = self.glossaries(request)
        found = kept.get(glossary_id).of_one_dictionary()
        entries = kept.entries(found, found.dictionaries[0].pair)
        accepted = request.headers.get("accept", "*/*").lower()
        for kind, write in (("text/tab-separated-values", tsv), ("text/csv", csv_text)):
            if kind in accepted or "*/*" in accepted or "text/*" in accepted:
                return Response(write(entries), media_type=f"{kind}; charset=utf-8")
        raise HTTPException(415, "entries are text/tab-separated-values or text/csv: accept one")

    async def delete(self, glossary_id: str, request: Request) -> Response:
        """Delete a glossary."""
        await run_in_threadpool(self.glossaries(request).delete, glossary_id)
        return Response(status_code=204)

    async def patch(self, glossary_id: str, request: Request) -> object:
        """Rename a glossary, or add entries to its dictionaries."""
        kept = self.glossaries(request)
        what = await self.read(GlossaryChange, request)
        if what.name is None and not what.dictionaries:
            raise UsageError("nothing is to be changed: send a name or dictionaries")
        found = await run_in_threadpool(kept.change, glossary_id, what.name, what.read(), True)
        return found.shown()

    async def entries(self, glossary_id: str, request: Request) -> object:
        """Read the entries of a glossary. Of one dictionary where source_lang and target_lang
        name it, else of all."""
        kept, fields = self.glossaries(request), await self.fields(request)
        found = kept.get(glossary_id)
        is_one = {"source_lang", "target_lang"} & {*fields}
        pairs = [read(PairOf, fields).pair()] if is_one else [d.pair for d in found.dictionaries]
        return {
            "dictionaries": [
                {
                    "source_lang": pair[0],
                    "target_lang": pair[1],
                    "entries": tsv(kept.entries(found, pair)),
                    "entries_format": "tsv",
                }
                for pair in pairs
            ]
        }

    async def replace(self, glossary_id: str, request: Request) -> object:
        """Replace a dictionary of a glossary, or add one."""
        kept = self.glossaries(request)
        what = await self.read(NewDictionary, request)
        found = await run_in_threadpool(kept.change, glossary_id, None, what.read(), False)
        return kept.dictionary(found, what.pair()).shown()

    async def delete_dictionary(self, glossary_id: str, request: Request) -> Response:
        """Delete a dictionary of a glossary."""
        kept = self.glossaries(request)
        pair = (await self.read(PairOf, request)).pair()
        await run_in_threadpool(kept.delete_dictionary, glossary_id, pair)
        return Response(status_code=204)


def of_one(request: Request) -> bool:
    """Return whether a request is for glossaries of one dictionary, as they are in /v2."""
    return request.url.path.startswith("/v2")
