"""Requests of DeepL's API as pydantic models, and the fields that they are read from.

Unknown fields are ignored, as DeepL does.
"""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from fastapi import UploadFile
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.core.language_codes import name_of, two_letters
from fairseq_ext.search.request import GlossaryFile
from fairseq_ext.search.request import Request as Sentence
from fairseq_ext.serve.bodies import Form, checked
from fairseq_ext.serve.glossaries import LONGEST, Entries, direction, read_entries
from fairseq_ext.serve.libretranslate import Candidate
from fairseq_ext.serve.models import Pair
from fairseq_ext.serve.records import Text
from fairseq_ext.text.xml_tokens import Xml


def split_at_commas(value: object) -> object:
    """Return a list of names from items that may be several, separated by commas."""
    values = as_list(value)
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        return values
    return [name for each in values for name in map(str.strip, each.split(",")) if name]


def as_list(value: object) -> object:
    """Return a list of one or several values."""
    return [value] if isinstance(value, str) else value


def lower(value: object) -> object:
    """Return a word in lower case; a whole number as a word."""
    return str(value).lower() if isinstance(value, str) or type(value) is int else value


def short(name: str) -> str:
    """Return the name of a glossary (raises UsageError for one that is too long)."""
    if (size := len(name.encode())) > LONGEST:
        raise UsageError(f"the glossary's name has {size} bytes and may have {LONGEST}: shorten it")
    return name


Names = Annotated[list[str], BeforeValidator(split_at_commas)]
Texts = Annotated[list[str], BeforeValidator(as_list)]
Name = Annotated[str, Field(min_length=1)]
GlossaryName = Annotated[Name, AfterValidator(short)]


class Translation(BaseModel):
    """The common fields of requests for texts and for documents."""

    target_lang: Name
    source_lang: str | None = None
    formality: Annotated[
        Literal["default", "prefer_less", "prefer_more", "less", "more"], BeforeValidator(lower)
    ] = "default"
    glossary_id: str | None = None
    glossary_ids: Annotated[Names, Field(max_length=5)] = []
    style_id: str | None = None
    translation_memory_id: str | None = None

    def refuse(self) -> None:
        """Raise UsageError for a request that the models here cannot serve."""
        others = "style_id", "translation_memory_id", "custom_instructions"
        refused = ["formality"] * (self.formality in ("less", "more"))
        for name in refused + [each for each in others if getattr(self, each, None)]:
            target = cut(self.target_lang.upper())
            raise UsageError(f"'{name}' is not supported for the target_lang {target}")


class TextRequest(Translation):
    """A request to translate texts."""

    text: Texts
    split_sentences: Annotated[Literal["0", "1", "nonewlines"], BeforeValidator(lower)] = "1"
    preserve_formatting: bool = False
    tag_handling: Literal["", "xml", "html"] = ""
    tag_handling_version: Literal["v1", "v2"] = "v2"
    outline_detection: bool = True
    non_splitting_tags: Names = []
    splitting_tags: Names = []
    ignore_tags: Names = []
    context: str = ""
    custom_instructions: Texts = []
    model_type: Literal[
        "", "latency_optimized", "quality_optimized", "prefer_quality_optimized"
    ] = ""
    show_billed_characters: bool = False


class WriteRequest(BaseModel):
    """A request to improve a text."""

    target_lang: str = ""


class DocumentRequest(Translation):
    """A request to translate a document."""

    file: UploadFile
    filename: str | None = None
    output_format: str | None = None


class DocumentKey(BaseModel):
    """The answer to an upload."""

    document_key: str


class LanguageType(BaseModel):
    """The choice of listed languages."""

    type: Literal["source", "target"] = "source"


class PairOf(BaseModel):
    """The pair of a dictionary."""

    source_lang: str
    target_lang: str

    def pair(self) -> Pair:
        """Return its languages without regions (raises UsageError)."""
        found = base(self.source_lang), base(self.target_lang)
        for name, code in zip(("source_lang", "target_lang"), found, strict=True):
            if code not in CODES:
                raise unsupported(name, getattr(self, name))
        if found[0] == found[1]:
            raise UsageError(f"a dictionary from {found[0].upper()} to itself: name two languages")
        return found


class NewDictionary(PairOf):
    """A dictionary as it is sent."""

    entries: str
    entries_format: Annotated[Literal["tsv", "csv"], BeforeValidator(lower)] = "tsv"

    def read(self) -> dict[Pair, Entries]:
        """Return the entries by their pair (raises UsageError)."""
        pair = self.pair()
        return {pair: read_entries(self.entries, self.entries_format, pair)}


class NewGlossary(NewDictionary):
    """A glossary of one dictionary."""

    name: GlossaryName


class GlossaryChange(BaseModel):
    """The changes of a glossary of several dictionaries."""

    name: GlossaryName | None = None
    dictionaries: list[NewDictionary] = []

    def read(self) -> dict[Pair, Entries]:
        """Return the entries of the changed dictionaries by their pairs (raises UsageError)."""
        found: dict[Pair, Entries] = {}
        for each in self.dictionaries:
            if (pair := each.pair()) in found:
                raise UsageError(f"two dictionaries from {direction(pair)}: send one")
            found |= each.read()
        return found


class NewMultilingualGlossary(GlossaryChange):
    """A glossary of several dictionaries."""

    name: GlossaryName  # type: ignore[assignment]
    dictionaries: Annotated[list[NewDictionary], Field(min_length=1)]


Kind = TypeVar("Kind", bound=BaseModel)
# fields of forms that may come several times
LISTS = frozenset(
    name
    for name, field in TextRequest.model_fields.items()
    if getattr(field.annotation, "__origin__", None) is list
)
NESTED = re.compile(r"dictionaries\[(\d{1,3})\][.\[](\w+)\]?")


def unsupported(name: str, value: object) -> UsageError:
    """Return the error of an unknown value."""
    return UsageError(f"Value for '{name}' not supported: {cut(str(value))}")


def read(kind: type[Kind], fields: Form) -> Kind:
    """Return the request of these fields (raises UsageError)."""

    def sentence(name: str, why: str) -> str:
        if why == "missing":
            return f"Parameter '{name}' not specified"
        return str(unsupported(name, fields.get(name)))

    return checked(kind, {k: v for k, v in fields.items() if v is not None}, sentence)


def nested(fields: Form) -> Form:
    """Return the fields, where a form's `dictionaries[0].source_lang` is one of a list's item."""
    out: Form = {}
    items: dict[int, Form] = defaultdict(dict)
    for name, value in fields.items():
        if found := NESTED.fullmatch(name):
            items[int(found[1])][found[2]] = value
        else:
            out[name] = value
    return out | ({"dictionaries": [items[i] for i in sorted(items)]} if items else {})


# ---- Codes of languages as DeepL's API has them: upper case, with a region for some targets

# those that DeepL names, without regions
CODES = frozenset(
    (
        "ace af an ar as ay az ba be bg bho bn br bs ca ceb ckb cs cy da de el en eo es et eu "
        "fa fi fr ga gl gn gom gu ha he hi hr ht hu hy id ig is it ja jv ka kk kmr ko ky la "
        "lb lmo ln lt lv mai mg mi mk ml mn mr ms mt my nb ne nl oc om pa pag pam pl prs ps "
        "pt qu ro ru sa scn sk sl sq sr st su sv sw ta te tg th tk tl tn tr ts tt uk ur uz vi "
        "wo xh yi yue zh zu"
    ).split()
)
# those whose glossaries DeepL lists; a glossary of any two that it names is kept
LISTED = (
    "ar bg cs da de el en es et fi fr he hu id it ja ko lt lv nb nl pl pt ro ru sk sl sv th tr uk "
    "vi zh"
).split()
CONFIDENCE = 60.0  # per cent, from which a text counts as one in the target language
REGIONS = {"GB": "British", "US": "American", "BR": "Brazilian", "PT": "European"}
# targets that clients name with a region only
REGIONAL = {"en": ("EN-GB", "EN-US"), "pt": ("PT-BR", "PT-PT")}


def plain(code: str) -> str:
    """Return a code in lower case, its parts joined by hyphens."""
    return code.replace("_", "-").lower()


def base(code: str) -> str:
    """Return a code of DeepL's without its region, in lower case."""
    return plain(code).partition("-")[0]


def matching(code: str, served: Sequence[str]) -> list[str]:
    """Return the models' codes for a code of DeepL's: the same code, else all of its language."""
    return [each for each in served if plain(each) == plain(code)] or [
        each for each in served if two_letters(each) == two_letters(code)
    ]


def likely(ranked: Sequence[Candidate], target: str) -> list[str]:
    """Return the languages that a text may be in, the likeliest first. ranked: from `candidates`.

    A few words may be of several languages. Their sender wants a translation, so the target
    language is one of them only from a confidence of `CONFIDENCE`.
    """
    found = [each["language"] for each in ranked]
    others = [code for code in found if two_letters(code) != two_letters(target)]
    is_sure = found[0] in others or ranked[0]["confidence"] >= CONFIDENCE
    return found if is_sure or not others else others


def target_codes(code: str) -> Sequence[str]:
    """Return DeepL's codes of a model's target language: of each of its regions, if it has some."""
    language = two_letters(code)
    if language not in REGIONAL:
        return [language.upper()]
    exact = plain(code).upper()
    return [exact] if exact in REGIONAL[language] else REGIONAL[language]


def full_name(code: str) -> str:
    """Return the name of a code of DeepL's in English, with its region."""
    region = REGIONS.get(code.partition("-")[2])
    return name_of(code) + (f" ({region})" if region else "")


# ---- Texts of DeepL's API as text/ reads them, with what its options say of sentences and tags
#
# Elements that are not translated get a mark that says so, which is taken out of the translation.


ROOT = "deepl-text"  # the element that is put around XML, which may have several roots or none


@dataclass
class Tagged:
    """A text as the engine gets it. mark: what is added to the tags of elements that are not
    translated."""

    text: Text
    mark: str = ""
    is_wrapped: bool = False

    @classmethod
    def from_text(cls, text: str, what: TextRequest, files: Sequence[GlossaryFile] = ()) -> Tagged:
        """Return a text of a request, for translation with these glossaries (raises UsageError for
        XML that is not well-formed)."""
        mark, is_wrapped, inline = "", False, None
        if what.tag_handling == "" and what.split_sentences != "1":
            text = " ".join(text.splitlines())
        if what.tag_handling and what.ignore_tags:
            text, mark = protected(text, what.ignore_tags, what.tag_handling)
        if what.tag_handling == "xml":
            is_wrapped = not text.lstrip().startswith(("<?xml", "<!DOCTYPE"))
            text = f"<{ROOT}>{text}</{ROOT}>" if is_wrapped else text
            if not what.outline_detection or what.splitting_tags or what.non_splitting_tags:
                inline = inline_names(text, what)
        request = Sentence(source=text, glossaries=tuple(files))
        splits = what.split_sentences != "0"
        whole = Text(request, what.tag_handling or "text", splits, inline)
        return cls(whole, mark, is_wrapped)

    def read(self, translation: str) -> str:
        """Return a translation without the additions to its source."""
        if self.is_wrapped:
            translation = translation[len(ROOT) + 2 : -len(ROOT) - 3]
        return translation.replace(self.mark, "") if self.mark else translation


def protected(text: str, names: Sequence[str], format: str) -> tuple[str, str]:
    """Return the text with a mark on elements of these names that they are not translated, and the
    mark."""
    while (token := f"x{uuid.uuid4().hex}") in text:
        pass
    mark = f' translate="no" {token}=""' if format == "xml" else f" translate=no {token}"
    tag = re.compile(
        rf"<(?:{'|'.join(map(re.escape, names))})(?=[\s/>])(?![^<>]*\stranslate\s*=)",
        re.IGNORECASE if format == "html" else 0,
    )
    return tag.sub(lambda found: found[0] + mark, text), mark


def inline_names(text: str, what: TextRequest) -> set[str]:
    """Return the names of the elements of XML that do not separate sentences.

    Without outline detection these are all but the splitting tags; with it, those of elements that
    stand next to text, and the non-splitting tags, but no splitting tag. Errors: UsageError for
    what is not well-formed.
    """
    xml = Xml(text, "the XML")
    *elements, _ = xml.partners  # the root ends last
    among = xml.among_text() if what.outline_detection else elements
    found = {xml.tokens[number].name for number in among}
    return found.union(what.non_splitting_tags).difference(what.splitting_tags)
