"""Texts of DeepL's API as text/ reads them, with what its options say of sentences and tags.

Elements that are not translated get a mark that says so, which is taken out of the translation.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_ext.search.request import GlossaryFile, Request
from fairseq_ext.serve.deepl_requests import TextRequest
from fairseq_ext.serve.records import Text
from fairseq_ext.text.xml_tokens import Xml

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
        request, splits = Request(source=text, glossaries=tuple(files)), what.split_sentences != "0"
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
