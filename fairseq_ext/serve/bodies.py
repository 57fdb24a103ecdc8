"""Bodies of requests: JSON and forms, all of them UTF-8, and the pydantic models that check them.

What is wrong is one sentence (UsageError).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.search.constraints.lines import TOO_DEEP, json_error, refuse_duplicate_keys
from fairseq_ext.serve import Settings
from fairseq_ext.serve.guard import read_body

LARGE = 1 << 16  # bytes of a body that takes long enough for others to be served meanwhile
MOST_FIELDS = 1000  # of a form
LONGEST_NAME = 200  # bytes of a file's name; file systems take 255, and ours is put behind an id
KEY = re.compile(rb'"api_key"\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*")', re.DOTALL)
UTF_8 = ("", "utf-8", "utf8", "us-ascii", "ascii")  # charsets that a form may name

Form = dict[str, Any]  # fields by name: texts, files, lists of texts
Read = TypeVar("Read")
Model = TypeVar("Model", bound=BaseModel)


async def apart(read: Callable[..., Read], body: bytes, *more: object) -> Read:
    """Return the result of `read` for a body; a large one is read in a thread."""
    return read(body, *more) if len(body) < LARGE else await run_in_threadpool(read, body, *more)


# ---- JSON


def read_json(body: bytes) -> Any:
    """Return the JSON value of a body (raises UsageError)."""
    try:
        value = DECODER.decode(text := utf_8(body, "the body"))
    except UsageError:
        raise
    except RecursionError:  # at a depth that depends on how deep this function is called
        raise UsageError(f"the body {TOO_DEEP}") from None
    except ValueError as error:
        raise UsageError(f"the body is not valid JSON ({error}): correct it") from None
    if (found := json_error(value)) is not None:
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
    """Refuse NaN and infinities, which are not JSON."""
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(
    object_pairs_hook=refuse_duplicate_keys("the request"), parse_constant=refuse_constant
)


def key_in(body: bytes) -> str | None:
    """Return the text of "api_key" in a JSON body, which is not parsed: its sender is not known
    yet."""
    found = KEY.search(body)
    try:
        return None if found is None else json.loads(found[1])
    except ValueError:
        return None


# ---- Forms


def utf_8(content: bytes, what: str) -> str:
    """Return the text of bytes; what: for the message (raises UsageError)."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{what} is not valid UTF-8 (byte {error.start + 1}): send it as UTF-8"
        ) from None


def urlencoded(content: bytes, what: str, lists: Collection[str] = ()) -> Form:
    """Return the fields of an urlencoded form or of a query; lists: as for `once` (raises
    UsageError)."""
    text = utf_8(content, what)
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except UnicodeDecodeError:
        raise UsageError(
            f"{what} is not valid UTF-8 behind its percent signs: send it as UTF-8"
        ) from None
    except ValueError:
        raise UsageError(f"{what} has more than {MOST_FIELDS} fields: send fewer") from None
    return once(pairs, what, lists)


def once(pairs: Sequence[tuple[str, object]], what: str, lists: Collection[str] = ()) -> Form:
    """Return the fields by name; UsageError where two have the same. lists: names of fields that
    may come several times, whose values are lists."""
    found: Form = {}
    for name, value in pairs:
        if name in lists:
            value = [*found.pop(name, []), value]
        if name in found:
            raise UsageError(f"{what} has the field '{cut(name)}' twice: send it once")
        found[name] = value
    return found


def is_json(headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether a body is JSON by its header, or has none."""
    kind = content_type(headers)
    return kind == "application/json" or bool(body and not kind)


def content_type(headers: Mapping[str, str]) -> str:
    """Return the type of a body without its parameters; "" if its header does not say it."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_form(headers: Mapping[str, str], body: bytes, lists: Collection[str] = ()) -> Form:
    """Return the fields of a form, texts and UploadFiles; it counts as urlencoded unless its header
    says multipart. lists: as for `once` (raises UsageError)."""
    kind, options = parse_options_header(headers.get("content-type", ""))
    charset = options.get(b"charset", b"").decode("latin-1").lower()
    if charset not in UTF_8:
        raise UsageError(f"the form is in the charset '{cut(charset)}': send it as UTF-8")
    if kind != b"multipart/form-data":
        return await apart(urlencoded, body, "the form", lists)
    boundary = options.get(b"boundary", b"").replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    # subtle: starlette reads what is not UTF-8 as Latin-1 without a word; as Latin-1 it reads
    # every byte as it is
    header = b'multipart/form-data; charset=latin-1; boundary="' + boundary + b'"'

    async def in_one_part() -> AsyncGenerator[bytes, None]:
        yield body

    try:
        if not boundary:
            raise MultiPartException("its header has no boundary")
        given = await MultiPartParser(
            Headers(raw=[(b"content-type", header)]), in_one_part(), max_fields=MOST_FIELDS
        ).parse()
    except (MultiPartException, ValueError) as error:
        why = cut(str(getattr(error, "message", error)).rstrip("."))
        raise UsageError(f"the form cannot be read ({why}): send multipart/form-data") from None

    def text(value: str) -> str:
        return utf_8(value.encode("latin-1"), "the form")

    pairs: list[tuple[str, object]] = []
    for name, value in given.multi_items():
        if isinstance(value, UploadFile):
            value.filename = text(value.filename or "")
        pairs.append((text(name), text(value) if isinstance(value, str) else value))
    return once(pairs, "the form", lists)


async def fields_of(
    request: Request,
    settings: Settings,
    no_object: str,
    lists: Collection[str] = (),
    admit: Callable[[bytes], object] = lambda body: None,
) -> Form:
    """Return the fields of a request: of its query and of its body, JSON or a form.

    no_object: what is said of other JSON; lists: as for `once`; admit: called with JSON before it
    is parsed. Errors: UsageError, those of `read_body` and `admit`.
    """
    found = urlencoded(request.scope["query_string"], "the query", lists)
    body = await read_body(request, settings)
    if not is_json(request.headers, body):
        return found | await read_form(request.headers, body, lists)
    admit(body)
    given = await apart(read_json, body) if body else {}
    if not isinstance(given, dict):
        raise UsageError(no_object)
    return found | given


def file_name(path: str) -> str:
    """Return the name of a file that a client has sent, without its folders (raises UsageError)."""
    name = PurePath(path.replace("\\", "/")).name
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise UsageError("a file name has a control character: rename the file")
    if (size := len(name.encode())) > LONGEST_NAME:
        raise UsageError(f"a file name has {size} bytes and may have {LONGEST_NAME}: shorten it")
    return name


# ---- Models of requests


def checked(
    kind: type[Model], value: object, sentence: Callable[[str, str], str], where: str = ""
) -> Model:
    """Return a value as the model of a request.

    sentence: what is said of a field and the kind of its error, by pydantic's names; a validator
    of the model may raise UsageError itself. where: the validators' context.
    """
    try:
        return kind.model_validate(value, context=where)
    except ValidationError as error:
        # an unknown field comes first: it may be another's wrong name
        found = min(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
        own = found.get("ctx", {}).get("error")
        field = str(found["loc"][0]) if found["loc"] else ""
        raise (
            own if isinstance(own, UsageError) else UsageError(sentence(field, found["type"]))
        ) from None


FORM = "application/x-www-form-urlencoded"


def described(
    schema: Mapping[str, object],
    examples: Mapping[str, object] | None = None,
    kinds: Sequence[str] = ("application/json",),
) -> dict[str, object]:
    """Return the description of a body for the documentation, as a keyword of a route. examples: of
    the JSON; kinds: its content types."""
    content: dict[str, object] = {kind: {"schema": schema} for kind in kinds}
    if examples:
        shown = {name: {"value": value} for name, value in examples.items()}
        content[kinds[0]] = {"schema": schema, "examples": shown}
    return {"openapi_extra": {"requestBody": {"required": True, "content": content}}}


def description(
    kind: type[BaseModel] | None, examples: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return the description of a JSON body that may come as a form, one with a file as a form
    alone; None: there is no body."""
    if kind is None:
        return {}
    schema = kind.model_json_schema()
    if parts := schema.pop("$defs", None):  # Swagger looks for them elsewhere
        schema["properties"]["dictionaries"]["items"] = parts["NewDictionary"]
    is_upload = "file" in kind.model_fields
    kinds = ["multipart/form-data"] if is_upload else ["application/json", FORM]
    return described(schema, examples, kinds)
