"""DeepL's API, so that its clients work (https://developers.deepl.com/docs): `POST /v2/translate`,
`/v2/document`, `GET /v2/languages`, `/v2/usage`, and glossaries as `/v2/glossaries` and
`/v3/glossaries`. Bodies are JSON or forms; an error is `{"message": "one sentence"}`.

Texts, documents and terms go the way of all others: through the models, the readers of text/, and
the engine's glossaries. Each key has glossaries and documents of its own; without keys there is one
owner. Unknown fields are ignored, as DeepL does.
"""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from itertools import permutations
from pathlib import PurePath
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse
from starlette.background import BackgroundTask

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.core.language_codes import name_of, two_letters
from fairseq_ext.engine.jobs import GlossaryFile
from fairseq_ext.serve import default_folder
from fairseq_ext.serve.bodies import file_name
from fairseq_ext.serve.deepl_glossaries import (
    DeepLGlossaries,
    Glossary,
    csv_text,
    tsv,
)
from fairseq_ext.serve.deepl_requests import (
    LISTED,
    DocumentKey,
    DocumentRequest,
    GlossaryChange,
    Kind,
    LanguageType,
    NewDictionary,
    NewGlossary,
    NewMultilingualGlossary,
    PairOf,
    TextRequest,
    Translation,
    WriteRequest,
    base,
    description,
    fields_of,
    full_name,
    likely,
    matching,
    read,
    target_codes,
    unsupported,
)
from fairseq_ext.serve.deepl_texts import Tagged
from fairseq_ext.serve.documents import Documents
from fairseq_ext.serve.glossaries import with_name
from fairseq_ext.serve.libretranslate import candidates
from fairseq_ext.serve.models import Pair
from fairseq_ext.serve.service import Service, add_routes
from fairseq_ext.text.files import ENDINGS

UNLIMITED = 1_000_000_000_000  # what DeepL says of an account without a limit
MOST_GLOSSARIES = 1000  # of an owner, as in DeepL's API
QUOTA = 456  # the status of DeepL's API for a limit of an account


class DeepL:
    """The routes of DeepL's API, over a service."""

    def __init__(self, service: Service):
        self.service = service
        self.by_owner: dict[str, DeepLGlossaries] = {}
        self.documents = Documents(service)
        self.characters: Counter[str] = Counter()  # that each owner has sent

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to an application."""
        one, all_of = "/v2/glossaries/{glossary_id}", "/v3/glossaries/{glossary_id}"
        document = "/v2/document/{document_id}"
        add_routes(
            app,
            "DeepL",
            ("POST", "/v2/translate", self.translate, description(TextRequest)),
            ("POST", "/v2/document", self.upload, description(DocumentRequest)),
            ("POST", document, self.document_status, description(DocumentKey)),
            ("POST", document + "/result", self.download, description(DocumentKey)),
            ("GET", "/v2/languages", self.languages, {}),
            ("POST", "/v2/languages", self.languages, description(LanguageType)),
            ("GET", "/v2/usage", self.usage, {}),
            ("POST", "/v2/usage", self.usage, {}),
            ("GET", "/v2/glossary-language-pairs", self.glossary_pairs, {}),
            ("POST", "/v2/glossaries", self.create, description(NewGlossary)),
            ("GET", "/v2/glossaries", self.list_all, {}),
            ("GET", one, self.get, {}),
            ("GET", one + "/entries", self.entries_of_one, {}),
            ("DELETE", one, self.delete, {}),
            ("POST", "/v3/glossaries", self.create, description(NewMultilingualGlossary)),
            ("GET", "/v3/glossaries", self.list_all, {}),
            ("GET", all_of, self.get, {}),
            ("PATCH", all_of, self.patch, description(GlossaryChange)),
            ("DELETE", all_of, self.delete, {}),
            ("GET", all_of + "/entries", self.entries, {}),
            ("PUT", all_of + "/dictionaries", self.replace, description(NewDictionary)),
            ("DELETE", all_of + "/dictionaries", self.delete_dictionary, {}),
            ("POST", "/v2/write/rephrase", self.write, description(WriteRequest)),
            ("POST", "/v2/write/correct", self.write, description(WriteRequest)),
        )

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

    def glossaries(self, owner: str) -> DeepLGlossaries:
        """Return the glossaries of an owner."""
        if owner not in self.by_owner:
            folder = self.service.settings.glossary_folder or default_folder()
            self.by_owner[owner] = DeepLGlossaries(folder / "deepl" / owner)
        return self.by_owner[owner]

    async def read(self, kind: type[Kind], request: Request) -> Kind:
        """Return a request (raises UsageError)."""
        return read(kind, await fields_of(request, self.service.settings))

    async def pair_of(self, text: str, source: str | None, target: str) -> tuple[Pair, str]:
        """Return the languages of a text and of its translation as the models name them, equal if
        no translation is needed, and the first as DeepL names it. source: None if it is to be
        detected. Errors: UsageError."""
        pairs = self.service.pairs()
        targets = matching(target, list(dict.fromkeys(t for _, t in pairs)))
        if not targets:
            raise unsupported("target_lang", target)
        if source:
            sources = matching(source, list(dict.fromkeys(s for s, _ in pairs)))
            if two_letters(source) == two_letters(target):
                return (source, source), base(source).upper()
            if not sources:
                raise unsupported("source_lang", source)
        else:
            found = await run_in_threadpool(candidates, [text], self.service.codes())
            sources = likely(found, target)
            if two_letters(sources[0]) == two_letters(target):
                return (sources[0], sources[0]), two_letters(sources[0]).upper()
        for pair in ((s, t) for s in sources for t in targets):
            if pair in pairs:
                return pair, two_letters(pair[0]).upper()
        raise UsageError(
            f"no model translates from {name_of(sources[0])} to {name_of(target)}: GET "
            "/v2/languages says what is translated"
        )

    def terms(self, owner: str, what: Translation) -> list[tuple[Glossary, GlossaryFile]]:
        """Return the glossaries of a request (raises UsageError, Missing)."""
        named = [*([what.glossary_id] if what.glossary_id else []), *what.glossary_ids]
        if named and not what.source_lang:
            raise UsageError("a glossary needs the language of the text: add source_lang")
        kept = self.glossaries(owner)
        found = []
        for identifier in dict.fromkeys(named):
            glossary = kept.get(identifier)
            pair = base(what.source_lang or ""), base(what.target_lang)
            if glossary.find(pair) is None:
                raise UsageError(
                    f"the glossary '{cut(glossary.name)}' has no dictionary from "
                    f"{' to '.join(code.upper() for code in pair)}: name one that has"
                )
            found.append((glossary, kept.file(glossary, pair)))
        return found

    # ---- texts

    async def translate(self, request: Request) -> Any:
        """Translate texts."""
        owner = self.owner(request)
        what = await self.read(TextRequest, request)
        what.refuse()
        if not what.text:
            raise UsageError("Parameter 'text' not specified")
        if len(what.text) > (most := self.service.settings.max_lines):
            raise UsageError(f"{len(what.text)} texts are more than {most}: send fewer at once")
        terms = self.terms(owner, what)
        files = [file for _, file in terms]
        texts = await self.service.read_in_time(
            lambda: [Tagged.from_text(text, what) for text in what.text]
        )
        found = [await self.pair_of(each, what.source_lang, what.target_lang) for each in what.text]
        out = list(what.text)
        groups: dict[Pair, list[int]] = defaultdict(list)
        for i, (pair, _) in enumerate(found):
            if pair[0] != pair[1]:
                groups[pair].append(i)
        for pair, places in groups.items():
            requests = [{**texts[i].request, "glossaries": files} for i in places]
            answers = await self.service.answered(request, requests, pair)
            for i, answer in zip(places, answers, strict=True):
                if isinstance(answer, UsageError):
                    said = str(answer)
                    for glossary, file in terms:
                        said = with_name(said, file.path, f"glossary '{cut(glossary.name)}'")
                    raise UsageError(said)
                out[i] = texts[i].read(answer.text)
        self.characters[owner] += sum(map(len, what.text))
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

    async def languages(self, request: Request) -> Any:
        """List the languages. With type=target, those that texts are translated into."""
        self.owner(request)
        what = await self.read(LanguageType, request)
        pairs = self.service.pairs()
        if what.type == "source":
            codes = {two_letters(source).upper() for source, _ in pairs}
            return [{"language": code, "name": full_name(code)} for code in sorted(codes)]
        codes = {code for _, target in pairs for code in target_codes(target)}
        return [
            {"language": code, "name": full_name(code), "supports_formality": False}
            for code in sorted(codes)
        ]

    async def usage(self, request: Request) -> Any:
        """Count the characters that were sent. Since the server has started."""
        count = self.characters[self.owner(request)]
        return {"character_count": count, "character_limit": UNLIMITED}

    async def write(self, request: Request) -> Any:
        """Improve a text. No model here can."""
        self.owner(request)
        target = (await self.read(WriteRequest, request)).target_lang or "texts"
        raise UsageError(f"Value for 'target_lang' not supported: no model improves {cut(target)}")

    # ---- documents

    async def upload(self, request: Request) -> Any:
        """Translate a document. The answer has its identifier and key."""
        owner = self.owner(request)
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
        terms = self.terms(owner, what)
        async with self.documents.adding(owner, name, what.file) as document:
            text = "" if what.source_lang else await self.documents.beginning(document)
            pair, _ = await self.pair_of(text, what.source_lang, what.target_lang)
        self.documents.start(document, pair, [file for _, file in terms])
        return {"document_id": document.id, "document_key": document.key}

    async def document_status(self, document_id: str, request: Request) -> Any:
        """Say how far a document is."""
        owner = self.owner(request)
        what = await self.read(DocumentKey, request)
        found = self.documents.get(document_id, what.document_key, owner)
        out: dict[str, Any] = {"document_id": found.id, "status": found.status}
        if found.seconds_left is not None:
            out["seconds_remaining"] = round(found.seconds_left)
        if found.status == "done":
            out["billed_characters"] = found.characters
        if found.status == "error":
            out["error_message"] = out["message"] = found.message
        return out

    async def download(self, document_id: str, request: Request) -> Any:
        """Fetch a translated document. It is deleted then."""
        owner = self.owner(request)
        what = await self.read(DocumentKey, request)
        found = self.documents.get(document_id, what.document_key, owner)
        if found.status == "error":
            raise UsageError(f"the document was not translated: {found.message}")
        if found.status != "done":
            raise HTTPException(503, "the document is not translated yet: send the request again")
        self.characters[owner] += found.characters
        self.documents.documents.pop(found.id, None)
        return FileResponse(
            found.output,
            filename=found.name,
            media_type="application/octet-stream",
            background=BackgroundTask(shutil.rmtree, found.folder, ignore_errors=True),
        )

    # ---- glossaries of one dictionary, and of several

    async def glossary_pairs(self, request: Request) -> Any:
        """List the pairs of languages of glossaries."""
        self.owner(request)
        pairs = permutations(LISTED, 2)
        return {"supported_languages": [{"source_lang": s, "target_lang": t} for s, t in pairs]}

    async def create(self, request: Request) -> Any:
        """Create a glossary: in /v2 of one dictionary. HTTPException 456 if the owner has
        `MOST_GLOSSARIES` already."""
        kept = self.glossaries(self.owner(request))
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

    async def list_all(self, request: Request) -> Any:
        """List the glossaries: in /v2 those of one dictionary."""
        found = await run_in_threadpool(self.glossaries(self.owner(request)).all)
        is_alone = of_one(request)
        shown = [g.shown(is_alone) for g in found if len(g.dictionaries) == 1 or not is_alone]
        return {"glossaries": shown}

    async def get(self, glossary_id: str, request: Request) -> Any:
        """Describe a glossary."""
        found, is_alone = self.glossaries(self.owner(request)).get(glossary_id), of_one(request)
        return (found.of_one_dictionary() if is_alone else found).shown(is_alone)

    async def entries_of_one(self, glossary_id: str, request: Request) -> Response:
        """Read the entries of a glossary of one dictionary. As TSV, or as CSV where the header
        Accept says so; HTTPException 415 for anything else."""
        kept = self.glossaries(self.owner(request))
        found = kept.get(glossary_id).of_one_dictionary()
        entries = kept.entries(found, found.dictionaries[0].pair)
        accepted = request.headers.get("accept", "*/*").lower()
        for kind, write in (("text/tab-separated-values", tsv), ("text/csv", csv_text)):
            if kind in accepted or "*/*" in accepted or "text/*" in accepted:
                return Response(write(entries), media_type=f"{kind}; charset=utf-8")
        raise HTTPException(415, "entries are text/tab-separated-values or text/csv: accept one")

    async def delete(self, glossary_id: str, request: Request) -> Response:
        """Delete a glossary."""
        await run_in_threadpool(self.glossaries(self.owner(request)).delete, glossary_id)
        return Response(status_code=204)

    async def patch(self, glossary_id: str, request: Request) -> Any:
        """Rename a glossary, or add entries to its dictionaries."""
        kept = self.glossaries(self.owner(request))
        what = await self.read(GlossaryChange, request)
        if what.name is None and not what.dictionaries:
            raise UsageError("nothing is to be changed: send a name or dictionaries")
        found = await run_in_threadpool(kept.change, glossary_id, what.name, what.read(), True)
        return found.shown()

    async def entries(self, glossary_id: str, request: Request) -> Any:
        """Read the entries of a glossary. Of one dictionary where source_lang and target_lang
        name it, else of all."""
        kept = self.glossaries(self.owner(request))
        fields = await fields_of(request, self.service.settings)
        found = kept.get(glossary_id)
        one = {"source_lang", "target_lang"} & {*fields}
        pairs = [read(PairOf, fields).pair()] if one else [d.pair for d in found.dictionaries]
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

    async def replace(self, glossary_id: str, request: Request) -> Any:
        """Replace a dictionary of a glossary, or add one."""
        kept = self.glossaries(self.owner(request))
        what = await self.read(NewDictionary, request)
        found = await run_in_threadpool(kept.change, glossary_id, None, what.read(), False)
        return kept.dictionary(found, what.pair()).shown()

    async def delete_dictionary(self, glossary_id: str, request: Request) -> Response:
        """Delete a dictionary of a glossary."""
        kept = self.glossaries(self.owner(request))
        pair = (await self.read(PairOf, request)).pair()
        await run_in_threadpool(kept.delete_dictionary, glossary_id, pair)
        return Response(status_code=204)


def of_one(request: Request) -> bool:
    """Return whether a request is for glossaries of one dictionary, as they are in /v2."""
    return request.url.path.startswith("/v2")
